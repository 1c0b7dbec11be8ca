"""Figure 5: topographic latent source analysis (TLSA): held-out negative log-likelihood against time.

Run: python experiments/figure5.py [--full] [--num-rows 1000] [--seed 0]

(a) varies the number M of shards, (b) K of components, (c) L of sources; the others are M = 5, K = 4, L = 3 (the paper
does not give its values). Rows are simulated from the model as in the paper: 1,000 of 50 columns on a grid in the unit
square, 5 covariates, τ = 1, σ_w² = 5, ρ = 1, a tenth held out. Losses are differences from that of the true parameters:
means over several data sets, with every data set as a faint point. Times are by the paper's clock (lab/strategies.py).
EPVI_refined is expensive (its fits, and up to ten rounds): without --full it is measured at M = 5 only, and the fourth
panel on the first data set only.

The fourth panel shows the effect of label switching on the product: the sources are exchangeable, which the paper does
not mention. epvi starts all shards at the same points and aligns the sources before it multiplies. The table also has
the product of full instead of spherical covariances, at M = 5, K = 4, L = 3.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from lab.experiment import Experiment, Said, run
from lab.look import (
    BLUE,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    clock_bars,
    legend_below,
    line,
    panels,
    plain_logarithmic,
)
from lab.results import Case, Row, by_strategy
from lab.sources import OWN_STARTS, OWN_STARTS_UNALIGNED, UNALIGNED, WAYS, Study
from lab.strategies import parts_of

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import epvi
from epvi.models import grid_places, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE

NUM_ROWS, NUM_COLUMNS, NUM_COVARIATES = 1_000, 50, 5
BASE = {"M": 5, "K": 4, "L": 3}
QUICK_REPLICATES, FULL_REPLICATES = 2, 5
# Size at which full covariances are measured, and without --full EPVI_refined.
MIDDLE = (5, 4, 3)

LABELS = {
    "EPVI_sample": ("one start, aligned (epvi)", BLUE, "o", "-"),
    UNALIGNED: ("one start, not aligned", SKY, "s", "--"),
    OWN_STARTS: ("own starts, aligned", ORANGE, "^", "-"),
    OWN_STARTS_UNALIGNED: ("own starts, not aligned", VERMILION, "v", "--"),
}
# Ticks of the loss axis.
EXCESSES = (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
Size = tuple[int, int, int]


def varied(said: Said) -> dict[str, list[Size]]:
    """(M, K, L) of every panel."""
    values = {"M": (2, 5, 10), "K": (2, 4), "L": (2, 3, 4)}
    if said.full:
        values = {"M": (2, 4, 5, 6, 8, 10, 15, 20), "K": tuple(range(2, 9)), "L": tuple(range(2, 9))}
    return {name: [_size({**BASE, name: value}) for value in some] for name, some in values.items()}


def _size(of: Any) -> Size:
    return int(of["M"]), int(of["K"]), int(of["L"])


def cases(said: Said) -> list[Case]:
    """Each (M, K, L) once for every data set, even if several panels show it."""
    common = {"num_rows": said.num_rows, "seed": said.seed}
    replicates = FULL_REPLICATES if said.full else QUICK_REPLICATES
    sizes = dict.fromkeys(size for some in varied(said).values() for size in some)
    return [{**common, "M": m, "K": k, "L": n, "replicate": r} for r in range(replicates) for m, k, n in sizes]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    return Measuring(said).measure


class Measuring:
    """Measures cases; measurements that cases share (NVI on all rows, EPVI_refined for all K) are made once."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._base = varied(said)["M"]
        self._models: dict[int, epvi.Model] = {}
        self._studies: dict[tuple[int, int], Study] = {}
        self._known: dict[tuple, Row] = {}

    def measure(self, case: Case) -> list[Row]:
        return list(self._rows(case))

    def _rows(self, case: Case) -> Iterator[Row]:
        m, k, n = _size(case)
        replicate = int(case["replicate"])
        study = self._study(n, replicate)
        yield self._once((k, n, replicate), lambda: study.nvi(k))
        parts = parts_of(study.fitted, m)
        apart = study.apart(parts, k)
        yield from study.products(apart, WAYS)
        first = self._said.full or replicate == 0
        if first and (m, k, n) in self._base:
            yield from study.labels(parts, apart, k)
        if (m, k, n) == MIDDLE:
            yield study.full(parts, k)
        if self._said.full or (m, k, n) == MIDDLE:
            yield self._once(("refined", m, n, replicate), lambda: study.refined(parts))

    def _once(self, key: tuple, measure: Callable[[], Row]) -> Row:
        if key not in self._known:
            self._known[key] = measure()
        return self._known[key]

    def _study(self, num_sources: int, replicate: int) -> Study:
        settings: Any = {"places": grid_places(NUM_COLUMNS), "num_sources": num_sources}
        if num_sources not in self._models:
            self._models[num_sources] = epvi.Model(tlsa, exchangeable=EXCHANGEABLE, **settings)
        if (num_sources, replicate) not in self._studies:
            seed = 1000 * self._said.seed + replicate
            rows, truth = simulate_tlsa(self._said.num_rows, NUM_COVARIATES, seed=seed, **settings)
            cut = self._said.num_rows - self._said.num_rows // 10
            fitted, held_out = ({name: c[some] for name, c in rows.items()} for some in (slice(cut), slice(cut, None)))
            floor = loss_of_truth(truth, settings["places"], held_out)
            study = Study(self._models[num_sources], fitted, held_out, floor, self._said.seed)
            self._studies[num_sources, replicate] = study
        return self._studies[num_sources, replicate]


