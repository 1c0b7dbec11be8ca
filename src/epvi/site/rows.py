"""Rows in memory, and how they are split.

Takes a mapping of arrays with one leading axis; gives checked NumPy columns, and the order in which rows go to shards.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from epvi.errors import EpviError
from epvi.validation import at_least

Columns = dict[str, np.ndarray]


def as_columns(rows: Any, what: str = "rows") -> Columns:
    """Columns of finite numbers, all of one length."""
    columns = {name: _column(name, column) for name, column in raw_columns(rows, what).items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise EpviError(f"the columns of {what} have different lengths ({said}): one entry per row in each.")
    if 0 in lengths.values():
        raise EpviError(f"{what} has zero rows: pass at least one.")
    return columns


def raw_columns(rows: Any, what: str = "rows") -> dict[str, Any]:
    """The columns by name, unchecked; anything with `keys` and `[]`, so that data frames work too."""
    if not hasattr(rows, "keys") or not hasattr(rows, "__getitem__"):
        raise EpviError(f'{what} is a {type(rows).__name__}: pass a mapping of columns, as in {{"x": X, "y": y}}.')
    columns = {name: rows[name] for name in rows.keys()}  # noqa: SIM118 (a data frame's own iteration may differ)
    if not columns:
        raise EpviError(f'{what} has no columns: pass a mapping of arrays, as in {{"x": X, "y": y}}.')
    unnamed = [name for name in columns if not isinstance(name, str)]
    if unnamed:
        raise EpviError(f"a column of {what} is named {unnamed[0]!r}: columns need text for names.")
    return columns


def plain_array(name: str, values: Any) -> np.ndarray:
    """The values as a plain array in this machine's byte order."""
    masked = int(np.ma.count_masked(values)) if isinstance(values, np.ma.MaskedArray) else 0
    if masked:
        raise EpviError(f"column {name!r} has {masked:,} masked values: remove those rows or fill them in.")
    try:
        column = np.asarray(values)
    except (TypeError, ValueError):
        raise EpviError(f"column {name!r} is not a rectangular array: pass one array with a row per entry.") from None
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))


def _column(name: str, values: Any) -> np.ndarray:
    column = plain_array(name, values)
    if column.ndim == 0:
        raise EpviError(f"column {name!r} is a single value: pass one per row, or fix it with Model(..., {name}=...).")
    if column.dtype.kind in "OSUT":
        raise EpviError(f"column {name!r} holds text or objects: code it as numbers first (0, 1, 2, ... for levels).")
    if column.dtype.kind in "Mm":
        raise EpviError(f"column {name!r} holds dates or durations: turn it into numbers first, in a unit you choose.")
    if column.dtype.kind not in "biuf":
        raise EpviError(f"column {name!r} holds {column.dtype} values: pass real numbers.")
    if column.dtype.kind == "f":
        column = column.astype(np.float32 if column.dtype.itemsize <= 4 else np.float64, copy=False)
        # The sum is finite when every entry is; only when it is not are the entries looked at.
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(np.sum(column))
        if not finite and (bad := column.size - int(np.count_nonzero(np.isfinite(column)))):
            raise EpviError(f"column {name!r} has {bad:,} NaN or infinite values: remove those rows or fill them in.")
    return column


def constant_columns(columns: Columns) -> list[str]:
    """Names of the columns, or columns of matrices, that have the same value in every row."""
    found = []
    for name, column in columns.items():
        flat = column.reshape(len(column), -1)
        same = np.all(flat == flat[:1], axis=0)
        found += [name if column.ndim == 1 else f"{name}[:, {i}]" for i in np.nonzero(same)[0]]
    return found


@dataclasses.dataclass(frozen=True)
class Split:
    """Which rows belong to which shard: shard m has rows `order[bounds[m]:bounds[m + 1]]`."""

    order: np.ndarray | slice
    bounds: np.ndarray
    labels: tuple[str, ...]

    @property
    def num_shards(self) -> int:
        """The number M of shards."""
        return len(self.labels)

    def __iter__(self) -> Iterator[slice]:
        """The shards' slices of the ordered rows."""
        return (slice(int(a), int(b)) for a, b in zip(self.bounds[:-1], self.bounds[1:], strict=True))

    @property
    def largest(self) -> int:
        """The number of rows of the largest shard."""
        return int(np.max(np.diff(self.bounds)))


def split_evenly(num_rows: int, num_shards: int, *, shuffle: bool, key: jax.Array) -> Split:
    """Shards of sizes that differ by at most one row, after a seeded permutation or in the given order."""
    num_shards = at_least("shards", num_shards, 1)
    if num_shards > num_rows:
        raise EpviError(f"there are {num_shards:,} shards for {num_rows:,} rows: take at most one shard per row.")
    order = generator(key).permutation(num_rows) if shuffle and num_shards > 1 else slice(None)
    sizes = np.full(num_shards, num_rows // num_shards)
    sizes[: num_rows % num_shards] += 1
    labels = tuple(f"{m + 1} of {num_shards}" for m in range(num_shards))
    return Split(order, np.concatenate([[0], np.cumsum(sizes)]), labels)


def split_by(rows: Mapping[str, Any], by: str) -> Split:
    """One shard per value of a column (numbers, text or dates), in the order of the sorted values."""
    if by not in rows:
        raise EpviError(f"there is no column {by!r} to split by: the rows have {', '.join(map(str, rows))}.")
    column = plain_array(by, rows[by])
    if column.ndim != 1:
        raise EpviError(f"column {by!r} has shape {column.shape}: split by a column with one value per row.")
    if column.dtype.kind == "O":
        missing = sum(value is None or value != value for value in column)
        column = column.astype(str)
    else:
        missing = int(np.count_nonzero(column != column))
    if missing:
        raise EpviError(f"column {by!r} has {missing:,} missing values: every row needs a shard.")
    values, shard = np.unique(column, return_inverse=True)
    if len(values) < 2:
        raise EpviError(f"column {by!r} has one value in all rows: there is nothing to split by.")
    counts = np.bincount(shard, minlength=len(values))
    labels = tuple(f"{m + 1} of {len(values)} ({by} = {value})" for m, value in enumerate(values))
    return Split(np.argsort(shard, kind="stable"), np.concatenate([[0], np.cumsum(counts)]), labels)


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator for a JAX key: draws on the host that are the same on every machine."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
