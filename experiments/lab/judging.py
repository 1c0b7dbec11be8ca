"""Judge the paper's claims by the tables of the study, with one function per claim.

Each function takes the rows of a table and returns what was measured and the verdict on the claim. A missing row raises
LookupError; the table then counts as incomplete.
"""

from typing import NamedTuple

from lab.results import Row, by_strategy
from lab.sources import FULL

import complexity
import numpy as np

# Losses that differ by less than this many nats per row count as identical. Judgement.
IDENTICAL = 1e-4
# Largest acceptable loss of the combined posterior, as a fraction of what single shards lose. Judgement.
SHARE = 0.1
# Uncertainty of the slope of log seconds: slopes move by 0.1 to 0.2 from run to run (README.md).
SLOPE = 0.25

HOLDS, BETTER, NOT = "holds", "holds better", "does not hold, because"


class Found(NamedTuple):
    """What was measured, and the verdict on the claim."""

    measured: str
    verdict: str


def number(row: Row, name: str) -> float:
    return float(row[name])


def column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([number(row, name) for row in rows])


def held(holds: bool, otherwise: str, better: str = "") -> str:
    """The verdict, with the reason if the claim does not hold or holds better than stated."""
    if not holds:
        return f"{NOT} {otherwise}"
    return f"{BETTER}: {better}" if better else HOLDS


# Figure 3


def faster_with_shards(rows: list[Row]) -> Found:
    """At K = 4; the claim is about M = 20."""
    timed = by_strategy([row for row in rows if row["K"] == 4 and "seconds" in row])
    by_shards = {int(row["M"]): row for row in timed["EPVI_sample"]}
    nvi, ours, refined = timed["NVI"][0], by_shards[20], {row["M"]: row for row in timed["EPVI_refined"]}[20]
    whole = number(nvi, "seconds")
    each = ", ".join(f"{whole / number(row, 'seconds'):.1f} (M = {m})" for m, row in by_shards.items())
    times = whole / number(ours, "seconds")
    text = (
        f"{each} times less than NVI's {whole:.1f} s; epvi's defaults, another family:"
        f" {whole / number(refined, 'seconds'):.1f} times at M = 20. In wall time, twenty shards on two cores, NVI on"
        f" one: {number(nvi, 'wall') / number(ours, 'wall'):.1f} times"
    )
    verdict = held(times > 10, "a shard's fit has costs besides its rows")
    return Found(text, f"{verdict}, just" if 10 < times < 11 else verdict)


def same_loss(rows: list[Row]) -> Found:
    found = by_strategy([row for row in rows if row["K"] == 4 and "seconds" in row])
    level = number(found["NVI"][0], "nll")
    gaps, alone = (column(found[name], "nll") - level for name in ("EPVI_sample", "Subposteriors"))
    text = (
        f"{gaps.min():+.1e} to {gaps.max():+.1e} nats per row for M = 2 to 20, of {level:.4f}; single shards lose up to"
        f" {alone.max():.1e}"
    )
    return Found(text, held(np.max(np.abs(gaps)) < SHARE * alone.max(), "it loses much of what single shards lose"))


def faster_with_components(rows: list[Row]) -> Found:
    found = by_strategy([row for row in rows if row["M"] == 10 and "seconds" in row])
    nvi, ours = ({int(row["K"]): row for row in found[name]} for name in ("NVI", "EPVI_sample"))
    whole = {k: number(nvi[k], "seconds") for k in sorted(nvi)}
    times = {k: seconds / number(ours[k], "seconds") for k, seconds in whole.items()}
    away = max(abs(number(ours[k], "nll") - number(nvi[k], "nll")) for k in whole)
    each = ", ".join(f"{ratio:.1f} (K = {k})" for k, ratio in times.items())
    text = f"{each} times less; losses within {away:.1e} nats per row"
    if away > IDENTICAL:
        return Found(text, f"{NOT} the losses differ")
    over = number(ours[8], "local") / (whole[8] / 10)
    why = f"a shard with a tenth of the rows takes {over:.1f} times a tenth of NVI's time (K = 8)"
    return Found(text, held(min(times.values()) > 8, why))


def constant_accuracy(rows: list[Row]) -> Found:
    ours = {int(row["M"]): number(row, "accuracy") for row in by_strategy(rows)["EPVI_sample"] if row["K"] == 4}
    values = [value for m, value in ours.items() if m >= 10]
    text = (
        f"{min(values):.4f} to {max(values):.4f}, {ours[200]:.4f} at M = 200 (simulated rows have a level of their own)"
    )
    return Found(text, held(max(values) - min(values) < 0.002, f"it differs by {max(values) - min(values):.4f}"))


