"""Figure 3: hierarchical logistic regression: held-out negative log-likelihood against time, and accuracy.

Run: python experiments/figure3.py [--full] [--rows simulated | ten-thousand] [--susy SUSY.csv.gz] [--seed 0]

(a) M = 2..20 shards at K = 4 components; (b) K = 2..8 at M = 10; (c) accuracy for M = 10..200. Times are by the paper's
clock (defined in lab/strategies.py). Wall times, for K = 4 only, are those of epvi.fit with two worker processes, from
rows in memory to the posterior. The likelihood is that of the held-out rows (of at most 50,000).
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.experiment import Experiment, Said, run
from lab.look import clock_bars, legend_below, line, panels, plain_logarithmic
from lab.results import Case, Row, by_strategy
from lab.strategies import (
    PRODUCTS,
    Clock,
    Rows,
    alone,
    first,
    fit_apart,
    fits_exactly,
    multiplied,
    papers,
    parts_of,
    refined,
    timed,
)
from lab.susy import Divided, from_file, simulated, ten_thousand

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import epvi
from epvi.models import logistic

NUM_ROWS = 5_000_000
SCORED = 50_000
PROCESSES = 2
# Wall times and EPVI_refined are measured at this K only; without --full, wall times at these M only.
OF_K, QUICK_WALLS = 4, (1, 2, 20)
# Line style of wall times.
WALL = {"linestyle": "--", "markerfacecolor": "none"}
WAYS = ("EPVI_sample", "EPVI_subset", "EPVI_anchored", "EPVI_exact")


def varied(said: Said) -> dict[str, list[tuple[int, int]]]:
    """(M, K) of every panel."""
    few = range(2, 21, 2) if said.full else (2, 5, 10, 20)
    components = range(2, 9) if said.full else (2, 4, 8)
    many = range(10, 201, 10) if said.full else (10, 20, 50, 200)
    return {"M": [(m, 4) for m in few], "K": [(10, k) for k in components], "accuracy": [(m, 4) for m in many]}


def source(said: Said) -> str:
    return "file" if said.susy else said.rows


def num_rows(said: Said) -> int:
    """Number of simulated rows; 0 for real ones."""
    if source(said) != "simulated":
        return 0
    return said.num_rows or NUM_ROWS


def cases(said: Said) -> list[Case]:
    """Each (M, K) once, even if several panels show it."""
    common = {"rows": source(said), "num_rows": num_rows(said), "seed": said.seed}
    sizes = dict.fromkeys(size for some in varied(said).values() for size in some)
    return [{**common, "M": m, "K": k} for m, k in sizes]


def rows_of(said: Said) -> Divided:
    if said.susy:
        return from_file(said.susy, said.out)
    return ten_thousand(said.seed) if said.rows == "ten-thousand" else simulated(num_rows(said), said.seed)


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    divided, model = rows_of(said), epvi.Model(logistic)
    study = Study(model, divided.fitted, first(divided.held_out, SCORED), said.seed, None if said.full else QUICK_WALLS)
    likelihoods = {size for panel in ("M", "K") for size in varied(said)[panel]}

    def measure(case: Case) -> list[Row]:
        m, k = int(case["M"]), int(case["K"])
        return list(study.all_strategies(m, k) if (m, k) in likelihoods else study.accuracy_alone(m, k))

    return measure


class Study:
    """The rows, and the measurements of every strategy on them."""

    def __init__(
        self, model: epvi.Model, fitted: Rows, held_out: Rows, seed: int, walls: tuple[int, ...] | None
    ) -> None:
        self._model, self._fitted, self._held_out, self._seed = model, fitted, held_out, seed
        self._walls = walls
        self._on_all_rows: dict[int, Row] = {}

    def all_strategies(self, m: int, k: int) -> Iterator[Row]:
        """One row for each strategy."""
        yield self._nvi(k)
        parts = parts_of(self._fitted, m)
        apart = fit_apart(self._model, parts, papers(k), self._seed)
        figures = [self._figures(alone(fit)) for fit in apart.fits]
        averages = {name: float(np.mean([float(one[name]) for one in figures])) for name in figures[0]}
        yield {**_clock("Subposteriors", Clock(max(apart.seconds), 0.0, 0.0)), **averages}
        wall = self._wall(m, k, papers(k), product=PRODUCTS["EPVI_sample"], certify=False)
        for way in WAYS:
            if way == "EPVI_exact" and not fits_exactly(apart.fits):
                continue
            posterior, clock = multiplied(apart, way, self._seed)
            yield {**_clock(way, clock), **self._figures(posterior), **(wall if way == "EPVI_sample" else {})}
        if k != OF_K:
            return
        # EPVI_refined does not depend on K.
        posterior, clock = refined(self._model, parts, self._seed)
        yield {**_clock("EPVI_refined", clock), **self._figures(posterior), **self._wall(m, k, None)}

    def accuracy_alone(self, m: int, k: int) -> Iterator[Row]:
        """The accuracy only, for panel (c)."""
        posterior = self._job(m, papers(k), product=PRODUCTS["EPVI_sample"], certify=False)
        yield {"strategy": "EPVI_sample", **self._figures(posterior)}

    def _nvi(self, k: int) -> Row:
        """NVI on all rows, measured once for every K."""
        if k not in self._on_all_rows:
            apart = fit_apart(self._model, [self._fitted], papers(k), self._seed)
            clock = Clock(apart.seconds[0], 0.0, 0.0)
            wall = self._wall(1, k, papers(k), certify=False)
            self._on_all_rows[k] = {**_clock("NVI", clock), **self._figures(alone(apart.fits[0])), **wall}
        return self._on_all_rows[k]

    def _figures(self, posterior: epvi.Posterior) -> Row:
        nll = -epvi.log_predictive(self._model, posterior, self._held_out, num_samples=200, seed=self._seed)
        return {"nll": nll, "accuracy": accuracy(posterior, self._held_out, self._seed)}

    def _wall(self, m: int, k: int, inference: epvi.NVI | None, **settings: Any) -> Row:
        """Wall time of the second of two equal calls of `epvi.fit`; empty where it is not measured."""
        if k != OF_K or (self._walls is not None and m not in self._walls):
            return {}
        self._job(m, inference, **settings)
        return {"wall": timed(lambda: self._job(m, inference, **settings), time.perf_counter)[1]}

    def _job(self, m: int, inference: epvi.NVI | None, **settings: Any) -> epvi.Posterior:
        """One call of `epvi.fit`."""
        said: Any = {"shuffle": False, "executor": PROCESSES, "seed": self._seed, "progress": False, **settings}
        return epvi.fit(self._model, self._fitted, m, inference=inference, **said)


def _clock(strategy: str, clock: Clock) -> Row:
    parts = {"local": clock.local, "transfer": clock.transfer, "product": clock.product}
    return {"strategy": strategy, "seconds": clock.total, **parts}


def accuracy(posterior: epvi.Posterior, rows: Rows, seed: int) -> float:
    """Fraction of labels predicted right by the posterior mean of P(y = 1 | x)."""
    w = posterior.sample(200, seed=seed)["w"].astype(np.float32)
    right = 0
    for start in range(0, len(rows["y"]), 10_000):
        x, y = rows["x"][start : start + 10_000], rows["y"][start : start + 10_000]
        right += int(np.sum((np.mean(1 / (1 + np.exp(-(x @ w.T))), axis=1) > 0.5) == (y == 1)))
    return right / len(rows["y"])


WHAT = {
    "simulated": "{:,} simulated rows with the correlations of SUSY's columns",
    "file": "all rows of SUSY",
    "ten-thousand": "10,000 real rows of SUSY",
}


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 3, (4.7, 3.5))
    shown = {
        panel: [row for size in some for row in rows if (row["M"], row["K"]) == size]
        for panel, some in varied(said).items()
    }
    for axis, letter, panel, fixed in ((0, "a", "M", "K = 4"), (1, "b", "K", "M = 10")):
        _likelihoods(axes[0, axis], shown[panel], panel)
        axes[0, axis].set_title(f"({letter}) held-out loss against time, {panel} varied, {fixed}")
        _speeds(axes[1, axis], shown[panel], panel)
    _accuracies(axes[0, 2], shown["accuracy"])
    _clocks(axes[1, 2], by_strategy(shown["M"])["EPVI_sample"])
    legend_below(figure, axes[:1])
    what = WHAT[source(said)].format(num_rows(said))
    figure.suptitle(f"Hierarchical logistic regression: {what}", x=0.01, ha="left", fontsize=12)
    return figure


def _likelihoods(axis: Axes, rows: list[Row], panel: str) -> None:
    """The paper's panel: loss against time, with a labelled point for each M (or K)."""
    for strategy, mine in by_strategy(rows).items():
        mine = mine[:1] if strategy == "NVI" and panel == "M" else mine
        line(axis, strategy, [row["seconds"] for row in mine], [row["nll"] for row in mine])
        if strategy in ("EPVI_sample", "Subposteriors"):
            for row in mine:
                place = (float(row["seconds"]), float(row["nll"]))
                axis.annotate(str(row[panel]), place, (3, 4), textcoords="offset points", fontsize=7)
    axis.set_xscale("log")
    plain_logarithmic(axis.xaxis)
    axis.ticklabel_format(axis="y", useOffset=False)
    axis.set_xlabel("seconds, the paper's clock")
    axis.set_ylabel("negative log-likelihood per row")


