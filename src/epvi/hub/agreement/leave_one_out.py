"""Every shard beside the product of the others, as Gaussians.

Takes the mixtures as they are multiplied and the posterior q*; gives, for every shard m and coordinate i of θ, how far
they are apart and what the shard does to the result. A shard with one component is its Gaussian; of several components
each counts as it does where the posterior is, r_mk = E_{θ~q*} p(k|θ), as at a fixed point of anchored sampling:

    Λ_m = Σ_k r_mk Λ_mk,  η_m = Σ_k r_mk Λ_mk μ_mk,  Λ₋ₘ = Σ_{n≠m} Λ_n,  η₋ₘ = Σ_{n≠m} η_n

The sums of the others are made of those before and those after, so that O(M d³) is enough and nothing cancels, and θ is
relative to the posterior's mean. A precision is kept as (d,) where no shard has more, and as (d, d) otherwise.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import dtrtri  # pyright: ignore[reportAttributeAccessIssue]

from epvi.gaussian.in_blocks import over_blocks
from epvi.gaussian.mixture import GaussianMixture, log_components
from epvi.ground.float64 import AnyArray, in_float64
from epvi.ground.seeds import Seed

# Draws of the posterior that say which components of a shard count.
_DRAWS = 256

# A packed precision, or the inverse of its Cholesky root: (d,) or (d, d).
Packed = Float[np.ndarray, "..."]
Vector = Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian:
    """A mean, relative to the posterior's, and a precision."""

    mean: Vector
    precision: Packed

    @classmethod
    def from_sums(cls, eta: Vector, precision: Packed) -> "Gaussian":
        """With natural parameters η and Λ."""
        half = _half(precision)
        return cls(_times(half.T, _times(half, eta)), precision)

    @functools.cached_property
    def variances(self) -> Vector:
        """The diagonal of Λ⁻¹ = L⁻ᵀ L⁻¹."""
        half = _half(self.precision)
        return half**2 if half.ndim == 1 else np.sum(half**2, axis=0)

    @property
    def eta(self) -> Vector:
        """η = Λ μ."""
        return _times(self.precision, self.mean)

    def mirrored(self, signs: Vector, centre: Vector) -> "Gaussian":
        """With the signs of some coordinates of θ turned."""
        precision = self.precision if self.precision.ndim == 1 else signs[:, None] * self.precision * signs
        return Gaussian(signs * (self.mean + centre) - centre, precision)


class Influence(NamedTuple):
    """By shard and coordinate, `distance` by shard; NaN where there are no others, but for the information."""

    z: Float[np.ndarray, "M d"]
    mean_shift: Float[np.ndarray, "M d"]
    sd_ratio: Float[np.ndarray, "M d"]
    information: Float[np.ndarray, "M d"]
    distance: Float[np.ndarray, " M"]


def as_gaussians(mixtures: Sequence[GaussianMixture], posterior: GaussianMixture, seed: Seed) -> list[Gaussian]:
    """Each shard's mixture as the one Gaussian that it is where the posterior is."""
    centre = np.asarray(posterior.mean())
    full = max(mixture.structure.rank for mixture in mixtures) == 2
    several = any(mixture.num_components > 1 for mixture in mixtures)
    draws = np.asarray(posterior.sample(_DRAWS, seed=seed)) if several else np.zeros((0, len(centre)))
    return [_as_gaussian(mixture, draws, centre, full) for mixture in mixtures]


