"""Every claim of the paper beside what the study's tables hold: a table in Markdown, printed and kept as claims.md.

Run: python experiments/claims.py [--out reproduced/quick]   (after the experiments; `make reproduce` does both)

Whether a claim holds is decided here, by the bounds below; a claim whose table is not there is said to be not measured.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab import ROOT
from lab.results import Row, by_strategy, read
from lab.sources import FULL

import complexity
import numpy as np

# Losses that differ by less than this many nats per row are "nearly the same", and this many are "virtually identical".
NEAR, IDENTICAL = 1e-3, 1e-4
# A slope of seconds in a size is told to about this.
SLOPE = 0.25

HOLDS, BETTER, NOT = "holds", "holds better", "does not hold, because"


class Found(NamedTuple):
    """What was measured, and what that makes of the claim."""

    measured: str
    verdict: str


class Claim(NamedTuple):
    """What the paper says and where, the tables that tell, and how they do."""

    says: str
    where: str
    tables: tuple[str, ...]
    found: Callable[..., Found]


def number(row: Row, name: str) -> float:
    return float(row[name])


def column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([number(row, name) for row in rows])


def held(holds: bool, otherwise: str, better: str = "") -> str:
    """The verdict, with why it does not hold, or why it holds better."""
    if not holds:
        return f"{NOT} {otherwise}"
    return f"{BETTER}: {better}" if better else HOLDS


# Figure 3


def faster_with_shards(rows: list[Row]) -> Found:
    """At M = 20, K = 4."""
    found = by_strategy([row for row in rows if (row["M"], row["K"]) == (20, 4)])
    nvi, ours, refined = (found[name][0] for name in ("NVI", "EPVI_sample", "EPVI_refined"))
    times = number(nvi, "seconds") / number(ours, "seconds")
    wall = number(nvi, "wall") / number(ours, "wall")
    also = number(nvi, "seconds") / number(refined, "seconds")
    text = (
        f"{times:.1f} times less at M = 20 ({number(nvi, 'seconds'):.2f} s to {number(ours, 'seconds'):.2f} s; with"
        f" EPVI_refined {also:.1f} times); by the wall of two cores {wall:.1f} times"
    )
    why = f"NVI itself takes few passes over the rows, and of a shard's {number(ours, 'local'):.2f} s calls are a part"
    return Found(text, held(times > 10, why))


def same_loss(rows: list[Row]) -> Found:
    found = by_strategy([row for row in rows if row["K"] == 4 and "local" in row and int(row["M"]) <= 20])
    sizes = {row["M"]: row for row in found["NVI"]}
    gaps = [number(row, "nll") - number(sizes[row["M"]], "nll") for row in found["EPVI_sample"] if row["M"] in sizes]
    alone = [number(row, "nll") - number(sizes[row["M"]], "nll") for row in found["Subposteriors"]]
    text = (
        f"{min(gaps):+.1e} to {max(gaps):+.1e} nats per row for M = 2 to 20 (Subposteriors: up to {max(alone):+.1e}),"
        f" of {number(found['NVI'][0], 'nll'):.4f}"
    )
    return Found(text, held(max(np.abs(gaps)) < NEAR, "the losses differ by more than 0.001 nats"))


def faster_with_components(rows: list[Row]) -> Found:
    mine = by_strategy([row for row in rows if row["M"] == 10 and "seconds" in row])
    nvi, ours = mine["NVI"], mine["EPVI_sample"]
    times = column(nvi, "seconds") / column(ours, "seconds")
    gaps = column(ours, "nll") - column(nvi, "nll")
    sizes = [int(row["K"]) for row in nvi]
    text = (
        f"{times.min():.1f} to {times.max():.1f} times less for K = {min(sizes)} to {max(sizes)};"
        f" losses within {np.max(np.abs(gaps)):.1e} nats per row"
    )
    why = "NVI itself takes few passes over the rows, and a tenth of them is a tenth of its time at best"
    return Found(text, held(times.min() > 7 and float(np.max(np.abs(gaps))) < IDENTICAL, why))


def constant_accuracy(rows: list[Row]) -> Found:
    ours = [row for row in rows if row["strategy"] == "EPVI_sample" and row["K"] == 4 and int(row["M"]) >= 10]
    values = column(ours, "accuracy")
    most = max(int(row["M"]) for row in ours)
    text = f"{values.min():.4f} to {values.max():.4f} for M = 10 to {most} (simulated rows have a level of their own)"
    return Found(text, held(float(np.ptp(values)) < 0.002, f"it falls by {np.ptp(values):.4f}"))


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
    return Found(text, held(max(worst["EPVI_sample"], worst["EPVI_subset"]) < NEAR, "the losses differ"))


def exact_explodes(rows: list[Row]) -> Found:
    """Where it becomes slower than the chain, here and in plain code."""
    shards, components = ([row for row in rows if row[name] == value] for name, value in (("K", 4), ("M", 6)))
    here = overtaken(shards, "M", ""), overtaken(components, "K", "")
    plain = overtaken(shards, "M", ", plain loops"), overtaken(components, "K", ", plain loops")
    last = max((row for row in rows if row["strategy"] == "EPVI_exact"), key=lambda row: int(row["components"]))
    text = (
        f"slower than the chain from M = {here[0]}, K = {here[1]} on; in plain loops M = {plain[0]}, K = {plain[1]};"
        f" {last['components']:,} components take {number(last, 'product'):.1f} s"
    )
    return Found(text, held(True, "", better="the same, later" if here[0] > 6 or here[1] > 4 else ""))


def overtaken(rows: list[Row], size: str, kind: str) -> float:
    """The first size at which the exact product takes longer than the chain, both of a kind; inf when there is none."""
    found = by_strategy(rows)
    chain = {row[size]: number(row, "product") for row in found[f"EPVI_sample{kind}"]}
    slower = [int(row[size]) for row in found[f"EPVI_exact{kind}"] if number(row, "product") > chain[row[size]]]
    return min(slower, default=float("inf"))


def sample_beats_subset(rows: list[Row]) -> Found:
    found = by_strategy(rows)
    exact, sample, subset = (found[name] for name in ("EPVI_exact", "EPVI_sample", "EPVI_subset"))
    away = [float(np.mean(np.abs(column(one, "nll") - column(exact, "nll")))) for one in (sample, subset)]
    large = [i for i, row in enumerate(exact) if int(row["components"]) > 500]
    times = column(subset, "product")[large] / column(sample, "product")[large]
    text = (
        f"from the exact loss {away[0]:.1e} (sample) and {away[1]:.1e} (subset) nats per row on average; subset takes"
        f" {times.min():.1f} to {times.max():.1f} times as long where R = 500 cuts"
    )
    return Found(text, held(away[0] < away[1] and float(np.median(times)) > 1, "pairs are as good"))


# Figure 5


def pairs_of(rows: list[Row], one: str, other: str) -> list[tuple[Row, Row]]:
    """Rows of two strategies at the same size and of the same set of rows."""
    key = ("M", "K", "L", "replicate")
    found = by_strategy([row for row in rows if "nll" in row])
    by_key = {tuple(row[name] for name in key): row for row in found[one]}
    return [(by_key[place], row) for row in found[other] if (place := tuple(row[name] for name in key)) in by_key]


def sources_faster(rows: list[Row]) -> Found:
    pairs = pairs_of(rows, "NVI", "EPVI_sample")
    times = np.array([number(nvi, "seconds") / number(row, "seconds") for nvi, row in pairs])
    text = f"{times.min():.1f} to {times.max():.1f} times as fast as NVI, {np.median(times):.1f} in the middle"
    why = "900 rows are one short call for NVI as for a shard: what is left is the number of calls"
    return Found(text, held(float(np.median(times)) > 2, why))


def sources_alike(rows: list[Row]) -> Found:
    """`excess` is the loss per row above that of the parameters that made the rows."""
    gaps, alone = (
        np.array([number(row, "nll") - number(one, "nll") for one, row in pairs_of(rows, name, "EPVI_sample")])
        for name in ("NVI", "Subposteriors")
    )
    refined = [row for row in rows if row["strategy"] == "EPVI_refined"]
    said = [f"{number(row, 'excess'):+.3f}, {row['verdict']}" if "nll" in row else "refused" for row in refined]
    text = (
        f"{gaps.min():+.2f} to {gaps.max():+.2f} nats per row of 50 columns, {np.median(gaps):+.2f} in the middle, of"
        f" {number(rows[0], 'nll'):.1f}; worse than single shards on average in {np.sum(alone > 0)} of {len(alone)}."
        f" EPVI_refined above the truth: {'; '.join(said)}"
    )
    changes = [f"{one['excess']:.2f} to {row['excess']:.2f}" for one, row in pairs_of(rows, "EPVI_sample", FULL)]
    why = f"shards stop at different optima, and spheres blur them: Full() takes the excess from {', '.join(changes)}"
    return Found(text, held(float(np.max(gaps)) < 0.1 and float(np.mean(alone > 0)) < 0.25, why))


# Section 3.3


def slope_of(rows: list[Row], panel: str, name: str) -> float:
    full = any(row["way"] == "pairs by chain" for row in rows)
    (found,) = [line for line in complexity.lines(rows, full) if (line.panel, line.name) == (panel, name)]
    return found.slope


def exact_cost(rows: list[Row]) -> Found:
    slopes = [slope_of(rows, panel, "exact") for panel in ("M, K = 4", "K, M = 6", "d")]
    text = f"seconds grow as (K^M)^{slopes[0]:.2f} with M, (K^M)^{slopes[1]:.2f} with K, d^{slopes[2]:.2f}"
    holds = all(slope < 1 + 2 * SLOPE for slope in slopes)
    return Found(text, held(holds, "it grows faster", better="no factor M, by a balanced tree"))


def chain_cost(rows: list[Row]) -> Found:
    plain, ours, kept, d = (
        slope_of(rows, *line) for line in (("M", "plain"), ("M", "chain"), ("R", "chain"), ("d", "chain"))
    )
    text = f"M^{ours:.2f}, R^{kept:.2f}, d^{d:.2f}; the paper's formula in plain loops M^{plain:.2f}"
    better = "O(dR), by running sums" if ours < 1 - SLOPE else ""
    return Found(text, held(ours < 1 + SLOPE, "it grows faster", better=better))


def pairs_cost(rows: list[Row]) -> Found:
    whole, path = slope_of(rows, "M", "pairs"), slope_of(rows, "M", "pairs, longest path")
    text = f"M^{whole:.2f} in all, M^{path:.2f} along the longest path (a logarithm)"
    holds = whole < 2 + SLOPE and path < 1 - SLOPE
    better = "M − 1 products, not M²" if whole < 2 - SLOPE else ""
    return Found(text, held(holds, "it grows faster", better=better))


def scalars(rows: list[Row]) -> Found:
    """Spherical fits: counted numbers over M K (d + 2)."""
    mine = [row for row in rows if row["what"] == "spherical" and row["kind"] == "fits"]
    ratios = [int(row["numbers"]) / (int(row["M"]) * int(row["K"]) * (int(row["d"]) + 2)) for row in mine]
    each = [int(row["bytes"]) / int(row["files"]) for row in mine]
    text = (
        f"counted in {sum(int(row['files']) for row in mine)} files: {min(ratios):.3f} to {max(ratios):.3f} times"
        f" MK(d+2); a file has {min(each):,.0f} to {max(each):,.0f} bytes, its header included"
    )
    return Found(text, held(max(ratios) <= 1, "files hold more numbers"))


CLAIMS = (
    Claim("over ten times less time than NVI as M grows to 20", "5.1, Fig. 3a", ("figure3",), faster_with_shards),
    Claim("nearly the same held-out likelihood as NVI", "5.1, Fig. 3a", ("figure3",), same_loss),
    Claim(
        "nearly tenfold for every K at M = 10, virtually identical likelihood",
        "5.1, Fig. 3b",
        ("figure3",),
        faster_with_components,
    ),
    Claim("accuracy nearly constant from M = 10 to 200", "5.1, Fig. 3c", ("figure3",), constant_accuracy),
    Claim("accuracy about 0.7865 on SUSY", "5.1, Fig. 3c", ("susy_cv",), level_of_accuracy),
    Claim("sampled products have the exact product's likelihood", "5.1, Fig. 4a, c", ("figure4",), same_as_exact),
    Claim("exact explodes beyond M about 6, K about 4", "5.1, Fig. 4b, d", ("figure4",), exact_explodes),
    Claim(
        "sample slightly better than subset, in likelihood and time", "5.1, Fig. 4", ("figure4",), sample_beats_subset
    ),
    Claim("TLSA: less time, more so as M grows", "5.2, Fig. 5", ("figure5",), sources_faster),
    Claim("TLSA: similar likelihood, M, K and L varied", "5.2, Fig. 5", ("figure5",), sources_alike),
    Claim("exact product: O(dMK^M)", "3.3", ("complexity",), exact_cost),
    Claim("chain: O(dRM)", "3.3", ("complexity",), chain_cost),
    Claim("pairs: O(dRM²), O(dR log M) in parallel", "3.3", ("complexity",), pairs_cost),
    Claim("MK(d+2) scalars are communicated", "3.3", ("communication",), scalars),
)


def table(folder: Path, seed: int) -> str:
    lines = ["| the paper | where | measured | verdict | `python experiments/` |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        found = _judged(claim, folder, seed)
        commands = ", ".join(f"`{name}.py`" for name in claim.tables)
        lines.append(f"| {claim.says} | {claim.where} | {found.measured} | {found.verdict} | {commands} |")
    return "\n".join(lines) + "\n"


def _judged(claim: Claim, folder: Path, seed: int) -> Found:
    files = [folder / f"{name}.csv" for name in claim.tables]
    if not all(file.exists() for file in files):
        return Found("not measured: its rows are not here", "")
    try:
        return claim.found(*([row for row in read(file) if row.get("seed") == seed] for file in files))
    except (LookupError, ValueError):
        return Found("not measured: its table is not complete", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "reproduced" / "quick", help="folder with the tables")
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    text = table(said.out, said.seed)
    part = said.out / "claims.part"
    part.write_text(text)
    os.replace(part, said.out / "claims.md")
    print(text)


if __name__ == "__main__":
    main()
