"""Stack M mixtures into one set of arrays, and turn product components back into a mixture.

A `Stack` is padded to the largest K and has one covariance structure. It measures θ from a reference point near the
product's mean, so that natural parameters lose no digits when all shards are far from the origin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.mixture import LOG_2PI, GaussianMixture
from epvi.gaussian.structure import Structure, common
from epvi.ground.compiled import compiled
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, is_traced

# Most memory that a stack, or the components of a product, may take, in GB (10⁹ bytes). Judgement: it fits beside other
# programs on a machine with 8 GB.
MAX_GIGABYTES = 4.0


class StackedComponents(NamedTuple):
    """Components of a product, in the user's coordinates."""

    log_mass: Float[AnyArray, "*n"]  # log W without its terms −½log|Λ| + ½(1 − M) d log 2π
    mean: Float[AnyArray, "*n d"]  # μ
    precision: Float[AnyArray, "..."]  # Λ, packed


class Stack(eqx.Module):
    """M mixtures in one set of arrays; entry (m, k) is component k of shard m, and padding has log weight −∞."""

    log_weights: Float[AnyArray, "M K"]  # log w_mk
    means: Float[AnyArray, "M K d"]  # μ_mk − centre
    etas: Float[AnyArray, "M K d"]  # Λ_mk (μ_mk − centre)
    precisions: Float[AnyArray, "M K *packed"]  # Λ_mk
    half_log_dets: Float[AnyArray, "M K"]  # ½ log|Λ_mk|
    counts: Int[AnyArray, " M"]  # K_m
    centre: Float[AnyArray, " d"]  # reference point from which θ is measured
    structure: Structure = eqx.field(static=True)

    @property
    def num_shards(self) -> int:
        """The number M of mixtures."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.means.shape[2]


def in_one_structure(mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """The mixtures, converted to the simplest covariance structure that can represent all of them."""
    structure = common(mixture.structure for mixture in mixtures)
    return [mixture if mixture.structure == structure else mixture.to(structure) for mixture in mixtures]


@compiled
def components_of(mixture: GaussianMixture) -> StackedComponents:
    """The components of one shard's mixture."""
    structure, d = mixture.structure, mixture.dim
    half_log_dets = jax.vmap(lambda root: structure.half_log_det(root, d))(mixture.roots)
    precisions = jax.vmap(structure.precision)(mixture.roots)
    return StackedComponents(mixture.log_weights + half_log_dets, jnp.asarray(mixture.means), precisions)


def stack(mixtures: Sequence[GaussianMixture]) -> Stack:
    """Stack mixtures of the same dimension and structure; their K may differ."""
    structure = mixtures[0].structure
    counts = np.asarray([mixture.num_components for mixture in mixtures], np.int32)
    shape = (len(mixtures), int(counts.max()))
    d = mixtures[0].dim
    _check_padding(mixtures, counts)
    log_weights = np.full(shape, -np.inf)
    means = np.broadcast_to(mixtures[0].means[0], (*shape, d)).copy()
    unit = structure.packing.identity(d)
    roots = np.broadcast_to(unit, (*shape, *unit.shape)).copy()
    for m, mixture in enumerate(mixtures):
        log_weights[m, : counts[m]] = mixture.log_weights
        means[m, : counts[m]] = mixture.means
        roots[m, : counts[m]] = mixture.roots
    return _centred(structure, log_weights, means, roots, counts)


def _check_padding(mixtures: Sequence[GaussianMixture], counts: np.ndarray) -> None:
    """Refuse when padding all mixtures to the largest K would exceed the memory budget."""
    numbers = 2 * mixtures[0].means[0].size + 2 * mixtures[0].roots[0].size
    need = 8e-9 * numbers * len(counts) * int(counts.max())
    if need > MAX_GIGABYTES:
        largest = int(np.argmax(counts))
        raise EpviError(
            f"{len(counts):,} mixtures padded to {counts.max():,} components each need about {need:.0f} GB, over the"
            f" budget of {MAX_GIGABYTES:g} GB: cut the largest (mixture {largest}) down with reduce first."
        )


