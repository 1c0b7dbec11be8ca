"""Integrates the effects of each group out of its likelihood: modes by Newton's method, then Gauss-Hermite quadrature.

Takes a function J of the effects z (L, s) of L groups that gives the log joint density of each group, (L,), where group
g depends on its own z_g only. Gives log ∫ exp J_g(z_g) dz_g by quadrature with nodes about the mode,

    z_q = ẑ + √2 C x_q,   C Cᵀ = (−∇²J(ẑ))⁻¹,   ∫ exp J dz ≈ 2^{s/2} |C| Σ_q w_q exp(x_qᵀx_q) exp J(z_q),

which is exact where exp J is a Gaussian times a polynomial of degree up to 2Q − 1 in each coordinate. In more than
three dimensions the nodes are quasi-random draws of the Gaussian about the mode, with importance weights: Laplace's
approximation, corrected. The nodes are constants for derivatives, which are then those of the integral.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.gaussian.quasi_random import base_draws

# Nodes per coordinate, by the number s of effects of a level: 9, 49 and 125 nodes, and fewer where groups have many
# rows, so that their effects are nearly Gaussian. Judgement: the tests compare with fine quadrature.
_NODES, _FEWER_NODES = {1: 9, 2: 7, 3: 5}, {1: 5, 2: 4, 3: 3}
# Nodes where groups have several rows each (`groups.py`): measured for one effect of a level only.
_NODES_OF_SEVERAL = {1: 7, 2: 7, 3: 5}
# Nodes about known moments where groups have many rows: these integrals serve for what Taylor expansions of the same
# integrals leave over, and errors that both have cancel. Judgement.
_FEWEST_NODES = {1: 3, 2: 3, 3: 3}
# Nodes for the moments of skewed effects, by the number of effects: how many sds they reach, and how many there are for
# each. Skewness and kurtosis are those of tails, which the nodes of the integral do not reach. Judgement: with them the
# mean and sd of a gamma variable of shape 1 follow from its logarithm within 1 %, from 9 nodes of the integral within
# 11 %.
_EVEN = {1: (7.0, 24), 2: (4.5, 10), 3: (4.0, 8)}
# Nodes that judge the others, by the number of effects: how many sds they reach, and how many there are. Judgement: the
# trapezoidal rule with a spacing of one sd has a relative error of 1e-8 for a Gaussian.
_WIDE = {1: (8.0, 40), 2: (6.5, 16), 3: (6.0, 12)}
# Nodes per coordinate of a finer rule, which tells the error of the usual one. Judgement: twice as many, or nearly.
_FINER_NODES = {1: 21, 2: 13, 3: 9}
# Draws in more dimensions, and for the finer rule. Judgement: with 256 the integral of a group of few binary rows in
# five dimensions is known to about 0.01, and alike for nearby φ.
_DRAWS, _FINER_DRAWS = 256, 4096
# Effects of one level up to which nodes are a grid; for more they are draws. Judgement: 125 nodes for three.
MOST_ON_A_GRID = 3
# Most Newton steps for the modes, and the gradient, in units of the group's own sd, at which a group has arrived. The
# nodes need not be centred exactly: a tenth of an sd changes the integral by less than its own error. Judgement.
_MOST_STEPS, _NEAR = 40, 0.05
# A step that lowers J is shortened by this factor, and one that raises it lengthens the next by it, up to a whole
# Newton step. Judgement.
_SHORTER = 4.0
# Least pivot of the curvature, relative to its largest diagonal entry: below, J is not concave there. Judgement.
_LEAST_PIVOT = 1e-6
# Newton steps of the prior alone, from which the search starts; one is enough for a Gaussian. Judgement.
_STEPS_OF_PRIOR = 3

# The log joint density of each of L groups, (L,), at effects (L, s).
Joint = Callable[[Any], Any]


class Nodes(NamedTuple):
    """The nodes of the integral over each group's effects."""

    # Effects at node q, (Q, L, s).
    z: Any
    # Logarithms of the weights, (Q, L).
    log_weight: Any
    # The number of nodes that count, the first ones, for JAX to find out; None if all do.
    used: Any = None

    def each(self, function: Callable[[Any], Any], otherwise: float) -> Any:
        """What a function of effects (L, s) gives at each node; a number in its place at nodes that do not count."""
        if self.used is None:
            return jax.lax.map(function, self.z)
        shape = jax.eval_shape(function, self.z[0])
        nothing = functools.partial(jnp.full, shape.shape, otherwise, shape.dtype)

        def one(given: Any) -> Any:
            i, z = given
            return jax.lax.cond(i < self.used, function, lambda _: nothing(), z)

        return jax.lax.map(one, (jnp.arange(len(self.z)), self.z))


