"""Finds the group effects of a model: latent variables of which every row uses one level's.

Takes a target and rows; gives the effects z of one factor that can be integrated out group by group, or None. Rows read
them by an index that depends on the rows alone, as in `a[g]`, `(mu + s * z)[g]` or `intercept[g] + slope[g] * x`, and
given the other parameters φ the levels are independent in the prior. Nothing is declared by the user: both are read off
the jaxprs of the two densities, and checked on numbers.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from epvi.ground.compiled import Held, kept, number_of
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space
from epvi.site.derivatives.by_level import Places, needed_steps, trace_by_level
from epvi.site.derivatives.flat_program import Program, flattened
from epvi.site.model.model import Model
from epvi.site.model.target import Target

# Fewest levels: with fewer effects, a Gaussian over all parameters together is as good, and costs less. Not so where
# the effects' distribution has parameters of its own, such as a scale: then the joint posterior is a funnel, and only
# with very few levels there is nothing to learn about it. Judgement.
_LEAST_LEVELS, _LEAST_VARYING = 20, 3
# Most effects of one level: the nodes of the integral are a grid over them. Judgement: 125 nodes for three.
_MOST_PER_LEVEL = 3
# Most other parameters, whose joint distribution is judged by importance weights. Judgement: as many as are fitted by
# Newton's method.
_MOST_SHARED = 128
# Most other parameters, if varying effects are integrated out though another factor has more effects, with a fixed
# prior. Judgement: coefficients are nearly Gaussian, and importance weights can judge so many of them.
_MOST_BESIDE_VARYING = 64
# Rows on which the densities by level are compared with those of the model, and largest relative difference. Judgement:
# they do the same arithmetic, in another order of summation.
_ROWS_TO_TRY, _SAME = 64, 1e-9
# Rows whose levels are computed at a time. Judgement.
_ROWS_AT_ONCE = 2**14


@dataclasses.dataclass(frozen=True, eq=False)
class FoundEffects:
    """Group effects, and the level of every row."""

    effects: GroupEffects
    codes: Int[np.ndarray, " N"]


class Gather(NamedTuple):
    """A place in the likelihood where rows read entries of a function of θ."""

    # G, the number of entries.
    levels: int
    # The parameters with so many entries that the function depends on.
    names: frozenset[str]
    # Number of the indices in the program, and their column that is along the levels.
    indices: int
    column: int


class EffectKind(enum.Enum):
    """What parameters are, as effects of levels."""

    # They cannot be integrated out level by level.
    OTHER = enum.auto()
    # Their distribution is known, as that of coefficients of a factor with a fixed prior.
    FIXED = enum.auto()
    # Their distribution depends on other parameters.
    VARYING = enum.auto()


class EffectSearch(Held):
    """Looks for group effects of one target; what it finds out about the model holds for all rows of one kind."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._gathers: tuple[list[Gather], Any] | None = None
        # What parameters are, as effects of levels.
        self._known: dict[GroupEffects, EffectKind] = {}

    @property
    def num_programs(self) -> int:
        """The program that gives the levels of rows."""
        return 0 if self._gathers is None or self._gathers[1] is None else number_of(self._gathers[1])

    def find(self, rows: Mapping[str, np.ndarray]) -> FoundEffects | None:
        """The factor with most effects that can be integrated out, if there is one.

        Varying effects come first, if few other parameters are left.
        """
        fixed = None
        for found in self._usable(rows):
            kind, others = self._known[found.effects], self._others(found)
            if others > _MOST_SHARED:
                continue
            if kind is EffectKind.VARYING and (fixed is None or others <= _MOST_BESIDE_VARYING):
                return found
            if kind is EffectKind.FIXED and found.effects.num_levels >= _LEAST_LEVELS:
                fixed = fixed or found
        return fixed

    def find_nested(self, rows: Mapping[str, np.ndarray]) -> tuple[FoundEffects, FoundEffects] | None:
        """Two factors with an effect for each level, one of which has its levels in those of the other."""
        usable = self._usable(rows)
        simple = [one for one in usable if len(one.effects.names) == 1 and self._size(one) == one.effects.num_levels]
        for inner, outer in itertools.permutations(simple, 2):
            others = self._others(inner) - self._size(outer)
            if 0 < others <= _MOST_SHARED and lies_in(inner.codes, outer.codes):
                with jax.enable_x64(True):
                    if self._apart(inner, outer):
                        return inner, outer
        return None

    def _usable(self, rows: Mapping[str, np.ndarray]) -> list[FoundEffects]:
        """The factors whose effects can be integrated out, those with most effects first."""
        target, space = self.target, self.target.space
        big = any(max(one.flat_shape, default=0) >= _LEAST_VARYING for one in space.parameters)
        if not big or target.log_joint is not None or space.exchangeable or not target.proper:
            return []
        with jax.enable_x64(True):
            return [one for one in self._candidates(rows) if self._kind_of(one, rows) is not EffectKind.OTHER]

    def _size(self, found: FoundEffects) -> int:
        return found.effects.places(self.target.space).size

    def _others(self, found: FoundEffects) -> int:
        return self.target.space.dim - self._size(found)

    def _apart(self, one: FoundEffects, other: FoundEffects) -> bool:
        """Whether the prior of neither factor's effects depends on the other's."""
        for mine, others in ((one, other), (other, one)):
            places = Places(mine.effects.places(self.target.space), self.target.space.dim)
            theta = jax.ShapeDtypeStruct((places.dim,), np.float64)
            program = trace_by_level(lambda theta, _: self.target.log_prior(theta), theta, {}, places)
            assert program is not None, "effects of levels were found in a prior that has none"
            used = places.shared[program.shared_of_sums]
            if not program.added or np.any(np.isin(used, others.effects.places(self.target.space))):
                return False
        return True

    def _kind_of(self, found: FoundEffects, rows: Mapping[str, np.ndarray]) -> EffectKind:
        if np.any((found.codes < 0) | (found.codes >= found.effects.num_levels)):
            return EffectKind.OTHER
        if found.effects not in self._known:
            self._known[found.effects] = _kind(self.target, found, rows)
        return self._known[found.effects]

    def _candidates(self, rows: Mapping[str, np.ndarray]) -> list[FoundEffects]:
        """Parameters that rows read by one index only, those with most effects first."""
        groups: list[tuple[int, np.ndarray, set[str]]] = []
        for gather, codes in self.codes(rows):
            for levels, known, together in groups:
                if gather.levels == levels and np.array_equal(codes, known):
                    together |= gather.names
                    break
            else:
                groups.append((gather.levels, codes, set(gather.names)))
        made, space = [], self.target.space
        for i, (levels, codes, names) in enumerate(groups):
            elsewhere = any(names & others for j, (_, _, others) in enumerate(groups) if j != i)
            chosen = tuple(p.name for p in space.parameters if p.name in names)
            size = sum(space.by_name[name].size for name in chosen)
            axes = tuple(space.by_name[name].flat_shape.index(levels) for name in chosen)
            few = size <= _MOST_PER_LEVEL * levels and size < space.dim
            if few and not elsewhere and codes.ndim == 1:
                made.append(FoundEffects(GroupEffects(chosen, axes, levels), codes))
        return sorted(made, key=lambda one: -sum(space.by_name[name].size for name in one.effects.names))

    def codes(self, rows: Mapping[str, np.ndarray]) -> list[tuple[Gather, np.ndarray]]:
        """The gathers, each with the index of every row."""
        if self._gathers is None:
            self._gathers = self._look(rows)
        gathers, program = self._gathers
        if program is None:
            return []
        num_rows, pieces = len(next(iter(rows.values()))), []
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            block = {name: column[start : start + _ROWS_AT_ONCE] for name, column in rows.items()}
            short = {name: np.resize(x, (_ROWS_AT_ONCE, *x.shape[1:])) for name, x in block.items()}
            pieces.append([np.asarray(codes)[: num_rows - start] for codes in program(short)])
        return list(zip(gathers, map(np.concatenate, zip(*pieces, strict=True)), strict=True))

    def _look(self, rows: Mapping[str, np.ndarray]) -> tuple[list[Gather], Any]:
        """The gathers of the likelihood, and the program that gives their indices for a block."""
        theta = jax.ShapeDtypeStruct((self.target.space.dim,), np.float64)
        shapes = {n: jax.ShapeDtypeStruct((_ROWS_AT_ONCE, *x.shape[1:]), x.dtype) for n, x in rows.items()}
        program = flattened(self.target.log_likelihood, theta, shapes)
        gathers = _gathers(program, self.target.space)

        def indices(block: Mapping[str, Any]) -> list[Any]:
            given = {number: block[name] for name, number in program.block.items()}
            found = program.run(given, [gather.indices for gather in gathers])
            return [one[..., gather.column] for one, gather in zip(found, gathers, strict=True)]

        return gathers, jax.jit(indices) if gathers else None


