"""Tidy tables that are written after every case, so that an interrupted run can be resumed.

A table is a CSV file. A case is a mapping of settings (M, K, a seed, ...); measuring it gives one or more rows, each
with the settings of its case and the measurements. The file is written atomically.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Value = int | float | str
Row = dict[str, Value]
Case = Mapping[str, Value]


class Results:
    """The rows of one file; `case in results` tells whether a case has been measured."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows = read(file)

    def __contains__(self, case: Case) -> bool:
        return any(_is_of(row, case) for row in self._rows)

    def add(self, case: Case, measured: Iterable[Row]) -> None:
        """Add the rows of a case and write the file."""
        self._rows += [{**case, **row} for row in measured]
        self._write()

    def of(self, cases: Sequence[Case]) -> list[Row]:
        """All rows of these cases, in the order of the cases."""
        return [row for case in cases for row in self._rows if _is_of(row, case)]

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".part")
        try:
            with temporary.open("w", newline="") as lines:
                writer = csv.DictWriter(lines, columns, restval="")
                writer.writeheader()
                writer.writerows(self._rows)
            os.replace(temporary, self._file)
        finally:
            temporary.unlink(missing_ok=True)


def by_strategy(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each strategy, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["strategy"]), []).append(row)
    return found


def _is_of(row: Row, case: Case) -> bool:
    return all(row.get(name) == value for name, value in case.items())


def read(file: Path) -> list[Row]:
    """The rows of a table; empty cells are left out."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [{name: _value(word) for name, word in row.items() if word} for row in csv.DictReader(lines)]


def _value(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