def leave_one_out(shards: Sequence[Gaussian]) -> Influence:
    """Every shard against the product of the others."""
    total = product(shards)
    information = np.stack([_diagonal(shard.precision) for shard in shards]) / _diagonal(total.precision)
    if len(shards) < 2:
        unknown = np.full_like(information, np.nan)
        return Influence(unknown, unknown, unknown, information, unknown[:, 0])
    half, sd = _half(total.precision), np.sqrt(total.variances)
    z, mean_shift, sd_ratio, distance = [], [], [], []
    for shard, others in zip(shards, _others(shards), strict=True):
        z.append((shard.mean - others.mean) / np.sqrt(shard.variances + others.variances))
        mean_shift.append((total.mean - others.mean) / sd)
        sd_ratio.append(np.sqrt(others.variances) / sd)
        distance.append(_distance(shard, others, half))
    return Influence(np.stack(z), np.stack(mean_shift), np.stack(sd_ratio), information, np.asarray(distance))


def product(shards: Sequence[Gaussian]) -> Gaussian:
    """The Gaussian with Λ = Σ Λ_m and η = Σ η_m."""
    precision = functools.reduce(np.add, [shard.precision for shard in shards])
    return Gaussian.from_sums(functools.reduce(np.add, [shard.eta for shard in shards]), precision)


def distance_between(a: Gaussian, b: Gaussian) -> float:
    """δᵀ(Σ_a + Σ_b)⁻¹δ with δ = μ_a − μ_b."""
    return _distance(a, b, _half(a.precision + b.precision))


def _distance(a: Gaussian, b: Gaussian, half: Packed) -> float:
    # (Σ_a + Σ_b)⁻¹ = Λ_a (Λ_a + Λ_b)⁻¹ Λ_b: two half-solves, and no covariance is added up.
    delta = a.mean - b.mean
    return float(_times(half, _times(a.precision, delta)) @ _times(half, _times(b.precision, delta)))


def _as_gaussian(mixture: GaussianMixture, draws: Float[np.ndarray, "n d"], centre: Vector, full: bool) -> Gaussian:
    means, roots = np.asarray(mixture.means) - centre, np.asarray(mixture.roots)
    if mixture.structure.rank == 2:
        precisions = roots @ np.swapaxes(roots, 1, 2)
    else:
        precisions = np.broadcast_to(roots**2, means.shape)
        precisions = np.stack([np.diag(row) for row in precisions]) if full else precisions
    if mixture.num_components == 1:
        return Gaussian(means[0], precisions[0])
    weights = np.mean(_responsibilities(mixture, draws), axis=0)
    etas = np.stack([_times(precision, mean) for precision, mean in zip(precisions, means, strict=True)])
    return Gaussian.from_sums(weights @ etas, np.tensordot(weights, precisions, axes=1))


@in_float64
def _responsibilities(mixture: GaussianMixture, theta: Float[AnyArray, "n d"]) -> Float[AnyArray, "n K"]:
    """p(k|θ) ∝ w_k N(θ | μ_k, Λ_k⁻¹)."""
    return over_blocks(lambda point: jax.nn.softmax(log_components(mixture, point)), theta, mixture.means.size)


def _others(shards: Sequence[Gaussian]) -> Iterator[Gaussian]:
    """For every shard the product of all the others: the sum of those before it and of those after it."""
    nothing = np.zeros_like(shards[0].mean), np.zeros_like(shards[0].precision)
    after = [nothing]
    for shard in shards[:0:-1]:
        eta, precision = after[-1]
        after.append((eta + shard.eta, precision + shard.precision))
    eta, precision = nothing
    for shard in shards:
        later_eta, later_precision = after.pop()
        yield Gaussian.from_sums(eta + later_eta, precision + later_precision)
        eta, precision = eta + shard.eta, precision + shard.precision


# What differs between precisions (d,) and (d, d).


def _half(precision: Packed) -> Packed:
    """L⁻¹ with Λ = L Lᵀ."""
    if precision.ndim == 1:
        return precision**-0.5
    return dtrtri(np.linalg.cholesky(precision), lower=1)[0]


def _times(packed: Packed, x: Vector) -> Vector:
    return packed * x if packed.ndim == 1 else packed @ x


def _diagonal(precision: Packed) -> Vector:
    return precision if precision.ndim == 1 else np.diagonal(precision)