def loss_of_truth(truth: dict[str, Any], places: np.ndarray, rows: dict[str, np.ndarray]) -> float:
    """The negative log-likelihood per row at the true parameters, at τ = 1."""
    distances = ((places[None] - truth["centres"][:, None]) ** 2).sum(-1)
    mean = rows["x"] @ truth["weights"].T @ np.exp(-distances / truth["widths"][:, None])
    return float(0.5 * np.mean(np.sum((rows["y"] - mean) ** 2, axis=1)) + 0.5 * len(places) * np.log(2 * np.pi))


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 4, (4.3, 3.6))
    shown = {
        panel: [row for size in sizes for row in rows if _size(row) == size] for panel, sizes in varied(said).items()
    }
    for axis, letter, panel in zip(axes.T, "abc", shown, strict=False):
        others = ", ".join(f"{name} = {value}" for name, value in BASE.items() if name != panel)
        _losses(axis[0], shown[panel], panel)
        axis[0].set_title(f"({letter}) loss and time, {panel} varied ({others})", fontsize=10)
        _speeds(axis[1], shown[panel], panel)
    highest = max(float(row["excess"]) for row in rows if row["strategy"] in MARKS and "excess" in row)
    lowest = min(float(row["excess"]) for row in rows if "excess" in row)
    for axis in axes[0, :3]:
        axis.set_ylim(1.5 * lowest - 0.01, 1.5 * highest)
    _labels(axes[0, 3], shown["M"])
    _clocks(axes[1, 3], shown["M"])
    legend_below(figure, axes[:1, :3])
    count = len({row["replicate"] for row in rows})
    which = "faint points: each set" if said.full else "faint points: each set; top right: first set only"
    what = f"{said.num_rows:,} simulated rows of {NUM_COLUMNS} columns; means over {count} sets of rows ({which})"
    figure.suptitle(f"TLSA: {what}", x=0.01, ha="left", fontsize=12)
    return figure


def means(rows: list[Row], by: str, what: str) -> tuple[list[int], list[float]]:
    """The values of a setting, and the mean measurement at each."""
    values = list(dict.fromkeys(int(row[by]) for row in rows if what in row))
    return values, [float(np.mean([float(row[what]) for row in rows if what in row and row[by] == v])) for v in values]


def _losses(axis: Axes, rows: list[Row], panel: str) -> None:
    """The paper's panel: loss against time, with a labelled point for each value."""
    for strategy, mine in by_strategy(rows).items():
        measured = [row for row in mine if "nll" in row]
        if strategy not in MARKS or not measured:
            continue
        values, seconds = means(measured, panel, "seconds")
        excess = means(measured, panel, "excess")[1]
        mark = MARKS[strategy]
        axis.scatter(
            [float(row["seconds"]) for row in measured], [float(row["excess"]) for row in measured],
            s=9, color=mark.color, alpha=0.3, linewidths=0,
        )  # fmt: skip
        if strategy == "NVI" and panel == "M":
            values, seconds, excess = values[:1], seconds[:1], excess[:1]
        line(axis, strategy, seconds, excess)
        if strategy in ("EPVI_sample", "Subposteriors", "EPVI_refined"):
            for value, x, y in zip(values, seconds, excess, strict=True):
                axis.annotate(str(value), (x, y), (4, 4), textcoords="offset points", fontsize=7, color=mark.color)
    axis.set_xscale("log")
    plain_logarithmic(axis.xaxis)
    _excess(axis)
    axis.set_xlabel("seconds, the paper's clock")


