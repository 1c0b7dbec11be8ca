"""Files of rows: CSV (also gzipped), Parquet, .npz and .npy.

Takes a path; gives a `Part`, which knows the names of its columns and reads only those that are asked for.
"""

import csv
import dataclasses
import functools
import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epvi.errors import EpviError
from epvi.site.cells import Cells, as_cells, plain_cells

MISSING = ("", "NA", "NaN", "nan", "null", "?")
FORMATS = ".csv, .csv.gz, .parquet, .npz or .npy"

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
    csv.Error,
)

# Column names to read, and those among them that are text whatever they look like -> the columns.
Fetch = Callable[[Sequence[str], Collection[str]], dict[str, Cells]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One file, or the rows in memory: `where` is the file's name for sentences, empty in memory."""

    where: str
    names: tuple[str, ...]
    fetch: Fetch

    def __post_init__(self) -> None:
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise EpviError(f"{self.said} has two columns named {twice[0]!r}: rename one of them.")
        if not self.names:
            raise EpviError(f"{self.said} has no columns: it needs at least one.")

    @property
    def said(self) -> str:
        """What to call it."""
        return f"file {self.where!r}" if self.where else "the data"


def open_file(path: Path) -> Part:
    """The file's columns, by what its name ends with."""
    where = str(path) if len(str(path)) <= 80 else f".../{path.name[-76:]}"
    name = path.name.lower()
    opener = next((opener for ending, opener in _OPENERS.items() if name.endswith(ending)), None)
    if path.is_dir():
        raise EpviError(f"{where!r} is a directory: name its files, as in {path.name + '/*.parquet'!r}.")
    if not path.exists():
        raise EpviError(f"there is no file {where!r}: check the path and the working directory.")
    if opener is None:
        raise EpviError(f"file {where!r} is of no kind that holds rows: pass {FORMATS}.")
    try:
        if not path.stat().st_size:
            raise EpviError(f"file {where!r} is empty: it needs columns and rows.")
        return opener(path, where)
    except EpviError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: BaseException) -> EpviError:
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


def _open_csv(path: Path, where: str) -> Part:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    # What is no UTF-8 after the names is only refused in a column that is used.
    with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = enumerate(csv.reader(file), start=1)
        line, names = next(((line, names) for line, names in lines if names), (0, []))
    names = [name.encode().decode().strip() for name in names]
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise EpviError(f"file {where!r} has {word} between its columns: save it with commas.")
    # A table made of an unnamed matrix calls its columns 0, 1, 2, ...
    unnamed = [str(i) for i in range(len(names))]
    if names not in ([], unnamed) and all(re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?|\??", name) for name in names):
        raise EpviError(f"file {where!r} has numbers where its columns' names should be: add a first line of names.")

    def fetch(wanted: Sequence[str], text: Collection[str]) -> dict[str, Cells]:
        return _arrow(where, functools.partial(_read_csv, path, names, line, wanted, text))

    return Part(where, tuple(names), fetch)


def _read_csv(
    path: Path, names: list[str], header: int, wanted: Sequence[str], text: Collection[str], threads: bool
) -> Any:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    return arrow_csv.read_csv(
        path,
        arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=header, use_threads=threads),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            include_columns=list(wanted),
            column_types={name: pa.large_string() for name in text},
            null_values=[space + word for word in MISSING for space in ("", " ")],
            strings_can_be_null=True,
        ),
    )


def _open_parquet(path: Path, where: str) -> Part:
    import pyarrow.parquet as parquet

    names = parquet.read_schema(path).names

    def fetch(wanted: Sequence[str], text: Collection[str]) -> dict[str, Cells]:
        made = {}
        # One column after the other: all at once, the compressed pages of all are held beside the values.
        for name in wanted:
            made |= _arrow(where, functools.partial(_read_parquet, path, name))
        return made

    return Part(where, tuple(names), fetch)


def _read_parquet(path: Path, name: str, threads: bool) -> Any:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        return file.read([name], use_threads=threads)


def _arrow(where: str, read: Callable[[bool], Any]) -> dict[str, Cells]:
    """The columns of an Arrow table; a damaged file is read again in one thread, which knows the row."""
    try:
        try:
            table = read(True)
        except ValueError:
            table = read(False)
        return {name: plain_cells(table[name]) for name in table.column_names}
    except _UNREADABLE as error:
        row = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", str(error))
        if row is None:
            raise _unreadable(where, error) from error
        which = f"line {int(row[1]):,}" if row[1] else "a line"
        raise EpviError(f"file {where!r} has {row[3]} fields instead of {row[2]} in {which}: mend it.") from None


def _open_npz(path: Path, where: str) -> Part:
    with np.load(path, allow_pickle=False) as archive:
        names = tuple(archive.files)

    def fetch(wanted: Sequence[str], text: Collection[str]) -> dict[str, Cells]:
        try:
            with np.load(path, allow_pickle=False) as archive:
                return {name: as_cells(name, archive[name]) for name in wanted}
        except EpviError:
            raise
        except _UNREADABLE as error:
            raise _unreadable(where, error) from error

    return Part(where, names, fetch)


def _open_npy(path: Path, where: str) -> Part:
    """The fields of an array of records; a plain array is one column, named as NumPy names unnamed ones."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    fields = array.dtype.names

    def fetch(wanted: Sequence[str], text: Collection[str]) -> dict[str, Cells]:
        return {name: as_cells(name, array if fields is None else array[name]) for name in wanted}

    return Part(where, fields or ("arr_0",), fetch)


_OPENERS = {
    ".csv": _open_csv,
    ".csv.gz": _open_csv,
    ".parquet": _open_parquet,
    ".npz": _open_npz,
    ".npy": _open_npy,
}
