"""Assembles a model's arguments from source columns: level codes, indicator columns, matrices, standardised columns.

Takes the parts of a source and a plan; gives a `Table`. Rows are read chunk by chunk into memory or, when they are
large, into memory-mapped files.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows import cells
from epvi.site.rows.chunks import TablePart
from epvi.site.rows.columns import Columns, as_columns
from epvi.site.rows.complete_rows import AskedColumns, CompleteRows, open_columns
from epvi.site.rows.levels import (
    BOOLEAN_LEVELS,
    REFUSED,
    Undeclared,
    level_codes,
    level_name,
    levels_from_names,
    own_levels,
)
from epvi.site.rows.running_stats import RunningStats
from epvi.site.rows.spill import Store, spill

# (centre, scale) by source column: standardised values are (value - centre) / scale.
Units = Mapping[str, tuple[float, float]]

# Rows of a matrix that are filled column by column before the next rows, so that they stay in the processor's cache.
# Measured on the loop in `_place`: to fill 65,536 x 18 and x 100 float64 takes 1.0 and 13 ms with 2^10 rows, 0.7 and
# 7.3 ms with 2^12, 0.8 and 8.5 ms with all rows at once.
_STRIPE_ROWS = 2**12


@dataclasses.dataclass(frozen=True)
class Argument:
    """A model's argument and the source columns that it is made of."""

    # Name of the argument.
    name: str
    # Names of its source columns: exactly one unless it is a matrix.
    sources: tuple[str, ...]
    # Whether the argument is a matrix of the source columns, or one source column itself.
    is_matrix: bool


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """Which arguments to make, and how to convert each source column."""

    arguments: tuple[Argument, ...]
    # Level -> code, for each source column that is coded.
    codes: Mapping[str, Mapping[Any, int]]
    # Names of the levels, for each source column that has levels.
    names: Mapping[str, tuple[str, ...]]
    # Lowest and highest value allowed, by source column.
    limits: Mapping[str, tuple[float, float]]
    # Given centres and scales.
    units: Units
    # Whether to standardise the columns of matrices with the mean and sd of these rows.
    own_units: bool
    # Whether rows with a missing value are dropped; otherwise they are an error.
    drop_missing: bool
    # How to treat categorical columns without declared levels.
    undeclared: Undeclared = REFUSED

    def sources(self) -> list[str]:
        """The source columns of all arguments, each once."""
        return list(dict.fromkeys(name for argument in self.arguments for name in argument.sources))

    def self_standardised(self) -> list[str]:
        """The source columns to standardise with their own mean and sd, unless they turn out to be binary."""
        listed = [name for argument in self.arguments if argument.is_matrix for name in argument.sources]
        return [name for name in dict.fromkeys(listed) if name not in self.names] if self.own_units else []

    def fitted(self) -> dict[str, Mapping[Any, int]]:
        """Level codes from a fit, for columns without declared levels, units or limits."""
        told = self.undeclared.fitted or {}
        open_yet = told.keys() - {*self.codes, *self.units, *self.limits}
        return {name: level_codes(levels_from_names(told[name])) for name in self.sources() if name in open_yet}

    def settled(self, source: CompleteRows) -> "TablePlan":
        """The plan with the levels added that come from a fit or from the dtypes of the source's columns."""
        codes, fitted = dict(self.codes), self.fitted()
        booleans = []
        for name in self.sources():
            kind = source.kind(name)
            if name in codes or name in self.units:
                continue
            if kind == cells.BOOLEANS and not source.row_shape(name):
                # A fit without levels for this column has used the booleans as numbers.
                booleans += [name] if self.undeclared.fitted is None or name in self.undeclared.fitted else []
            elif name in fitted:
                codes[name] = fitted[name]
            elif kind == cells.CATEGORIES and self.undeclared.own:
                categories = source.categories(name)
                codes |= {} if categories is None else {name: level_codes(own_levels(name, categories))}
        names = {name: tuple(map(level_name, levels)) for name, levels in codes.items()}
        # Booleans are not coded: in a matrix they are already the indicator of their second level.
        names |= dict.fromkeys(booleans, tuple(map(level_name, BOOLEAN_LEVELS)))
        return dataclasses.replace(self, codes=codes, names=names)

    def column_names(self, argument: Argument) -> tuple[str, ...]:
        """Names of the argument's columns: its source columns, in a matrix one per level but the first of each."""
        if not argument.is_matrix:
            return argument.sources
        return tuple(name for source in argument.sources for name in self._columns(source))

    def _columns(self, source: str) -> list[str]:
        if source not in self.names:
            return [source]
        return [f"{source}={level}" for level in self.names[source][1:]]

    def offsets(self, argument: Argument) -> dict[str, int]:
        """The index of the first matrix column of each source column."""
        ends = itertools.accumulate((len(self._columns(one)) for one in argument.sources), initial=0)
        return dict(zip(argument.sources, ends, strict=False))


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows that were read, and how they were converted."""

    # One array per argument.
    columns: Columns
    # Names of the columns of each argument, as `TablePlan.column_names` gives them.
    sources: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # (centre, scale) that were applied, by source column.
    standardised: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # Level names by source column.
    levels: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # Number of rows dropped for missing values.
    dropped: int = 0
    # Further source columns, unconverted.
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The groups of a model with groups, as the column has them; `columns` has the number of each row's.
    groups: np.ndarray | None = None
    # Optional arguments that were left out because the source has none of their columns.
    left_out: tuple[Argument, ...] = ()
    # Key of the hash of the rows.
    hash_key: str = ""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter({**self.columns, **self.extra}.values())))


def assemble(parts: list[TablePart], plan: TablePlan, also: Sequence[str]) -> Table:
    """Read the columns that the plan needs, and `also` further ones, and make the arguments."""
    import pyarrow

    wanted = plan.sources()
    further = [name for name in also if name not in wanted]
    source = open_columns(parts, wanted + further, {**plan.fitted(), **plan.codes})
    plan = plan.settled(source)
    source.refuse_misread([name for name in wanted if name not in plan.names])
    _refuse_matrices(source, plan)
    ready = _unconverted(source, plan)
    rows = {one.name: _row_type(source, plan, one) for one in plan.arguments if one.name not in ready}
    placed = spill(source.num_rows, rows)
    own, extra = _fill(placed, source, plan, also)
    if own:
        placed = {
            one.name: _revised(placed[one.name], source, one, own, plan) for one in plan.arguments if one.name in placed
        }
    columns = {one.name: ready[one.name] if one.name in ready else placed[one.name].finish() for one in plan.arguments}
    # Return the memory of the source columns to the system; Arrow's pool would keep it.
    pyarrow.default_memory_pool().release_unused()
    both = {**plan.units, **own}
    standardised = {name: both[name] for name in wanted if name in both}
    return Table(
        # Standardising may have overflowed.
        as_columns(columns) if standardised else columns,
        {argument.name: plan.column_names(argument) for argument in plan.arguments},
        standardised,
        {name: plan.names[name] for name in wanted if name in plan.names},
        source.dropped,
        extra,
    )


def _refuse_matrices(source: CompleteRows, plan: TablePlan) -> None:
    """Refuse source columns that are matrices where a one-dimensional column is needed."""
    for name in plan.sources():
        if name in plan.units and source.row_shape(name):
            raise EpviError(f"column {name!r} is a matrix: standardise takes single columns.")
    for name in (name for argument in plan.arguments if argument.is_matrix for name in argument.sources):
        if source.row_shape(name):
            raise EpviError(f"column {name!r} is a matrix already: pass it alone, as in x={name!r}.")


def _unconverted(source: CompleteRows, plan: TablePlan) -> Columns:
    """Arguments that are arrays in the source already and need no conversion; they are not copied."""
    made: Columns = {}
    changed = {*plan.codes, *plan.units, *plan.self_standardised()}
    for argument in plan.arguments:
        name = argument.sources[0]
        held = source.held(name)
        is_same = not argument.is_matrix and name not in changed and not plan.drop_missing
        if is_same and held is not None and held.dtype == source.dtype(name):
            made[argument.name] = held
    return made


def _row_type(source: CompleteRows, plan: TablePlan, argument: Argument) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype of one row of an argument."""
    if argument.is_matrix:
        plain = [name for name in argument.sources if name not in plan.codes]
        is_float32 = bool(plain) and all(map(source.is_float32, plain))
        return (len(plan.column_names(argument)),), np.dtype(np.float32 if is_float32 else np.float64)
    name = argument.sources[0]
    if name in plan.codes:
        return (), np.dtype(np.int64)
    dtype = source.dtype(name)
    return source.row_shape(name), _unit_dtype(dtype) if name in plan.units else dtype