def nodes_of(joint: Joint, prior: Joint, start: Any, many: Any = False, several: Any = False) -> Nodes:
    """The nodes about the modes; constants for JAX's derivatives.

    `many` and `several`: whether all groups have many rows, or several.
    """
    rule = _chosen_rule(start.shape[1], (several, _NODES_OF_SEVERAL), (many, _FEWER_NODES))
    return _about_modes(joint, prior, start, *rule)


def finer_nodes_of(joint: Joint, prior: Joint, start: Any) -> Nodes:
    """More nodes than `nodes_of` gives, to tell the error of those."""
    s = start.shape[1]
    return _about_modes(joint, prior, start, *_rule(s, _FINER_NODES.get(s, _FINER_DRAWS)), None)


def _about_modes(joint: Joint, prior: Joint, start: Any, x: Any, log_w: Any, used: Any) -> Nodes:
    mode, curvature = _modes(joint, prior, start)
    s = start.shape[1]
    root = _cholesky(curvature)
    # Cᵀ = (root)⁻¹, so that C x solves rootᵀ y = x.
    away = _solve_upper(root, jnp.broadcast_to(np.sqrt(2.0) * x[:, None], (len(x), *start.shape)))
    log_volume = 0.5 * s * np.log(2.0) - sum(jnp.log(root[i][i]) for i in range(s))
    made = Nodes(mode + away, log_w[:, None] + log_volume, used)
    return jax.tree.map(jax.lax.stop_gradient, made)


def nodes_about(mean: Any, root: Any, many: Any = False, some: Any = False) -> Nodes:
    """The nodes about given means (L, s), with roots C of covariances as `moments` gives them, (L, t).

    `many` and `some`: whether all groups have many rows, or some.
    """
    s = mean.shape[1]
    x, log_w, used = _chosen_rule(s, (some, _FEWER_NODES), (many, _FEWEST_NODES))
    entries = root_entries(root, s)
    log_volume = 0.5 * s * np.log(2.0) + sum(jnp.log(entries[i, i]) for i in range(s))
    made = Nodes(mean + _spread(entries, np.sqrt(2.0) * x), log_w[:, None] + log_volume, used)
    return jax.tree.map(jax.lax.stop_gradient, made)


def moments(weights: Any, z: Any) -> tuple[Any, Any]:
    """Mean (L, s) and covariance of nodes (Q, L, s) with weights (Q, L).

    The covariance is C Cᵀ with C lower triangular: the rows of C one after the other, with the logarithms of its
    diagonal, (L, t).
    """
    mean = jnp.sum(weights[..., None] * z, axis=0)
    away = z - mean
    root: dict[tuple[int, int], Any] = {}
    for j in range(z.shape[-1]):
        for i in range(j, z.shape[-1]):
            moment = jnp.sum(weights * away[..., i] * away[..., j], axis=0)
            rest = moment - sum(root[i, k] * root[j, k] for k in range(j))
            root[i, j] = jnp.sqrt(rest) if i == j else rest / root[j, j]
    entries = [jnp.log(root[i, j]) if i == j else root[i, j] for i, j in _triangle(z.shape[-1])]
    return mean, jnp.stack(entries, axis=1)


def shapes(weights: Any, z: Any, mean: Any, root: Any) -> Any:
    """Skewness and excess kurtosis of C⁻¹(z − mean) by coordinate, (L, s, 2), with C as `moments` gives it."""
    entries = {(i, j): root[:, t] for t, (i, j) in enumerate(_triangle(z.shape[-1]))}
    white: list[Any] = []
    for i in range(z.shape[-1]):
        rest = z[..., i] - mean[:, i] - sum(entries[i, j] * white[j] for j in range(i))
        white.append(rest * jnp.exp(-entries[i, i]))
    y = jnp.stack(white, axis=-1)
    third, fourth = (jnp.sum(weights[..., None] * y**power, axis=0) for power in (3, 4))
    return jnp.stack([third, fourth - 3], axis=-1)


def wide_nodes(mean: Any, root: Any) -> Nodes:
    """Many equidistant nodes about given means, far into the tails, to judge the others by."""
    return _equidistant(mean, root, wide_scores(mean.shape[1]))


