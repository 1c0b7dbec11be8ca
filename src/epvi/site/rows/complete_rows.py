"""Reads the complete rows of all files of a source in chunks, as numbers and level codes.

Takes the parts of a source and column names; gives `CompleteRows`. Errors count the faults of a whole file.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows import cells
from epvi.site.rows.cells import Cells
from epvi.site.rows.checks import Check
from epvi.site.rows.chunks import Reading, TablePart
from epvi.site.rows.locate import few, unknown_column
from epvi.site.rows.numerals import TextProfile


class ZeroRowsError(EpviError):
    """A source without rows, or without rows that are complete."""


@dataclasses.dataclass(frozen=True)
class AskedColumns:
    """Which source columns to read, and how to convert them."""

    # Names of the source columns.
    columns: list[str]
    # Level -> code, for each categorical column; the other columns are numbers.
    codes: Mapping[str, Mapping[Any, int]]
    # Names of the levels, for each column that has levels.
    names: Mapping[str, tuple[str, ...]]
    # Lowest and highest value allowed, for columns that have limits.
    limits: Mapping[str, tuple[float, float]]
    # Whether rows with a missing value are dropped; otherwise they are an error.
    drop_missing: bool


@dataclasses.dataclass
class CompleteRows:
    """Columns of one or more parts, each of the same kind in all parts."""

    # One part per file.
    parts: list[TablePart]
    # The columns of each part, ready to be read.
    readings: list[Reading]
    # Number of rows dropped for missing values; set when `rows` is exhausted.
    dropped: int = 0

    @property
    def num_rows(self) -> int:
        """The number of rows before any is dropped."""
        return sum(reading.num_rows for reading in self.readings)

    def row_shape(self, name: str) -> tuple[int, ...]:
        """The shape of one row's entry."""
        shapes = [cells.row_shape(piece) or () for piece in self._pieces(name)]
        return next(iter(shapes), ())

    def dtype(self, name: str) -> np.dtype:
        """The NumPy dtype to which the numbers of all parts promote."""
        pieces = [piece for piece in self._pieces(name) if cells.kind_of(piece) in (cells.NUMBERS, cells.BOOLEANS)]
        return np.result_type(*[cells.numbers(piece).dtype for piece in pieces]) if pieces else np.dtype(np.float64)

    def is_float32(self, name: str) -> bool:
        """Whether the column is float32 or narrower in all parts."""
        return all(cells.is_float32(reading.empty[name]) for reading in self.readings)

    def kind(self, name: str) -> str:
        """The kind of the column's values, as `cells.kind_of` names it."""
        return cells.kind_of(self._pieces(name)[0])

    def categories(self, name: str) -> list[Any] | None:
        """The ordered categories of the column's dtype, if the source is a single table that has them."""
        return self.readings[0].categories(name) if len(self.readings) == 1 else None

    def refuse_misread(self, names: Sequence[str]) -> None:
        """Refuse columns parsed as numbers whose text means something else, such as hexadecimal codes."""
        for reading in self.readings:
            reading.refuse_misread([name for name in names if cells.kind_of(reading.empty[name]) == cells.NUMBERS])

    def held(self, name: str) -> np.ndarray | None:
        """The column without a copy, if the source holds it as one array."""
        return self.readings[0].held.get(name) if len(self.readings) == 1 else None

    def _pieces(self, name: str) -> list[Cells]:
        return [reading.empty[name] for reading in self.readings if reading.num_rows] or [self.readings[0].empty[name]]

    def rows(self, asked: AskedColumns) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Cells]]]:
        """Chunks of complete rows: the converted columns, and all columns as they were read.

        After the first fault no more chunks are given, but all rows are read, so that the error can count all faults.
        """
        checks: list[Check] = []
        # The levels found are collected over all parts; other faults are counted part by part.
        found: dict[str, dict[str, bool]] = {name: {} for name in asked.columns}
        kept_rows, is_fine = 0, True
        for part, reading in zip(self.parts, self.readings, strict=True):
            of_part = {
                name: Check(
                    name,
                    part,
                    asked.limits.get(name),
                    asked.names.get(name, ()),
                    profile=TextProfile(levels=found[name]),
                )
                for name in asked.columns
            }
            checks += of_part.values()
            for chunk in _complete(part, reading, asked.drop_missing):
                values = {
                    name: check.codes(chunk[name], asked.codes[name])
                    if name in asked.codes
                    else check.numbers(chunk[name])
                    for name, check in of_part.items()
                }
                kept_rows += len(next(iter(chunk.values())))
                is_fine = is_fine and all(check.is_fine for check in of_part.values())
                if is_fine:
                    yield values, chunk
        self.dropped = self.num_rows - kept_rows
        self._refuse_none(kept_rows)
        order = {name: i for i, name in enumerate(asked.columns)}
        for check in sorted(checks, key=lambda check: order[check.name]):
            check.refuse()

    def _refuse_none(self, kept_rows: int) -> None:
        said = self.parts[0].said
        if not kept_rows and self.dropped:
            raise ZeroRowsError(
                f"no row of {said} is left: all {self.dropped:,} lack a value in a column that is used."
            )
        if not kept_rows:
            raise ZeroRowsError(f"{said} has zero rows: it needs at least one.")