def _excess(axis: Axes) -> None:
    """A loss axis: linear near zero, where a hundred held-out rows do not resolve losses, and logarithmic above."""
    axis.set_yscale("symlog", linthresh=0.1, linscale=1.5)
    axis.set_yticks(EXCESSES, [f"{value:g}" for value in EXCESSES])
    axis.minorticks_off()
    axis.axhline(0, color="0.6", linewidth=1)
    axis.set_ylabel("loss per row above the truth's")


def _speeds(axis: Axes, rows: list[Row], panel: str) -> None:
    """Speed-up over NVI on the same rows; geometric means."""
    nvi = {(row["replicate"], row["K"], row["L"]): float(row["seconds"]) for row in by_strategy(rows)["NVI"]}
    for strategy in ("EPVI_sample", "EPVI_refined"):
        mine = [row for row in by_strategy(rows).get(strategy, []) if "seconds" in row]
        ratios = [
            {panel: row[panel], "log": np.log(nvi[row["replicate"], row["K"], row["L"]] / float(row["seconds"]))}
            for row in mine
        ]
        mark = MARKS[strategy]
        across = [int(row[panel]) for row in ratios]
        axis.scatter(across, np.exp([row["log"] for row in ratios]), s=9, color=mark.color, alpha=0.3, linewidths=0)
        values, logs = means(ratios, panel, "log")
        line(axis, strategy, values, np.exp(logs))
    axis.axhline(1, color="0.6", linewidth=1)
    axis.set_yscale("log")
    plain_logarithmic(axis.yaxis)
    axis.set_xticks(sorted({int(row[panel]) for row in rows}))
    axis.set_xlabel(panel)
    axis.set_ylabel("times faster than NVI")
    axis.set_title(f"speed over NVI on all rows, {panel} varied", fontsize=10)


def _labels(axis: Axes, rows: list[Row]) -> None:
    sets = {row["replicate"] for row in rows if row["strategy"] == UNALIGNED}
    found = by_strategy([row for row in rows if row["replicate"] in sets])
    for strategy, (name, color, marker, style) in LABELS.items():
        mine = [row for row in found.get(strategy, []) if "excess" in row]
        axis.scatter(
            [int(row["M"]) for row in mine], [float(row["excess"]) for row in mine],
            s=9, color=color, alpha=0.3, linewidths=0,
        )  # fmt: skip
        line(axis, "EPVI_sample", *means(mine, "M", "excess"), label=name, color=color, marker=marker, linestyle=style)
    _excess(axis)
    axis.set_xticks(sorted({int(row["M"]) for row in rows}))
    axis.set_xlabel("M")
    axis.set_ylim(top=200)
    axis.set_title("EPVI_sample and the order of the sources", fontsize=10)
    axis.legend(fontsize=8, loc="upper left", ncols=2, columnspacing=0.8)


def _clocks(axis: Axes, rows: list[Row]) -> None:
    """The parts of the time by the paper's clock, and the time of NVI."""
    mine = by_strategy(rows)["EPVI_sample"]
    highest = clock_bars(axis, means(mine, "M", "local")[0], lambda part: means(mine, "M", part)[1])
    nvi = means(by_strategy(rows)["NVI"], "K", "seconds")[1][0]
    axis.axhline(nvi, color=PURPLE, linestyle="--", label="NVI on all rows")
    axis.set_ylim(top=1.45 * max(nvi, highest))
    axis.legend(ncols=2, loc="upper left", fontsize=8)
    axis.set_title("what EPVI_sample's clock is made of", fontsize=10)


def report(rows: list[Row]) -> list[str]:
    lines = [f"{'M':>3s}{'K':>3s}{'L':>3s} set  {'strategy':24s}{'loss':>9s}{'excess':>9s}{'seconds':>9s}  unconverged"]
    for row in rows:
        start = f"{row['M']:3d}{row['K']:3d}{row['L']:3d}{row['replicate']:4d}  {row['strategy']:24s}"
        if "nll" not in row:
            lines.append(f"{start}  {row['said']}")
            continue
        loss = f"{float(row['nll']):9.3f}{float(row['excess']):9.3f}{float(row['seconds']):9.3f}"
        lines.append(f"{start}{loss}  {row['unconverged']} {row.get('verdict', '')}".rstrip())
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-rows", type=int, default=NUM_ROWS, help="simulated rows (1,000, as in the paper)")


FIGURE5 = Experiment("figure5", __doc__, cases, measuring, draw, report, arguments)

if __name__ == "__main__":
    run(FIGURE5)
