"""Means, sds and quantiles of group effects that were integrated out, with the other parameters φ averaged out.

Takes the effects given φ (`effects.py`) and what is known of φ. The law of total variance,

    E z = E_φ m(φ),   Var z = E_φ diag C(φ) C(φ)ᵀ + Var_φ m(φ),

is evaluated at the supports, with their weights calibrated so that the means and sds of φ under them are the ones that
the summary gives; with one support it is evaluated in closed form. Quantiles are those of the mixture of the effects'
distributions given φ.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import draw, uniform_points
from epvi.gaussian.skewed import Skewed
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.supports import resampled

# Levels whose moments at all scored draws are in memory at once: 8 MB per effect for 2,048 draws. Judgement.
_LEVELS_AT_ONCE = 512
# Effective number of supports per calibrated moment of φ, with fewer of which weights stay as they are. Judgement.
_SUPPORTS_PER_MOMENT = 10
# Normal distributions behind each quantile: so many numbers in all, within these numbers of draws. Judgement: what the
# draws of φ leave of a quantile's error is small, because location and scale are known from the moments.
_NUMBERS, _FEWEST, _MOST = 2**19, 64, 1024
# Newton steps for a quantile, from that of the normal distribution with the same moments. Judgement: the error of such
# a step is quadratic, and bisection takes over where a step leaves the bracket.
_STEPS, _BRACKET = 8, 12.0
# The error of a probability at which its quantile is found. Judgement: far below the error that draws of φ leave.
_NEAR = 1e-5


class SharedMoments(NamedTuple):
    """What is known of φ.

    The scored draws of φ have signed weights, which sum to 0 and correct the mixture.
    """

    mixture: GaussianMixture
    scored: Float[np.ndarray, "S p"]
    signed: Float[np.ndarray, " S"]
    # Corrected means and sds.
    mean: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]


Moments = tuple[Float[np.ndarray, "G s"], Float[np.ndarray, "G s"]]


def moments_of(effects: Effects, shared: SharedMoments) -> Moments:
    """Means and sds of the effects."""
    if effects.are_linear:
        return _from_linear(effects, shared.mixture, shared.scored, shared.signed)
    weights = calibrated(effects.supports, effects.weights, shared.mean, shared.sd)
    mean = np.einsum("n,ngs->gs", weights, effects.mean)
    within = np.einsum("n,ngs->gs", weights, _variances(effects, slice(None)))
    between = np.einsum("n,ngs->gs", weights, (effects.mean - mean) ** 2)
    return mean, np.sqrt(np.maximum(within + between, 1e-6 * np.mean(_variances(effects, slice(None)), axis=0)))


def calibrated(
    points: Float[np.ndarray, "S p"],
    weights: Float[np.ndarray, " S"],
    mean: Float[np.ndarray, " p"],
    sd: Float[np.ndarray, " p"],
) -> Float[np.ndarray, " S"]:
    """The weights, changed least so that these are the points' means and sds, or only means where points are few.

    Weights w (1 + (ψ − ψ̄)ᵀλ) with ψ the standardised points and their squares, and λ such that the means of ψ are
    right: averages of functions that are linear in ψ then have no Monte Carlo error.
    """
    z = (points - mean) / sd
    features = np.concatenate([z, z**2], axis=1)
    wanted = np.concatenate([np.zeros_like(mean), np.ones_like(mean)])
    enough = 1 / (_SUPPORTS_PER_MOMENT * np.sum(weights**2))
    number = 2 * len(mean) if 2 * len(mean) <= enough else len(mean)
    if number > enough:
        return weights
    features, wanted = features[:, :number], wanted[:number]
    centre = weights @ features
    away = features - centre
    along = np.linalg.lstsq((weights[:, None] * away).T @ away, wanted - centre, rcond=None)[0]
    return weights * (1 + away @ along)


def quantiles_of(
    effects: Effects,
    shared: SharedMoments,
    moments: Moments,
    probabilities: Sequence[float],
    key: tuple[int, ...],
) -> Float[np.ndarray, "G s q"]:
    """Quantiles of the effects: those of a mixture over draws of φ, moved and stretched to the given moments."""
    number = int(np.clip(_NUMBERS // effects.num_effects, _FEWEST, _MOST))
    if effects.are_linear:
        phi = draw(shared.mixture, uniform_points(number, effects.supports.shape[1] + 1, key))
        at, roots, shape = effects.means(phi), effects.roots(phi), effects.shape[np.zeros(number, np.intp)]
    else:
        chosen = resampled(effects.weights, number, np.random.default_rng(key))
        at, roots, shape = effects.mean[chosen], effects.roots(effects.supports[chosen]), effects.shape[chosen]
    spread = np.sqrt(np.sum(roots**2, axis=3))
    centre = np.mean(at, axis=0)
    scale = np.sqrt(np.mean(spread**2, axis=0) + np.var(at, axis=0))
    skewed = _single(roots / spread[..., None], shape)
    found = [_quantile((at - centre) / scale, spread / scale, skewed, q) for q in probabilities]
    return moments[0][..., None] + moments[1][..., None] * np.stack(found, axis=-1)


def _single(directions: Float[np.ndarray, "n G s s"], shape: Float[np.ndarray, "n G s 2"]) -> Skewed:
    """h of each effect alone: that of a sum of independent variables, of which skewness and excess kurtosis add up."""
    parts = (np.einsum("ngij,ngj->ngi", directions**power, shape[..., power - 3]) for power in (3, 4))
    return Skewed.of(*parts)


def _quantile(
    at: Float[np.ndarray, "n G s"], spread: Float[np.ndarray, "n G s"], skewed: Skewed, q: float
) -> np.ndarray:
    """The quantile of each equally weighted mixture of these distributions, which has mean 0 and variance 1."""
    x = np.full(at.shape[1:], ndtri(q))
    low, high = np.full_like(x, -_BRACKET), np.full_like(x, _BRACKET)
    for _ in range(_STEPS):
        e = skewed.inverse((x - at) / spread)
        above = np.mean(ndtr(e), axis=0) - q
        if np.max(np.abs(above), initial=0.0) < _NEAR:
            break
        slope = np.mean(np.exp(-0.5 * e**2) / (spread * skewed.slope(e)), axis=0) / np.sqrt(2 * np.pi)
        low, high = np.where(above < 0, x, low), np.where(above < 0, high, x)
        moved = x - above / np.maximum(slope, np.finfo(float).tiny)
        x = np.where((moved > low) & (moved < high), moved, 0.5 * (low + high))
    return x


def _variances(effects: Effects, chosen: slice | np.ndarray) -> Float[np.ndarray, "n G s"]:
    """The variances of the effects given some of the supports."""
    root = effects.root[chosen]
    made = np.zeros((*root.shape[:2], effects.per_level))
    for t, (i, j) in enumerate(effects.entries):
        made[..., i] += np.exp(2 * root[..., t]) if i == j else root[..., t] ** 2
    return made


def _from_linear(
    effects: Effects, mixture: GaussianMixture, phi: Float[np.ndarray, "S p"], signed: Float[np.ndarray, " S"]
) -> Moments:
    """Means and sds under the mixture, corrected by draws of φ with signed weights."""
    weights = np.exp(np.asarray(mixture.log_weights))
    centres, covariances = np.asarray(mixture.means), np.asarray(mixture.covariances())
    parts = [_under(effects, *one) for one in zip(centres, covariances, strict=True)]
    mean = np.einsum("k,kgs->gs", weights, np.stack([one for one, _ in parts]))
    spread = np.stack([second + (one - mean) ** 2 for one, second in parts])
    variance = np.einsum("k,kgs->gs", weights, spread)
    if not len(phi):
        return mean, np.sqrt(variance)
    delta = phi - effects.supports[0]
    # Σ_n signed_n (b + M δ_n)² with b the mean at φ₀ relative to that under the mixture: Σ_n signed_n is 0.
    first, second = signed @ delta, (signed[:, None] * delta).T @ delta
    at, slopes = effects.mean[0] - mean, effects.mean_slope
    shift = slopes @ first
    more = 2 * at * shift + np.einsum("gsp,pq,gsq->gs", slopes, second, slopes, optimize=True)
    for start in range(0, len(mean), _LEVELS_AT_ONCE):
        some = slice(start, start + _LEVELS_AT_ONCE)
        more[some] += _within(effects, delta, signed, some)
    corrected = variance + more - shift**2
    return mean + shift, np.sqrt(np.maximum(corrected, 1e-6 * variance))


def _within(
    effects: Effects, delta: Float[np.ndarray, "n p"], signed: Float[np.ndarray, " n"], levels: slice
) -> np.ndarray:
    """Σ_n signed_n diag(C_g C_gᵀ) at displacements of φ, of some levels."""
    root, slope = effects.root[0, levels], effects.root_slope[levels]
    made = np.zeros((len(root), effects.per_level))
    for t, (i, j) in enumerate(effects.entries):
        entry = root[:, t] + delta @ slope[:, t].T
        made[:, i] += signed @ (np.exp(2 * entry) if i == j else entry**2)
    return made


def _under(effects: Effects, centre: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each effect under one Gaussian over φ."""
    delta = centre - effects.supports[0]
    mean = effects.mean[0] + effects.mean_slope @ delta
    variance = np.einsum("gsp,pq,gsq->gs", effects.mean_slope, covariance, effects.mean_slope, optimize=True)
    at = effects.root[0] + effects.root_slope @ delta
    spread = np.einsum("gtp,pq,gtq->gt", effects.root_slope, covariance, effects.root_slope, optimize=True)
    for t, (i, j) in enumerate(effects.entries):
        # E exp(2X) of a Gaussian X, and E X².
        variance[:, i] += np.exp(2 * at[:, t] + 2 * spread[:, t]) if i == j else at[:, t] ** 2 + spread[:, t]
    return mean, variance
