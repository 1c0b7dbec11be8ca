"""The columns of one file, or of memory, in chunks of rows.

Takes columns that are held or mapped already, or what can give them in chunks; gives a `Reading`. Only one chunk at a
time is made of what is not held.
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

BATCH_ROWS = 2**16
_BATCH_BYTES = 2**25

_V = TypeVar("_V", bound=Hashable)

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
    """Columns that are ready to be read.

    `lengths` are their numbers of rows, None for a single value; `empty` has none of their rows and shows their kinds;
    `chunks` gives the rows in order; `held` are those columns of numbers that are arrays already. `categories` gives
    those of a column whose own type has them in an order; `refuse_odd` refuses columns of numbers whose text means
    something else.
    """

    lengths: dict[str, int | None]
    empty: dict[str, Cells]
    chunks: Callable[[], Iterator[dict[str, Cells]]]
    held: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    categories: Callable[[str], list[Any] | None] = lambda name: None
    refuse_odd: Callable[[Sequence[str]], None] = lambda names: None

    @property
    def num_rows(self) -> int:
        """The number of rows, of the longest column if they differ."""
        return max(length or 0 for length in self.lengths.values())


# Column names to read, and those among them that are text whatever they look like -> the columns.
Read = Callable[[Sequence[str], Collection[str]], Reading]


@dataclasses.dataclass(frozen=True)
class TablePart:
    """One file, or the rows in memory: `where` is the file's name for sentences, empty in memory."""

    where: str
    names: tuple[str, ...]
    read: Read

    def __post_init__(self) -> None:
        twice = first_twice(self.names)
        if twice is not None:
            raise EpviError(f"{self.said} has two columns named {twice!r}: rename one of them.")
        if not self.names:
            raise EpviError(f"{self.said} has no columns: it needs at least one.")

    @property
    def said(self) -> str:
        """What to call it."""
        return f"file {self.where!r}" if self.where else "the data"

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Those among the names that no column has."""
        return [name for name in names if name not in self._there]

    @functools.cached_property
    def _there(self) -> frozenset[str]:
        return frozenset(self.names)


def first_twice(values: Iterable[_V]) -> _V | None:
    """The first value that was there before, None if all differ."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def unreadable(where: str, error: BaseException) -> EpviError:
    """A sentence without what the libraries quote, which may be values."""
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
    """How many rows a chunk of these columns has: fewer where rows are long."""
    width = sum(8 * math.prod(row_shape(column) or ()) for column in empty.values())
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // max(1, width)))


def read_held(columns: dict[str, Any]) -> Reading:
    """A reading of NumPy and Arrow columns that are in memory, or mapped."""
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
    """The column's numbers as they lie there, in one piece and this machine's byte order; None if they do not."""
    if isinstance(column, np.ndarray):
        is_plain = column.dtype.kind in "biuf" and column.dtype.isnative and column.flags.c_contiguous
        return np.asarray(column) if is_plain and not isinstance(column, np.ma.MaskedArray) else None
    import pyarrow as pa

    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return column.chunk(0).to_numpy() if is_number and column.num_chunks == 1 and not column.null_count else None


def of_batches(batches: Iterable[Any], categorical: Container[str] = ()) -> Iterator[dict[str, Cells]]:
    """Chunks of Arrow's record batches; see `of_table`."""
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            yield of_table(pa.Table.from_batches([batch]), categorical)


def of_table(table: Any, categorical: Container[str] = ()) -> dict[str, Cells]:
    """The columns of an Arrow table, of which some were `categorical` where they come from."""
    return {
        name: plain_cells(table[name].dictionary_encode() if name in categorical else table[name])
        for name in table.column_names
    }