def find_effects(model: Model, target: Target, rows: Mapping[str, np.ndarray]) -> FoundEffects | None:
    """The group effects of a model that can be integrated out, if it has any."""
    return _search(model, target, rows).find(rows)


def find_nested_effects(
    model: Model, target: Target, rows: Mapping[str, np.ndarray]
) -> tuple[FoundEffects, FoundEffects] | None:
    """The effects of groups and of larger groups in which they lie, if both can be integrated out."""
    return _search(model, target, rows).find_nested(rows)


def levels_read(model: Model, target: Target, rows: Mapping[str, np.ndarray]) -> list[tuple[Gather, np.ndarray]]:
    """All places where rows read entries of functions of θ by an index, each with the index of every row."""
    with jax.enable_x64(True):
        return _search(model, target, rows).codes(rows)


def lies_in(inner: Int[np.ndarray, " N"], outer: Int[np.ndarray, " N"]) -> bool:
    """Whether all rows of every level of one factor are of one level of the other, which has fewer levels."""
    pairs = np.unique(inner.astype(np.int64) * (int(np.max(outer)) + 1) + outer)
    levels = len(np.unique(inner))
    return len(pairs) == levels > len(np.unique(outer))


def _search(model: Model, target: Target, rows: Mapping[str, np.ndarray]) -> EffectSearch:
    signature = tuple((name, column.shape[1:], column.dtype.str) for name, column in rows.items())
    return kept((model.shared_key(), signature, "group effects"), lambda: EffectSearch(target))


