"""Means and standard deviations of a column that comes in chunks, pooled as those of sites are.

Takes chunks of finite numbers; gives `ColumnStats`, or the units that the column standardises itself with.
"""

import dataclasses
import math

import numpy as np

from epvi.ground.errors import EpviError
from epvi.wire.column_stats import ColumnStats, Stats, pool, split_mean


@dataclasses.dataclass
class RunningStats:
    """The statistics of a column's chunks, and its values as long as there are no more than two."""

    name: str
    chunks: list[ColumnStats] = dataclasses.field(default_factory=list)
    values: set[float] = dataclasses.field(default_factory=set)

    def add(self, values: np.ndarray) -> None:
        """Take in the next rows."""
        if not len(values):
            return
        self.chunks.append(_described(values))
        if len(self.values) < 3:
            low, high = values.min(), values.max()
            others = values[(values != low) & (values != high)][:1]
            self.values |= {low.item(), high.item(), *others.tolist()}

    def stats(self, missing: int = 0) -> ColumnStats | None:
        """The statistics of all rows; None when they are too large for float64."""
        try:
            one = pool([Stats({self.name: chunk}) for chunk in self.chunks]).columns[self.name]
        except (OverflowError, ValueError):
            return None
        if not math.isfinite(one.mean + one.sd):
            return None
        return ColumnStats(one.count, missing, one.mean, one.rest, one.sd)

    def units(self) -> tuple[float, float] | None:
        """The mean and population sd of a column with more than two values; None with two."""
        said = f"column {self.name!r}"
        if len(self.values) == 1:
            raise EpviError(f"{said} has the same value in all rows: it cannot be standardised, so leave it out.")
        if len(self.values) == 2:
            return None
        stats = self.stats()
        if stats is None or not stats.sd > 0:
            raise EpviError(f"{said} is too large or too even to be standardised: change its unit.")
        return stats.mean, stats.sd


def _described(values: np.ndarray) -> ColumnStats:
    """Two passes: the mean, and squares about it, both corrected by what the mean was off."""
    values = values.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        rough = float(np.mean(values))
        away = values - rough
        shift = float(np.mean(away))
        variance = max(0.0, float(np.mean(np.square(away))) - shift**2)
    return ColumnStats(len(values), 0, *split_mean(rough, shift), math.sqrt(variance))
