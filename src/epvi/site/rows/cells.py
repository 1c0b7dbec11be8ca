"""The values ("cells") of one source column: their kind, which are missing, and conversion to numbers or level codes.

Takes NumPy or Arrow arrays; gives NumPy arrays. An Arrow column of a dictionary type is categorical, whatever the type
of its dictionary's values.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows import numerals
from epvi.site.rows.columns import plain_array
from epvi.site.rows.levels import level_key

if TYPE_CHECKING:
    import pyarrow as pa

# A NumPy array of numbers, of any shape, or a `pyarrow.ChunkedArray` of anything else. The annotation does not name
# Arrow's type because pyarrow is imported only when it is needed.
Cells: TypeAlias = Any

# Kinds of columns, as error messages name them.
NUMBERS, BOOLEANS, TEXT, DATES, NOTHING = "numbers", "booleans", "text", "dates or times", "no values"
CATEGORIES = "categories"


def as_cells(name: str, values: Any) -> Cells:
    """Convert a column of a mapping or an archive: numbers stay in NumPy, all else goes to Arrow, which has nulls.

    Masked values become nulls.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return plain_cells(values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values]))
    if is_categorical(values):
        return plain_cells(_as_arrow(name, values))
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
    return plain_cells(_as_arrow(name, array, mask=mask, from_pandas=True))


def is_categorical(values: Any) -> bool:
    """Whether a pandas, polars or Arrow column has a categorical dtype."""
    kind = getattr(values, "dtype", getattr(values, "type", None))
    return str(kind).startswith(("category", "Categorical", "Enum", "dictionary"))


def needs_levels(values: Any) -> bool:
    """Whether a column in memory is categorical or text, and so can be used only with levels."""
    if is_categorical(values):
        return True
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    return kind in "OUT" and hasattr(values, "__iter__") and isinstance(next(iter(values), None), str)


def _as_arrow(name: str, values: Any, **options: Any) -> "pa.ChunkedArray":
    import pyarrow as pa

    try:
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values)
        return pa.chunked_array([pa.array(values, **options)])
    except (pa.ArrowException, TypeError, ValueError):
        raise EpviError(
            f"column {name!r} holds objects of several kinds: convert it to numbers, or to text with levels."
        ) from None


def plain_cells(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Cast an Arrow column, and the dictionary of a categorical one, from view and extension types to plain types."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_cells(column.cast(kind.storage_type))
    if pa.types.is_dictionary(kind):
        made = [_plain_dictionary(chunk) for chunk in column.chunks or [pa.array([], kind)]]
        return pa.chunked_array(made)
    if kind in (pa.string(), pa.string_view()):
        return column.cast(pa.large_string())
    return column


def _plain_dictionary(chunk: "pa.DictionaryArray") -> "pa.DictionaryArray":
    """Give the dictionary plain values; rows whose index points to a null or NaN entry become nulls."""
    import pyarrow as pa

    values = plain_cells(pa.chunked_array([chunk.dictionary])).combine_chunks()
    indices = chunk.indices.cast(pa.int32())
    gaps = values.is_null(nan_is_null=pa.types.is_floating(values.type))
    if gaps.true_count:
        indices = pa.array(np.arange(len(values)), pa.int32(), mask=gaps.to_numpy(False)).take(indices)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=chunk.type.ordered)


def kind_of(cells: Cells) -> str:
    """The kind of the values, as error messages name it."""
    if isinstance(cells, np.ndarray):
        words = {"b": BOOLEANS, "i": NUMBERS, "u": NUMBERS, "f": NUMBERS, "M": DATES, "m": DATES}
        return words.get(cells.dtype.kind, str(cells.dtype))
    import pyarrow as pa

    asked = {
        CATEGORIES: pa.types.is_dictionary,
        BOOLEANS: pa.types.is_boolean,
        NUMBERS: lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        TEXT: pa.types.is_large_string,
        DATES: pa.types.is_temporal,
        NOTHING: pa.types.is_null,
        "text that is not UTF-8": pa.types.is_binary,
    }
    return next((words for words, holds in asked.items() if holds(cells.type)), str(cells.type))


def row_shape(cells: Cells) -> tuple[int, ...] | None:
    """The shape of one row's entry: () in a one-dimensional column, None for a scalar, which has no rows."""
    if isinstance(cells, np.ndarray):
        return cells.shape[1:] if cells.ndim else None
    return ()


def is_float32(cells: Cells) -> bool:
    """Whether the dtype is float32 or narrower, so that float32 holds all values exactly."""
    if isinstance(cells, np.ndarray):
        return cells.dtype.kind == "f" and cells.dtype.itemsize <= 4
    import pyarrow as pa

    return pa.types.is_float16(cells.type) or pa.types.is_float32(cells.type)