def _gathers(program: Program, space: Space) -> list[Gather]:
    """Gathers by rows from functions of θ."""
    nothing = np.zeros(len(space.parameters), bool)
    # For each value: which parameters it depends on, and whether it depends on rows.
    natures: dict[int, tuple[np.ndarray, bool]] = dict.fromkeys(program.block.values(), (nothing, True))
    found: list[Gather] = []
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


def _read(step: Any, used: list[Any]) -> list[Gather]:
    numbers, shape = step.equation.params["dimension_numbers"], step.equation.invars[0].aval.shape
    found = []
    for column, axis in enumerate(numbers.start_index_map):
        names = frozenset(one.name for one in used if shape[axis] in one.flat_shape)
        if shape[axis] >= _LEAST_VARYING and names:
            found.append(Gather(shape[axis], names, step.inputs[1], column))
    return found


def _kind(target: Target, found: FoundEffects, rows: Mapping[str, np.ndarray]) -> EffectKind:
    """Whether levels are independent given φ in the prior, and the likelihood of a row depends on its level only."""
    places = Places(found.effects.places(target.space), target.space.dim)
    theta = jax.ShapeDtypeStruct((target.space.dim,), np.float64)
    some = {name: column[:_ROWS_TO_TRY] for name, column in rows.items()}
    prior = trace_by_level(lambda theta, _: target.log_prior(theta), theta, {}, places)
    likelihood = trace_by_level(target.log_likelihood, theta, some, places)
    if prior is None or likelihood is None or not prior.sums or not likelihood.gathered:
        return EffectKind.OTHER
    if not agrees_by_level(target, places, some, found.codes[:_ROWS_TO_TRY]):
        return EffectKind.OTHER
    return EffectKind.VARYING if len(prior.shared_of_sums) or len(likelihood.shared_of_gathered) else EffectKind.FIXED


def agrees_by_level(target: Target, places: Places, some: Mapping[str, np.ndarray], codes: np.ndarray) -> bool:
    """Whether the densities by level are those of the model, with the levels in another order."""
    rng = np.random.default_rng(0)
    theta = 0.3 * rng.standard_normal(places.dim)
    levels = rng.permutation(places.num_levels)
    level = np.argsort(levels)[codes]

    def both(theta: Any, levels: Any, level: Any, some: Any) -> Any:
        z, phi = theta[places.effects][levels], theta[places.shared]
        prior = trace_by_level(lambda theta, _: target.log_prior(theta), theta, {}, places)
        likelihood = trace_by_level(target.log_likelihood, theta, some, places)
        assert prior is not None
        assert likelihood is not None
        rest, terms = prior.run(z, phi, levels, {}, None)
        found = likelihood.run(z, phi, levels, some, level)[0]
        total = rest + sum(jnp.sum(term) for term in terms)
        return (total, found), (target.log_prior(theta), target.log_likelihood(theta, some))

    with promotion_allowed():
        found, wanted = jax.jit(both)(theta, levels, level, some)
    return all(np.allclose(a, b, rtol=_SAME, atol=_SAME) for a, b in zip(found, wanted, strict=True))
