"""Find the modes of a product Π_m q_m(θ) of mixtures, by the fixed-point iteration

    θ ← (Σ_m Σ_k r_mk Λ_mk)⁻¹ Σ_m Σ_k r_mk Λ_mk μ_mk,   r_mk = p(k_m = k | θ)

from many starting points in parallel. An iteration never lowers Π q_m (it is an EM step for every factor).
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

# The budget of the search is judgement; tests/hub/product/test_mode_mass.py has products whose modes it has to find.
# Starting points.
_STARTS = 64
# Starting points that are the ends of short chains over k·; the others are the centre and components of the shards.
_WALKERS = 32
# Length of these chains in sweeps of M steps, ...
_SWEEPS = 4
# ... at least in steps, ...
_STEPS = 500
# ... and at most in floating-point operations over all chains (seconds on one core).
_WORK = 2 * 10**9
# Most modes kept.
_MODES = 32
# Iterations end when no point moves by more than this many sds, ...
_TOLERANCE = 1e-3
# ... or after this many; a point that is still moving serves as an anchor all the same.
_MAX_STEPS = 50
# Points closer than this many sds, in the sds of both, are the same mode. Judgement: well above `_TOLERANCE`, and well
# below the 2 sds from which on a sum of two equal Gaussians has two modes.
_SAME = 0.5


class ProductModes(NamedTuple):
    """The distinct modes found, at most `_MODES`, in decreasing order of mass."""

    theta: Float[AnyArray, "n d"]  # in the stack's centred coordinates
    roots: Float[AnyArray, "n *packed"]  # L of the precision L Lᵀ = Σ_m Σ_k r_mk Λ_mk at the mode
    log_mass: Float[AnyArray, " n"]  # of the Gaussian with this height and precision, up to a constant


class _Here(NamedTuple):
    """Quantities of the iteration at each of n points."""

    log_product: Float[AnyArray, " n"]  # log Π q_m, up to a constant
    precision: Float[AnyArray, "n *packed"]  # Σ_m Σ_k r_mk Λ_mk
    eta: Float[AnyArray, "n d"]  # Σ_m Σ_k r_mk Λ_mk μ_mk


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
    """Climb from components of the shards and of the product; keep the distinct end points with the most mass."""
    theta, roots, log_mass = to_numpy(_climb(blocks, _starts(stacked, key)))
    order = np.argsort(-log_mass, kind="stable")
    theta, roots, log_mass = theta[order], roots[order], log_mass[order]
    distances = np.asarray(_distances(blocks.structure, theta, roots))
    # Close in the sds of both points: a narrow mode inside a wide one is a mode of its own.
    close = np.maximum(distances, distances.T) < _SAME**2
    kept: list[int] = []
    for i in range(len(theta)):
        if len(kept) < _MODES and not np.any(close[kept, i]):
            kept.append(i)
    return ProductModes(theta[kept], roots[kept], log_mass[kept])


def _starts(stacked: Stack, key: AnyArray) -> Float[np.ndarray, "n d"]:
    """The centre, means of shards' components drawn by weight, and means of product components from short chains."""
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
    """Squared distances: entry (i, j) is from point i to point j, in sds of point i."""

    def from_one(point: AnyArray, root: AnyArray) -> AnyArray:
        return jax.vmap(lambda other: jnp.sum(structure.whiten(root, other - point) ** 2))(theta)

    return jax.vmap(from_one)(theta, roots)
