"""Reads CSV files, also gzipped: small ones whole, large ones in blocks, with the same column types either way.

Takes a path; gives a `TablePart`. A column's type is the first in `_types` that can represent all its values.
"""

import csv
import dataclasses
import functools
import gzip
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from epvi.ground.errors import EpviError
from epvi.site.rows.cells import Cells
from epvi.site.rows.chunks import UNREADABLE, Reading, TablePart, of_batches, of_table, read_held, unreadable
from epvi.site.rows.numerals import MISSING, first_misread, why_misread

# Bytes of CSV that Arrow parses at a time. Measured by `read_rows(Rows(path, x=names))` of 300,000 x 18 float64 values
# in 106 MB of CSV (CPU time, peak memory beyond the imports): 2^18 bytes 1.3 s, 76 MB; 2^20 1.1 s, 128 MB; 2^21 1.1 s,
# 162 MB; 2^23 1.1 s, 229 MB; 2^25 1.4 s, 369 MB.
_BLOCK = 2**21


@dataclasses.dataclass(frozen=True)
class _Csv:
    """A CSV file whose header has been read."""

    path: Path
    # The file's name for error messages.
    where: str
    # Column names.
    names: list[str]
    # Number of the record that is the header, from 1; blank lines before it are counted.
    header: int

    def options(self, wanted: Sequence[str], kinds: dict[str, Any], threads: bool) -> tuple[Any, Any, Any]:
        import pyarrow.csv as arrow_csv

        return (
            arrow_csv.ReadOptions(
                column_names=self.names, skip_rows_after_names=self.header, use_threads=threads, block_size=_BLOCK
            ),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                include_columns=list(wanted),
                column_types=kinds,
                null_values=[space + word for word in MISSING for space in ("", " ")],
                strings_can_be_null=True,
            ),
        )


def open_csv(path: Path, where: str, at_once: bool) -> TablePart:
    """Read the header; columns will be read `at_once` or in blocks."""
    with _opened(path) as file:
        lines = enumerate(csv.reader(file), start=1)
        line, names = next(((line, names) for line, names in lines if names), (0, []))
    names = [name.encode().decode().strip() for name in names]
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise EpviError(f"file {where!r} has {word} between its columns: save it with commas.")
    # A data frame made from an unnamed matrix has columns 0, 1, 2, ...: that is a header, not a row of numbers.
    unnamed = [str(i) for i in range(len(names))]
    if names not in ([], unnamed) and all(re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?|\??", name) for name in names):
        raise EpviError(f"file {where!r} has numbers where its columns' names should be: add a first line of names.")
    return TablePart(where, tuple(names), functools.partial(_read, _Csv(path, where, names, line), at_once))


def _opened(path: Path) -> Any:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    # Bytes after the header that are not UTF-8 are an error only in a column that is used.
    return opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")


def _read(file: _Csv, at_once: bool, wanted: Sequence[str], text: Collection[str]) -> Reading:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    known = {name: pa.large_string() for name in text}
    if at_once:
        table = _read_or_refuse(
            file, lambda threads: arrow_csv.read_csv(file.path, *file.options(wanted, known, threads))
        )
        held = read_held({name: table[name] for name in table.column_names})
        return dataclasses.replace(held, refuse_misread=functools.partial(_refuse_misread, file))
    num_rows, kinds = _read_or_refuse(file, lambda threads: _scanned(file, wanted, known, threads))
    empty = of_table(pa.schema([(name, kinds[name]) for name in wanted]).empty_table())

    def chunks() -> Iterator[dict[str, Cells]]:
        try:
            with arrow_csv.open_csv(file.path, *file.options(wanted, kinds, True)) as blocks:
                yield from of_batches(blocks)
        except UNREADABLE as error:
            raise unreadable(file.where, error) from error

    refuse_misread = functools.partial(_refuse_misread, file)
    return Reading(dict.fromkeys(wanted, num_rows), empty, chunks, refuse_misread=refuse_misread)


def _refuse_misread(file: _Csv, names: Sequence[str]) -> None:
    """Refuse numbers that Arrow parses into something else than their text means; reads the columns again as text."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    if not names:
        return
    text = dict.fromkeys(names, pa.large_string())
    try:
        with arrow_csv.open_csv(file.path, *file.options(names, text, True)) as blocks:
            found = _first_misread(blocks, names)
        line = 0 if found is None else _line(file, found[0])
    except UNREADABLE as error:
        raise unreadable(file.where, error) from error
    if found is not None:
        _, name, value = found
        raise EpviError(
            f"column {name!r} of file {file.where!r} has {value[:40]!r} in line {line:,}, {why_misread(value)}."
        )


def _first_misread(blocks: Iterable[Any], names: Sequence[str]) -> tuple[int, str, str] | None:
    """The first row with a misread number, with its column and its text."""
    done = 0
    for block in blocks:
        found = [(row, name) for name in names if (row := first_misread(block[name])) is not None]
        if found:
            row, name = min(found, key=lambda one: one[0])
            return done + row, name, block[name][row].as_py().strip()
        done += block.num_rows
    return None


def _line(file: _Csv, row: int) -> int:
    """The line number at which a row begins: quoted fields may span lines, and blank lines are not rows."""
    with _opened(file.path) as opened:
        reader = csv.reader(opened)
        for _ in range(file.header):
            next(reader)
        begins = reader.line_num + 1
        for fields in reader:
            row -= bool(fields)
            if row < 0:
                break
            begins = reader.line_num + 1
    return begins


def _scanned(file: _Csv, wanted: Sequence[str], known: dict[str, Any], threads: bool) -> tuple[int, dict[str, Any]]:
    """The number of rows and the column types: inferred from the first block, then widened until all blocks parse."""
    import pyarrow.csv as arrow_csv

    ladder, kinds = _types(), dict(known)
    while True:
        try:
            with arrow_csv.open_csv(file.path, *file.options(wanted, kinds, threads)) as blocks:
                kinds = {name: blocks.schema.field(name).type for name in wanted}
                return sum(block.num_rows for block in blocks), kinds
        except ValueError as error:
            found = re.match(r"In CSV column #(\d+): ", str(error))
            name = file.names[int(found[1])] if found else None
            if name is None or name in known or kinds.get(name) not in ladder[:-1]:
                raise
            kinds[name] = ladder[ladder.index(kinds[name]) + 1]


def _types() -> list[Any]:
    """Column types in the order in which Arrow itself tries them when it reads a whole column at once."""
    import pyarrow as pa

    moments = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    return [
        *(pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *moments),
        *(pa.float64(), pa.string(), pa.binary()),
    ]


def _read_or_refuse(file: _Csv, read: Callable[[bool], Any]) -> Any:
    """Call `read` with threads; after an error again without, because only then does Arrow name the damaged line."""
    try:
        try:
            return read(True)
        except ValueError:
            return read(False)
    except UNREADABLE as error:
        row = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", str(error))
        if row is None:
            raise unreadable(file.where, error) from error
        which = f"line {int(row[1]):,}" if row[1] else "a line"
        raise EpviError(f"file {file.where!r} has {row[3]} fields instead of {row[2]} in {which}: mend it.") from None
