"""Evaluates a log prior or log likelihood for some levels of a factor only, from its jaxpr.

Takes a program and the coordinates z of θ that are effects of the G levels of a factor. In the prior, all that depends
on z has to be computed level by level and then summed: log p(θ) = c(φ) + Σ_g r_g(z_g, φ), where φ are the other
coordinates. In the likelihood, rows read the entry of their level (a "gather") of values computed level by level. Both
are then run for the levels of a few groups, with G replaced by their number. A program of another form gives None.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.flat_program import Operation, Program, flattened
from epvi.site.derivatives.level_steps import Along, axis_of, run_at
from epvi.site.derivatives.natures import moved_places


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Which coordinates of θ are effects: coordinate `effects[g, j]` is effect j of level g, all others are φ."""

    effects: np.ndarray
    dim: int

    @property
    def num_levels(self) -> int:
        """G."""
        return self.effects.shape[0]

    @property
    def per_level(self) -> int:
        """Effects of one level, s."""
        return self.effects.shape[1]

    @functools.cached_property
    def shared(self) -> np.ndarray:
        """The coordinates of φ."""
        return np.setdiff1d(np.arange(self.dim), self.effects)

    def axis(self, places: np.ndarray) -> tuple[int, np.ndarray] | None:
        """Of an array of coordinates of θ: the axis of all levels, in order, and which effects the other axes have."""
        level, effect = (np.full(self.dim, -1) for _ in range(2))
        level[self.effects] = np.arange(self.num_levels)[:, None]
        effect[self.effects] = np.arange(self.per_level)
        for axis, size in enumerate(places.shape):
            along = np.moveaxis(places, axis, 0)
            order = np.arange(size).reshape(-1, *[1] * (places.ndim - 1))
            if size == self.num_levels and np.all(level[along] == order) and np.all(effect[along] == effect[along[:1]]):
                return axis, np.asarray(effect[along[0]])
        return None


class _OtherFormError(Exception):
    """The program is not of the form that is needed."""


