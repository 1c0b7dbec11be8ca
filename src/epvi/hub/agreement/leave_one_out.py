"""Leave-one-out comparison of every shard with the product of the others, as Gaussians.

Takes the shards' mixtures and the posterior q*; gives, for every shard m and coordinate i of θ, their difference and
the shard's influence on the posterior. A shard with one component is that Gaussian; several components are averaged
with their expected responsibilities under the posterior, r_mk = E_{θ~q*} p(k|θ), as at a fixed point of anchored
sampling:

    Λ_m = Σ_k r_mk Λ_mk,  η_m = Σ_k r_mk Λ_mk μ_mk,  Λ₋ₘ = Σ_{n≠m} Λ_n,  η₋ₘ = Σ_{n≠m} η_n

The sums over n≠m are prefix sums plus suffix sums: O(M d³) in all, and without the cancellation of subtracting from the
total. θ is relative to the posterior's mean. Precisions are diagonal if those of all shards are.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.gaussian import Gaussian, components_of, product_of
from epvi.gaussian.in_blocks import over_blocks
from epvi.gaussian.mixture import GaussianMixture, log_components
from epvi.gaussian.structure import Structure, common
from epvi.gaussian.structures import Diagonal
from epvi.ground.float64 import AnyArray, in_float64
from epvi.ground.seeds import Seed

# Posterior draws over which responsibilities are averaged. Judgement: their standard error is then at most 0.03.
_DRAWS = 256


class Influence(NamedTuple):
    """Influence of every shard, by shard and coordinate; all but `information` is NaN when there is only one shard.

    Attributes:
        z: difference between the shard's mean and that of the others, in standard errors.
        mean_shift: change of the posterior mean by including the shard, in posterior sds.
        sd_ratio: posterior sd without the shard over that with it.
        information: the shard's share of the posterior precision.
        distance: Wald statistic of the difference of the means, by shard.
    """

    z: Float[np.ndarray, "M d"]
    mean_shift: Float[np.ndarray, "M d"]
    sd_ratio: Float[np.ndarray, "M d"]
    information: Float[np.ndarray, "M d"]
    distance: Float[np.ndarray, " M"]


def as_gaussians(mixtures: Sequence[GaussianMixture], posterior: GaussianMixture, seed: Seed) -> list[Gaussian]:
    """Each shard's mixture as one Gaussian that approximates it where the posterior is."""
    centre = np.asarray(posterior.mean())
    structure = common([Diagonal(), *(mixture.structure for mixture in mixtures)])
    several = any(mixture.num_components > 1 for mixture in mixtures)
    draws = np.asarray(posterior.sample(_DRAWS, seed=seed)) if several else np.zeros((0, len(centre)))
    return [_as_gaussian(mixture, draws, centre, structure) for mixture in mixtures]


def leave_one_out(shards: Sequence[Gaussian]) -> Influence:
    """Compare every shard with the product of the others."""
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
    """For every shard the product of all others: the prefix sum before it plus the suffix sum after it."""
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
