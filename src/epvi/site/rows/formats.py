"""Opens files of rows: CSV (also gzipped), Parquet, .npz and .npy.

Takes paths; gives one `TablePart` per file, which has the column names and reads only the columns that are asked for.
"""

import base64
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.cells import Cells
from epvi.site.rows.chunks import (
    UNREADABLE,
    Reading,
    TablePart,
    batch_rows,
    of_batches,
    of_table,
    read_held,
    unreadable,
)
from epvi.site.rows.csv_file import open_csv

FORMATS = ".csv, .csv.gz, .parquet, .npz or .npy"

# Most bytes of all CSV files together that are read at once, above which they are read in blocks: 64 MB. Judgement,
# about memory: 106 MB take 256 MB (and 0.9 s of CPU time) at once, 162 MB (and 1.1 s) in blocks, measured as `_BLOCK`
# in csv_file.py was.
_MOST_CSV = 2**26
# Assumed ratio of a CSV file's size to its gzipped size. Judgement, on the safe side: 18 columns of random normals
# compress to 1/2, of digits from 0 to 4 to 1/5.
_GZIPPED = 10

# Bytes of the buffer through which Parquet pages are read, so that a whole row group is not held. Measured
# as `BATCH_ROWS` in chunks.py was: 2^16 to 2^20 bytes take about 150 MB beyond the imports, 2^23 289 MB.
_BUFFER = 2**18


def open_files(paths: Sequence[Path]) -> list[TablePart]:
    """Open each file by the suffix of its name."""
    at_once = sum(map(_size_as_csv, paths)) <= _MOST_CSV
    return [_open_file(path, at_once) for path in paths]


def _size_as_csv(path: Path) -> int:
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz")) or not path.is_file():
        return 0
    return path.stat().st_size * (_GZIPPED if name.endswith(".gz") else 1)


def _open_file(path: Path, at_once: bool) -> TablePart:
    where = str(path) if len(str(path)) <= 80 else f".../{path.name[-76:]}"
    name = path.name.lower()
    opener = next((opener for ending, opener in _OPENERS.items() if name.endswith(ending)), None)
    if path.is_dir():
        raise EpviError(f"{where!r} is a directory: name its files, as in {path.name + '/*.parquet'!r}.")
    if not path.exists():
        raise EpviError(f"there is no file {where!r}: check the path and the working directory.")
    if opener is None:
        raise EpviError(f"file {where!r} is of no format that can be read: pass {FORMATS}.")
    try:
        if not path.stat().st_size:
            raise EpviError(f"file {where!r} is empty: it needs columns and rows.")
        return opener(path, where, at_once)
    except EpviError:
        raise
    except UNREADABLE as error:
        raise unreadable(where, error) from error


def _open_parquet(path: Path, where: str, _at_once: bool) -> TablePart:
    import pyarrow.parquet as parquet

    def read(wanted: Sequence[str], text: Collection[str]) -> Reading:
        try:
            with parquet.ParquetFile(path) as file:
                num_rows, schema = file.metadata.num_rows, file.schema_arrow
                categorical = _categorical(file)
        except UNREADABLE as error:
            raise unreadable(where, error) from error
        empty = of_table(schema.empty_table().select(list(wanted)), categorical)

        def chunks() -> Iterator[dict[str, Cells]]:
            try:
                with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
                    batches = file.iter_batches(batch_rows(empty), columns=list(wanted))
                    yield from of_batches(batches, categorical)
            except UNREADABLE as error:
                raise unreadable(where, error) from error

        return Reading(dict.fromkeys(wanted, num_rows), empty, chunks)

    return TablePart(where, tuple(parquet.read_schema(path).names), read)


def _categorical(file: Any) -> set[str]:
    """Columns that were categorical when the file was written; for categories of numbers only the metadata tell."""
    import pyarrow as pa

    said = (file.schema_arrow.pandas_metadata or {}).get("columns", [])
    found = {one.get("field_name") for one in said if one.get("pandas_type") == "categorical"}
    schema = (file.metadata.metadata or {}).get(b"ARROW:schema")
    if schema is not None:
        written = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        found |= {field.name for field in written if pa.types.is_dictionary(field.type)}
    return found


def _open_npz(path: Path, where: str, _at_once: bool) -> TablePart:
    with np.load(path, allow_pickle=False) as archive:
        names = tuple(archive.files)

    def read(wanted: Sequence[str], text: Collection[str]) -> Reading:
        try:
            with np.load(path, allow_pickle=False) as archive:
                columns = {name: archive[name] for name in wanted}
        except UNREADABLE as error:
            raise unreadable(where, error) from error
        return read_held(columns)

    return TablePart(where, names, read)


def _open_npy(path: Path, where: str, _at_once: bool) -> TablePart:
    """The fields of a structured array; a plain array is one column, `arr_0`, as in an .npz without names."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    fields = array.dtype.names

    def read(wanted: Sequence[str], text: Collection[str]) -> Reading:
        return read_held({name: array if fields is None else array[name] for name in wanted})

    return TablePart(where, fields or ("arr_0",), read)


_OPENERS = {
    ".csv": open_csv,
    ".csv.gz": open_csv,
    ".parquet": _open_parquet,
    ".npz": _open_npz,
    ".npy": _open_npy,
}
