"""A stack cut into blocks of shards: component log densities at points, and product components at index vectors.

Tables over (points x components) and one-hot indices turn sums over shards into matrix products; blocks bound the size
of the tables. `select` computes the product components at S index vectors k· (the paper's equations 6-8):

    Λ = Σ_m Λ_mk,  μ = Λ⁻¹ Σ_m Λ_mk μ_mk,  log W = Σ_m [log w_mk + log N(μ_mk; μ, Λ_mk⁻¹)] − log N(μ; μ, Λ⁻¹)

in two passes over the shards: first the sums, then the squared distances from μ. This avoids the cancellation of large
terms in ½ηᵀΛ⁻¹η − ½Σ μᵀΛμ.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.structure import Structure
from epvi.ground.compiled import compiled
from epvi.ground.float64 import AnyArray
from epvi.hub.product.stack import Stack, StackedComponents

# Most components in one block (the width of the one-hot matrices). Judgement.
_COMPONENTS = 256
# Most float64 numbers in one table over points, components and dimensions: 64 MiB. Judgement.
_NUMBERS = 2**23


class Blocks(eqx.Module):
    """A `Stack` in blocks of shards, with axes (blocks, shards, K, ...).

    The last block is padded with flat shards: Λ = 0 and all weight on the first component, so they add nothing to any
    sum.
    """

    log_mass: Float[AnyArray, "*B m K"]  # log w_mk + ½ log|Λ_mk|
    means: Float[AnyArray, "*B m K d"]  # μ_mk, in the stack's centred coordinates
    etas: Float[AnyArray, "*B m K d"]  # Λ_mk μ_mk
    precisions: Float[AnyArray, "..."]  # Λ_mk, packed
    centre: Float[AnyArray, "*B d"]  # the stack's reference point, repeated for every block
    structure: Structure = eqx.field(static=True)


def in_blocks(stacked: Stack, num_points: int) -> Blocks:
    """Cut a stack into blocks small enough for tables over `num_points` points."""
    m, k, d = stacked.means.shape
    per_block = max(1, min(m, _COMPONENTS // k, _NUMBERS // (num_points * d * k)))
    missing = -m % per_block

    def cut(array: AnyArray) -> np.ndarray:
        padded = np.pad(np.asarray(array), [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(-1, per_block, *array.shape[1:])

    log_mass = np.pad(stacked.log_weights + stacked.half_log_dets, [(0, missing), (0, 0)])
    log_mass[m:, 1:] = -np.inf
    log_mass = log_mass.reshape(-1, per_block, k)
    centre = np.broadcast_to(stacked.centre, (len(log_mass), d))
    etas, precisions = cut(stacked.etas), cut(stacked.precisions)
    return Blocks(log_mass, cut(stacked.means), etas, precisions, centre, stacked.structure)


def log_joint(shards: Blocks, theta: Float[AnyArray, " d"]) -> Float[AnyArray, "m K"]:
    """Log w_mk + log N(θ|μ_mk, Λ_mk⁻¹) + (d/2) log 2π for one block of shards."""

    def one(log_mass: AnyArray, mean: AnyArray, precision: AnyArray) -> AnyArray:
        delta = theta - mean
        return log_mass - 0.5 * jnp.sum(delta * shards.structure.times(precision, delta))

    return jax.vmap(jax.vmap(one))(shards.log_mass, shards.means, shards.precisions)


@compiled
def select(blocks: Blocks, index: Int[AnyArray, "S M"]) -> StackedComponents:
    """The product components at S index vectors; M includes the flat shards that pad the last block."""
    structure = blocks.structure
    num_blocks, per_block, k, d = blocks.means.shape
    s = index.shape[0]
    blocked = jnp.moveaxis(index.reshape(s, num_blocks, per_block), 1, 0)

    def add(sums: tuple[AnyArray, AnyArray], at: tuple[Blocks, AnyArray]) -> tuple[tuple[AnyArray, AnyArray], None]:
        shards, chosen = at
        one_hot = jax.nn.one_hot(chosen, k)
        precision = sums[0] + jnp.tensordot(one_hot, shards.precisions, axes=2)
        return (precision, sums[1] + jnp.tensordot(one_hot, shards.etas, axes=2)), None

    zeros = jnp.zeros((s, *structure.packed_shape(d))), jnp.zeros((s, d))
    (precision, eta), _ = jax.lax.scan(add, zeros, (blocks, blocked))
    mean = jax.vmap(lambda p, e: structure.solve(structure.root(p), e))(precision, eta)

    def weigh(log_mass: AnyArray, at: tuple[Blocks, AnyArray]) -> tuple[AnyArray, None]:
        shards, chosen = at
        squares = jax.vmap(lambda point, k: structure.squares(point, shards.means, shards.precisions, k))(mean, chosen)
        picked = shards.log_mass[jnp.arange(per_block)[None], chosen]
        return log_mass + jnp.sum(picked, axis=1) - 0.5 * squares, None

    log_mass, _ = jax.lax.scan(weigh, jnp.zeros(s), (blocks, blocked))
    return StackedComponents(log_mass, mean + blocks.centre[:1], precision)