def level_of_accuracy(rows: list[Row]) -> Found:
    found = {name: column(mine, "accuracy") for name, mine in by_strategy(rows).items()}
    ours = found["EPVI_sample"]
    error = float(ours.std(ddof=1)) / len(ours) ** 0.5
    each = ", ".join(f"{name} {values.mean():.4f}" for name, values in found.items())
    text = f"10,000 real rows, ten folds: {each} (standard error {error:.4f})"
    return Found(text, held(abs(ours.mean() - 0.7865) < 2 * error, "these are 10,000 rows, not 5,000,000"))


# Figure 4


def same_as_exact(rows: list[Row]) -> Found:
    found = by_strategy(rows)
    worst = {
        name: float(np.max(np.abs(column(found[name], "nll") - column(found["EPVI_exact"], "nll"))))
        for name in ("EPVI_sample", "EPVI_subset", "EPVI_anchored")
    }
    text = "at most " + ", ".join(f"{gap:.1e} ({name})" for name, gap in worst.items()) + " nats per row away"
    return Found(text, held(max(worst["EPVI_sample"], worst["EPVI_subset"]) < IDENTICAL, "the losses differ"))


def exact_explodes(rows: list[Row]) -> Found:
    """From which size on it is slower than the chain, in epvi and in plain code."""
    shards, components = ([row for row in rows if row[name] == value] for name, value in (("K", 4), ("M", 6)))
    here = overtaken(shards, "M", ""), overtaken(components, "K", "")
    plain = overtaken(shards, "M", ", plain loops"), overtaken(components, "K", ", plain loops")
    last = max((row for row in rows if row["strategy"] == "EPVI_exact"), key=lambda row: int(row["components"]))
    text = (
        f"slower than the chain from M = {here[0]}, K = {here[1]} on; in plain loops M = {plain[0]}, K = {plain[1]};"
        f" {last['components']:,} components take {number(last, 'product'):.1f} s"
    )
    later = "the same, later" if here[0] > 6 or here[1] > 4 else ""
    return Found(text, held(max(here) < float("inf"), "it is never slower than the chain", better=later))


def overtaken(rows: list[Row], size: str, kind: str) -> float:
    """The size from which on the exact product takes longer than the chain of the same kind; inf if it never does."""
    found = by_strategy(rows)
    chain = {row[size]: number(row, "product") for row in found[f"EPVI_sample{kind}"]}
    exact = {int(row[size]): number(row, "product") for row in found[f"EPVI_exact{kind}"]}
    faster = [m for m in exact if exact[m] <= chain[m]]
    return min((m for m in exact if m > max(faster, default=0)), default=float("inf"))


def sample_beats_subset(rows: list[Row]) -> Found:
    """At sizes where pairs keep only R = 500 components; at smaller ones they are exact."""
    found = by_strategy(rows)
    exact, sample, subset = (found[name] for name in ("EPVI_exact", "EPVI_sample", "EPVI_subset"))
    cut = [i for i, row in enumerate(exact) if int(row["components"]) > 500]
    away = [np.abs(column(one, "nll") - column(exact, "nll"))[cut] for one in (sample, subset)]
    times = column(subset, "product")[cut] / column(sample, "product")[cut]
    nearer, faster = int(np.sum(away[0] < away[1])), int(np.sum(times > 1))
    text = (
        f"nearer to the exact loss at {nearer} of {len(cut)} sizes where pairs cut to R = 500 (at most"
        f" {away[0].max():.1e} away, pairs {away[1].max():.1e}), faster at {faster} (by {times.min():.1f} to"
        f" {times.max():.1f})"
    )
    why = f"pairs are as near at {len(cut) - nearer} of {len(cut)} sizes; at the others they are worse"
    return Found(text, held(2 * nearer > len(cut) and 2 * faster > len(cut), why))


# Figure 5


def pairs_of(rows: list[Row], one: str, other: str) -> list[tuple[Row, Row]]:
    """Pairs of rows of two strategies at the same size and on the same data set."""
    key = ("M", "K", "L", "replicate")
    found = by_strategy([row for row in rows if "nll" in row])
    by_key = {tuple(row[name] for name in key): row for row in found[one]}
    return [(by_key[place], row) for row in found[other] if (place := tuple(row[name] for name in key)) in by_key]


