"""Source columns become a model's arguments: codes, indicators, matrices, in the units asked for.

Takes the parts of a source and a plan; gives a `Table`. Chunk by chunk, rows go where they stay: into memory, or into
a mapped file when they are many.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows import cells
from epvi.site.rows.chunks import TablePart
from epvi.site.rows.columns import Columns, as_columns
from epvi.site.rows.complete_rows import AskedColumns, CompleteRows, open_columns
from epvi.site.rows.levels import REFUSED, TRUTH_LEVELS, Undeclared, named_levels, numbered, own_levels, said_level
from epvi.site.rows.running_stats import RunningStats
from epvi.site.rows.spill import Store, spill

Units = Mapping[str, tuple[float, float]]

# So many rows of a matrix stay in the cache while its columns are put there one after the other.
_STRIPE = 2**12


@dataclasses.dataclass(frozen=True)
class Argument:
    """A model's argument and the source columns that it is made of: one as it is, or a matrix of them."""

    name: str
    sources: tuple[str, ...]
    is_matrix: bool


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """What to make: `codes` are the levels' numbers, `names` their names; `own_units` computes the units here.

    `undeclared` says what becomes of categories without levels.
    """

    arguments: tuple[Argument, ...]
    codes: Mapping[str, Mapping[Any, int]]
    names: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, tuple[float, float]]
    units: Units
    own_units: bool
    drop_missing: bool
    undeclared: Undeclared = REFUSED

    def sources(self) -> list[str]:
        """The source columns, each once."""
        return list(dict.fromkeys(name for argument in self.arguments for name in argument.sources))

    def own(self) -> list[str]:
        """The source columns that may be standardised with their own mean and sd."""
        listed = [name for argument in self.arguments if argument.is_matrix for name in argument.sources]
        return [name for name in dict.fromkeys(listed) if name not in self.names] if self.own_units else []

    def fitted(self) -> dict[str, Mapping[Any, int]]:
        """The levels of a fit for columns that have none here, and no units or limits either."""
        told = self.undeclared.fitted or {}
        open_yet = told.keys() - {*self.codes, *self.units, *self.limits}
        return {name: numbered(named_levels(told[name])) for name in self.sources() if name in open_yet}

    def settled(self, source: CompleteRows) -> "TablePlan":
        """The same with the levels of columns that have them by their own type, or by a fit."""
        codes, fitted = dict(self.codes), self.fitted()
        truths = []
        for name in self.sources():
            kind = source.kind(name)
            if name in codes or name in self.units:
                continue
            if kind == cells.TRUTHS and not source.row_shape(name):
                # In the words of a fit that had no levels for them, they are numbers.
                truths += [name] if self.undeclared.fitted is None or name in self.undeclared.fitted else []
            elif name in fitted:
                codes[name] = fitted[name]
            elif kind == cells.CATEGORIES and self.undeclared.own:
                categories = source.categories(name)
                codes |= {} if categories is None else {name: numbered(own_levels(name, categories))}
        names = {name: tuple(map(said_level, levels)) for name, levels in codes.items()}
        # Truth values stay what they are: in a matrix they are the indicator of their second level.
        names |= dict.fromkeys(truths, tuple(map(said_level, TRUTH_LEVELS)))
        return dataclasses.replace(self, codes=codes, names=names)

    def made_of(self, argument: Argument) -> tuple[str, ...]:
        """The names of the argument's columns: source columns, or one per level but the first."""
        if not argument.is_matrix:
            return argument.sources
        return tuple(name for source in argument.sources for name in self._columns(source))

    def _columns(self, source: str) -> list[str]:
        if source not in self.names:
            return [source]
        return [f"{source}={level}" for level in self.names[source][1:]]

    def places(self, argument: Argument) -> dict[str, int]:
        """Where the columns of each source begin in an argument's matrix."""
        ends = itertools.accumulate((len(self._columns(one)) for one in argument.sources), initial=0)
        return dict(zip(argument.sources, ends, strict=False))


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows that were read: columns by argument, and what they were made of.

    `sources` has the source columns behind each argument, `standardised` the (centre, scale) that were applied,
    `levels` the categories, `dropped` how many rows lacked a value, `extra` a further column as it was, and
    `left_out` the arguments that could be left out because the source has none of their columns; `hash_key` is what
    the hash of the rows is made with.
    """

    columns: Columns
    sources: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    standardised: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    levels: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    dropped: int = 0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    left_out: tuple[Argument, ...] = ()
    hash_key: str = ""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))


def assemble(parts: list[TablePart], plan: TablePlan, also: str | None) -> Table:
    """Read what the plan needs and make the arguments."""
    import pyarrow

    wanted = plan.sources()
    further = [] if also is None or also in wanted else [also]
    source = open_columns(parts, wanted + further, {**plan.fitted(), **plan.codes})
    plan = plan.settled(source)
    source.refuse_odd([name for name in wanted if name not in plan.names])
    _refuse_matrices(source, plan)
    ready = _ready(source, plan)
    rows = {one.name: _row(source, plan, one) for one in plan.arguments if one.name not in ready}
    placed = spill(source.num_rows, rows)
    own, extra = _fill(placed, source, plan, also)
    if own:
        placed = {
            one.name: _revised(placed[one.name], source, one, own, plan) for one in plan.arguments if one.name in placed
        }
    columns = {one.name: ready[one.name] if one.name in ready else placed[one.name].finish() for one in plan.arguments}
    # What source columns took goes back to the system; Arrow would keep it for its next table.
    pyarrow.default_memory_pool().release_unused()
    both = {**plan.units, **own}
    standardised = {name: both[name] for name in wanted if name in both}
    return Table(
        # Units may have made numbers too large.
        as_columns(columns) if standardised else columns,
        {argument.name: plan.made_of(argument) for argument in plan.arguments},
        standardised,
        {name: plan.names[name] for name in wanted if name in plan.names},
        source.dropped,
        extra,
    )


def _refuse_matrices(source: CompleteRows, plan: TablePlan) -> None:
    """Refuse source columns that are matrices where only single columns will do."""
    for name in plan.sources():
        if name in plan.units and source.row_shape(name):
            raise EpviError(f"column {name!r} is a matrix: standardise takes single columns.")
    for name in (name for argument in plan.arguments if argument.is_matrix for name in argument.sources):
        if source.row_shape(name):
            raise EpviError(f"column {name!r} is a matrix already: pass it alone, as in x={name!r}.")


def _ready(source: CompleteRows, plan: TablePlan) -> Columns:
    """Arguments that are arrays already, which stay as they are."""
    made: Columns = {}
    changed = {*plan.codes, *plan.units, *plan.own()}
    for argument in plan.arguments:
        name = argument.sources[0]
        held = source.held(name)
        is_same = not argument.is_matrix and name not in changed and not plan.drop_missing
        if is_same and held is not None and held.dtype == source.dtype(name):
            made[argument.name] = held
    return made


def _row(source: CompleteRows, plan: TablePlan, argument: Argument) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and type of one row of an argument."""
    if argument.is_matrix:
        plain = [name for name in argument.sources if name not in plan.codes]
        is_float32 = bool(plain) and all(map(source.is_float32, plain))
        return (len(plan.made_of(argument)),), np.dtype(np.float32 if is_float32 else np.float64)
    name = argument.sources[0]
    if name in plan.codes:
        return (), np.dtype(np.int64)
    dtype = source.dtype(name)
    return source.row_shape(name), _unit_dtype(dtype) if name in plan.units else dtype


