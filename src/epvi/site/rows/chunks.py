"""Columns of one file, or of arrays in memory, as an iterator over chunks of rows.

Takes columns that are in memory or memory-mapped, or Arrow record batches; gives a `Reading`, which holds one chunk at
a time of what is not in memory already.
"""

import csv
import dataclasses
import functools
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.cells import CATEGORIES, Cells, as_cells, categories, kind_of, plain_cells, row_shape

# Most rows in one chunk. Measured by `read_rows(Rows(path, x=names))` of 1,000,000 x 18 float64 values in one Parquet
# row group (CPU time, peak memory beyond the imports): 2^12 rows 0.20 s, 116 MB; 2^14 0.13 s, 127 MB; 2^16 0.12 s,
# 175 MB; 2^18 and 2^20 0.12 s, 250 MB.
BATCH_ROWS = 2**16
# Most bytes in one chunk, at 8 bytes per number: 32 MB, which binds only where a row has more than 64 numbers.
# Judgement: a chunk and its conversions should be small beside the columns that they fill.
_BATCH_BYTES = 2**25

_V = TypeVar("_V", bound=Hashable)

# What pyarrow, NumPy, zipfile, gzip and csv raise on a file that is damaged, of another format or not accessible.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
    csv.Error,
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """Columns that are ready to be read, by name."""

    # Number of rows of each column; None for a scalar.
    lengths: dict[str, int | None]
    # Each column without its rows, which shows its kind, dtype and row shape; a scalar as it is.
    empty: dict[str, Cells]
    # Starts an iterator over chunks of rows, in order.
    chunks: Callable[[], Iterator[dict[str, Cells]]]
    # Columns of numbers that are contiguous arrays already, in memory or memory-mapped.
    held: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # The ordered categories of a column with a categorical dtype; None for other columns.
    categories: Callable[[str], list[Any] | None] = lambda name: None
    # Raises an error if a column parsed as numbers has text that means something else; see `numerals.first_misread`.
    refuse_misread: Callable[[Sequence[str]], None] = lambda names: None

    @property
    def num_rows(self) -> int:
        """The number of rows; that of the longest column if they differ."""
        return max(length or 0 for length in self.lengths.values())


# Takes the names of the columns to read, and those among them to read as text even if they look like numbers.
Read = Callable[[Sequence[str], Collection[str]], Reading]


@dataclasses.dataclass(frozen=True)
class TablePart:
    """One file, or the rows in memory, of which columns can be read."""

    # The file's name for error messages; empty for rows in memory.
    where: str
    # Names of all columns.
    names: tuple[str, ...]
    # Reads some of the columns.
    read: Read

    def __post_init__(self) -> None:
        twice = first_duplicate(self.names)
        if twice is not None:
            raise EpviError(f"{self.said} has two columns named {twice!r}: rename one of them.")
        if not self.names:
            raise EpviError(f"{self.said} has no columns: it needs at least one.")

    @property
    def said(self) -> str:
        """How error messages name this part."""
        return f"file {self.where!r}" if self.where else "the data"

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are not columns."""
        return [name for name in names if name not in self._there]

    @functools.cached_property
    def _there(self) -> frozenset[str]:
        return frozenset(self.names)


def first_duplicate(values: Iterable[_V]) -> _V | None:
    """The first value that repeats an earlier one; None if all differ."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def unreadable(where: str, error: BaseException) -> EpviError:
    """The error for a file that cannot be read; leaves out the library's message, which may quote values of rows."""
    if isinstance(error, UnicodeError):
        return EpviError(f"file {where!r} is not UTF-8 text: save it as CSV in UTF-8.")
    if isinstance(error, PermissionError):
        return EpviError(f"file {where!r} may not be read by this user: change its permissions.")
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return EpviError(
            f"file {where!r} holds Python objects, which are never loaded: save arrays of numbers or text."
        )
    return EpviError(f"file {where!r} cannot be read ({type(error).__name__}): it is damaged or of another kind.")


def batch_rows(empty: Mapping[str, Cells]) -> int:
    """The number of rows per chunk of these columns: `BATCH_ROWS`, or fewer to stay below `_BATCH_BYTES`."""
    width = sum(8 * math.prod(row_shape(column) or ()) for column in empty.values())
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // max(1, width)))


def read_held(columns: dict[str, Any]) -> Reading:
    """A `Reading` of NumPy and Arrow columns that are in memory or memory-mapped."""
    shapes = {
        name: np.shape(column) if isinstance(column, np.ndarray) else (len(column),) for name, column in columns.items()
    }
    lengths = {name: shape[0] if shape else None for name, shape in shapes.items()}
    single = {name: as_cells(name, columns[name]) for name, length in lengths.items() if length is None}
    many = {name: column for name, column in columns.items() if name not in single}
    empty = {name: as_cells(name, column[:0]) for name, column in many.items()} | single

    def chunks() -> Iterator[dict[str, Cells]]:
        step, last = batch_rows(empty), max(length or 0 for length in lengths.values())
        for start in range(0, last, step):
            yield {name: as_cells(name, column[start : start + step]) for name, column in many.items()}

    arrays = {name: _array(column) for name, column in many.items()}
    held = {name: array for name, array in arrays.items() if array is not None}

    def own(name: str) -> list[Any] | None:
        return categories(as_cells(name, columns[name])) if kind_of(empty[name]) == CATEGORIES else None

    return Reading(lengths, empty, chunks, held, own)


def _array(column: Any) -> np.ndarray | None:
    """The column's numbers without a copy, if they are contiguous and in native byte order; otherwise None."""
    if isinstance(column, np.ndarray):
        is_plain = column.dtype.kind in "biuf" and column.dtype.isnative and column.flags.c_contiguous
        return np.asarray(column) if is_plain and not isinstance(column, np.ma.MaskedArray) else None
    import pyarrow as pa

    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return column.chunk(0).to_numpy() if is_number and column.num_chunks == 1 and not column.null_count else None


def of_batches(batches: Iterable[Any], categorical: Container[str] = ()) -> Iterator[dict[str, Cells]]:
    """One chunk per non-empty Arrow record batch; see `of_table`."""
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            yield of_table(pa.Table.from_batches([batch]), categorical)


def of_table(table: Any, categorical: Container[str] = ()) -> dict[str, Cells]:
    """The columns of an Arrow table; those in `categorical` become categorical again, as before they were written."""
    return {
        name: plain_cells(table[name].dictionary_encode() if name in categorical else table[name])
        for name in table.column_names
    }