def sources_faster(rows: list[Row]) -> Found:
    """Speed-ups for varied M: geometric means over data sets."""
    ratios: dict[int, list[float]] = {}
    for nvi, row in pairs_of(rows, "NVI", "EPVI_sample"):
        if (row["K"], row["L"]) == (4, 3):
            ratios.setdefault(int(row["M"]), []).append(np.log(number(nvi, "seconds") / number(row, "seconds")))
    times = {m: float(np.exp(np.mean(logs))) for m, logs in sorted(ratios.items())}
    text = ", ".join(f"{ratio:.1f} (M = {m})" for m, ratio in times.items()) + " times NVI's speed"
    grows = list(times.values()) == sorted(times.values())
    why = "NVI takes hardly longer for 900 rows than a shard for its part of them"
    return Found(text, held(min(times.values()) > 1 and grows, why))


def sources_alike(rows: list[Row]) -> Found:
    """`excess` is the loss per row minus that of the true parameters."""
    gaps, alone = (
        np.array([number(row, "nll") - number(one, "nll") for one, row in pairs_of(rows, name, "EPVI_sample")])
        for name in ("NVI", "Subposteriors")
    )
    refined = [row for row in rows if row["strategy"] == "EPVI_refined"]
    said = [f"{number(row, 'excess'):+.3f}, {row['verdict']}" if "nll" in row else "refused" for row in refined]
    text = (
        f"{gaps.min():+.2f} to {gaps.max():+.2f} nats per row of 50 columns, median {np.median(gaps):+.2f}, of"
        f" {number(rows[0], 'nll'):.1f}; worse than single shards on average in {np.sum(alone > 0)} of {len(alone)}."
        f" EPVI_refined above the truth: {'; '.join(said)}"
    )
    changes = [f"{one['excess']:.2f} to {row['excess']:.2f}" for one, row in pairs_of(rows, "EPVI_sample", FULL)]
    why = f"spherical fits of few rows do not multiply well here: Full() changes the excess from {', '.join(changes)}"
    return Found(text, held(float(np.max(gaps)) < 0.1 and float(np.mean(alone > 0)) < 0.25, why))


# Section 3.3


def slopes(rows: list[Row], *lines: tuple[str, str]) -> list[float]:
    """Slopes of log seconds against log size, for lines given by panel and product method."""
    full = any(row["way"] == "pairs by chain" for row in rows)
    found = {(line.panel, line.name): line.slope for line in complexity.lines(rows, full)}
    return [found[line] for line in lines]


def exact_cost(rows: list[Row]) -> Found:
    found = slopes(rows, ("M, K = 4", "exact"), ("K, M = 6", "exact"), ("d", "exact"))
    text = f"(K^M)^{found[0]:.2f} with M varied, (K^M)^{found[1]:.2f} with K varied, d^{found[2]:.2f}"
    return Found(text, held(max(found) < 1 + SLOPE, "it grows faster"))


def chain_cost(rows: list[Row]) -> Found:
    plain, *ours = slopes(rows, ("M", "plain"), ("M", "chain"), ("R", "chain"), ("d", "chain"))
    text = f"M^{ours[0]:.2f}, R^{ours[1]:.2f}, d^{ours[2]:.2f}; the paper's formula in plain loops M^{plain:.2f}"
    better = "O(dR), by running sums" if ours[0] < 1 - SLOPE else ""
    return Found(text, held(max(ours) < 1 + SLOPE, "it grows faster", better=better))


def pairs_cost(rows: list[Row]) -> Found:
    whole, path, kept, d = slopes(rows, ("M", "pairs"), ("M", "pairs, longest path"), ("R", "pairs"), ("d", "pairs"))
    text = f"M^{whole:.2f} in all, M^{path:.2f} along the longest path, R^{kept:.2f}, d^{d:.2f}"
    if kept > 1 + SLOPE:
        return Found(
            text, f"{BETTER} in M (M − 1 products, not M²); in R it {NOT} epvi computes the weights of all R² pairs"
        )
    return Found(text, held(whole < 2 + SLOPE and path < 1 - SLOPE, "it grows faster", better="M − 1 products, not M²"))


def scalars(rows: list[Row]) -> Found:
    """Spherical fits: counted numbers divided by M K (d + 2)."""
    mine = [row for row in rows if row["what"] == "spherical" and row["kind"] == "fits"]
    ratios = [int(row["numbers"]) / (int(row["M"]) * int(row["K"]) * (int(row["d"]) + 2)) for row in mine]
    each = [int(row["bytes"]) / int(row["files"]) for row in mine]
    text = (
        f"counted in {sum(int(row['files']) for row in mine)} files: {min(ratios):.3f} to {max(ratios):.3f} times"
        f" MK(d+2); a file has {min(each):,.0f} to {max(each):,.0f} bytes, its header included"
    )
    return Found(text, held(max(ratios) <= 1, "files hold more numbers"))
