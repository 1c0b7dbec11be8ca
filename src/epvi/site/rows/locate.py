"""Resolves a source of rows into its parts.

Takes a path, a glob, a folder of Parquet files, a list of paths, a data frame or a mapping of arrays; gives one
`TablePart` per file, in order, or one for data in memory.
"""

import difflib
import glob
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from epvi.ground.errors import EpviError
from epvi.site.rows.cells import as_cells
from epvi.site.rows.chunks import Reading, TablePart, first_duplicate, read_held
from epvi.site.rows.columns import raw_columns
from epvi.site.rows.formats import open_files


def is_path(source: Any) -> bool:
    """Whether the source is a path or a non-empty list of paths."""
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(path, str | os.PathLike) for path in source)
    return isinstance(source, str | os.PathLike)


def open_source(source: Any) -> list[TablePart]:
    """Open the parts of a source; columns are read later, by `TablePart.read`."""
    if is_path(source):
        return open_files(files_of(source))
    if hasattr(source, "__arrow_c_stream__"):
        return [_open_frame(source)]
    columns = raw_columns(source)

    def read(wanted: Sequence[str], text: Collection[str]) -> Reading:
        return read_held({name: as_cells(name, columns[name]) for name in wanted})

    return [TablePart("", tuple(columns), read)]


def files_of(source: Any) -> list[Path]:
    """The files of a path, a glob, or a list of them, in order."""
    paths = [path for one in (source if isinstance(source, list | tuple) else [source]) for path in _found(one)]
    twice = first_duplicate(paths)
    if twice is not None:
        raise EpviError(f"file {str(twice)!r} is named twice: its rows would count twice.")
    return paths


def _found(path: Any) -> list[Path]:
    """The file, or the sorted files that a glob matches; a folder stands for its Parquet files, if it has any."""
    path = Path(path).expanduser()
    try:
        if path.exists() or not glob.has_magic(str(path)):
            return _in_folder(path)
    except OSError as error:
        raise EpviError(f"{str(path)[:80]!r} cannot be looked up ({error.strerror}): check the path.") from error
    found = sorted(glob.glob(str(path), recursive=True))
    if not found:
        raise EpviError(f"no file matches {str(path)!r}: check the pattern and the working directory.")
    return [file for one in found for file in _in_folder(Path(one))]


def _in_folder(path: Path) -> list[Path]:
    found = sorted(glob.glob(f"{glob.escape(str(path))}/*.parquet")) if path.is_dir() else []
    return [Path(one) for one in found] or [path]


def _open_frame(frame: Any) -> TablePart:
    # By its keys, because pandas would export its index as well; frames without keys (Arrow's) are converted whole.
    has_keys = hasattr(frame, "keys")
    table = None if has_keys else _as_arrow(frame)
    names = list(frame.keys()) if table is None else table.column_names
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise EpviError(f"a column of the data is named {strange[0]!r}: columns need text for names.")

    def read(wanted: Sequence[str], text: Collection[str]) -> Reading:
        chosen = _as_arrow(frame[list(wanted)]) if table is None else table
        return read_held({name: chosen[name] for name in wanted})

    return TablePart("", tuple(names), read)


def _as_arrow(frame: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        names = list(frame.keys()) if hasattr(frame, "keys") else []
        bad = _mixed(frame, names) if len(names) > 1 else names
        which = f"column {bad[0]!r}" if bad else "it columns with names, each with"
        raise EpviError(
            f"the {type(frame).__name__} cannot be read as a table ({type(error).__name__}): give {which} plain values"
            " of one kind."
        ) from error


def _mixed(frame: Any, names: Sequence[str]) -> list[str]:
    """The first column that Arrow cannot convert by itself, as a list; empty if each converts."""
    for name in names:
        try:
            _as_arrow(frame[[name]])
        except EpviError:
            return [name]
    return []


def unknown_column(name: str, part: TablePart) -> EpviError:
    """The error for a missing column; suggests similar names and lists those that exist."""
    # The cutoff 0.6 is difflib's own default.
    near = difflib.get_close_matches(name, part.names, n=2, cutoff=0.6)
    near += [other for other in part.names if other.lower() == name.lower() and other not in near]
    meant = f" Did you mean {' or '.join(repr(one[:40]) for one in near[:2])}?" if near else ""
    return EpviError(f"{part.said} has no column {name[:40]!r}: its columns are {few(part.names)}.{meant}")


def few(names: Sequence[str], most: int = 8) -> str:
    """The first `most` names for an error message, each cut to 24 characters.

    8 names of at most 24 characters keep the list below 210 characters: judgement.
    """
    plain = [" ".join(name.split()) for name in names[:most]]
    listed = ", ".join(name if len(name) <= 24 else name[:22] + "..." for name in plain)
    return listed + (f" and {len(names) - most:,} more" if len(names) > most else "")
