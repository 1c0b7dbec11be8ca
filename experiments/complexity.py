"""Complexity: measured cost of the product methods against M, K, R and d, and the paper's complexities.

Run: python experiments/complexity.py [--full] [--seed 0]

             the paper says           epvi
exact        O(d M K^M)               O(d K^M): the shards are multiplied as a balanced tree
chain        O(d R M)                 O(d R): running sums; "plain" is the paper's formula, step by step in NumPy
pairs        O(d R M²), and           O(d R² M): M − 1 products of pairs, each enumerated (R² weights), as epvi does
             O(d R log M) in parallel while R ≤ 512; by the chain O(d R M). In parallel: a round's slowest group
anchored                              O(R M K A) with A = 256 anchors; d matters where it is large

Times are processor seconds of one core, the best of three calls after one that compiles. The chain has no burn-in here
(the paper's is constant). The shards are overlapping spherical mixtures. The constant cost of a call hides slopes at
small sizes, so slopes are fitted to the upper third of every (logarithmic) range, to at least two sizes. --full has
more sizes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, NamedTuple

from lab.experiment import Experiment, Said, run
from lab.look import BLACK, BLUE, GREY, MARKS, ORANGE, SKY, Mark, panels
from lab.results import Case, Row
from lab.strategies import timed

import numpy as np
import plain
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import epvi

REPEATS = 3
WAYS: dict[str, Callable[[int], Any]] = {
    "exact": lambda r: epvi.Exact(max_components=2**20),
    "chain": lambda r: epvi.Chain(r, burn_in=0, num_chains=20, thin=1),
    "pairs": lambda r: epvi.Subset(num_samples=r, max_components=2**22),
    "pairs by chain": lambda r: epvi.Subset(num_samples=r, max_components=1),
    "anchored": lambda r: epvi.Anchored(r),
}
LOOKS = {
    "exact": MARKS["EPVI_exact"],
    "chain": MARKS["EPVI_sample"],
    "pairs": MARKS["EPVI_subset"],
    "pairs by chain": Mark(BLACK, "v", "--"),
    "anchored": MARKS["EPVI_anchored"],
    "plain": Mark(GREY, "x", ":"),
}


class Size(NamedTuple):
    """The size of a product."""

    m: int  # shards
    k: int  # components per shard
    d: int  # dimensions
    r: int  # components kept; 0 for all


def varied(full: bool) -> dict[str, dict[str, list[Size]]]:
    """The sizes for every product method, by panel."""
    many = (10, 30, 100, 300, 1000) if full else (10, 100, 1000)
    dims = (50, 100, 200, 400, 800, 1600) if full else (200, 1600)
    few = (125, 250, 500, 1000, 2000) if full else (200, 500, 2000)
    kept = (1000, 3000, 10_000, 30_000, 100_000) if full else (10_000, 100_000)
    drawn = (500, 1000, 2000, 8000, 32_000) if full else (2000, 16_000)
    found = {
        "M, K = 4": {"exact": [Size(m, 4, 19, 0) for m in range(2, 11)]},
        "K, M = 6": {"exact": [Size(6, k, 19, 0) for k in range(2, 9)]},
        "M": {
            "plain": [Size(m, 4, 19, 100) for m in many],
            "chain": [Size(m, 4, 19, 10_000) for m in many],
            "pairs": [Size(m, 4, 19, 200) for m in many],
            "anchored": [Size(m, 4, 19, 2000) for m in many],
        },
        "R": {
            "chain": [Size(100, 4, 19, r) for r in kept],
            "pairs": [Size(16, 4, 19, r) for r in few],
            "anchored": [Size(100, 4, 19, r) for r in drawn],
        },
        "d": {
            "exact": [Size(8, 4, d // 8, 0) for d in dims],
            "chain": [Size(20, 4, d, 2000) for d in dims],
            "pairs": [Size(20, 4, d, 200) for d in dims],
            "anchored": [Size(20, 4, d, 2000) for d in dims],
        },
    }
    if full:
        found["R"]["pairs by chain"] = [Size(16, 4, 19, r) for r in drawn]
    return found


def cases(said: Said) -> list[Case]:
    """Each method at each size once, even if several panels show it."""
    sizes = [(way, size) for ways in varied(said.full).values() for way, some in ways.items() for size in some]
    return [
        {"way": way, "M": size.m, "K": size.k, "d": size.d, "R": size.r, "seed": said.seed}
        for way, size in dict.fromkeys(sizes)
    ]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    def measure(case: Case) -> list[Row]:
        size = Size(*(int(case[name]) for name in ("M", "K", "d", "R")))
        shards = made(size, said.seed)
        if case["way"] == "plain":
            return [{"seconds": timed(lambda: plain.chain(shards, size.r, 0, said.seed))[1]}]
        mixtures = [epvi.GaussianMixture.from_covariances(mean, v) for mean, v in zip(*shards, strict=True)]
        way = WAYS[str(case["way"])](size.r)
        clocks = []
        for _ in range(REPEATS + 1):
            clock = Stopwatch()
            _, seconds = timed(lambda clock=clock: epvi.multiply(mixtures, way, seed=said.seed, executor=clock))
            clocks.append((seconds, clock))
        best, clock = min(clocks[1:], key=lambda one: one[0])
        return [{"seconds": best, "first": clocks[0][0], **clock.path()}]

    return measure


def made(size: Size, seed: int) -> plain.Shards:
    """Overlapping shards as in benchmarks/products.py, for any K."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(size.m, 1, size.d)) + 0.5 * rng.normal(size=(size.m, size.k, size.d))
    return means, rng.gamma(5.0, 0.2, size=(size.m, size.k))