def _fill(
    placed: dict[str, Store], source: CompleteRows, plan: TablePlan, also: Sequence[str]
) -> tuple[Units, Columns]:
    """Read all rows into the stores, applying given units; returns the columns' own units, and the `also` columns."""
    names = plan.sources()
    dtypes = {name: source.dtype(name) for name in names if name in plan.units}
    tallies = {name: RunningStats(name) for name in plan.self_standardised()}
    extra: dict[str, list[Any]] = {name: [] for name in also}
    for values, chunk in source.rows(AskedColumns(names, plan.codes, plan.names, plan.limits, plan.drop_missing)):
        for name, tally in tallies.items():
            tally.add(values[name])
        for name, dtype in dtypes.items():
            values[name] = _standardised(values[name].astype(dtype, copy=False), *plan.units[name])
        for argument in plan.arguments:
            if argument.name in placed:
                _place(values, placed[argument.name], argument, plan)
        for name, cut in extra.items():
            cut.append(cells.unchanged(chunk[name]))
    own = {name: units for name, tally in tallies.items() if (units := tally.units()) is not None}
    return own, {name: np.concatenate(cuts) for name, cuts in extra.items()}


def _place(values: dict[str, np.ndarray], store: Store, argument: Argument, plan: TablePlan) -> None:
    """Append a chunk of source columns to an argument's store; levels become indicator columns in a matrix."""
    block = store.room(len(values[argument.sources[0]]))
    if not argument.is_matrix:
        block[...] = values[argument.sources[0]]
        store.keep(block)
        return
    columns: list[np.ndarray] = []
    for name in argument.sources:
        codes = range(1, len(plan.names[name])) if name in plan.codes else ()
        columns += [values[name] == code for code in codes] if codes else [values[name]]
    for start in range(0, len(block), _STRIPE_ROWS):
        stripe = block[start : start + _STRIPE_ROWS]
        for i, column in enumerate(columns):
            stripe[:, i] = column[start : start + _STRIPE_ROWS]
    store.keep(block)


def _revised(store: Store, source: CompleteRows, argument: Argument, own: Units, plan: TablePlan) -> Store:
    """The argument's store after standardising columns by their own units, known only once all rows were read."""
    inside = [name for name in argument.sources if name in own]
    dtypes = {name: source.dtype(name) for name in inside}
    if not inside:
        return store
    if not argument.is_matrix:
        name = inside[0]
        return store.revise(lambda block: _standardised(block, *own[name]), _unit_dtype(dtypes[name]))
    begins = plan.offsets(argument)
    places = {name: begins[name] for name in inside}

    def change(block: np.ndarray) -> np.ndarray:
        for name, place in places.items():
            # A float32 column in a float64 matrix is rounded as it would be by itself.
            values = block[:, place].astype(_unit_dtype(dtypes[name]), copy=False)
            block[:, place] = _standardised(values, *own[name])
        return block

    return store.revise(change, _row_type(source, plan, argument)[1])


def _standardised(values: np.ndarray, centre: float, scale: float) -> np.ndarray:
    made = values.astype(np.float64)
    made -= centre
    made /= scale
    return made.astype(_unit_dtype(values.dtype), copy=False)


def _unit_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of a standardised column: that of a floating-point column, otherwise float64."""
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