def _speeds(axis: Axes, rows: list[Row], panel: str) -> None:
    """Speed-up over NVI, by the paper's clock and by wall time."""
    found = by_strategy(rows)
    for strategy in ("EPVI_sample", "EPVI_refined") if panel == "M" else ("EPVI_sample",):
        for clock, name, look in (("seconds", "paper's clock", {}), ("wall", "wall of two cores", WALL)):
            pairs = [(nvi, row) for nvi, row in zip(found["NVI"], found[strategy], strict=True) if clock in row]
            ratios = [float(nvi[clock]) / float(row[clock]) for nvi, row in pairs]
            if len(pairs) > 1:
                line(axis, strategy, [row[panel] for _, row in pairs], ratios, label=f"{strategy}, {name}", **look)
    axis.axhline(1, color="0.6", linewidth=1)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low * (low / high) ** 0.5, high)
    plain_logarithmic(axis.yaxis)
    axis.set_xticks(sorted({int(row[panel]) for row in rows}))
    axis.set_xlabel(panel)
    axis.set_ylabel("times faster than NVI")
    axis.legend(fontsize=7, loc="lower center", ncols=2, columnspacing=1.0)
    axis.set_title(f"speed over NVI on all rows, {panel} varied")


def _accuracies(axis: Axes, rows: list[Row]) -> None:
    found = by_strategy(rows)
    for strategy in ("EPVI_sample", "EPVI_refined"):
        mine = found[strategy]
        line(axis, strategy, [row["M"] for row in mine], [row["accuracy"] for row in mine])
    middle = float(np.mean([float(row["accuracy"]) for row in found["EPVI_sample"]]))
    axis.set_ylim(middle - 0.01, middle + 0.01)
    axis.set_xlabel("M")
    axis.set_ylabel("accuracy, held-out rows")
    axis.set_title("(c) accuracy over a wide range of M")


