"""Error of the mode masses by product method, against the number M of shards.

Run: python experiments/mode_mass.py [--full] [--seed 0]

Every shard has two modes at ±2 sd in d = 10 dimensions, with weights of its own; their product has about 0.7 of its
mass in one of them, which a one-dimensional integral gives exactly (benchmarks/modes.py). 500 components are kept.
--full has four times the seeds, and more M.
"""

import dataclasses
from collections.abc import Callable

from lab.experiment import Experiment, Said, run
from lab.look import BLUE, GREEN, PURPLE, SKY, Mark, panels
from lab.results import Case, Row
from lab.strategies import timed

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from modes import WAYS, mass, true_mass, two_mode_shards

import epvi

MARKS = {
    "Chain, 50 chains, every step (the paper)": Mark(BLUE, "o"),
    "Chain, 50 chains, one a sweep": Mark(SKY, "s", "--"),
    "Subset, pairs, R = 500": Mark(GREEN, "^", "-."),
    "Anchored": Mark(PURPLE, "D"),
}


def cases(said: Said) -> list[Case]:
    sizes, seeds = ((4, 8, 16, 32, 64, 128, 200, 400), 40) if said.full else ((16, 64, 200), 10)
    return [{"M": m, "seed": said.seed + seed} for m in sizes for seed in range(seeds)]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    def measure(case: Case) -> list[Row]:
        m, seed = int(case["M"]), int(case["seed"])
        shards = two_mode_shards(m, seed)
        truth = true_mass(shards)
        rows: list[Row] = []
        for name, way in WAYS.items():
            product, seconds = timed(lambda way=way: epvi.multiply(shards, way, seed=seed))
            found = mass(product)
            figures = {"truth": truth, "mass": found, "error": abs(found - truth)}
            rows.append({"way": name, **figures, "ok": int(product.status.ok), "seconds": seconds})
        return rows

    return measure


@dataclasses.dataclass(frozen=True)
class Misses:
    """The errors of one product method at one M."""

    m: int
    errors: np.ndarray  # by seed
    trusted: float  # fraction of seeds whose status was ok


def by_way(rows: list[Row]) -> dict[str, list[Misses]]:
    found: dict[str, list[Misses]] = {}
    for way in dict.fromkeys(str(row["way"]) for row in rows):
        for m in sorted({int(row["M"]) for row in rows}):
            mine = [row for row in rows if (row["way"], row["M"]) == (way, m)]
            errors = np.array([float(row["error"]) for row in mine])
            found.setdefault(way, []).append(Misses(m, errors, float(np.mean([int(row["ok"]) for row in mine]))))
    return found


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(1, 1, (7.6, 4.6))
    axis = axes[0, 0]
    found = by_way(rows)
    for place, (way, some) in enumerate(found.items()):
        _draw_way(axis, way, some, shift=1.045 ** (place - 1.5))
    seeds = len(next(iter(found.values()))[0].errors)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes := sorted({int(row["M"]) for row in rows}), [str(m) for m in sizes])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("M")
    axis.set_ylabel("|mass found − true mass| of a mode")
    axis.set_title(f"Mode mass missed: {seeds} seeds (dots) and their mean")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_way(axis: Axes, way: str, some: list[Misses], shift: float) -> None:
    """The means as a line and single seeds as dots, shifted a little against the other methods."""
    color, marker, linestyle = MARKS[way]
    means = [one.errors.mean() for one in some]
    axis.plot([shift * one.m for one in some], means, color=color, marker=marker, linestyle=linestyle, label=way)
    for one in some:
        axis.plot(np.full(len(one.errors), shift * one.m), one.errors, ".", color=color, alpha=0.35, markersize=4)


def report(rows: list[Row]) -> list[str]:
    lines = ["mean (standard error) of |mass − true mass|; how often it said itself that all went well"]
    for way, some in by_way(rows).items():
        lines.append(way)
        for one in some:
            error = one.errors.std(ddof=1) / np.sqrt(len(one.errors))
            lines.append(
                f"  M = {one.m:<5d}{one.errors.mean():.4f} ({error:.4f}), worst {one.errors.max():.4f};"
                f" {one.trusted:4.0%} said ok"
            )
    return lines


if __name__ == "__main__":
    run(Experiment("mode_mass", __doc__, cases, measuring, draw, report))
