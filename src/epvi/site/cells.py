"""One source column as it was read: what kind of values it has, which are missing, and what it is in numbers.

Takes NumPy or Arrow arrays; gives NumPy arrays. What is asked of a column here never tells more than one of its values.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epvi.errors import EpviError
from epvi.site.rows import plain_array

if TYPE_CHECKING:
    import pyarrow as pa

# Numbers of any shape in NumPy, or anything else in Arrow: a `pyarrow.ChunkedArray` (not named, since it comes late).
Cells: TypeAlias = Any

NUMBERS, TRUTHS, TEXT, DATES, NOTHING = "numbers", "truth values", "text", "dates or times", "no values"

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_COMMAS = r"^\s*[+-]?\d+([.,' ]\d{3})*([.,]\d+)?\s*$"


def as_cells(name: str, values: Any) -> Cells:
    """A column of a mapping or an archive: numbers stay NumPy's, all else becomes Arrow's, which knows what is missing.

    Masked values are missing.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return plain_cells(values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values]))
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    mask = mask if mask is not None and mask.any() else None
    array = plain_array(name, values.data if isinstance(values, np.ma.MaskedArray) else values)
    if array.ndim != 1 and mask is not None:
        raise EpviError(f"column {name!r} has masked values in a matrix: remove those rows or fill them in.")
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "T":
        array = array.astype(object)
    if array.ndim == 0 or array.dtype.kind in "VcMm" or (mask is None and array.dtype.kind in "biuf"):
        return array
    try:
        return plain_cells(pa.chunked_array([pa.array(array, mask=mask, from_pandas=True)]))
    except (pa.ArrowException, TypeError, ValueError):
        raise EpviError(
            f"column {name!r} holds objects of several kinds: make it numbers, or text with levels."
        ) from None


def plain_cells(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """An Arrow column without dictionaries, views, decimals or extensions."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_cells(column.cast(kind.storage_type))
    if pa.types.is_dictionary(kind):
        # One by one, since Arrow cannot look up views.
        target = pa.large_string() if kind.value_type in (pa.string(), pa.string_view()) else kind.value_type
        looked_up = [chunk.dictionary.cast(target).take(chunk.indices) for chunk in column.chunks]
        return plain_cells(pa.chunked_array(looked_up, type=target))
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if kind in (pa.string(), pa.string_view()):
        return column.cast(pa.large_string())
    return column


def kind_of(cells: Cells) -> str:
    """What the values are, in words for a sentence."""
    if isinstance(cells, np.ndarray):
        words = {"b": TRUTHS, "i": NUMBERS, "u": NUMBERS, "f": NUMBERS, "M": DATES, "m": DATES}
        return words.get(cells.dtype.kind, str(cells.dtype))
    import pyarrow as pa

    asked = {
        TRUTHS: pa.types.is_boolean,
        NUMBERS: lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
        TEXT: pa.types.is_large_string,
        DATES: pa.types.is_temporal,
        NOTHING: pa.types.is_null,
        "text that is not UTF-8": pa.types.is_binary,
    }
    return next((words for words, holds in asked.items() if holds(cells.type)), str(cells.type))


def row_shape(cells: Cells) -> tuple[int, ...] | None:
    """The shape of a row's entry, () in a plain column; None for a single value without rows."""
    if isinstance(cells, np.ndarray):
        return cells.shape[1:] if cells.ndim else None
    return ()


def is_float32(cells: Cells) -> bool:
    """Whether float32 holds the values as they are."""
    if isinstance(cells, np.ndarray):
        return cells.dtype.kind == "f" and cells.dtype.itemsize <= 4
    import pyarrow as pa

    return pa.types.is_float16(cells.type) or pa.types.is_float32(cells.type)


def is_float(cells: "pa.ChunkedArray") -> bool:
    """Whether an Arrow column may hold NaN."""
    import pyarrow as pa

    return pa.types.is_floating(cells.type)


def missing(cells: Cells) -> np.ndarray | None:
    """Which rows have no value: Arrow's nulls and NaN; None when all have one."""
    if not isinstance(cells, np.ndarray) and not cells.null_count and is_float(cells):
        cells = cells.to_numpy()
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind in "Mm":
            found = np.isnat(cells)
            return found if found.any() else None
        # The sum is NaN when any entry is (or infinities of both signs); only then are the entries looked at.
        with np.errstate(over="ignore", invalid="ignore"):
            if cells.dtype.kind != "f" or not np.isnan(np.sum(cells)):
                return None
        found = np.asarray(np.isnan(cells).reshape(len(cells), -1).any(axis=1))
    else:
        if not cells.null_count:
            return None
        found = cells.is_null(nan_is_null=is_float(cells)).to_numpy()
    return found if found.any() else None


def kept(cells: Cells, keep: np.ndarray | None) -> Cells:
    """The rows to keep, all for None."""
    if keep is None:
        return cells
    if isinstance(cells, np.ndarray):
        return cells[keep]
    import pyarrow as pa

    return cells.filter(pa.array(keep))


def numbers(cells: Cells) -> np.ndarray:
    """Cells without missing values in NumPy, without a copy where Arrow holds them in one piece."""
    array = cells if isinstance(cells, np.ndarray) else cells.to_numpy()
    if array.dtype.kind == "f":
        return array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64, copy=False)
    return array.astype(float) if array.dtype == object and not len(array) else array


