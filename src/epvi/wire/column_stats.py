"""Counts, means and standard deviations of columns, which sites exchange to standardise with common constants.

Takes the statistics of several sites; gives those of all their rows together.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from epvi.ground.errors import EpviError

_FIELDS = ("count", "missing", "mean", "rest", "sd")


@dataclasses.dataclass(frozen=True)
class ColumnStats:
    """Statistics of one column.

    Attributes:
        count: number of values.
        missing: number of missing values.
        mean: mean, rounded to float64.
        rest: rounding error of the mean: without it, a mean near 1e9 would spoil the pooled sd of values that vary by
            1.
        sd: population standard deviation.
    """

    count: int
    missing: int
    mean: float
    rest: float
    sd: float


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of columns by name."""

    columns: dict[str, ColumnStats]

    def constants(self) -> dict[str, tuple[float, float]]:
        """The (mean, sd) of every column, for `Rows(..., standardise=...)`."""
        for name, column in self.columns.items():
            if column.sd == 0:
                raise EpviError(
                    f"column {name!r} has the same value in all rows: it cannot be standardised, so leave it out."
                )
        return {name: (column.mean, column.sd) for name, column in self.columns.items()}

    def as_json(self) -> dict[str, dict[str, int | float]]:
        """As JSON."""
        return {name: {field: getattr(column, field) for field in _FIELDS} for name, column in self.columns.items()}

    @staticmethod
    def from_json(said: Any, where: str = "the statistics") -> "Stats":
        """The statistics from JSON, checked."""
        if not isinstance(said, Mapping) or not said or any(not isinstance(name, str) for name in said):
            raise EpviError(f"{where} have no columns: pass what epvi stats wrote.")
        return Stats({name: _checked(f"column {name[:40]!r} of {where}", column) for name, column in said.items()})


def _checked(what: str, said: Any) -> ColumnStats:
    if not isinstance(said, Mapping) or set(said) != set(_FIELDS):
        raise EpviError(f"{what} does not have {', '.join(_FIELDS)}: pass what epvi stats wrote.")
    for field in ("count", "missing"):
        if type(said[field]) is not int or said[field] < (field == "count"):
            raise EpviError(f"{what} has no whole number for its {field}: pass what epvi stats wrote.")
    for field in ("mean", "rest", "sd"):
        if type(said[field]) not in (int, float) or not math.isfinite(said[field]):
            raise EpviError(f"{what} has no finite number for its {field}: pass what epvi stats wrote.")
    if said["sd"] < 0:
        raise EpviError(f"{what} has a negative sd: pass what epvi stats wrote.")
    made = ColumnStats(said["count"], said["missing"], float(said["mean"]), float(said["rest"]), float(said["sd"]))
    if made.mean + made.rest != made.mean:
        raise EpviError(f"{what} has a rest that is no rounding of its mean: pass what epvi stats wrote.")
    return made


def pool(stats: Sequence[Stats]) -> Stats:
    """The statistics of all rows, from those of disjoint sets of rows with the same columns."""
    if not stats:
        raise EpviError("there are no statistics to pool: pass those of at least one site.")
    names = list(stats[0].columns)
    for i, other in enumerate(stats[1:], start=2):
        strange = sorted(set(names) ^ set(other.columns))
        if strange:
            raise EpviError(
                f"column {strange[0][:40]!r} is not in all of the statistics (the 1st and number {i} differ):"
                " every site must tell of the same columns."
            )
    return Stats({name: _pooled([one.columns[name] for one in stats]) for name in names})


def _pooled(columns: Sequence[ColumnStats]) -> ColumnStats:
    """Chan, Golub & LeVeque: n sd² = Σ n_i (sd_i² + (mean_i − mean)²), with means relative to the first site's."""
    first, count = columns[0], sum(column.count for column in columns)
    away = [(column.mean - first.mean) + (column.rest - first.rest) for column in columns]
    shift = math.fsum(column.count * d for column, d in zip(columns, away, strict=True)) / count
    squares = math.fsum(
        column.count * (column.sd**2 + (d - shift) ** 2) for column, d in zip(columns, away, strict=True)
    )
    mean, rest = split_mean(first.mean, first.rest + shift)
    return ColumnStats(count, sum(column.missing for column in columns), mean, rest, math.sqrt(squares / count))


def split_mean(reference: float, away: float) -> tuple[float, float]:
    """reference + away in float64, and its rounding error (Knuth's two-sum)."""
    mean = reference + away
    back = mean - reference
    return mean, (reference - (mean - back)) + (away - back)
