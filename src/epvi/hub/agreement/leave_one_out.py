"""Every shard beside the product of the others, as Gaussians.

Takes the mixtures as they are multiplied and the posterior q*; gives, for every shard m and coordinate i of θ, how far
they are apart and what the shard does to the result. A shard with one component is its Gaussian; of several components
each counts as it does where the posterior is, r_mk = E_{θ~q*} p(k|θ), as at a fixed point of anchored sampling:

    Λ_m = Σ_k r_mk Λ_mk,  η_m = Σ_k r_mk Λ_mk μ_mk,  Λ₋ₘ = Σ_{n≠m} Λ_n,  η₋ₘ = Σ_{n≠m} η_n

The sums of the others are made of those before and those after, so that O(M d³) is enough and nothing cancels, and θ is
relative to the posterior's mean. Precisions are diagonal where no shard's are more.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.gaussian import Gaussian, components_of, product_of
from epvi.gaussian.mixture import GaussianMixture, log_components, over_blocks
from epvi.gaussian.structure import Structure, common
from epvi.gaussian.structures import Diagonal
from epvi.ground.float64 import AnyArray, in_float64
from epvi.ground.seeds import Seed

# Draws of the posterior that say which components of a shard count.
_DRAWS = 256


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
    structure = common([Diagonal(), *(mixture.structure for mixture in mixtures)])
    several = any(mixture.num_components > 1 for mixture in mixtures)
    draws = np.asarray(posterior.sample(_DRAWS, seed=seed)) if several else np.zeros((0, len(centre)))
    return [_as_gaussian(mixture, draws, centre, structure) for mixture in mixtures]


def leave_one_out(shards: Sequence[Gaussian]) -> Influence:
    """Every shard against the product of the others."""
    total = product_of(shards)
    information = np.stack([shard.information for shard in shards]) / total.information
    if len(shards) < 2:
        unknown = np.full_like(information, np.nan)
        return Influence(unknown, unknown, unknown, information, unknown[:, 0])
    sd = np.sqrt(total.variances)
    z, mean_shift, sd_ratio, distance = [], [], [], []
    for shard, others in zip(shards, _others(shards), strict=True):
        z.append((shard.mean - others.mean) / np.sqrt(shard.variances + others.variances))
        mean_shift.append((total.mean - others.mean) / sd)
        sd_ratio.append(np.sqrt(others.variances) / sd)
        distance.append(shard.distance_by(others, total.inverse_root))
    return Influence(np.stack(z), np.stack(mean_shift), np.stack(sd_ratio), information, np.asarray(distance))


def _as_gaussian(
    mixture: GaussianMixture, draws: Float[np.ndarray, "n d"], centre: Float[np.ndarray, " d"], structure: Structure
) -> Gaussian:
    parts = components_of(mixture, structure, centre)
    if len(parts) == 1:
        return parts[0]
    weights = np.mean(_responsibilities(mixture, draws), axis=0)
    etas, precisions = np.stack([part.eta for part in parts]), np.stack([part.precision for part in parts])
    return Gaussian.from_sums(weights @ etas, np.tensordot(weights, precisions, axes=1), structure)


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
        yield Gaussian.from_sums(eta + later_eta, precision + later_precision, shard.structure)
        eta, precision = eta + shard.eta, precision + shard.precision