@dataclasses.dataclass(frozen=True, eq=False)
class LevelProgram:
    """A program that can be run for some levels."""

    program: Program
    places: Places
    # The operations that the output needs, in order.
    steps: tuple[Operation, ...]
    # Values that are coordinates of θ: their coordinates.
    read: Mapping[int, np.ndarray]
    # Values with an axis of levels.
    along: Mapping[int, Along]
    # Values that rows read from those, and which column of the gather's indices is the level.
    gathered: Mapping[int, int]
    # Sums over levels: the number of the value that is summed.
    sums: Mapping[int, int]
    # Values that are summed in another shape, in which levels have no axis of their own: they are not computed.
    merged: Mapping[int, int]
    # Whether these sums are only added in the output, not multiplied by functions of φ.
    added: bool

    @functools.cached_property
    def shared_of_sums(self) -> np.ndarray:
        """The coordinates, within φ, that the terms of the sums over levels depend on."""
        return self._shared_behind([*self.sums.values(), *([] if self.added else [self.program.output])])

    @property
    def shared_of_gathered(self) -> np.ndarray:
        """The coordinates, within φ, that the values which rows read by their level depend on."""
        operands = [step.inputs[0] for step in self.steps if step.outputs[0] in self.gathered]
        return self._shared_behind([one for one in operands if isinstance(one, int)])

    def _shared_behind(self, values: list[Any]) -> np.ndarray:
        """The coordinates, within φ, that some values depend on."""
        behind = self.program.needed(values, ())
        found = [self.read[one] for one in behind if one in self.read and one not in self.along]
        used = np.concatenate([np.zeros(0, np.int64), *(places.ravel() for places in found)])
        return np.flatnonzero(np.isin(self.places.shared, used))

    def without_effects(self, phi: Any, levels: Any, block: Mapping[str, Any]) -> dict[int, Any]:
        """The values that do not depend on effects, by number: computed once for many z."""
        steps = tuple(step for step in self.steps if step.outputs[0] not in self._of_effects)
        return self._values(steps, None, phi, levels, block, None, None, {})[0]

    @functools.cached_property
    def _of_effects(self) -> set[int]:
        """The values that depend on effects."""
        found = {*self.along, *self.gathered, *self.sums, *self.merged}
        for step in self.steps:
            if any(one in found for one in step.inputs if isinstance(one, int)):
                found.update(step.outputs)
        return found

    def run(
        self, z: Any, phi: Any, levels: Any, block: Any, level: Any, known: Mapping[int, Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The output, and the terms of its sums over levels, for effects z (L, s) of the levels (L,).

        `level` has for each row the index of its level in `levels`; with None there is one entry per row, its own. Sums
        over levels count as zero in the output. `known` are values that `without_effects` gave.
        """
        known = known or {}
        output, terms = self._run(z, phi, levels, block, level, None, known)
        if self.added:
            return output, list(terms.values())
        # The output is linear in the sums.
        factors = [self._run(z, phi, levels, block, level, one, known)[0] - output for one in terms]
        return output, [factor * term for factor, term in zip(factors, terms.values(), strict=True)]

    def terms(self, z: Any, phi: Any, levels: Any) -> list[Any]:
        """The terms of the sums over levels, of a function of θ alone."""
        if not self.added:
            return self.run(z, phi, levels, {}, None)[1]
        # All else is left out before it is traced and differentiated.
        needed = self.program.needed(self.sums, ())
        steps = tuple(step for step in self.steps if any(one in needed for one in step.outputs))
        return list(self._values(steps, z, phi, levels, {}, None, None, {})[1].values())

    def _run(
        self, z: Any, phi: Any, levels: Any, block: Any, level: Any, unit: int | None, known: Mapping[int, Any]
    ) -> tuple[Any, dict[int, Any]]:
        """The output, and the terms by number of their sum, where one sum counts as 1 in the output."""
        steps = tuple(step for step in self.steps if step.outputs[0] not in known)
        values, terms = self._values(steps, z, phi, levels, block, level, unit, known)
        output = self.program.output
        return values[output] if isinstance(output, int) else output.value, terms

    def _values(
        self,
        steps: tuple[Operation, ...],
        z: Any,
        phi: Any,
        levels: Any,
        block: Mapping[str, Any],
        level: Any,
        unit: int | None,
        known: Mapping[int, Any],
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """What some operations give, by number, and the terms by number of their sum."""
        values: dict[int, Any] = {**self.program.constants, **known}
        values |= {number: block[name] for name, number in self.program.block.items()}
        position = np.full(self.places.dim, -1)
        position[self.places.shared] = np.arange(len(self.places.shared))
        terms: dict[int, Any] = {}
        with promotion_allowed():
            for step in steps:
                number = step.outputs[0]
                if number in self.merged:
                    continue
                if number in self.read:
                    values[number] = self._read(number, z, phi, position)
                elif number in self.sums:
                    terms[number] = _over_others(values[self.sums[number]], self.along[self.sums[number]].axis)
                    values[number] = jnp.full((), float(number == unit), terms[number].dtype)
                elif number in self.along:
                    inputs = [values[one] if isinstance(one, int) else one.value for one in step.inputs]
                    given = [self.along.get(one) if isinstance(one, int) else None for one in step.inputs]
                    values[number] = run_at(step.equation, inputs, given, self.along[number].axis, levels)
                elif number in self.gathered:
                    values[number] = self._gather(step, values, level)
                else:
                    step.run(values)
        return values, terms

    def _gather(self, step: Operation, values: dict[int, Any], level: Any) -> Any:
        """What rows read of values with an axis of levels."""
        operand, indices = (values[one] for one in step.inputs)
        if level is None:
            place = _place_of_rows(step.equation, self.along[step.inputs[0]].axis)
            if place is not None:
                return jnp.moveaxis(operand, self.along[step.inputs[0]].axis, place)
            level = jnp.arange(operand.shape[self.along[step.inputs[0]].axis])
        column = jnp.reshape(level, indices.shape[:-1]).astype(indices.dtype)
        found = dict(values) | {step.inputs[1]: indices.at[..., self.gathered[step.outputs[0]]].set(column)}
        step.run(found)
        return found[step.outputs[0]]

    def _read(self, number: int, z: Any, phi: Any, position: np.ndarray) -> Any:
        places = self.read[number]
        if number not in self.along:
            return None if np.any(position[places] < 0) else phi[position[places]]
        found = self.places.axis(places)
        assert found is not None
        return jnp.moveaxis(z[:, found[1]], 0, found[0])


def _over_others(value: Any, axis: int) -> Any:
    return jnp.sum(value, axis=tuple(i for i in range(value.ndim) if i != axis))


def trace_by_level(function: Callable, theta: Any, block: Mapping[str, Any], places: Places) -> LevelProgram | None:
    """The program of a function of θ and a block, both given as shapes; None if it is not of the form needed."""
    program = flattened(function, theta, block)
    try:
        return _Analysis(program, places).made()
    except _OtherFormError:
        return None


def needed_steps(program: Program) -> list[Operation]:
    """The operations that the output needs, in order."""
    needed, chosen = {program.output}, []
    for step in reversed(program.steps):
        if any(one in needed for one in step.outputs):
            chosen.append(step)
            needed |= {one for one in step.inputs if isinstance(one, int)}
    return chosen[::-1]


class _Analysis:
    """Finds out what each value of a program is."""

    def __init__(self, program: Program, places: Places) -> None:
        self.program, self.places = program, places
        self.is_effect = np.isin(np.arange(places.dim), places.effects)
        self.read: dict[int, np.ndarray] = {program.theta: np.arange(places.dim)}
        self.along: dict[int, Along] = {}
        self.gathered: dict[int, int] = {}
        self.sums: dict[int, int] = {}
        self.merged: dict[int, int] = {}
        self.totals: set[int] = set()
        self.added = True
        # Values that depend on rows.
        self.rows = set(program.block.values())

    def made(self) -> LevelProgram:
        steps = needed_steps(self.program)
        for step in steps:
            self._look(step)
        if isinstance(self.program.output, int) and self.program.output in {*self.along, *self.merged}:
            raise _OtherFormError
        read = {number: places for number, places in self.read.items() if number != self.program.theta}
        return LevelProgram(
            self.program, self.places, tuple(steps), read, self.along, self.gathered, self.sums, self.merged, self.added
        )

    def _look(self, step: Operation) -> None:
        inputs = [one for one in step.inputs if isinstance(one, int)]
        if self._has_rows(step):
            self.rows |= set(step.outputs)
        if len(inputs) == 1 and len(step.inputs) == 1 and inputs[0] in self.read:
            moved = moved_places(step, self.read[inputs[0]])
            if moved is not None:
                self._moved_to(step.outputs[0], moved)
                return
        if self.program.theta in inputs or any(self._is_pending(one) for one in inputs):
            raise _OtherFormError
        given = [self.along.get(one) if isinstance(one, int) else None for one in step.inputs]
        if any(one in self.merged for one in inputs):
            self._sum_of(step, self.merged[inputs[0]])
        elif any(one in self.totals for one in inputs):
            self._add_to_total(step, inputs)
        elif any(given):
            self._with_levels(step, given)

    def _is_pending(self, number: int) -> bool:
        """Whether a value has effects of levels, but not (yet) an axis of levels."""
        return number in self.read and number not in self.along and bool(np.any(self.is_effect[self.read[number]]))

    def _has_rows(self, step: Operation) -> bool:
        return any(one in self.rows for one in step.inputs if isinstance(one, int))

    def _moved_to(self, number: int, places: np.ndarray) -> None:
        self.read[number] = places
        found = self.places.axis(places) if places.size and np.all(self.is_effect[places]) else None
        if found is not None:
            self.along[number] = Along(found[0])

    def _add_to_total(self, step: Operation, inputs: list[int]) -> None:
        name = step.equation.primitive.name
        plain = name in ("add", "add_any", "convert_element_type", "copy", "reshape", "squeeze", "reduce_sum")
        scaled = name in ("sub", "neg") or (name == "mul" and sum(one in self.totals for one in inputs) == 1)
        scaled |= name == "div" and not (isinstance(step.inputs[1], int) and step.inputs[1] in self.totals)
        if (
            not (plain or scaled)
            or any(one in self.along for one in inputs)
            or step.equation.outvars[0].aval.shape != ()
        ):
            raise _OtherFormError
        self.added &= plain
        self.totals.add(step.outputs[0])

    def _with_levels(self, step: Operation, given: list[Along | None]) -> None:
        equation, levels = step.equation, self.places.num_levels
        name = equation.primitive.name
        if name == "gather" and given[0] is not None and given[1] is None and self._has_rows(step):
            self.gathered[step.outputs[0]] = _level_column(equation, given[0].axis)
            return
        axis = axis_of(equation, given, levels) if not self._has_rows(step) else None
        if axis is not None:
            self.along[step.outputs[0]] = Along(axis)
        elif name == "reshape" and not self._has_rows(step):
            self.merged[step.outputs[0]] = step.inputs[0]
        else:
            self._sum_of(step, step.inputs[0])

    def _sum_of(self, step: Operation, value: int) -> None:
        """The operation has to be the sum over all entries of a value with an axis of levels."""
        equation = step.equation
        if equation.primitive.name != "reduce_sum" or equation.outvars[0].aval.shape != ():
            raise _OtherFormError
        self.sums[step.outputs[0]] = value
        self.totals.add(step.outputs[0])


def _level_column(equation: Any, axis: int) -> int:
    """Which column of a gather's indices is along the axis of levels; each row has to read one level."""
    numbers = equation.params["dimension_numbers"]
    batched = numbers.operand_batching_dims or numbers.start_indices_batching_dims
    if axis not in numbers.start_index_map or axis not in numbers.collapsed_slice_dims or batched:
        raise _OtherFormError
    return numbers.start_index_map.index(axis)


def _place_of_rows(equation: Any, axis: int) -> int | None:
    """The axis of rows in the output of a gather along levels alone, all else taken whole; None for other gathers."""
    numbers, indices = equation.params["dimension_numbers"], equation.invars[1].aval
    operand, out = equation.invars[0].aval, equation.outvars[0].aval
    whole = all(n == operand.shape[i] for i, n in enumerate(equation.params["slice_sizes"]) if i != axis)
    if numbers.start_index_map != (axis,) or numbers.collapsed_slice_dims != (axis,) or len(indices.shape) != 2:
        return None
    places = [i for i in range(len(out.shape)) if i not in numbers.offset_dims]
    return places[0] if whole and len(places) == 1 else None
