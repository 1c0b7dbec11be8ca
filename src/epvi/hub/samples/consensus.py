"""Consensus Monte Carlo (Scott et al. 2013, 2016): every draw is a precision-weighted average of one draw per shard.

    θ_r = (Σ_m W_m)⁻¹ Σ_m W_m θ_mr,   W_m the inverse of shard m's sample covariance

Exact when all subposteriors are Gaussian with the covariance structure that was chosen; else it keeps the right place
and width roughly, and the average of skewed or multimodal shards is neither skewed nor multimodal as their product is.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.structure import Full, Structure
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import Combination, DrawsMethod, Remedies, Shards, check_covariance
from epvi.hub.samples.moments import DrawnGaussian, fit_gaussians, inflation, inverse, times
from epvi.hub.samples.shape import chance_correlation, effective, gaussian_status, memory, standardised

# Draws of two shards that were made with one seed move together; independent ones are far from this.
_TOGETHER = 0.5
# Fewer draws do not tell.
_LEAST_TO_COMPARE = 10


@dataclasses.dataclass(frozen=True)
class Consensus(DrawsMethod):
    """Weighted averages of the shards' draws; the weights are inverse covariances, `Full()` or `Diagonal()`.

    Scott, Blocker, Bonassi, Chipman, George & McCulloch, Bayes and Big Data: The Consensus Monte Carlo Algorithm (2013;
    2016). Of shards with more draws evenly spaced ones are taken.
    """

    remedies: ClassVar[Remedies] = Remedies(few="")
    covariance: Structure = dataclasses.field(default_factory=Full)

    def __post_init__(self) -> None:
        check_covariance(self.covariance)

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """One average per tuple of draws."""
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
            text = f"draws of {together}, as with one seed for both, and give too wide averages: {remedy}."
            return Status(StatusCode.MOVING_TOGETHER, text)
        made = f"averaged: {paired.shape[1]:,} draws"
        inflated = inflation(min(shards.counts), shards.dim, self.covariance)
        return gaussian_status(made, shards, self.covariance, inflated, self.remedies)


def evenly_spaced(n: int, count: int) -> np.ndarray:
    """`count` of n places, all of them when they are as many."""
    return np.arange(count) * n // count


def weighted_average(gaussians: Sequence[DrawnGaussian], theta: Float[np.ndarray, "M R d"]) -> Float[np.ndarray, "R d"]:
    """(Σ_m W_m)⁻¹ Σ_m W_m θ_mr for every r, with the Gaussians' precisions for weights."""
    centre = np.mean([one.mean for one in gaussians], axis=0)
    total = np.sum([one.precision for one in gaussians], axis=0)
    weighted = np.sum([times(x - centre, one.precision) for one, x in zip(gaussians, theta, strict=True)], axis=0)
    return centre + times(weighted, inverse(total))


def _moving_together(paired: Float[np.ndarray, "M R d"], shards: Shards) -> str:
    """Which two shards' draws move together, in words, and so average to what is as wide as one; empty when none do.

    Correlations count when they are large, and larger than chance makes any of all pairs, at the effective number of
    draws of two autoregressive series, R (1 − φ_m φ_n) / (1 + φ_m φ_n), on Fisher's scale.
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
