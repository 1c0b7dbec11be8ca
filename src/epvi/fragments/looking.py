"""The first pass over fragments: each is looked at where it is, and what all have in common is settled.

Takes fragments that were never read; gives the coding of all (levels, units, dtypes) and what is in each. Errors name
the fragment, the file and the column; fragments that differ in their columns are refused before anything is fitted.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from epvi.engines.engine import Engine
from epvi.fragments.each_fragment import each_fragment
from epvi.fragments.reading import Unread, blocks, contents_of, read_piece
from epvi.ground.errors import EpviError
from epvi.site.rows.complete_rows import ZeroRowsError
from epvi.site.rows.running_stats import RunningStats
from epvi.site.rows.split import distinct
from epvi.site.rows.table import Table
from epvi.wire.column_stats import ColumnStats
from epvi.wire.fragment import Coding, Contents, Fragment


@dataclasses.dataclass(frozen=True)
class Facts:
    """What there is in a fragment.

    Attributes:
        contents: the number of rows, and their hash.
        dropped: how many rows were left out for missing values.
        dtypes: the NumPy dtype of each argument.
        shapes: the shape of one row's entry in each argument.
        sources: the names of the columns of each argument.
        levels: the names of levels, by source column.
        stats: statistics of columns of matrices without levels, with up to three of their values, by source column.
        left_out: the optional arguments of which there is no column.
        value: the one value of the column by which fragments are told apart.
    """

    contents: Contents
    dropped: int
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    sources: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, tuple[str, ...]]
    stats: Mapping[str, tuple[ColumnStats, frozenset[float]]]
    left_out: tuple[str, ...] = ()
    value: str | None = None


@dataclasses.dataclass(frozen=True)
class Looked:
    """All fragments, looked at.

    Attributes:
        fragments: those with rows, with their coding.
        values: what each has in the column by which they are told apart, or None.
        shapes: the shape of one row's entry in each argument.
        empty: how many there were without rows.
        dropped: how many rows were left out for missing values.
    """

    fragments: tuple[Fragment, ...]
    values: tuple[str | None, ...]
    shapes: Mapping[str, tuple[int, ...]]
    empty: int
    dropped: int


def look(
    engine: Engine, fragments: Sequence[Fragment], standardise: bool | Mapping[str, tuple[float, float]]
) -> Looked:
    """Look at fragments of one piece each; with `standardise=True` units are those of all their rows."""
    found: list[Facts | None] = each_fragment(engine, fragments, _look_at, standardise is True, "look")
    there = [(fragment, facts) for fragment, facts in zip(fragments, found, strict=True) if facts is not None]
    if not there:
        raise EpviError(f"none of the {len(fragments):,} fragments has rows: check where they come from.")
    first = there[0]
    for other in there[1:]:
        _refuse_other(*first, *other)
    every = [facts for _, facts in there]
    coding = _coding(every, standardise)
    return Looked(
        tuple(dataclasses.replace(one, coding=coding, contents=(facts.contents,)) for one, facts in there),
        tuple(facts.value for facts in every),
        every[0].shapes,
        len(fragments) - len(there),
        sum(facts.dropped for facts in every),
    )


def _look_at(with_stats: bool, rows: Unread, number: int) -> Facts | None:
    """On a worker: what is in a fragment; None for one without rows."""
    fragment = rows.fragment
    try:
        table = read_piece(fragment, 0, rows.partitions)
    except ZeroRowsError:
        return None
    columns, sources = table.columns, table.sources
    return Facts(
        contents_of(table),
        table.dropped,
        {name: column.dtype.str for name, column in columns.items()},
        {name: column.shape[1:] for name, column in columns.items()},
        sources,
        table.levels,
        _stats(table, fragment) if with_stats else {},
        tuple(one.name for one in table.left_out),
        _value(table, fragment),
    )


def _stats(table: Table, fragment: Fragment) -> dict[str, tuple[ColumnStats, frozenset[float]]]:
    """Of the columns of matrices that are no indicators of levels."""
    made = {}
    for argument, told in fragment.description.columns.items():
        if isinstance(told, str):
            continue
        names = table.sources[argument]
        for source in told:
            if source in table.levels:
                continue
            column, tally = table.columns[argument][:, names.index(source)], RunningStats(source)
            for block in blocks(column):
                tally.add(block)
            stats = tally.stats()
            if stats is None:
                raise EpviError(f"{fragment.pieces[0].said}: column {source!r} is too large: change its unit.")
            made[source] = stats, frozenset(tally.values)
    return made


def _value(table: Table, fragment: Fragment) -> str | None:
    """The one value that the fragment has in the column by which shards are made."""
    by, piece = fragment.description.by, fragment.pieces[0]
    if by is None:
        return None
    values, _ = distinct(by, table.extra[by], "shard")
    if len(values) > 1:
        raise EpviError(
            f"{piece.said} has rows with {by} = {values[0]} and {by} = {values[1]}, and epvi moves no rows between"
            f" fragments: write the rows of each {by} into files of their own, or leave by out (shards=...)."
        )
    return str(values[0])


def _refuse_other(first: Fragment, ours: Facts, other: Fragment, theirs: Facts) -> None:
    """Refuse a fragment whose columns are not those of the first."""
    here, there = first.pieces[0].said, other.pieces[0].said
    same = "give all fragments the same columns, of the same kinds."
    for name in ours.sources.keys() ^ theirs.sources.keys():
        has, lacks = (here, there) if name in ours.sources else (there, here)
        raise EpviError(f"{has} has a column {name!r}, which {lacks} has not: {same}")
    for name in sorted({*ours.levels, *theirs.levels}):
        if ours.levels.get(name) != theirs.levels.get(name):
            told = [", ".join(one.levels.get(name, ("none",))[:4]) for one in (ours, theirs)]
            raise EpviError(
                f"column {name!r} has other levels in {there} ({told[1]}) than in {here} ({told[0]}): {same[:-1]},"
                f" or name them, as in levels={{{name!r}: [...]}}."
            )
    for name, dtype in ours.dtypes.items():
        kinds = [_kind(dtype, ours.shapes[name]), _kind(theirs.dtypes[name], theirs.shapes[name])]
        if kinds[0] != kinds[1]:
            raise EpviError(f"column {name!r} holds {kinds[1]} in {there} and {kinds[0]} in {here}: {same}")


def _kind(dtype: str, shape: tuple[int, ...]) -> str:
    words = "booleans" if np.dtype(dtype).kind == "b" else "numbers"
    return words + (f" of shape {shape}" if shape else "")


def _coding(every: Sequence[Facts], standardise: bool | Mapping[str, tuple[float, float]]) -> Coding:
    """What all fragments have in common: the levels, the units of all rows, and dtypes that hold the values of all."""
    first = every[0]
    units = dict(standardise) if isinstance(standardise, Mapping) else _units(every)
    dtypes = {}
    for name in first.dtypes:
        dtype = np.result_type(*{np.dtype(facts.dtypes[name]) for facts in every})
        standardised = any(source in units for source in first.sources[name])
        dtypes[name] = np.dtype(np.float64 if standardised and dtype.kind != "f" else dtype).str
    return Coding(dtypes, first.sources, first.levels, units, first.left_out)


def _units(every: Sequence[Facts]) -> dict[str, tuple[float, float]]:
    """Centre and scale of all rows, of the columns with more than two values."""
    found = {}
    for name in every[0].stats:
        tally = RunningStats(name)
        for facts in every:
            stats, values = facts.stats[name]
            tally.chunks.append(stats)
            tally.values |= values
        units = tally.units()
        if units is not None:
            found[name] = units
    return found


def repeated(fragments: Sequence[Fragment]) -> list[tuple[Fragment, Fragment]]:
    """Pairs of fragments with the same rows."""
    tags = Counter(one.contents[0] for one in fragments)
    twice = [one for one in fragments if tags[one.contents[0]] > 1]
    first: dict[Contents, Fragment] = {}
    return [(first[one.contents[0]], one) for one in twice if first.setdefault(one.contents[0], one) is not one]