def unchanged(cells: Cells) -> np.ndarray:
    """The values as they are in NumPy, text without spaces around it."""
    if isinstance(cells, np.ndarray) or kind_of(cells) != TEXT:
        return cells if isinstance(cells, np.ndarray) else cells.to_numpy()
    made = [np.zeros(0, object)]
    for chunk in cells.dictionary_encode().chunks:
        values = np.array([*(value.strip() for value in chunk.dictionary.to_pylist()), None], object)
        made.append(values[chunk.indices.fill_null(len(values) - 1).to_numpy()])
    return np.concatenate(made)


def level_key(value: Any) -> float | str | None:
    """What makes two levels the same: the number, or the text without spaces around it."""
    if isinstance(value, str):
        return value.strip()
    return float(value) if isinstance(value, bool | int | float | np.number | np.bool_) else None


def codes(cells: Cells, levels: Mapping[float | str, int]) -> tuple[np.ndarray, Any]:
    """The number of every row's level, and None; or what there is and the first value that is not among the levels."""
    import pyarrow as pa

    column = pa.chunked_array([pa.array(cells)]) if isinstance(cells, np.ndarray) else cells
    numeric = not isinstance(next(iter(levels)), str)
    found = [np.zeros(0, np.int64)]
    for chunk in column.dictionary_encode().chunks:
        values = chunk.dictionary.to_pylist()
        table = [levels.get(_key(value, numeric), -1) for value in values]
        if -1 in table:
            return np.concatenate(found), values[table.index(-1)]
        found.append(np.asarray(table, np.int64)[chunk.indices.to_numpy()])
    return np.concatenate(found), None


def _key(value: Any, numeric: bool) -> Any:
    key = level_key(value)
    if numeric and isinstance(key, str) and re.match(_NUMBER, key):
        return float(key)
    return key


@dataclasses.dataclass(frozen=True)
class Look:
    """What text looks like that was to be numbers: how many values there are, and how many are no numbers.

    `has_commas` says whether all that are no numbers would be without commas, or points between thousands.
    """

    filled: int = 0
    bad: int = 0
    has_commas: bool = True

    def __add__(self, other: "Look") -> "Look":
        return Look(self.filled + other.filled, self.bad + other.bad, self.has_commas and other.has_commas)

    def why(self) -> str:
        """What may have made text of the column, and the remedy; empty when it looks like text."""
        if self.bad and self.has_commas:
            return "write numbers with a decimal point and without thousands separators"
        if 2 * self.bad < self.filled:
            return (
                f"{self.bad:,} of its {self.filled:,} values are no numbers, so mend those or mark them as missing (NA)"
            )
        return ""


def look(cells: "pa.ChunkedArray") -> Look:
    """What the text of a column looks like."""
    strange = {}
    for counted in cells.value_counts().to_pylist():
        if counted["values"] is not None and not re.match(_NUMBER, counted["values"]):
            strange[counted["values"]] = counted["counts"]
    has_commas = all(re.match(_COMMAS, value) for value in strange)
    return Look(len(cells) - cells.null_count, sum(strange.values()), has_commas)
