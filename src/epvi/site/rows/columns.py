"""Validates a mapping of arrays as columns of finite numbers with one row axis, and memory-maps columns from files."""

import mmap
from pathlib import Path
from typing import Any

import jax
import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.numerals import TOO_LARGE, first_inexact

Columns = dict[str, np.ndarray]


def as_columns(rows: Any, what: str = "rows") -> Columns:
    """Check that all columns hold finite numbers and have the same length."""
    columns = {name: _column(name, column) for name, column in raw_columns(rows, what).items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise EpviError(f"the columns of {what} have different lengths ({said}): one entry per row in each.")
    if 0 in lengths.values():
        raise EpviError(f"{what} has zero rows: pass at least one.")
    return columns


def raw_columns(rows: Any, what: str = "rows") -> dict[str, Any]:
    """The columns by name, with unchecked values, of anything that has `keys` and `[]`, such as a data frame."""
    if hasattr(rows, "to_delayed") and hasattr(rows, "compute"):
        raise EpviError(
            f"{what} is a Dask {type(rows).__name__}, whose rows are on its cluster: only epvi.fit, predict and"
            " log_predictive work there, so pass what its compute() gives, or write it to Parquet."
        )
    if not hasattr(rows, "keys") and hasattr(rows, "collect"):
        raise EpviError(f"{what} is a {type(rows).__name__}: pass what its collect() gives, or write it to Parquet.")
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
    """The values as an unmasked NumPy array in native byte order."""
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
    large = first_inexact(column)
    if large is not None:
        raise EpviError(f"column {name!r} has the number {large}, {TOO_LARGE}.")
    if column.dtype.kind == "f":
        column = column.astype(np.float32 if column.dtype.itemsize <= 4 else np.float64, copy=False)
        # One cheap pass first: if the sum is finite, so is every entry.
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(np.sum(column))
        if not finite and (bad := column.size - int(np.count_nonzero(np.isfinite(column)))):
            raise EpviError(f"column {name!r} has {bad:,} NaN or infinite values: remove those rows or fill them in.")
    return column


def length(columns: Columns) -> int:
    """The number of entries of every column."""
    return len(next(iter(columns.values())))


def constant_columns(columns: Columns) -> list[str]:
    """Names of the columns, and of columns of matrices, that have the same value in every row."""
    found = []
    for name, column in columns.items():
        flat = column.reshape(len(column), -1)
        same = np.all(flat == flat[:1], axis=0)
        found += [name if column.ndim == 1 else f"{name}[:, {i}]" for i in np.nonzero(same)[0]]
    return found


def generator(key: jax.Array) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key, for draws on the host that are the same on every machine."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


def generators(keys: jax.Array) -> list[np.random.Generator]:
    """The generator of each of several JAX keys."""
    return [np.random.default_rng(words) for words in np.asarray(jax.random.key_data(keys)).tolist()]


class RowsFile(mmap.mmap):
    """A read-only memory map of a file of rows, whose pages `let_go` may release; they are read again on access."""


def map_rows(file: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Memory-map a file of raw numbers as a column."""
    with open(file, "rb") as opened:
        return np.ndarray(shape, dtype, RowsFile(opened.fileno(), 0, access=mmap.ACCESS_READ))


def let_go(columns: Columns, start: int, stop: int) -> None:
    """Release the resident pages of these rows of columns mapped by `map_rows`; other columns are left alone."""
    for column in columns.values():
        file = column
        while file is not None and not isinstance(file, RowsFile):
            file = getattr(file, "base", None)
        if file is None or not hasattr(file, "madvise"):
            continue
        begin, width = column.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data, column.strides[0]
        # Only whole pages: those at the ends hold other rows as well.
        first = -(-(begin + start * width) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (begin + min(stop, len(column)) * width) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            file.madvise(mmap.MADV_DONTNEED, first, last - first)
