"""Reads the pieces of a fragment on a worker, and checks that they are what they were when they were first read.

Takes a `Fragment`; gives a table of each piece as it is in its source, and the columns of all of them, coded as the
whole is. In a folder that the workers of a machine share, columns are memory-mapped files, which any of them opens.
"""

import dataclasses
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.columns import Columns, map_rows
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.rows import Rows
from epvi.site.rows.table import Table
from epvi.site.tasks.fingerprint import hash_rows
from epvi.wire.fragment import Coding, Contents, Fragment, Piece

# Rows that are converted at a time. Judgement: a few megabytes.
_ROWS_AT_ONCE = 2**14


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedRows:
    """The rows of a fragment on a worker."""

    # Names the rows, so that a process may keep by it what it has computed of them.
    name: str
    columns: Columns

    def __sizeof__(self) -> int:
        """Bytes with the columns, by which a cluster weighs whether to move them."""
        return object.__sizeof__(self) + sum(column.nbytes for column in self.columns.values())


@dataclasses.dataclass(frozen=True, eq=False)
class Unread:
    """A fragment whose rows are not read before they are needed."""

    fragment: Fragment
    partitions: Sequence[Any]


def unread(fragment: Fragment, partitions: Sequence[Any], folder: Path | None) -> Unread:
    """The recipe itself."""
    return Unread(fragment, partitions)


def placed(fragment: Fragment, partitions: Sequence[Any], folder: Path | None) -> PlacedRows:
    """The rows of a fragment, which may be in the folder already."""
    if folder is None:
        return PlacedRows(secrets.token_hex(8), _coded(fragment, partitions))
    told = folder / "columns.json"
    if not told.exists():
        _write(_coded(fragment, partitions), folder, told)
    listed = json.loads(told.read_text("utf-8"))
    columns = {name: map_rows(folder / file, np.dtype(dtype), tuple(shape)) for name, file, dtype, shape in listed}
    return PlacedRows(str(folder), columns)


def read_piece(fragment: Fragment, number: int, partitions: Sequence[Any]) -> Table:
    """The rows of one piece with the units of their source; errors name the piece."""
    piece, told = fragment.pieces[number], fragment.description
    source = piece.path or partitions[number]
    columns: dict[str, Any] = dict(told.columns)
    try:
        rows = Rows(
            source,
            standardise=told.units,
            levels=told.levels,
            limits=told.limits,
            drop_missing=told.drop_missing,
            **columns,
        )
        undeclared = Undeclared(told.own_levels, told.fitted)
        return rows.read(
            told.by, keep=_is_argument(told.by, told.columns), optional=told.optional, undeclared=undeclared
        )
    except EpviError as error:
        # Of the same class: a piece without rows is no fault.
        raise type(error)(f"{piece.name}: {error}") from None


def contents_of(table: Table) -> Contents:
    """What a piece has."""
    return Contents(table.num_rows, hash_rows(table.columns, ""))


def _is_argument(by: str | None, columns: Any) -> bool:
    """Whether the column that tells shards apart is an argument of its own, where no columns are chosen."""
    return by is not None and by in columns


def _coded(fragment: Fragment, partitions: Sequence[Any]) -> Columns:
    """The columns of all pieces, one after the other."""
    coding = fragment.coding
    assert coding is not None
    made: Columns = {}
    begin = 0
    for number, known in enumerate(fragment.contents):
        table = read_piece(fragment, number, partitions)
        _refuse_changed(fragment.pieces[number], contents_of(table), known)
        for name, dtype in coding.dtypes.items():
            column = table.columns[name]
            if name not in made:
                made[name] = np.empty((fragment.num_rows, *column.shape[1:]), dtype)
            _convert(column, made[name][begin : begin + known.num_rows], coding, name)
        begin += known.num_rows
    return made


def _refuse_changed(piece: Piece, found: Contents, known: Contents) -> None:
    if found != known:
        raise EpviError(
            f"{piece.said} has other rows than when it was first read ({found.num_rows:,} rows, then"
            f" {known.num_rows:,}): rows must not change during a fit; run it again."
        )


def _convert(column: np.ndarray, to: np.ndarray, coding: Coding, name: str) -> None:
    """Copy rows of an argument in the dtype of all pieces, with columns standardised that have units."""
    sources = coding.sources[name]
    units = {i: coding.units[source] for i, source in enumerate(sources) if source in coding.units}
    for block, into in zip(blocks(column), blocks(to), strict=True):
        into[...] = block
        for i, (centre, scale) in units.items():
            part, out = (block, into) if block.ndim == 1 else (block[:, i], into[:, i])
            values = part.astype(np.float64)
            values -= centre
            values /= scale
            out[...] = values


def blocks(column: np.ndarray) -> Iterator[np.ndarray]:
    """Runs of rows, small enough to be converted together."""
    return (column[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(column), _ROWS_AT_ONCE))


def _write(columns: Columns, folder: Path, told: Path) -> None:
    """Write the columns as files, and last, by atomic rename, what they are."""
    part = secrets.token_hex(4)
    listed = []
    try:
        for i, (name, column) in enumerate(columns.items()):
            file = f"{i}-{part}.rows"
            # At least one byte: an empty file cannot be mapped.
            (folder / file).write_bytes(b"\0") if not column.size else column.tofile(folder / file)
            listed.append((name, file, column.dtype.str, column.shape))
        left = told.with_name(f"columns-{part}.json")
        left.write_text(json.dumps(listed), "utf-8")
        os.replace(left, told)
    except OSError as error:
        raise EpviError(
            f"rows cannot be written to {str(folder)!r} ({error.strerror or error}): make room, or set TMPDIR to a"
            " folder that has it."
        ) from error