def _fill(placed: dict[str, Store], source: CompleteRows, plan: TablePlan, also: str | None) -> tuple[Units, Columns]:
    """Put all rows in their places, in the units that were given; gives units of their own, and the further column."""
    names = plan.sources()
    dtypes = {name: source.dtype(name) for name in names if name in plan.units}
    tallies = {name: RunningStats(name) for name in plan.own()}
    extra = []
    for values, chunk in source.rows(AskedColumns(names, plan.codes, plan.names, plan.limits, plan.drop_missing)):
        for name, tally in tallies.items():
            tally.add(values[name])
        for name, dtype in dtypes.items():
            values[name] = _standardised(values[name].astype(dtype, copy=False), *plan.units[name])
        for argument in plan.arguments:
            if argument.name in placed:
                _place(values, placed[argument.name], argument, plan)
        extra += [] if also is None else [cells.unchanged(chunk[also])]
    own = {name: units for name, tally in tallies.items() if (units := tally.units()) is not None}
    return own, {} if also is None else {also: np.concatenate(extra)}


def _place(values: dict[str, np.ndarray], store: Store, argument: Argument, plan: TablePlan) -> None:
    """Put a chunk of source columns where it belongs in an argument."""
    block = store.room(len(values[argument.sources[0]]))
    if not argument.is_matrix:
        block[...] = values[argument.sources[0]]
        store.keep(block)
        return
    columns: list[np.ndarray] = []
    for name in argument.sources:
        codes = range(1, len(plan.names[name])) if name in plan.codes else ()
        columns += [values[name] == code for code in codes] if codes else [values[name]]
    for start in range(0, len(block), _STRIPE):
        stripe = block[start : start + _STRIPE]
        for i, column in enumerate(columns):
            stripe[:, i] = column[start : start + _STRIPE]
    store.keep(block)


def _revised(store: Store, source: CompleteRows, argument: Argument, own: Units, plan: TablePlan) -> Store:
    """An argument's rows in units of their own."""
    inside = [name for name in argument.sources if name in own]
    dtypes = {name: source.dtype(name) for name in inside}
    if not inside:
        return store
    if not argument.is_matrix:
        name = inside[0]
        return store.revise(lambda block: _standardised(block, *own[name]), _unit_dtype(dtypes[name]))
    begins = plan.places(argument)
    places = {name: begins[name] for name in inside}

    def change(block: np.ndarray) -> np.ndarray:
        for name, place in places.items():
            # Of single precision in a matrix of doubles: rounded as the column alone would be.
            values = block[:, place].astype(_unit_dtype(dtypes[name]), copy=False)
            block[:, place] = _standardised(values, *own[name])
        return block

    return store.revise(change, _row(source, plan, argument)[1])


def _standardised(values: np.ndarray, centre: float, scale: float) -> np.ndarray:
    made = values.astype(np.float64)
    made -= centre
    made /= scale
    return made.astype(_unit_dtype(values.dtype), copy=False)


def _unit_dtype(dtype: np.dtype) -> np.dtype:
    """Of what type a standardised column is: as precise as the column was."""
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