class Stopwatch(Executor):
    """An executor that runs the groups of a round sequentially and records the time of each."""

    def __init__(self) -> None:
        self._rounds: list[list[float]] = []

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **settings: Any) -> Iterator[Any]:
        results = [timed(lambda some=some: fn(*some), time.process_time) for some in zip(*iterables, strict=True)]
        self._rounds.append([seconds for _, seconds in results])
        return iter([result for result, _ in results])

    def path(self) -> Row:
        """The number of rounds, and the critical path: the sum of the slowest group's seconds over rounds."""
        if not self._rounds:
            return {}
        return {"rounds": len(self._rounds), "longest": sum(max(groups) for groups in self._rounds)}


class Line(NamedTuple):
    """The line of one method in one panel."""

    panel: str
    name: str
    look: Mark
    x: np.ndarray
    y: np.ndarray

    @property
    def slope(self) -> float:
        """Slope of log y against log x, in the upper third of the range."""
        x, y = np.log(self.x), np.log(self.y)
        upper = max(2, int(np.sum(x >= x[-1] - (x[-1] - x[0]) / 3)))
        return float(np.polyfit(x[-upper:], y[-upper:], 1)[0])


def lines(rows: list[Row], full: bool) -> list[Line]:
    """All lines of all panels; where M is varied, seconds are per kept component."""
    found = []
    by_size = {(row["way"], *(int(row[name]) for name in ("M", "K", "d", "R"))): row for row in rows}
    for panel, ways in varied(full).items():
        for way, sizes in ways.items():
            mine = [by_size[way, *size] for size in sizes]
            per = np.array([size.r if panel == "M" else 1 for size in sizes])
            x = np.array([_across(panel, size) for size in sizes], float)
            found.append(Line(panel, way, LOOKS[way], x, _column(mine, "seconds") / per))
            if way == "pairs" and panel == "M":
                longest = Line(panel, "pairs, longest path", Mark(SKY, ">", "--"), x, _column(mine, "longest") / per)
                found.append(longest)
    return found


def _across(panel: str, size: Size) -> int:
    return {"M": size.m, "R": size.r, "d": size.d}[panel] if len(panel) == 1 else size.k**size.m


def _column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 2, (5.2, 3.9))
    found = lines(rows, said.full)
    exact = {"M, K = 4": Mark(ORANGE, "v", "-"), "K, M = 6": Mark(BLUE, "s", "--")}
    for line in found:
        if line.panel in exact:
            _line(axes[0, 0], line, f"{line.panel[0]} varied, {line.panel[3:]}", exact[line.panel])
        else:
            _line({"M": axes[0, 1], "R": axes[1, 0], "d": axes[1, 1]}[line.panel], line, line.name, line.look)
    for axis, letter, title, x, y in (
        (axes[0, 0], "a", "exact, d = 19", "K^M components", "seconds"),
        (axes[0, 1], "b", "time for one component of R, K = 4, d = 19", "M", "seconds / R"),
        (axes[1, 0], "c", "R varied (pairs: M = 16, others 100)", "R", "seconds"),
        (axes[1, 1], "d", "d varied (exact: M = 8, others 20)", "d", "seconds"),
    ):
        axis.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        axis.set_title(f"({letter}) {title}", loc="left")
        axis.legend(fontsize=8, title="slope at the upper end", title_fontsize=8, loc="upper left")
        low, high = axis.get_ylim()
        axis.set_ylim(top=high * (high / low) ** 0.4)
    return figure


def _line(axis: Axes, line: Line, name: str, look: Mark) -> None:
    drawn = {"color": look.color, "marker": look.marker, "linestyle": look.linestyle, "linewidth": 1.3}
    axis.plot(line.x, line.y, label=f"{name}: {line.slope:.2f}", **drawn)


def report(rows: list[Row]) -> list[str]:
    """Slopes, and the time per round of pairs."""
    full = any(row["way"] == "pairs by chain" for row in rows)
    text = [f"{'varied':12s}{'way':22s}{'slope':>7s}   seconds (with M: of one component of R), least and largest size"]
    for line in lines(rows, full):
        ends = f"{line.y[0]:.3g} at {line.x[0]:,.0f}, {line.y[-1]:.3g} at {line.x[-1]:,.0f}"
        text.append(f"{line.panel:12s}{line.name:22s}{line.slope:7.2f}   {ends}")
    for row in rows:
        if row["way"] == "pairs" and (row["d"], row["R"]) == (19, 200) and row["M"] != 16:
            rate = f"{1000 * float(row['longest']) / int(row['rounds']):.1f} ms a round"
            whole = f"{row['longest']:.3f} s of {row['seconds']:.3f} s"
            text.append(f"pairs, M = {row['M']}: {row['rounds']} rounds, longest path {whole}, {rate}")
    return text


if __name__ == "__main__":
    run(Experiment("complexity", __doc__, cases, measuring, draw, report))
