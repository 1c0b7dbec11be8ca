"""The modes of a product Π_m q_m(θ) of mixtures, by the fixed-point iteration

    θ ← (Σ_m Σ_k r_mk Λ_mk)⁻¹ Σ_m Σ_k r_mk Λ_mk μ_mk,   r_mk = p(k_m = k | θ)

from many component means at once. It never lowers Π q_m (it is an EM step for every factor). Takes a stack; gives
`ProductModes`: places, roots of the precision Σ r Λ there, log masses of the Gaussians of that height and precision.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.structure import Structure
from epvi.ground.compiled import compiled
from epvi.ground.float64 import AnyArray, to_numpy
from epvi.hub.product.blocks import Blocks, log_joint
from epvi.hub.product.chain import wander
from epvi.hub.product.stack import Stack

# From how many places to start, how many of them are the ends of walks over k· and how long those are (in sweeps, at
# least in steps, at most in operations); how many modes to keep; and when to stop moving (in sds, and in steps).
_STARTS = 64
_WALKERS = 32
_SWEEPS = 4
_STEPS = 500
_WORK = 2 * 10**9
_MODES = 32
_TOLERANCE = 1e-3
_MAX_STEPS = 50
# Modes closer than this many sds are one.
_SAME = 0.5


class ProductModes(NamedTuple):
    """At most 32 distinct modes, best first."""

    theta: Float[AnyArray, "n d"]
    roots: Float[AnyArray, "n *packed"]
    log_mass: Float[AnyArray, " n"]


class _Here(NamedTuple):
    """What one pass over the shards tells about each point: log Π q_m + const, Σ r Λ, Σ r Λ μ."""

    log_product: Float[AnyArray, " n"]
    precision: Float[AnyArray, "n *packed"]
    eta: Float[AnyArray, "n d"]


def _look(blocks: Blocks, theta: Float[AnyArray, "n d"]) -> _Here:
    structure = blocks.structure

    def block(here: _Here, shards: Blocks) -> tuple[_Here, None]:
        logs = jax.vmap(lambda point: log_joint(shards, point))(theta)
        r = jax.nn.softmax(logs, axis=-1)
        return _Here(
            here.log_product + jnp.sum(jax.nn.logsumexp(logs, axis=-1), axis=-1),
            here.precision + jnp.tensordot(r, shards.precisions, axes=2),
            here.eta + jnp.tensordot(r, shards.etas, axes=2),
        ), None

    n, d = theta.shape
    zero = _Here(jnp.zeros(n), jnp.zeros((n, *structure.packed_shape(d))), jnp.zeros((n, d)))
    return jax.lax.scan(block, zero, blocks)[0]


def find_modes(stacked: Stack, blocks: Blocks, key: AnyArray) -> ProductModes:
    """Climb from components of the shards and of the product, and keep the distinct ends with the most mass."""
    theta, roots, log_mass = to_numpy(_climb(blocks, _starts(stacked, key)))
    order = np.argsort(-log_mass, kind="stable")
    theta, roots, log_mass = theta[order], roots[order], log_mass[order]
    distances = np.asarray(_distances(blocks.structure, theta, roots))
    # The same in the sds of both: a needle inside a wide mode is another mode.
    close = np.maximum(distances, distances.T) < _SAME**2
    kept: list[int] = []
    for i in range(len(theta)):
        if len(kept) < _MODES and not np.any(close[kept, i]):
            kept.append(i)
    return ProductModes(theta[kept], roots[kept], log_mass[kept])


def _starts(stacked: Stack, key: AnyArray) -> Float[np.ndarray, "n d"]:
    """The centre, components of the shards by their weights, and components of the product after a short walk."""
    per_step = _WALKERS * stacked.structure.cost(stacked.dim)
    steps = min(max(_STEPS, _SWEEPS * stacked.num_shards), max(1, _WORK // per_step))
    walked = wander(stacked, key, _WALKERS, steps)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    shards = rng.permutation(np.arange(_STARTS - _WALKERS - 1) % stacked.num_shards)
    log_weights = np.asarray(stacked.log_weights)[shards]
    cumulative = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
    u = rng.uniform(size=(len(shards), 1)) * cumulative[:, -1:]
    means = np.asarray(stacked.means)[shards, np.sum(u > cumulative, axis=1)]
    return np.concatenate([np.zeros((1, stacked.dim)), means, walked])


@compiled
def _climb(blocks: Blocks, starts: Float[AnyArray, "n d"]) -> tuple[AnyArray, AnyArray, AnyArray]:
    structure, d = blocks.structure, starts.shape[1]

    def step(state: tuple) -> tuple:
        theta, _, _, _, steps = state
        here = _look(blocks, theta)
        roots = jax.vmap(structure.root)(here.precision)
        log_mass = here.log_product - jax.vmap(lambda root: structure.half_log_det(root, d))(roots)
        after = jax.vmap(structure.solve)(roots, here.eta)
        moved = jnp.sum(jax.vmap(structure.whiten)(roots, after - theta) ** 2, axis=1)
        return after, roots, log_mass, jnp.max(moved), steps + 1

    def moving(state: tuple) -> AnyArray:
        return (state[3] > _TOLERANCE**2) & (state[4] < _MAX_STEPS)

    n = len(starts)
    nothing = jnp.zeros((n, *structure.packed_shape(d))), jnp.zeros(n), jnp.asarray(jnp.inf), jnp.asarray(0)
    return jax.lax.while_loop(moving, step, (starts, *nothing))[:3]


@compiled
def _distances(
    structure: Structure, theta: Float[AnyArray, "n d"], roots: Float[AnyArray, "n *packed"]
) -> Float[AnyArray, "n n"]:
    """Squared distance of every point from every other, in the other's sds."""

    def from_one(point: AnyArray, root: AnyArray) -> AnyArray:
        return jax.vmap(lambda other: jnp.sum(structure.whiten(root, other - point) ** 2))(theta)

    return jax.vmap(from_one)(theta, roots)
