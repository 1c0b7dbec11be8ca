"""Accumulates the mean and standard deviation of a column over chunks, pooling chunks as sites are pooled.

Takes chunks of finite numbers; gives `ColumnStats`, or the centre and scale with which to standardise the column.
"""

import dataclasses
import math

import numpy as np

from epvi.ground.errors import EpviError
from epvi.wire.column_stats import ColumnStats, Stats, pool, split_mean


@dataclasses.dataclass
class RunningStats:
    """Statistics of a column's chunks."""

    # Column name.
    name: str
    # Statistics of each chunk.
    chunks: list[ColumnStats] = dataclasses.field(default_factory=list)
    # Some distinct values: all of them while there are at most two.
    values: set[float] = dataclasses.field(default_factory=set)

    def add(self, values: np.ndarray) -> None:
        """Add the next chunk."""
        if not len(values):
            return
        self.chunks.append(_described(values))
        if len(self.values) < 3:
            low, high = values.min(), values.max()
            others = values[(values != low) & (values != high)][:1]
            self.values |= {low.item(), high.item(), *others.tolist()}

    def stats(self, missing: int = 0) -> ColumnStats | None:
        """The pooled statistics of all chunks; None when they overflow float64."""
        try:
            one = pool([Stats({self.name: chunk}) for chunk in self.chunks]).columns[self.name]
        except (OverflowError, ValueError):
            return None
        if not math.isfinite(one.mean + one.sd):
            return None
        return ColumnStats(one.count, missing, one.mean, one.rest, one.sd)

    def units(self) -> tuple[float, float] | None:
        """(mean, population sd) of a column with more than two distinct values; None for a binary column."""
        said = f"column {self.name!r}"
        if len(self.values) == 1:
            raise EpviError(f"{said} has the same value in all rows: it cannot be standardised, so leave it out.")
        if len(self.values) == 2:
            return None
        stats = self.stats()
        if stats is None or not stats.sd > 0:
            raise EpviError(f"{said} is too large or varies too little to be standardised: change its unit.")
        return stats.mean, stats.sd


def _described(values: np.ndarray) -> ColumnStats:
    """The corrected two-pass algorithm: deviations from the mean also correct the rounding of the mean itself."""
    values = values.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        rough = float(np.mean(values))
        away = values - rough
        shift = float(np.mean(away))
        variance = max(0.0, float(np.mean(np.square(away))) - shift**2)
    return ColumnStats(len(values), 0, *split_mean(rough, shift), math.sqrt(variance))
