"""Finds the group effects of a model: latent variables of which every row uses one level's.

Takes a target and rows; gives the effects z of one factor that can be integrated out group by group, or None. Rows read
them by an index that depends on the rows alone, as in `a[g]`, `(mu + s * z)[g]` or `intercept[g] + slope[g] * x`, and
given the other parameters φ the levels are independent in the prior. Nothing is declared by the user: both are read off
the jaxprs of the two densities, and checked on numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from epvi.ground.float64 import promotion_allowed
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space
from epvi.site.derivatives.by_level import Places, flat_program, needed_steps, trace_by_level
from epvi.site.derivatives.linear_predictors import Program
from epvi.site.model.target import Target

# Fewest levels: with fewer effects, a Gaussian over all parameters together is as good, and costs less. Judgement.
_LEAST_LEVELS = 20
# Most effects of one level: the nodes of the integral are a grid over them. Judgement: 125 nodes for three.
_MOST_PER_LEVEL = 3
# Most other parameters, whose Hessian needs one direction each. Judgement.
_MOST_SHARED = 32
# Rows on which the densities by level are compared with those of the model, and largest relative difference. Judgement:
# they do the same arithmetic, in another order of summation.
_ROWS_TO_TRY, _SAME = 64, 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class FoundEffects:
    """Group effects, and the level of every row."""

    effects: GroupEffects
    codes: Int[np.ndarray, " N"]


def find_effects(target: Target, rows: Mapping[str, np.ndarray]) -> FoundEffects | None:
    """The factor with most effects that can be integrated out, if there is one."""
    space = target.space
    big = [one for one in space.parameters if max(one.flat_shape, default=0) >= _LEAST_LEVELS]
    if not big or target.log_joint is not None or space.exchangeable or not target.proper:
        return None
    theta = jax.ShapeDtypeStruct((space.dim,), np.float64)
    shapes = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in rows.items()}
    with jax.enable_x64(True):
        program = flat_program(target.log_likelihood, theta, shapes)
        for effects in _candidates(program, space, rows):
            codes = _checked(target, effects, rows)
            if codes is not None:
                return FoundEffects(effects, codes)
    return None


def _candidates(program: Program, space: Space, rows: Mapping[str, Any]) -> list[GroupEffects]:
    """Sets of parameters that rows read by the same index, those with most effects first."""
    read = _gathers(program, space)
    given = {number: rows[name] for name, number in program.block.items()}
    groups: list[tuple[int, np.ndarray, set[str]]] = []
    for levels, names, index, column in read:
        codes = np.asarray(program.run(given, [index])[0])[..., column]
        for other, known, together in groups:
            if other == levels and np.array_equal(codes, known):
                together |= names
                break
        else:
            groups.append((levels, codes, set(names)))
    made = []
    for levels, _, names in groups:
        chosen = tuple(p.name for p in space.parameters if p.name in names)
        size = sum(space.by_name[name].size for name in chosen)
        axes = tuple(space.by_name[name].flat_shape.index(levels) for name in chosen)
        if size <= _MOST_PER_LEVEL * levels and space.dim - size <= _MOST_SHARED and size < space.dim:
            made.append(GroupEffects(chosen, axes, levels))
    return sorted(made, key=lambda one: -sum(space.by_name[name].size for name in one.names))


def _gathers(program: Program, space: Space) -> list[tuple[int, set[str], int, int]]:
    """Gathers by rows from functions of θ: levels, parameters with that many, the indices' number and column."""
    nothing = np.zeros(len(space.parameters), bool)
    # For each value: which parameters it depends on, and whether it depends on rows.
    natures = {number: (nothing, True) for number in program.block.values()}
    found: list[tuple[int, set[str], int, int]] = []
    for step in needed_steps(program):
        inputs = [one for one in step.inputs if isinstance(one, int)]
        known = [natures.get(one, (nothing, False)) for one in inputs]
        which = np.logical_or.reduce([nothing, *(one for one, _ in known)])
        if program.theta in inputs:
            which = which | _sliced(step.equation, space)
        natures.update(dict.fromkeys(step.outputs, (which, any(rows for _, rows in known))))
        if step.equation.primitive.name == "gather" and len(inputs) == 2 and program.theta not in inputs:
            (operand, of_rows), (index, by_rows) = known
            if np.any(operand) and not of_rows and by_rows and not np.any(index):
                found += _read(step, [p for p, used in zip(space.parameters, operand, strict=True) if used])
    return found


def _sliced(equation: Any, space: Space) -> np.ndarray:
    """The parameters of which an operation reads θ; all of them if it is not a slice."""
    if equation.primitive.name != "slice":
        return np.ones(len(space.parameters), bool)
    (start,), (stop,) = equation.params["start_indices"], equation.params["limit_indices"]
    return np.array([one.start < stop and start < one.stop for one in space.slices.values()])


def _read(step: Any, used: list[Any]) -> list[tuple[int, set[str], int, int]]:
    numbers, shape = step.equation.params["dimension_numbers"], step.equation.invars[0].aval.shape
    found = []
    for column, axis in enumerate(numbers.start_index_map):
        names = {one.name for one in used if shape[axis] in one.flat_shape}
        if shape[axis] >= _LEAST_LEVELS and names:
            found.append((shape[axis], names, step.inputs[1], column))
    return found


def _checked(target: Target, effects: GroupEffects, rows: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The level of every row; None if the effects cannot be integrated out."""
    places = Places(effects.places(target.space), target.space.dim)
    theta = jax.ShapeDtypeStruct((target.space.dim,), np.float64)
    shapes = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in rows.items()}
    prior = trace_by_level(lambda theta, _: target.log_prior(theta), theta, {}, places)
    likelihood = trace_by_level(target.log_likelihood, theta, shapes, places)
    if prior is None or likelihood is None or not prior.sums or not likelihood.gathered:
        return None
    first, *others = likelihood.codes(rows)
    same = all(np.array_equal(first, other) for other in others)
    num_rows = len(next(iter(rows.values())))
    inside = first.shape == (num_rows,) and bool(np.all((first >= 0) & (first < effects.num_levels)))
    return first if same and inside and _agrees(target, places, rows, first) else None


def _agrees(target: Target, places: Places, rows: Mapping[str, np.ndarray], codes: np.ndarray) -> bool:
    """Whether the densities by level are those of the model, with the levels in another order."""
    rng = np.random.default_rng(0)
    some = {name: column[:_ROWS_TO_TRY] for name, column in rows.items()}
    theta = 0.3 * rng.standard_normal(places.dim)
    levels = rng.permutation(places.num_levels)
    level = np.argsort(levels)[codes[:_ROWS_TO_TRY]]
    z, phi = theta[places.effects][levels], theta[places.shared]
    with promotion_allowed():
        prior = trace_by_level(lambda theta, _: target.log_prior(theta), theta, {}, places)
        likelihood = trace_by_level(target.log_likelihood, theta, some, places)
        assert prior is not None
        assert likelihood is not None
        rest, terms = prior.run(*map(jnp.asarray, (z, phi, levels)), {}, None)
        found = rest + sum(jnp.sum(term) for term in terms), likelihood.run(
            *map(jnp.asarray, (z, phi, levels)), some, jnp.asarray(level)
        )[0]
        wanted = target.log_prior(jnp.asarray(theta)), target.log_likelihood(jnp.asarray(theta), some)
    return all(np.allclose(a, b, rtol=_SAME, atol=_SAME) for a, b in zip(found, wanted, strict=True))
