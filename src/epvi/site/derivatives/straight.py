"""Splits the link φ where its arguments are no longer combined linearly: φ(u) with u linear in the arguments.

Takes linear predictors; gives the few values u that a row has, or None if they are not fewer than the arguments:

    u = x·w + a[g] + b[g] z   has three predictors; a link that depends on u alone has one value, with ∂u = (1, 1, z)

The derivatives of φ are computed with respect to u, and those with respect to the arguments by products with ∂u, which
is a function of the rows.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.site.derivatives.flat_program import Operation, Program
from epvi.site.derivatives.linear_predictors import Predictors
from epvi.site.derivatives.natures import Natures

# Primitives that are linear in all their inputs together.
_SUMS = ("add", "add_any", "sub", "neg", "concatenate", "reduce_sum", "copy")
# Primitives that are linear in the first input if all others are given; and in any one input if the others are.
_LINEAR_IN_FIRST = ("broadcast_in_dim", "div", "dynamic_slice", "gather", "slice", "squeeze", "transpose")
_LINEAR_IN_ONE = ("dot_general", "mul")


@dataclasses.dataclass(frozen=True)
class Straight:
    """The values u of a link."""

    # The predictors.
    found: Predictors
    # Numbers of the values that are linear in the arguments, with their shapes; each has a row axis.
    values: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    # The coordinates of θ that the link depends on otherwise.
    coordinates: np.ndarray
    # For each argument of φ, which entries of u it is a part of.
    reach: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """The number of entries of u in a row, coordinates among them."""
        return sum(self._widths) + len(self.coordinates)

    @property
    def _widths(self) -> list[int]:
        return [math.prod(shape) // self.found.program.n for shape in self.shapes]

    def combined(self, etas: Sequence[Any], theta: Any, block: Mapping[str, Any]) -> Any:
        """The entries of u that rows have, (n, ·), from η_j (n, C_j)."""
        found = self.found.run(etas, theta, block, self.values)
        n = self.found.program.n
        return jnp.concatenate(
            [
                jnp.moveaxis(value, shape.index(n), 0).reshape(n, -1)
                for value, shape in zip(found, self.shapes, strict=True)
            ],
            axis=1,
        )

    def coefficients(self, etas: Sequence[Any], theta: Any, block: Mapping[str, Any]) -> list[dict[int, Any]]:
        """∂u_k/∂a, (n,), for each argument a and the entries k that it is a part of."""
        made, rows = [], sum(self._widths)
        for a in range(self.found.num_arguments):

            def moved(shift: Any, a: int = a) -> Any:
                return self.combined(*self.found.shifted(etas, theta, a, shift), block)

            one = jnp.ones((), theta.dtype)
            along = jax.jvp(moved, (jnp.zeros_like(one),), (one,))[1] if min(self.reach[a]) < rows else None
            made.append({k: along[:, k] if along is not None and k < rows else one for k in self.reach[a]})
        return made

    def link(self, u: Any, theta: Any, block: Mapping[str, Any]) -> Any:
        """φ per row, from the entries of u that rows have (n, ·) and θ."""
        program = self.found.program
        given = program.columns(block) | {program.theta: theta}
        parts = jnp.split(u, np.cumsum(self._widths)[:-1], axis=1)
        for number, shape, part in zip(self.values, self.shapes, parts, strict=True):
            axis = shape.index(program.n)
            others = shape[:axis] + shape[axis + 1 :]
            dtype = program.aval(number).dtype
            given[number] = jnp.moveaxis(part.reshape(program.n, *others), 0, axis).astype(dtype)
        return program.run(given, [program.output])[0]


def find_straight(found: Predictors) -> Straight | None:
    """The values of the link that its arguments are combined to; None if they are not fewer than the arguments."""
    program, cuts = found.program, {cut.output for cut in found.cuts}
    if not isinstance(program.output, int):
        return None
    natures, kinds = _natures(program, cuts), _kinds(program, cuts)
    needed = program.needed([program.output], cuts)
    bent = [step for step in program.steps if needed & set(step.outputs) and kinds.get(step.outputs[0]) is False]
    used = {one for step in bent for one in step.inputs if isinstance(one, int)} | {program.output}
    values = [one for one in sorted(used) if kinds.get(one) is True and natures.of(one).rows]
    for one in sorted(values, reverse=True):
        # Left out if it follows from the others and the rows.
        others = [other for other in values if other != one]
        behind = program.needed([one], others)
        if not behind & {program.theta, *cuts} - set(others):
            values = others
    shapes = tuple(tuple(program.aval(one).shape) for one in values)
    if not values or any(shape.count(program.n) != 1 for shape in shapes):
        # It is not known which axis is that of the rows.
        return None
    coordinates = np.flatnonzero(_natures(program, set(values)).of(program.output).theta)
    made = Straight(found, tuple(values), shapes, coordinates, _reach(found, values, shapes, coordinates))
    return made if made.width < found.num_arguments and all(made.reach) else None


def _natures(program: Program, predictors: set[int]) -> Natures:
    natures = Natures(program)
    for step in program.steps:
        if step.outputs[0] in predictors:
            natures.add_predictor(step.outputs[0])
        else:
            natures.add(step)
    return natures


def _kinds(program: Program, cuts: set[int]) -> dict[int, bool]:
    """For each value that depends on arguments of φ, whether it is linear in them, with coefficients made of rows."""
    kinds = {program.theta: True}
    for step in program.steps:
        given = [kinds.get(one) if isinstance(one, int) else None for one in step.inputs]
        if step.outputs[0] in cuts:
            kinds[step.outputs[0]] = True
        elif any(one is not None for one in given):
            kinds.update(dict.fromkeys(step.outputs, False not in given and _is_linear(step, given, program.n)))
    return kinds


def _is_linear(step: Operation, given: Sequence[bool | None], n: int) -> bool:
    """Whether an operation is linear in its inputs that depend on arguments; None stands for those that do not."""
    if step.name == "reshape":
        before, after = step.equation.invars[0].aval.shape, step.equation.outvars[0].aval.shape
        return step.equation.params["dimensions"] is None and _entries_before(before, n) == _entries_before(after, n)
    if step.name == "convert_element_type":
        return step.equation.outvars[0].aval.dtype.kind == "f"
    if step.name == "select_n":
        return given[0] is None
    if step.name in _LINEAR_IN_FIRST:
        return all(one is None for one in given[1:])
    return step.name in _SUMS or (step.name in _LINEAR_IN_ONE and sum(one is not None for one in given) == 1)


def _entries_before(shape: tuple[int, ...], n: int) -> int | None:
    """The number of entries along the axes before that of the rows, so that a reshape is known to keep it."""
    return math.prod(shape[: shape.index(n)]) if n in shape else None


def _reach(
    found: Predictors, values: Sequence[int], shapes: Sequence[tuple[int, ...]], coordinates: np.ndarray
) -> tuple[tuple[int, ...], ...]:
    """For each argument of φ the entries of u that it is a part of: all those of a value that depends on it."""
    program, cuts = found.program, {cut.output for cut in found.cuts}
    natures = _natures(program, cuts)
    stops = np.cumsum([math.prod(shape) // program.n for shape in shapes])
    entries = [range(stop - math.prod(shape) // program.n, stop) for stop, shape in zip(stops, shapes, strict=True)]
    behind = [program.needed([value], cuts) for value in values]
    made = []
    for cut in found.cuts:
        of_cut = [k for part, needed in zip(entries, behind, strict=True) if cut.output in needed for k in part]
        made += [tuple(of_cut)] * cut.width
    for i in found.coordinates:
        direct = [int(stops[-1]) + k for k, other in enumerate(coordinates) if other == i]
        depends = [bool(natures.of(value).theta[i]) for value in values]
        made.append((*(k for part, does in zip(entries, depends, strict=True) if does for k in part), *direct))
    return tuple(made)
