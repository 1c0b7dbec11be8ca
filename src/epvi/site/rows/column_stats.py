"""Computes the counts, means and standard deviations of a site's columns, which is all that it discloses before a fit.

Takes rows, one chunk at a time; gives `Stats`. Pooled over sites, these give the centres and scales with which all
sites standardise.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.validation import at_least
from epvi.site.rows import cells
from epvi.site.rows.cells import Cells
from epvi.site.rows.checks import Check
from epvi.site.rows.chunks import TablePart
from epvi.site.rows.complete_rows import refuse_lengths
from epvi.site.rows.locate import few, open_source, unknown_column
from epvi.site.rows.rows import Rows
from epvi.site.rows.running_stats import RunningStats
from epvi.wire.column_stats import ColumnStats, Stats, pool


# `min_rows` defaults to 10 values: judgement, of the order of the minimum cell counts of published health statistics.
def column_stats(rows: Any, names: Sequence[str] | None = None, *, min_rows: int = 10) -> Stats:
    """Statistics of numeric source columns, in the units of the source.

    Without `names`: of all numeric columns that the rows use. With `Rows(..., drop_missing=True)` only complete rows
    count; otherwise each column leaves out its own missing values. A column with fewer than `min_rows` values is
    refused, since its statistics would disclose individual rows.
    """
    rows = rows if isinstance(rows, Rows) else Rows(rows)
    min_rows = at_least("min_rows", min_rows, 2)
    if isinstance(names, str):
        raise EpviError(f"names is {names!r}: pass a list of columns, as in [{names!r}].")
    parts = open_source(rows.source)
    used = rows.used or (list(parts[0].names) if names is None else [])
    chosen = [name for name in used if name not in rows.levels] if names is None else list(names)
    strict = names is not None or bool(rows.used)
    found = [_of_part(part, rows, chosen, used, strict) for part in parts]
    common = [name for name in chosen if all(name in one for one in found)]
    if not common:
        raise EpviError(f"{parts[0].said} has no column of numbers: its columns are {few(parts[0].names)}.")
    return Stats({name: _joined(name, [one[name] for one in found], min_rows) for name in common})


def _of_part(part: TablePart, rows: Rows, chosen: list[str], used: list[str], strict: bool) -> dict[str, ColumnStats]:
    """Statistics of the chosen columns of one file; if not `strict`, columns that are not numeric are skipped."""
    wanted = list(dict.fromkeys([*chosen, *used]))
    unknown = part.lacks(wanted)
    if unknown:
        raise unknown_column(unknown[0], part)
    reading = part.read(wanted, [])
    if rows.drop_missing:
        refuse_lengths(part, reading)
    numeric = [name for name in chosen if strict or _is_numeric(reading.empty[name])]
    for name in numeric:
        if cells.row_shape(reading.empty[name]) != ():
            raise EpviError(f"column {name!r} of {part.said} is a matrix: statistics are of single columns.")
    reading.refuse_misread([name for name in numeric if cells.kind_of(reading.empty[name]) == cells.NUMBERS])
    checks = {name: Check(name, part, rows.limits.get(name)) for name in numeric}
    tallies = {name: RunningStats(name) for name in numeric}
    missing = dict.fromkeys(numeric, 0)
    for chunk in reading.chunks():
        lacking = {name: cells.missing(column) for name, column in chunk.items()}
        some = [mask for mask in lacking.values() if mask is not None]
        complete = ~np.any(some, axis=0) if some and rows.drop_missing else None
        for name in numeric:
            mask = lacking[name]
            missing[name] += 0 if mask is None else int(np.count_nonzero(mask))
            keep = complete if rows.drop_missing or mask is None else ~mask
            values = checks[name].numbers(cells.kept(chunk[name], keep))
            if checks[name].is_fine:
                tallies[name].add(values)
    for check in checks.values():
        check.refuse()
    return {name: _stats(tally, missing[name]) for name, tally in tallies.items()}


def _is_numeric(empty: Cells) -> bool:
    return cells.row_shape(empty) == () and cells.kind_of(empty) in (cells.NUMBERS, cells.NOTHING)


def _stats(tally: RunningStats, missing: int) -> ColumnStats:
    if not tally.chunks:
        return ColumnStats(0, missing, 0.0, 0.0, 0.0)
    made = tally.stats(missing)
    if made is None:
        raise EpviError(f"column {tally.name!r} has numbers whose squares are too large: change its unit.")
    return made


def _joined(name: str, columns: list[ColumnStats], min_rows: int) -> ColumnStats:
    filled = [Stats({name: column}) for column in columns if column.count]
    count = sum(column.count for column in columns)
    if count < min_rows:
        raise EpviError(
            f"column {name!r} has {count:,} value{'s' if count != 1 else ''}, fewer than {min_rows}: its statistics"
            " would disclose individual rows, so they are not given."
        )
    one = pool(filled).columns[name]
    return ColumnStats(one.count, sum(column.missing for column in columns), one.mean, one.rest, one.sd)