def open_columns(parts: list[TablePart], wanted: list[str], coded: Mapping[str, Mapping[Any, int]]) -> CompleteRows:
    """Prepare the wanted columns of every part for reading; `coded` columns have levels (level -> code)."""
    text = [name for name in wanted if any(isinstance(level, str) for level in coded.get(name, ()))]
    readings = []
    for part in parts:
        unknown = part.lacks(wanted)
        if unknown:
            raise unknown_column(unknown[0], part)
        readings.append(part.read(wanted, text))
        refuse_lengths(part, readings[-1])
        for name in wanted:
            if name in coded and cells.row_shape(readings[-1].empty[name]):
                raise EpviError(f"column {name!r} of {part.said} is a matrix: only a single column can have levels.")
    for name in wanted:
        if name not in coded:
            _refuse_kinds(name, parts, [reading.empty[name] for reading in readings])
    return CompleteRows(parts, readings)


def refuse_lengths(part: TablePart, reading: Reading) -> None:
    """Refuse scalars, and columns of different lengths."""
    single = [name for name, length in reading.lengths.items() if length is None]
    if single:
        raise EpviError(f"column {single[0]!r} of {part.said} is a single value: it needs one per row.")
    if len(set(reading.lengths.values())) > 1:
        listed = few([f"{name} has {length:,}" for name, length in reading.lengths.items()])
        raise EpviError(f"the columns of {part.said} have different lengths ({listed}): one entry per row in each.")


def _refuse_kinds(name: str, parts: list[TablePart], pieces: list[Cells]) -> None:
    kinds = [(cells.kind_of(piece), cells.row_shape(piece)) for piece in pieces]
    filled = [i for i, kind in enumerate(kinds) if kind[0] != cells.NOTHING]
    other = next((i for i in filled if kinds[i] != kinds[filled[0]]), None)
    if other is not None:
        words = [kinds[i][0] + (f" of shape {kinds[i][1]}" if kinds[i][1] else "") for i in (other, filled[0])]
        raise EpviError(
            f"column {name!r} of {parts[other].said} holds {words[0]} and in {parts[filled[0]].said} {words[1]}:"
            " give all files the same kind, or give its levels."
        )


def _complete(part: TablePart, reading: Reading, drop: bool) -> Iterator[dict[str, Cells]]:
    """Chunks of the rows without missing values; unless `drop`, missing values are an error once all are counted."""
    lacking, num_rows = dict.fromkeys(reading.lengths, 0), 0
    for chunk in reading.chunks():
        num_rows += len(next(iter(chunk.values())))
        masks = {name: cells.missing(column) for name, column in chunk.items()}
        found = {name: mask for name, mask in masks.items() if mask is not None}
        for name, mask in found.items():
            lacking[name] += int(np.count_nonzero(mask))
        if num_rows > reading.num_rows:
            break
        if drop and found:
            keep = ~np.any(list(found.values()), axis=0)
            yield {name: cells.kept(column, keep) for name, column in chunk.items()}
        elif drop or not any(lacking.values()):
            yield chunk
    if num_rows != reading.num_rows:
        raise EpviError(f"{part.said} changed while it was read: read it again.")
    name, count = next(((name, count) for name, count in lacking.items() if count), ("", 0))
    if count and not drop:
        raise EpviError(
            f"column {name!r} of {part.said} has {count:,} missing value{'s' if count > 1 else ''} in {num_rows:,}"
            " rows: fill them in, or leave those rows out (drop_missing=True, --drop-missing, or in the study)."
        )
