"""CSV files, also gzipped: small ones are read at once, large ones in blocks, with the same kinds of columns.

Takes a path; gives a `TablePart`. A column's kind is that of all its values: the first in `_kinds` that holds them all.
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
from epvi.site.rows.numerals import MISSING, first_odd, why_odd

_BLOCK = 2**21


@dataclasses.dataclass(frozen=True)
class _Csv:
    """A file: its columns' names, and the number of the line that has them."""

    path: Path
    where: str
    names: list[str]
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
    """The file's columns, read `at_once` or in blocks."""
    with _opened(path) as file:
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
    return TablePart(where, tuple(names), functools.partial(_read, _Csv(path, where, names, line), at_once))


def _opened(path: Path) -> Any:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    # What is no UTF-8 after the names is only refused in a column that is used.
    return opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")


def _read(file: _Csv, at_once: bool, wanted: Sequence[str], text: Collection[str]) -> Reading:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    known = {name: pa.large_string() for name in text}
    if at_once:
        table = _said(file, lambda threads: arrow_csv.read_csv(file.path, *file.options(wanted, known, threads)))
        held = read_held({name: table[name] for name in table.column_names})
        return dataclasses.replace(held, refuse_odd=functools.partial(_refuse_odd, file))
    num_rows, kinds = _said(file, lambda threads: _scanned(file, wanted, known, threads))
    empty = of_table(pa.schema([(name, kinds[name]) for name in wanted]).empty_table())

    def chunks() -> Iterator[dict[str, Cells]]:
        try:
            with arrow_csv.open_csv(file.path, *file.options(wanted, kinds, True)) as blocks:
                yield from of_batches(blocks)
        except UNREADABLE as error:
            raise unreadable(file.where, error) from error

    refuse_odd = functools.partial(_refuse_odd, file)
    return Reading(dict.fromkeys(wanted, num_rows), empty, chunks, refuse_odd=refuse_odd)


def _refuse_odd(file: _Csv, names: Sequence[str]) -> None:
    """Refuse numbers that Arrow reads and that are not, or not only, what is written: it is read again as text."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    if not names:
        return
    text = dict.fromkeys(names, pa.large_string())
    try:
        with arrow_csv.open_csv(file.path, *file.options(names, text, True)) as blocks:
            found = _first_odd(blocks, names)
        line = 0 if found is None else _line(file, found[0])
    except UNREADABLE as error:
        raise unreadable(file.where, error) from error
    if found is not None:
        _, name, value = found
        raise EpviError(
            f"column {name!r} of file {file.where!r} has {value[:40]!r} in line {line:,}, {why_odd(value)}."
        )


def _first_odd(blocks: Iterable[Any], names: Sequence[str]) -> tuple[int, str, str] | None:
    """The first row that has such a number, with its column and the text."""
    done = 0
    for block in blocks:
        found = [(row, name) for name in names if (row := first_odd(block[name])) is not None]
        if found:
            row, name = min(found, key=lambda one: one[0])
            return done + row, name, block[name][row].as_py().strip()
        done += block.num_rows
    return None


def _line(file: _Csv, row: int) -> int:
    """The line where a row begins; rows may have several lines, and empty ones are no rows."""
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
    """The number of rows, and the columns' kinds: from the first block, then loosened until all blocks have them."""
    import pyarrow.csv as arrow_csv

    ladder, kinds = _kinds(), dict(known)
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


def _kinds() -> list[Any]:
    """Arrow's own order, in which it tries kinds on a column that it reads at once."""
    import pyarrow as pa

    moments = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    return [
        *(pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *moments),
        *(pa.float64(), pa.string(), pa.binary()),
    ]


def _said(file: _Csv, read: Callable[[bool], Any]) -> Any:
    """What `read` gives; a damaged file is read again in one thread, which knows the line."""
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
