"""Assigns rows to shards, evenly or by the values of a column.

Takes the number of rows, or a column; gives the row indices of each shard. No rows are copied.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.ground.validation import at_least
from epvi.site.rows.columns import generator, plain_array


@dataclasses.dataclass(frozen=True)
class Split:
    """Which rows each of M shards has."""

    # Rows of each shard: a slice, or increasing row indices.
    shards: tuple[slice | np.ndarray, ...]
    # Number of rows of each shard, (M,).
    sizes: np.ndarray
    # Names of the shards for messages, as in "2 of 5".
    labels: tuple[str, ...]

    @property
    def num_shards(self) -> int:
        """The number M of shards."""
        return len(self.labels)

    @property
    def largest(self) -> int:
        """The number of rows of the largest shard."""
        return int(np.max(self.sizes))


def split_evenly(num_rows: int, num_shards: int, *, shuffle: bool, key: jax.Array) -> Split:
    """Shards whose sizes differ by at most one row: stratified at random if `shuffle`, otherwise contiguous.

    Each run of M consecutive rows gives one row to every shard, in an order rotated at random. Shards are therefore
    alike even if the rows are ordered, and a shard's row indices increase, so that it is read sequentially.
    """
    num_shards = at_least("shards", num_shards, 1)
    if num_shards > num_rows:
        raise EpviError(f"there are {num_shards:,} shards for {num_rows:,} rows: take at most one shard per row.")
    sizes = np.full(num_shards, num_rows // num_shards)
    sizes[: num_rows % num_shards] += 1
    labels = tuple(f"{m + 1} of {num_shards}" for m in range(num_shards))
    if not shuffle or num_shards == 1:
        ends = np.cumsum(sizes)
        return Split(tuple(slice(int(b - n), int(b)) for b, n in zip(ends, sizes, strict=True)), sizes, labels)
    return Split(tuple(_dealt(num_rows, num_shards, key)), sizes, labels)


def _dealt(num_rows: int, num_shards: int, key: jax.Array) -> list[np.ndarray]:
    """Row indices of each shard; the rows after the last whole run of M go to the first shards."""
    rounds = num_rows // num_shards
    kind = np.uint32 if num_rows < 2**32 else np.uint64
    first = generator(key).integers(num_shards, size=rounds, dtype=kind)
    begin = np.arange(rounds, dtype=kind) * kind(num_shards)
    shards = []
    for m in range(num_shards):
        rows = begin + first
        shards.append(np.append(rows, kind(rounds * num_shards + m)) if m < num_rows % num_shards else rows)
        # The next shard has the next row of each run, cyclically.
        first += kind(1)
        first[first == num_shards] = 0
    return shards


def split_by(rows: Mapping[str, Any], by: str) -> Split:
    """One shard per distinct value of a column (numbers, text or dates), in sorted order."""
    if by not in rows:
        raise EpviError(f"there is no column {by!r} to split by: the rows have {', '.join(map(str, rows))}.")
    values, shard = distinct(by, rows[by], "shard")
    if len(values) < 2:
        raise EpviError(f"column {by!r} has one value in all rows: there is nothing to split by.")
    sizes = np.bincount(shard, minlength=len(values))
    labels = tuple(shown(f"{m + 1} of {len(values)} ({by} = {value})") for m, value in enumerate(values))
    return Split(tuple(np.split(np.argsort(shard, kind="stable"), np.cumsum(sizes)[:-1])), sizes, labels)


def distinct(name: str, column: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of a column in order, and the number of each row's; `what` is what every row needs."""
    column = plain_array(name, column)
    if column.ndim != 1:
        raise EpviError(f"column {name!r} has shape {column.shape}: a {what} needs a column with one value per row.")
    if column.dtype.kind == "O":
        missing = sum(value is None or value != value for value in column)
        column = column.astype(str)
    else:
        missing = int(np.count_nonzero(column != column))
    if missing:
        raise EpviError(f"column {name!r} has {missing:,} missing values: every row needs a {what}.")
    return np.unique(column, return_inverse=True)
