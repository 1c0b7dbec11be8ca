"""Finds rows with scarce values, and draws subsamples of rows that have enough of them.

A column has scarce values if nearly all of its rows have one and the same value: an indicator of a rare category, a
rare label. A uniform subsample then has hardly any of the other rows, on which what is known of a coefficient depends.
These are drawn besides, and rows are weighted with the inverse of their probability (Horvitz & Thompson 1952).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from epvi.site.rows.columns import Columns, let_go

# Largest part of the rows that may differ from the common value. Judgement: uniform subsamples of some hundred rows
# have dozens of rows of more frequent categories.
_SCARCE = 1 / 16
# Rows on which common values are searched for, and how much more frequent others may be there. Judgement.
_ROWS_TO_LOOK, _SLACK = 512, 2
# Rows that are compared with the common values at once. Judgement: they stay in the cache.
_ROWS_AT_ONCE = 2**13
# Rows drawn for each column with scarce values, as a part of a subsample; and most of these, for all columns together.
# Judgement: Newton's method then takes as many steps on all rows as without rare categories.
_FOR_EACH, _FOR_ALL = 1 / 32, 1.0


class Scarce(NamedTuple):
    """The rows of a shard with scarce values."""

    # The number of all rows.
    num_rows: int
    # Those with scarce values, increasing.
    places: Int[np.ndarray, " n"]
    # About their leverage: the sum of 1/n over the columns in which their values are scarce, for n rows that have such.
    leverage: Float[np.ndarray, " n"]
    # The number of such columns.
    num_columns: int

    def besides(
        self, chosen: Int[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, " s"], Float[np.ndarray, " s"]]:
        """Uniformly chosen rows, and at most about as many besides that have scarce values.

        Their indices, increasing, and how many rows each of them represents.
        """
        size = len(chosen)
        if not len(self.places):
            # Other shards of its batch have such rows.
            return np.sort(chosen), np.full(size, self.num_rows / size)
        chances = np.minimum(size * min(_FOR_EACH, _FOR_ALL / max(self.num_columns, 1)) * self.leverage, 1.0)
        rows = np.union1d(chosen, self.places[rng.random(len(chances)) < chances])
        missed = np.full(len(rows), 1 - size / self.num_rows)
        at = np.minimum(np.searchsorted(self.places, rows), len(self.places) - 1)
        is_scarce = self.places[at] == rows
        missed[is_scarce] *= 1 - chances[at[is_scarce]]
        return rows, 1 / (1 - missed)

    def influence(self, d: int) -> Float[np.ndarray, " N"]:
        """About the leverage of each row in a model with d coefficients, relative to the average row."""
        made = np.full(self.num_rows, max(d - self.num_columns, 0) / self.num_rows)
        made[self.places] += self.leverage
        return made / np.mean(made)


def find_scarce(columns: Columns, bounds: Int[np.ndarray, " C"]) -> list[Scarce] | None:
    """The rows with scarce values of shards that lie one after the other; None if there are none."""
    num_rows, num_shards, num_columns, cells = int(bounds[-1]), len(bounds) - 1, 0, []
    if not num_rows:
        return None
    for column in columns.values():
        rows, which, width = _scarce_cells(np.reshape(column, (num_rows, -1)))
        cells.append((rows, num_columns + which))
        num_columns += width
    rows, which = (np.concatenate(part) for part in zip(*cells, strict=True))
    if not len(rows):
        return None
    cell = (np.searchsorted(bounds, rows, side="right") - 1) * num_columns + which
    counts = np.bincount(cell, minlength=num_shards * num_columns)
    leverage = np.bincount(rows, 1 / counts[cell], minlength=num_rows)
    each = np.count_nonzero(counts.reshape(num_shards, num_columns), axis=1)
    made = []
    for start, stop, count in zip(bounds[:-1], bounds[1:], each, strict=True):
        places = np.flatnonzero(leverage[start:stop])
        made.append(Scarce(int(stop - start), places, leverage[start:stop][places], int(count)))
    return made


def _scarce_cells(column: Shaped[np.ndarray, "N k"]) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and columns of the scarce values, and the number of columns that may have such."""
    common, is_known = _common(column)
    width = int(np.count_nonzero(is_known))
    place, found = np.cumsum(is_known) - 1, [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for start in range(0, len(column) if width else 0, _ROWS_AT_ONCE):
        part = column[start : start + _ROWS_AT_ONCE]
        # Comparing contiguous rows takes less time than taking some columns of them.
        row, which = np.divmod(np.flatnonzero((part != common) & is_known), column.shape[1])
        found.append((start + row, place[which]))
        let_go({"": column}, start, start + len(part))
    rows, which = (np.concatenate(part) for part in zip(*found, strict=True))
    kept = (np.bincount(which, minlength=width) <= _SCARCE * len(column))[which]
    return rows[kept], which[kept], width


def _common(column: Shaped[np.ndarray, "N k"]) -> tuple[np.ndarray, np.ndarray]:
    """The value in the middle of some rows of each column, and whether nearly all of them have it."""
    few = column[np.linspace(0, len(column) - 1, min(_ROWS_TO_LOOK, len(column))).astype(np.int64)]
    middle = np.partition(few, len(few) // 2, axis=0)[len(few) // 2]
    return middle, np.mean(few != middle, axis=0) <= _SLACK * _SCARCE
