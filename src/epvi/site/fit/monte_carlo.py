"""Estimates the ELBO E_q[f − log q] by Monte Carlo, with its standard error, and the mixture weights that maximise it.

Takes Gaussians and a log density f. All components use the same antithetic standard normal draws, transformed by their
own mean and covariance.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import log_softmax, logsumexp

from epvi.gaussian.mixture import Estimate
from epvi.gaussian.packing import Packing

_LOG_2PI = float(np.log(2 * np.pi))
# Most natural-gradient steps of the weights. Judgement: they use stored values of f, so they need no pass over rows.
_WEIGHT_STEPS = 500


class Drawn(NamedTuple):
    """A weighted mixture, with log densities at s draws from each component."""

    # log w_k.
    log_weights: Float[np.ndarray, " K"]
    # f at the draws of each component.
    f: Float[np.ndarray, "K s"]
    # Log density of every component (last axis) at the draws of each component (first axis).
    logs: Float[np.ndarray, "K s K"]
    # Average standard error of f, in nats, where f is itself an estimate.
    doubt: float = 0.0

    def ratios(self) -> Float[np.ndarray, "K s"]:
        """f − log q at the draws: log importance ratios."""
        return self.f - logsumexp(self.logs + self.log_weights, axis=-1)

    def elbo(self) -> Estimate:
        """Σ_k w_k E_k[f − log q], with the standard error over independent base draws z (each with its −z)."""
        averages = np.exp(self.log_weights) @ self.ratios()
        half = len(averages) // 2
        pairs = 0.5 * (averages[:half] + averages[half:])
        error = np.hypot(np.std(pairs, ddof=1) / np.sqrt(half), self.doubt)
        return Estimate(np.asarray(np.mean(pairs)), np.asarray(error))

    def log_evidence(self) -> float:
        """log ∫ exp f by importance sampling from q: at least about the ELBO, and far above it where q fits poorly."""
        terms = self.ratios() + self.log_weights[:, None] - np.log(self.f.shape[1])
        return float(np.asarray(logsumexp(terms)))

    def halves(self) -> "list[Drawn]":
        """Split the draws into two halves, keeping antithetic pairs together."""
        s = self.f.shape[1]
        which = np.arange(s) % (s // 2) < s // 4
        return [self._replace(f=self.f[:, half], logs=self.logs[:, half]) for half in (which, ~which)]


class RatioEstimates(NamedTuple):
    """Monte Carlo estimates of B shards from the log importance ratios of their draws."""

    elbo: Float[np.ndarray, " B"]
    # Its standard error, over pairs of draws z and −z.
    error: Float[np.ndarray, " B"]
    # Log evidence minus ELBO: the KL divergence of the Gaussian from the subposterior.
    gap: Float[np.ndarray, " B"]
    # The smaller gap of two halves of the draws, since a single far draw can dominate the evidence of one.
    least: Float[np.ndarray, " B"]

    @classmethod
    def of(cls, ratios: Float[np.ndarray, "B s"], doubt: Float[np.ndarray, " B"]) -> "RatioEstimates":
        """The estimates from draws z, followed by −z, with the average standard errors of their log densities."""
        half = ratios.shape[1] // 2
        pairs = 0.5 * (ratios[:, :half] + ratios[:, half:])
        error = np.hypot(np.std(pairs, axis=1, ddof=1) / np.sqrt(half), doubt)
        parts = np.stack([_gap(pairs_of) for pairs_of in (ratios[:, _is_first(half)], ratios[:, ~_is_first(half)])])
        return cls(np.mean(pairs, axis=1), error, _gap(ratios), np.min(parts, axis=0))


def _is_first(half: int) -> Bool[np.ndarray, " s"]:
    """Which draws are in the first half, with antithetic pairs kept together."""
    return np.tile(np.arange(half) < half // 2, 2)


def _gap(ratios: Float[np.ndarray, "B s"]) -> Float[np.ndarray, " B"]:
    return np.asarray(logsumexp(ratios, axis=1)) - np.log(ratios.shape[1]) - np.mean(ratios, axis=1)


def base_draws(rng: np.random.Generator, num_draws: int, d: int) -> Float[np.ndarray, "s d"]:
    """Antithetic pairs of standard normal draws z and −z."""
    z = rng.standard_normal((max(num_draws // 2, 2), d))
    return np.concatenate([z, -z])


def draw_from(
    f: Callable[[np.ndarray], np.ndarray], packing: Packing, means: np.ndarray, covariances: np.ndarray, z: np.ndarray
) -> Drawn:
    """Draw from each Gaussian and evaluate f at points (n, d); the weights are equal."""
    draws, drawn = draws_of(packing, means, covariances, z)
    return drawn._replace(f=f(draws.reshape(-1, means.shape[1])).reshape(draws.shape[:2]))


def draws_of(
    packing: Packing, means: np.ndarray, covariances: np.ndarray, z: np.ndarray
) -> tuple[Float[np.ndarray, "K s d"], Drawn]:
    """Draws from each Gaussian, and their `Drawn` in which f is still NaN."""
    k, d = means.shape
    precisions, log_dets = packing.inverse(covariances), packing.log_det(covariances, d)
    roots = packing.covariance_root(precisions)
    draws = means[:, None] + np.stack([packing.rooted(root[None], z) for root in roots])
    delta = draws[:, :, None] - means
    squares = np.sum(delta * packing.times(precisions, delta), axis=-1)
    logs = -0.5 * (squares + log_dets + d * _LOG_2PI)
    return draws, Drawn(np.full(k, -np.log(k)), np.full(draws.shape[:2], np.nan), logs)


def with_best_weights(drawn: Drawn) -> Drawn:
    """Maximise the ELBO over the weights, by natural-gradient steps log w_k ← log w_k + ρ E_k[f − log q]."""
    if len(drawn.log_weights) == 1:
        return drawn
    best = drawn
    for step in range(_WEIGHT_STEPS):
        gain = np.mean(drawn.ratios(), axis=1)
        if not np.all(np.isfinite(gain)):
            break
        # A first step with ρ = 1 is exact for components that do not overlap; ρ = 0.3 is stable for those that do
        # (judgement).
        rate = 1.0 if step == 0 else 0.3
        moved = log_softmax(drawn.log_weights + rate * gain)
        drawn = drawn._replace(log_weights=moved)
        if float(drawn.elbo().value) > float(best.elbo().value):
            best = drawn
        # Stop when the gains are equal up to 1e-9 nats, far below their Monte Carlo error. Judgement.
        if np.max(np.abs(gain - np.exp(moved) @ gain)) < 1e-9:
            break
    return best
