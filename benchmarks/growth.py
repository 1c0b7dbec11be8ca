"""The parts `growth` and `models` of tall.py: time by numbers of rows and columns, and for other models.

All fits have two shards on two workers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rounds import Turn, in_turn, median_seconds, timed, verdict
from susy import Rows

import epvi
from epvi.models import grid_places, logistic, poisson, simulate_logistic, simulate_poisson, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE

# The comparison is with a tenth of the rows; the target is at most 11 times the time.
FEWER, MOST_GROWTH = 10, 11
SIZES = ((2_000_000, 18), (400_000, 100), (100_000, 500))  # rows and columns
# A quick run skips sizes with fewer rows per column, whose posteriors are far from those of tall data.
LEAST_ROWS_A_COLUMN = 100
# A first run that takes longer than this many seconds is not repeated; its own time counts.
_LONG_SECONDS = 120

HEAD = (
    f"{'':28s}{'rows':>11s}{'columns':>9s}{'wall':>10s}{'passes':>8s}{'µs a row':>10s}"
    f"{'ns a pass, row and column':>27s}"
)


class Case(NamedTuple):
    """A model and its rows."""

    name: str
    model: Any  # a function, or an epvi.Model
    rows: Rows
    columns: int


def growth(rows: Rows, seed: int, repeats: int, scale: float) -> None:
    """Print the tables and the verdict; `scale` multiplies the numbers of rows."""
    fewer = {name: column[: len(column) // FEWER] for name, column in rows.items()}
    turns = in_turn(
        {"all": partial(_fit, logistic, rows, seed), "fewer": partial(_fit, logistic, fewer, seed)}, repeats
    )
    columns = rows["x"].shape[1]
    print(f"Growth, two workers\n{HEAD}")
    print(_line(Case("logistic, all rows", logistic, rows, columns), turns["all"]))
    print(_line(Case(f"logistic, 1 of {FEWER} rows", logistic, fewer, columns), turns["fewer"]))
    sizes = [(int(scale * num_rows), num_columns) for num_rows, num_columns in SIZES]
    for num_rows, num_columns in [size for size in sizes if size[0] >= LEAST_ROWS_A_COLUMN * size[1]]:
        case = Case("logistic", logistic, regression(num_rows, num_columns, seed), num_columns)
        print(_line(case, _turns(partial(_fit, logistic, case.rows, seed), repeats)), flush=True)
    ratio = median_seconds(turns["all"]) / median_seconds(turns["fewer"])
    print(verdict(ratio <= MOST_GROWTH, f"{FEWER}x the rows in at most {MOST_GROWTH}x the time; it is {ratio:.1f}x"))


def models(seed: int, repeats: int, scale: float) -> None:
    """Print the times of other models and of logistic regressions of the same size."""
    print(f"Models, two workers\n{HEAD}")
    for make in (_poisson, _like_poisson, _tlsa, _like_tlsa):
        case = make(scale, seed)
        try:
            print(_line(case, _turns(partial(_fit, case.model, case.rows, seed), repeats)), flush=True)
        except epvi.EpviError as refusal:
            print(f"{case.name:28s}{len(case.rows['y']):11,}{case.columns:9d}  refused: {refusal}", flush=True)


def regression(num_rows: int, num_columns: int, seed: int) -> Rows:
    """Rows of a logistic regression whose logits have sd 1, in float32."""
    rows, _ = simulate_logistic(num_rows, num_columns, alpha=num_columns, seed=seed)
    return {"x": rows["x"].astype(np.float32), "y": rows["y"].astype(np.int8)}


def _poisson(scale: float, seed: int) -> Case:
    rows, _ = simulate_poisson(int(2_000_000 * scale), 10, intercept=True, sigma_w2=0.05, seed=seed)
    return Case("Poisson", poisson, {"x": rows["x"].astype(np.float32), "y": rows["y"].astype(np.int32)}, 10)


def _like_poisson(scale: float, seed: int) -> Case:
    return Case("logistic, as many", logistic, regression(int(2_000_000 * scale), 10, seed), 10)


def _tlsa(scale: float, seed: int) -> Case:
    places = grid_places(50)
    # With seed 0 the two sources nearly coincide, which is a different problem.
    rows, _ = simulate_tlsa(int(200_000 * scale), 5, places=places, num_sources=2, seed=seed + 1)
    model = epvi.Model(tlsa, exchangeable=EXCHANGEABLE, places=places, num_sources=2)
    return Case("TLSA, C = 5, L = 2", model, {n: c.astype(np.float32) for n, c in rows.items()}, 50)


def _like_tlsa(scale: float, seed: int) -> Case:
    return Case("logistic, as many", logistic, regression(int(200_000 * scale), 50, seed), 50)


def _fit(model: Any, rows: Rows, seed: int) -> epvi.Posterior:
    return epvi.fit(model, rows, 2, executor=2, seed=seed, certify=False)


def _turns(run: Callable[[], Any], repeats: int) -> list[Turn]:
    first = timed(run)
    return [first] if first.seconds > _LONG_SECONDS else [timed(run) for _ in range(repeats)]


def _line(case: Case, turns: list[Turn]) -> str:
    seconds, num_rows = median_seconds(turns), len(case.rows["y"])
    work = float(np.median([sum(fit.seconds for fit in turn.result.fits) for turn in turns]))
    fits = turns[-1].result.fits
    passed = sum(fit.passes * fit.num_rows for fit in fits)
    return (
        f"{case.name:28s}{num_rows:11,}{case.columns:9d}{seconds:8.2f} s{max(fit.passes for fit in fits):8d}"
        f"{1e6 * seconds / num_rows:10.2f}{1e9 * work / (passed * case.columns):27.3f}"
    )