@compiled
def _centred(structure: Structure, log_weights: AnyArray, means: AnyArray, roots: AnyArray, counts: AnyArray) -> Stack:
    d = means.shape[-1]
    precisions = jax.vmap(jax.vmap(structure.precision))(roots)
    half_log_dets = jax.vmap(jax.vmap(lambda root: structure.half_log_det(root, d)))(roots)
    # The reference point is the mean of the product of one Gaussian per shard, with the weighted averages of the
    # components' natural parameters.
    origin = means[0, 0]
    weights, times = jax.nn.softmax(log_weights, axis=1), jax.vmap(jax.vmap(structure.times))
    eta = jnp.tensordot(weights, times(precisions, means - origin[None, None]), axes=2)
    centre = origin + structure.solve(structure.root(jnp.tensordot(weights, precisions, axes=2)), eta)
    means = means - centre[None, None]
    etas = times(precisions, means)
    return Stack(log_weights, means, etas, precisions, half_log_dets, counts, centre, structure)


def check(mixtures: Sequence[GaussianMixture]) -> None:
    """Refuse an empty list, traced mixtures, different dimensions, NaN parameters and unnormalised weights."""
    if len(mixtures) == 0:
        raise EpviError("there are no mixtures to multiply: pass at least one.")
    if is_traced(list(mixtures)):
        raise EpviError("mixtures are being traced by JAX: call multiply outside jit and vmap.")
    d = mixtures[0].means.shape[1]
    for m, mixture in enumerate(mixtures):
        if mixture.means.shape[1] != d:
            raise EpviError(
                f"mixture {m} has {mixture.dim} dimensions, mixture 0 has {d}: all must be over the same parameters."
            )
        if not (np.isfinite(mixture.means).all() and np.isfinite(mixture.roots).all()):
            raise EpviError(f"mixture {m} has NaN or infinite parameters: fit or make it again.")
        total = np.exp(mixture.log_weights).sum()
        # The tolerance admits the rounding of weights that were stored in float32. Judgement.
        if not abs(total - 1) <= 1e-6:
            raise EpviError(f"mixture {m}'s weights sum to {total:.6g}, not to 1: normalise them.")


@compiled
def finish(
    structure: Structure, num_shards: int, components: StackedComponents
) -> tuple[Float[AnyArray, " n"], GaussianMixture]:
    """log W of the components, and the mixture with weights proportional to W."""
    d = components.mean.shape[-1]
    roots = jax.vmap(structure.root)(components.precision)
    half_log_dets = jax.vmap(lambda root: structure.half_log_det(root, d))(roots)
    log_w = components.log_mass - half_log_dets + constant(num_shards, d)
    return log_w, GaussianMixture(jax.nn.log_softmax(log_w), components.mean, roots, structure)


def constant(num_shards: int, d: int) -> float:
    """The term common to all log W: ½(1 − M) d log 2π."""
    return 0.5 * (1 - num_shards) * d * LOG_2PI


def reweighted(mixture: GaussianMixture, log_weights: Float[AnyArray, " n"]) -> GaussianMixture:
    """The same components with other weights, which are normalised here."""
    return GaussianMixture(jax.nn.log_softmax(log_weights), mixture.means, mixture.roots, mixture.structure)


def gigabytes(num_components: int, mixtures: Sequence[GaussianMixture]) -> float:
    """Memory for means, precisions and roots of `num_components`, twice: a step holds its input and its output."""
    return 2 * 8e-9 * num_components * max(q.means[0].size + 2 * q.roots[0].size for q in mixtures)


def check_memory(
    num_components: int, mixtures: Sequence[GaussianMixture], max_gigabytes: float | int = MAX_GIGABYTES
) -> None:
    """Refuse a result that would exceed the memory budget."""
    need = gigabytes(num_components, mixtures)
    if need > max_gigabytes:
        raise EpviError(
            f"{num_components:,} components in {mixtures[0].dim} dimensions need about {need:.1f} GB, over the"
            f" budget of {max_gigabytes:g} GB: ask for fewer components, or use a simpler covariance structure."
        )