def is_float(cells: "pa.ChunkedArray") -> bool:
    """Whether an Arrow column has a floating-point type, which may hold NaN."""
    import pyarrow as pa

    return pa.types.is_floating(cells.type)


def missing(cells: Cells) -> np.ndarray | None:
    """A mask of the rows without a value (null, NaN or NaT); None when every row has one."""
    if not isinstance(cells, np.ndarray) and not cells.null_count and is_float(cells):
        cells = cells.to_numpy()
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind in "Mm":
            found = np.isnat(cells)
            return found if found.any() else None
        # One cheap pass first: the sum is NaN if any entry is (or if infinities cancel).
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
    """Filter the rows by a mask; None keeps all."""
    if keep is None:
        return cells
    if isinstance(cells, np.ndarray):
        return cells[keep]
    import pyarrow as pa

    return cells.filter(pa.array(keep))


def numbers(cells: Cells) -> np.ndarray:
    """Cells without missing values as a NumPy array, without a copy where Arrow holds them in one chunk."""
    array = cells if isinstance(cells, np.ndarray) else _without_decimals(cells).to_numpy()
    if array.dtype.kind == "f":
        return array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64, copy=False)
    return array.astype(float) if array.dtype == object and not len(array) else array


def _without_decimals(cells: "pa.ChunkedArray") -> "pa.ChunkedArray":
    import pyarrow as pa

    return cells.cast(pa.float64()) if pa.types.is_decimal(cells.type) else cells


def first_inexact(cells: Cells) -> Any:
    """The first number that float64 cannot hold exactly, or None; for cells without missing values.

    Decimals count only from 2^53 on: the 17th digit of a measurement may be rounded, a digit of an identifier may not.
    """
    import pyarrow as pa

    if not isinstance(cells, np.ndarray) and pa.types.is_decimal(cells.type):
        return numerals.first_inexact_decimal(cells, least=numerals.EXACT)
    return numerals.first_inexact(numbers(cells))


def unchanged(cells: Cells) -> np.ndarray:
    """The values in NumPy without coding or conversion to numbers; text is stripped of surrounding whitespace."""
    import pyarrow as pa

    if isinstance(cells, np.ndarray):
        return cells
    if pa.types.is_decimal(cells.type) and numerals.first_inexact_decimal(cells) is None:
        return _without_decimals(cells).to_numpy()
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if kind_of(cells) != TEXT:
        return cells.to_numpy()
    made = [np.zeros(0, object)]
    for chunk in cells.dictionary_encode().chunks:
        values = np.array([*(value.strip() for value in chunk.dictionary.to_pylist()), None], object)
        made.append(values[chunk.indices.fill_null(len(values) - 1).to_numpy()])
    return np.concatenate(made)


def codes(cells: Cells, levels: Mapping[float | str, int]) -> tuple[np.ndarray, Any]:
    """The level code of every row, and None; or the codes up to the first unknown level, and that value."""
    import pyarrow as pa

    column = pa.chunked_array([pa.array(cells)]) if isinstance(cells, np.ndarray) else cells
    numeric = not isinstance(next(iter(levels)), str)
    found = [np.zeros(0, np.int64)]
    for chunk in column.dictionary_encode().chunks:
        indices = chunk.indices.to_numpy()
        table = np.full(len(chunk.dictionary), -1)
        # A dictionary may have entries that no row uses: those need not be levels.
        for i in np.unique(indices).tolist():
            value = chunk.dictionary[i].as_py()
            table[i] = levels.get(_key(value, numeric), -1)
            if table[i] < 0:
                return np.concatenate(found), value
        found.append(table[indices])
    return np.concatenate(found), None


def _key(value: Any, numeric: bool) -> Any:
    key = level_key(value)
    return float(key) if numeric and isinstance(key, str) and numerals.is_number(key) else key


def categories(cells: "pa.ChunkedArray") -> list[Any] | None:
    """The categories of a categorical column, in order; None for an ordered one whose chunks disagree on the order."""
    if cells.type.ordered and any(chunk.dictionary != cells.chunk(0).dictionary for chunk in cells.chunks):
        return None
    listed = {repr(value): value for chunk in cells.chunks for value in chunk.dictionary.to_pylist()}
    return [value for value in listed.values() if value is not None and value == value]


def profile_text(cells: "pa.ChunkedArray", profile: numerals.TextProfile) -> None:
    """Add the values of a text or categorical column, with their counts, to its profile."""
    for chunk in cells.dictionary_encode().chunks:
        counts = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(chunk.dictionary))
        values = chunk.dictionary.to_pylist()
        profile.add(values, counts.tolist())
        nameless = (value for value, count in zip(values, counts, strict=True) if count and level_key(value) is None)
        profile.nameless = next(nameless, profile.nameless)