def nodes_for_moments(mean: Any, root: Any, known: Nodes, enough: Any) -> Nodes:
    """Equidistant nodes about given means, for the moments of skewed effects; constants for JAX's derivatives.

    Where the known nodes of the integral are `enough`, as where all groups have many rows, they are these.
    """
    bound, count = _EVEN[mean.shape[1]]
    made = _equidistant(mean, root, np.linspace(-bound, bound, count))
    if enough is not False:
        # There are more of them than of the known nodes.
        rest = len(made.z) - len(known.z)
        z, log_weight = (jnp.concatenate([x, jnp.repeat(x[-1:], rest, axis=0)]) for x in known[:2])
        used = jnp.where(enough, len(known.z) if known.used is None else known.used, len(made.z))
        made = Nodes(jnp.where(enough, z, made.z), jnp.where(enough, log_weight, made.log_weight), used)
    return jax.tree.map(jax.lax.stop_gradient, made)


def _equidistant(mean: Any, root: Any, scores: np.ndarray) -> Nodes:
    """The nodes of the trapezoidal rule."""
    s = mean.shape[1]
    y = np.array(list(itertools.product(scores, repeat=s)))
    entries = root_entries(root, s)
    log_volume = s * np.log(scores[1] - scores[0]) + sum(jnp.log(entries[i, i]) for i in range(s))
    return Nodes(mean + _spread(entries, y), jnp.broadcast_to(log_volume, (len(y), len(mean))))


def wide_scores(s: int) -> np.ndarray:
    """The coordinates of wide nodes, in sds from the mean."""
    bound, count = _WIDE[s]
    return np.linspace(-bound, bound, count)


def root_entries(root: Any, s: int) -> dict[tuple[int, int], Any]:
    """C by row and column, (L,) each, from what `moments` gives."""
    entries = {(i, j): root[:, t] for t, (i, j) in enumerate(_triangle(s))}
    return {(i, j): jnp.exp(c) if i == j else c for (i, j), c in entries.items()}


def _spread(entries: dict[tuple[int, int], Any], x: Any) -> Any:
    """C x of each of Q points (Q, s) and each group, (Q, L, s)."""
    away = [sum(x[:, j, None] * entries[i, j] for j in range(i + 1)) for i in range(x.shape[1])]
    return jnp.stack(away, axis=-1)


def _triangle(s: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(s) for j in range(i + 1)]


def log_integrals(joint: Joint, nodes: Nodes) -> Any:
    """The log integral of each group, (L,)."""
    return jax.nn.logsumexp(joint_at(joint, nodes), axis=0)


def joint_at(joint: Joint, nodes: Nodes) -> Any:
    """Log of the weighted joint density at the nodes, (Q, L)."""
    if nodes.used is None:
        return jax.vmap(joint)(nodes.z) + nodes.log_weight
    return nodes.each(joint, -jnp.inf) + nodes.log_weight


def _chosen_rule(s: int, *fewer: tuple[Any, Mapping[int, int]]) -> tuple[Any, Any, Any]:
    """Nodes, log weights and how many count: the usual ones, or so many per coordinate as the last condition says.

    Conditions are those of all groups of a block, because their nodes are evaluated together.
    """
    usual = _rule(s, _NODES.get(s, _DRAWS))
    (x, log_w), used = usual, None
    for holds, per_coordinate in fewer:
        if holds is False or s > MOST_ON_A_GRID:
            continue
        rule = _rule(s, per_coordinate[s])
        rest = len(usual[0]) - len(rule[0])
        filled = (np.concatenate([part, np.repeat(part[-1:], rest, axis=0)]) for part in rule)
        x, log_w = (jnp.where(holds, a, b) for a, b in zip(filled, (x, log_w), strict=True))
        used = jnp.where(holds, len(rule[0]), len(usual[0]) if used is None else used)
    return x, log_w, used