def _clocks(axis: Axes, rows: list[Row]) -> None:
    """The parts of the time by the paper's clock."""
    highest = clock_bars(axis, [int(row["M"]) for row in rows], lambda part: [float(row[part]) for row in rows])
    axis.set_ylim(0, 1.2 * highest)
    axis.legend(fontsize=8, loc="upper center", ncols=3)
    axis.set_title("what EPVI_sample's clock is made of")


def report(rows: list[Row]) -> list[str]:
    lines = [
        f"{'panel':9s}{'M':>4s}{'K':>3s}  {'strategy':15s}{'loss':>10s}{'accuracy':>10s}{'seconds':>9s}{'wall':>9s}"
    ]
    for row in rows:
        seconds, wall = (f"{float(row[name]):9.3f}" if name in row else "" for name in ("seconds", "wall"))
        lines.append(
            f"{row['M']:4d}{row['K']:3d}  {row['strategy']:15s}{float(row['nll']):10.6f}"
            f"{float(row['accuracy']):10.4f}{seconds:>9s}{wall}"
        )
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", choices=("simulated", "ten-thousand"), default="simulated")
    parser.add_argument("--susy", type=Path, help="UCI's SUSY.csv.gz: real rows instead of simulated ones")
    parser.add_argument("--num-rows", type=int, default=None, help="simulated rows (5,000,000, as in the paper)")


def called(said: Said) -> str:
    return {"simulated": "figure3", "file": "figure3_susy", "ten-thousand": "figure3_ten_thousand"}[source(said)]


if __name__ == "__main__":
    run(Experiment("figure3", __doc__, cases, measuring, draw, report, arguments, called))
