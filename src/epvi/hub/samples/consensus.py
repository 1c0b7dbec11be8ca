"""Consensus Monte Carlo (Scott et al. 2013, 2016): every draw is a precision-weighted average of one draw per shard.

    θ_r = (Σ_m W_m)⁻¹ Σ_m W_m θ_mr,   W_m the inverse of shard m's sample covariance

Exact when all subposteriors are Gaussian with the chosen covariance structure. Otherwise location and scale are roughly
right, but the averages do not have the skewness or the modes of the product.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Full
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import METHODS, Combination, DrawsMethod, Remedies, Shards, check_covariance
from epvi.hub.samples.moments import fit_gaussians, inflation
from epvi.hub.samples.shape import chance_correlation, effective, gaussian_status, memory, standardised

# Correlation between the draws of two shards from which on they are reported as dependent, as after sampling with the
# same seed. Judgement: independent draws have correlations near 0, and `chance_correlation` allows for small samples.
_TOGETHER = 0.5
# Least draws for estimating this correlation. Judgement.
_LEAST_TO_COMPARE = 10


@METHODS.add
@dataclasses.dataclass(frozen=True)
class Consensus(DrawsMethod):
    """Consensus Monte Carlo: averages of the shards' draws, weighted by inverse covariances (`Full()` or `Diagonal()`).

    Scott, Blocker, Bonassi, Chipman, George & McCulloch, Bayes and Big Data: The Consensus Monte Carlo Algorithm (2013;
    2016). Shards with more draws than the smallest one are thinned evenly.
    """

    remedies: ClassVar[Remedies] = Remedies(few="")
    covariance: Structure = dataclasses.field(default_factory=Full)

    def __post_init__(self) -> None:
        check_covariance(self.covariance)

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """One average per tuple of draws, one draw from each shard."""
        fewest = min(shards.counts)
        count = fewest if num_samples is None else num_samples
        if count > fewest:
            raise EpviError(
                f"num_samples is {count:,}, shard {int(np.argmin(shards.counts))} has {fewest:,} draws: Consensus()"
                " gives at most as many as the smallest shard has."
            )
        paired = np.stack([draws[evenly_spaced(len(draws), count)] for draws in shards.theta])
        theta = weighted_average(fit_gaussians(shards, self.covariance), paired)
        return Combination(theta, self._status(paired, shards), None)

    def _status(self, paired: Float[np.ndarray, "M R d"], shards: Shards) -> Status:
        together = _moving_together(paired, shards)
        if together:
            remedy = "give every shard its own seed, or permute its draws"
            text = f"draws of {together}, as with the same seed, which makes averages too wide: {remedy}."
            return Status(StatusCode.MOVING_TOGETHER, text)
        made = f"averaged: {paired.shape[1]:,} draws"
        inflated = inflation(min(shards.counts), shards.dim, self.covariance)
        return gaussian_status(made, shards, self.covariance, inflated, self.remedies)


def evenly_spaced(n: int, count: int) -> np.ndarray:
    """`count` evenly spaced indices below n."""
    return np.arange(count) * n // count


def weighted_average(gaussians: Sequence[Gaussian], theta: Float[np.ndarray, "M R d"]) -> Float[np.ndarray, "R d"]:
    """(Σ_m W_m)⁻¹ Σ_m W_m θ_mr for every r, where W_m are the Gaussians' precisions."""
    centre = np.mean([one.mean for one in gaussians], axis=0)
    packing, total = gaussians[0].structure.packing, np.sum([one.precision for one in gaussians], axis=0)
    weighted = [packing.rows_times(x - centre, one.precision) for one, x in zip(gaussians, theta, strict=True)]
    return centre + packing.rows_times(np.sum(weighted, axis=0), packing.inverse(total))


def _moving_together(paired: Float[np.ndarray, "M R d"], shards: Shards) -> str:
    """Name the two shards whose draws are most strongly correlated with each other; empty if none are.

    The average of correlated draws is wider than the product. A correlation counts if it exceeds both `_TOGETHER` and
    the limit that independent draws rarely exceed in any pair (Fisher's transformation, at the effective sample size
    R (1 − φ_m φ_n) / (1 + φ_m φ_n) of two autoregressive series).
    """
    count = paired.shape[1]
    if count < _LEAST_TO_COMPARE:
        return ""
    z = standardised(paired)
    together, phi = np.abs(np.einsum("mrd,nrd->dmn", z, z, optimize=True)) / count, memory(z)
    chance = chance_correlation(effective(count, np.einsum("md,nd->dmn", phi, phi)), together.size)
    excess = (together - np.maximum(_TOGETHER, chance)) * (1 - np.eye(len(paired)))
    i, m, n = np.unravel_index(np.argmax(excess), excess.shape)
    if excess[i, m, n] <= 0:
        return ""
    return f"shards {m} and {n} move together (correlation {together[i, m, n]:.2f} in {shards.layout.labels[i]})"