@functools.cache
def _rule(s: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (Q, s) and log weights (Q,), the latter for a density that is not divided by exp(−xᵀx)."""
    if s > MOST_ON_A_GRID:
        x = base_draws(count, s, (s,)) / np.sqrt(2.0)
        return x, np.sum(x**2, axis=1) + 0.5 * s * np.log(np.pi) - np.log(count)
    x, w = np.polynomial.hermite.hermgauss(count)
    grid = np.array(list(itertools.product(x, repeat=s)))
    weights = np.array(list(itertools.product(np.log(w) + x**2, repeat=s)))
    return grid, np.sum(weights, axis=1)


def expanded(joint: Joint, z: Any) -> tuple[Any, Any, Any]:
    """Value (L,), gradient (L, s) and Hessian (L, s, s) of each group's J in its own effects."""

    # All groups are displaced alike, which moves each by its own effects only.
    def moved(shift: Any) -> Any:
        return joint(z + shift)

    def with_slope(shift: Any) -> Any:
        slope, value = jax.jacfwd(lambda shift: (moved(shift),) * 2, has_aux=True)(shift)
        return slope, (value, slope)

    # The density is traced once for all three.
    hessian, (value, slope) = jax.jacfwd(with_slope, has_aux=True)(jnp.zeros(z.shape[1], z.dtype))
    return value, slope, hessian


class _Search(NamedTuple):
    """The state of Newton's method for all groups."""

    steps: Any
    z: Any
    value: Any
    # The Newton step from there.
    step: Any
    curvature: Any
    # Part of a Newton step that is taken next, by group.
    part: Any
    arrived: Any


def _modes(joint: Joint, prior: Joint, start: Any) -> tuple[Any, Any]:
    """The mode of each group, and minus the Hessian there."""

    def towards_prior(_: Any, z: Any) -> Any:
        _, gradient, hessian = expanded(prior, z)
        return z + _solved(_cholesky(-hessian), gradient)

    def go(old: _Search) -> _Search:
        z = old.z + old.part[:, None] * old.step
        value, gradient, hessian = expanded(joint, z)
        step = _solved(_cholesky(-hessian), gradient)
        arrived = jnp.abs(jnp.sum(gradient * step, axis=1)) < _NEAR**2
        part = jnp.minimum(old.part * _SHORTER, 1.0)
        new = _Search(old.steps + 1, z, value, step, -hessian, part, arrived)
        # The last comparison is False for NaN.
        better = new.value >= old.value - _NEAR**2
        shorter = old._replace(steps=new.steps, part=old.part / _SHORTER)
        chosen = jax.tree.map(lambda a, b: jnp.where(_like(better, a), a, b), new, shorter)
        kept = jax.tree.map(lambda a, b: jnp.where(_like(old.arrived, a), a, b), old, chosen)
        return kept._replace(steps=new.steps)

    # Loops, and a first step of 0 from a value below any other, so that each density is compiled once.
    z = jax.lax.fori_loop(0, _STEPS_OF_PRIOR, towards_prior, start)
    groups, s = z.shape
    first = _Search(
        jnp.zeros((), jnp.int32),
        z,
        jnp.full(groups, -jnp.inf, z.dtype),
        jnp.zeros_like(z),
        jnp.zeros((groups, s, s), z.dtype),
        jnp.ones(groups, z.dtype),
        jnp.zeros(groups, bool),
    )
    end = jax.lax.while_loop(lambda now: (now.steps <= _MOST_STEPS) & ~jnp.all(now.arrived), go, first)
    return end.z, end.curvature


def _like(mask: Any, array: Any) -> Any:
    """The mask of groups, with trailing axes as the array has; a number for all groups takes any group's."""
    return jnp.reshape(mask, (*mask.shape, *[1] * (array.ndim - 1))) if array.ndim else mask[0]


def _cholesky(matrices: Any) -> list[list[Any]]:
    """Lower triangular roots of matrices (L, s, s) by entries, with pivots that are too small replaced."""
    s = matrices.shape[-1]
    scale = jnp.max(jnp.stack([jnp.abs(matrices[:, i, i]) for i in range(s)]), axis=0)
    least = _LEAST_PIVOT * jnp.maximum(scale, jnp.finfo(matrices.dtype).tiny ** 0.5)
    root: list[list[Any]] = [[None] * s for _ in range(s)]
    for j in range(s):
        pivot = matrices[:, j, j] - sum(root[j][k] ** 2 for k in range(j))
        root[j][j] = jnp.sqrt(jnp.where(pivot > least, pivot, jnp.maximum(jnp.abs(pivot), least)))
        for i in range(j + 1, s):
            root[i][j] = (matrices[:, i, j] - sum(root[i][k] * root[j][k] for k in range(j))) / root[j][j]
    return root


def _solve_upper(root: list[list[Any]], right: Any) -> Any:
    """The solution of rootᵀ y = right, (..., L, s)."""
    s = right.shape[-1]
    made: list[Any] = [None] * s
    for i in reversed(range(s)):
        made[i] = (right[..., i] - sum(root[k][i] * made[k] for k in range(i + 1, s))) / root[i][i]
    return jnp.stack(made, axis=-1)


def _solved(root: list[list[Any]], right: Any) -> Any:
    """The solution of root rootᵀ y = right, (L, s)."""
    s = right.shape[-1]
    made: list[Any] = []
    for i in range(s):
        made.append((right[:, i] - sum(root[i][k] * made[k] for k in range(i))) / root[i][i])
    return _solve_upper(root, jnp.stack(made, axis=1))
