"""Integrates the effects of each group out of its likelihood, by Gauss-Hermite quadrature about the modes.

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
import jax.custom_batching
import jax.numpy as jnp
import numpy as np

from epvi.gaussian.quasi_random import base_draws
from epvi.site.derivatives.group_modes import GroupModes, Joint, cholesky, modes, solve_upper

# Nodes per coordinate, by the number s of effects of a level: 9, 49 and 125 nodes, and fewer where the effects of the
# groups are slightly or hardly skewed. Judgement: the tests compare with fine quadrature.
_NODES, _FEWER_NODES, _FEWEST_NODES = {1: 9, 2: 7, 3: 5}, {1: 7, 2: 6, 3: 4}, {1: 5, 2: 4, 3: 3}
# Nodes where effects are exactly Gaussian, as those of normal rows: second derivatives of the integral, which are means
# of polynomials of degree 4, are exact by three.
_EXACT_NODES = {1: 3, 2: 3, 3: 3}
# The same about known moments: these integrals serve for what Taylor expansions of the same integrals leave over, and
# errors that both have cancel. Judgement.
_FEWER_KNOWN, _FEWEST_KNOWN = {1: 5, 2: 4, 3: 3}, {1: 3, 2: 3, 3: 3}
# Largest departures from a Gaussian that count as slight, and as hardly any. Measured with binary rows: the log
# integral of a group is then off by at most 3e-5 with 7 nodes, and by 6e-5 with 5; errors of 10,000 groups like that
# move a mean by some thousandths of an sd.
SLIGHT, HARDLY_ANY = 0.3, 0.15
# And as none at all. Judgement: errors grow with its square.
_NONE = 1e-3
# Powers of the departure with which errors by 7, 5 and 3 nodes grow: n nodes are exact for polynomials of degree
# 2n − 1, and the first term of higher degree is of this order in a skewness γ, whose own term is of degree 3.
_BY_SEVEN, _BY_FIVE, _BY_THREE = 6, 4, 2
# How much an excess kurtosis counts beside a skewness of the same size. Judgement: integrals by 5 nodes are then off by
# about as much.
_KURTOSIS = 1.5
# Where J is compared with a quadratic, in sds from the mode: as far as the inner nodes. Judgement.
_AWAY = 1.5
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


def nodes_of(joint: Joint, prior: Joint, start: Any, present: Any = None) -> Nodes:
    """The nodes about the modes; constants for JAX's derivatives.

    There are fewer where effects of the groups that are `present` (L,) are nearly Gaussian; None: never fewer.
    """
    return nodes_at(joint, modes(joint, prior, start), present)


def nodes_at(joint: Joint, found: GroupModes, present: Any = None) -> Nodes:
    """The same about modes that are known."""
    s = found.z.shape[1]
    if present is None or s > MOST_ON_A_GRID:
        return _about(found, *_rule(s, _NODES.get(s, _DRAWS)), None)
    away = departure_at(joint, found)
    slight, hardly, none = (typical(away, present, power) for power in (_BY_SEVEN, _BY_FIVE, _BY_THREE))
    fewer = (slight <= SLIGHT, _FEWER_NODES), (hardly <= HARDLY_ANY, _FEWEST_NODES), (none <= _NONE, _EXACT_NODES)
    return _about(found, *_chosen_rule(s, *fewer))


def finer_nodes_of(joint: Joint, prior: Joint, start: Any) -> Nodes:
    """More nodes than `nodes_of` gives, to tell the error of those."""
    return finer_nodes_at(modes(joint, prior, start))


def finer_nodes_at(found: GroupModes) -> Nodes:
    """The same about modes that are known."""
    s = found.z.shape[1]
    return _about(found, *_rule(s, _FINER_NODES.get(s, _FINER_DRAWS)), None)


def _about(found: GroupModes, x: Any, log_w: Any, used: Any) -> Nodes:
    s, root = found.z.shape[1], cholesky(found.curvature)
    # Cᵀ = (root)⁻¹, so that C x solves rootᵀ y = x.
    away = solve_upper(root, jnp.broadcast_to(np.sqrt(2.0) * x[:, None], (len(x), *found.z.shape)))
    log_volume = 0.5 * s * np.log(2.0) - sum(jnp.log(root[i][i]) for i in range(s))
    made = Nodes(found.z + away, log_w[:, None] + log_volume, used)
    return jax.tree.map(jax.lax.stop_gradient, made)


def departure_at(joint: Joint, found: GroupModes) -> Any:
    """How far J is from a quadratic near the mode of each group, as `departure` tells it of moments, (L,).

    From J at both sides of the mode along each whitened coordinate: J(±a) = J ± a g − a²/2 ± γ a³/6 + κ a⁴/24, with γ
    and κ the third and fourth derivatives, to first order the skewness and the excess kurtosis.
    """
    s = found.z.shape[1]
    along = solve_upper(cholesky(found.curvature), jnp.broadcast_to(np.eye(s)[:, None], (s, *found.z.shape)))
    slopes = jnp.einsum("lij,lj,kli->kl", found.curvature, found.step, along)
    sides = jax.lax.map(joint, jnp.concatenate([found.z + _AWAY * along, found.z - _AWAY * along]))
    after, before = sides[:s], sides[s:]
    third = 3 * (after - before - 2 * _AWAY * slopes) / _AWAY**3
    fourth = 12 * (after + before - 2 * found.value + _AWAY**2) / _AWAY**4
    return departure(jnp.stack([third, fourth], axis=-1).swapaxes(0, 1))


def departure(shape: Any) -> Any:
    """How far effects are from Gaussian, from skewness and excess kurtosis by coordinate (L, s, 2), (L,)."""
    return jnp.max(jnp.maximum(jnp.abs(shape[..., 0]), _KURTOSIS * jnp.abs(shape[..., 1])), axis=1)


def typical(away: Any, present: Any, power: int) -> Any:
    """The departure that would give the same sum of errors in all present groups: a mean of powers.

    Errors of a sum over groups count together, so that one group among many does not take nodes for all. It is the
    largest at all points that are evaluated together, so that nodes that none of them needs are left out.
    """
    errors = jax.lax.stop_gradient(jnp.where(present, away, 0.0)) ** power
    return _largest((jnp.sum(errors) / jnp.maximum(jnp.sum(present), 1)) ** (1 / power))


@jax.custom_batching.custom_vmap
def _largest(x: Any) -> Any:
    """x itself, or the largest of those that are computed together."""
    return x


@_largest.def_vmap
def _largest_of_all(_: int, in_batched: Any, x: Any) -> tuple[Any, bool]:
    return (jnp.max(x, axis=0) if in_batched[0] else x), False


def nodes_about(mean: Any, root: Any, away: Any = None, present: Any = None, few: Any = False) -> Nodes:
    """The nodes about given means (L, s), with roots C of covariances as `moments` gives them, (L, t).

    There are fewer where departures from a Gaussian, `away` (L,), are small in the groups that are `present`, and
    fewest from the slight ones on where only terms of higher order will be made of them (`few`); None: never fewer.
    """
    s, conditions = mean.shape[1], []
    if away is not None:
        most = jnp.where(few, SLIGHT, HARDLY_ANY)
        conditions = [
            (typical(away, present, _BY_FIVE) <= SLIGHT, _FEWER_KNOWN),
            (typical(away, present, _BY_THREE) <= most, _FEWEST_KNOWN),
        ]
    x, log_w, used = _chosen_rule(s, *conditions)
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

    Where the known nodes of the integral are `enough`, as where no effects are skewed, they are these.
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
