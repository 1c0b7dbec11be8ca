"""Source columns become a model's arguments: codes, indicators, matrices, in the units asked for.

Takes the parts of a source and a plan; gives a `Table`. A source column is let go as soon as it is in its place, so
that rows are held about twice at the most.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from epvi.errors import EpviError
from epvi.site import cells
from epvi.site.formats import Part
from epvi.site.loading import Loaded, load
from epvi.site.rows import Columns, as_columns


@dataclasses.dataclass(frozen=True)
class Argument:
    """A model's argument and the source columns that it is made of: one as it is, or a matrix of them."""

    name: str
    sources: tuple[str, ...]
    is_matrix: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to make: `codes` are the levels' numbers, `names` their names; `own_units` computes the units here."""

    arguments: tuple[Argument, ...]
    codes: Mapping[str, Mapping[Any, int]]
    names: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, tuple[float, float]]
    units: Mapping[str, tuple[float, float]]
    own_units: bool
    drop_missing: bool

    def sources(self) -> list[str]:
        """The source columns, each once."""
        return list(dict.fromkeys(name for argument in self.arguments for name in argument.sources))

    def made_of(self, argument: Argument) -> tuple[str, ...]:
        """The names of the argument's columns: source columns, or one per level but the first."""
        if not argument.is_matrix:
            return argument.sources
        return tuple(name for source in argument.sources for name in self._columns(source))

    def _columns(self, source: str) -> list[str]:
        if source not in self.names:
            return [source]
        return [f"{source}={level}" for level in self.names[source][1:]]

    def place(self, argument: Argument, source: str) -> int:
        """Where a source's columns begin in an argument's matrix."""
        return sum(len(self._columns(one)) for one in argument.sources[: argument.sources.index(source)])


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


def assemble(parts: list[Part], plan: Plan, also: str | None) -> Table:
    """Read what the plan needs and make the arguments."""
    import pyarrow

    wanted = plan.sources()
    wanted += [also] if also is not None and also not in wanted else []
    loaded = load(parts, wanted, plan.codes, plan.drop_missing)
    extra = {} if also is None else {also: loaded.unchanged(also)}
    columns, standardised = _arguments(loaded, plan)
    # What source columns took goes back to the system; Arrow would keep it for its next table.
    pyarrow.default_memory_pool().release_unused()
    used = {name: plan.names[name] for name in plan.sources() if name in plan.names}
    made_of = {argument.name: plan.made_of(argument) for argument in plan.arguments}
    return Table(as_columns(columns), made_of, standardised, used, loaded.dropped, extra)


def _arguments(loaded: Loaded, plan: Plan) -> tuple[Columns, dict[str, tuple[float, float]]]:
    columns: Columns = {
        argument.name: np.empty(
            (loaded.num_rows, len(plan.made_of(argument))) if argument.is_matrix else 0, _dtype(loaded, plan, argument)
        )
        for argument in plan.arguments
    }
    standardised: dict[str, tuple[float, float]] = {}
    in_matrices = {name for argument in plan.arguments if argument.is_matrix for name in argument.sources}
    for name in plan.sources():
        if name in plan.codes:
            values = loaded.codes(name, plan.codes[name], plan.names[name])
        else:
            values = loaded.numbers(name, plan.limits.get(name))
            units = plan.units.get(name)
            if plan.own_units and name in in_matrices:
                units = own_units(name, values)
            if units is not None:
                standardised[name] = units
                values = _standardised(name, values, *units)
        if name in in_matrices and values.ndim > 1:
            raise EpviError(f"column {name!r} is a matrix already: pass it alone, as in x={name!r}.")
        del loaded.pieces[name]
        _place(name, values, columns, plan)
    return columns, standardised


def _dtype(loaded: Loaded, plan: Plan, argument: Argument) -> type:
    pieces = [piece for name in argument.sources if name not in plan.codes for piece in loaded.pieces[name]]
    return np.float32 if pieces and all(map(cells.is_float32, pieces)) else np.float64


def _place(name: str, values: np.ndarray, columns: Columns, plan: Plan) -> None:
    """Put a source column where it belongs in every argument that is made of it."""
    for argument in plan.arguments:
        if name not in argument.sources:
            continue
        if not argument.is_matrix:
            columns[argument.name] = values
            continue
        matrix, start = columns[argument.name], plan.place(argument, name)
        if name not in plan.codes:
            matrix[:, start] = values
            continue
        for code in range(1, len(plan.names[name])):
            matrix[:, start + code - 1] = values == code


def own_units(name: str, values: np.ndarray) -> tuple[float, float] | None:
    """The mean and population sd of a column with more than two values; None with two."""
    low, high = values.min(), values.max()
    if low == high:
        raise EpviError(f"column {name!r} has the same value in all rows: it cannot be standardised, so leave it out.")
    if values.ndim == 1 and np.all((values == low) | (values == high)):
        return None
    centre, scale = float(np.mean(values, dtype=np.float64)), float(np.std(values, dtype=np.float64))
    if not (math.isfinite(scale) and scale > 0):
        raise EpviError(f"column {name!r} is too large or too even to be standardised: change its unit.")
    return centre, scale


def _standardised(name: str, values: np.ndarray, centre: float, scale: float) -> np.ndarray:
    if values.ndim > 1:
        raise EpviError(f"column {name!r} is a matrix: standardise takes single columns.")
    made = values.astype(np.float64)
    made -= centre
    made /= scale
    return made.astype(values.dtype, copy=False) if values.dtype.kind == "f" else made
