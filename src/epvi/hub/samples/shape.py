"""Test whether the shards' draws are close enough to Gaussian for a method that assumes Gaussian shards.

For every coordinate and principal component of each shard: skewness γ and excess kurtosis, both 0 for a Gaussian; two
well separated modes have an excess kurtosis near −2. For all shards together: their skewnesses add up, and with sds s_m
they move the mean of the product, in sds of the product, by about

    ½ Σ_m (γ_m / s_m) / √(Σ_m 1 / s_m²),   which is ½ γ √M for equal shards.

An estimate is reported if it exceeds both the size that matters and the size that Gaussian draws reach by chance in the
largest of so many estimates.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from epvi.gaussian.structure import Structure
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import Remedies, Shards
from epvi.hub.samples.moments import ENOUGH

# Sizes that matter. Shift of the product's mean by skewness, in sds of the product: as in halves.py. Judgement.
_SHIFT = 0.3
# Skewness of one shard: that of a gamma distribution of shape 8. Judgement.
_SKEWNESS = 0.7
# Excess kurtosis of one shard: below, as with two modes (the uniform distribution has −1.2), and above, as with heavy
# tails (Student's t with 7 degrees of freedom has 2). Judgement.
_KURTOSIS = (-1.0, 2.0)
# Probability of a false alarm for Gaussian shards, over all estimates together. Judgement.
_CHANCE = 1e-3
# Largest acceptable h² times the departure, in the sizes above. Measured on products of gamma densities, where means
# were off by about a quarter of an sd at this value; no script of it is kept.
_UNFOLLOWED = 0.4
# Largest acceptable factor by which precisions are too large: sds are then 5 % too small. Judgement.
_INFLATION = 1.1
# Correlation of two coordinates that a diagonal covariance may ignore. Judgement.
_CORRELATION = 0.5
# The limits by chance are evaluated at no fewer draws: for smaller samples their approximations are not valid (Anscombe
# & Glynn 1983 give n ≥ 20).
_LEAST_DRAWS = 20
# Principal components of the correlation matrix with a smaller eigenvalue are rounding errors. Judgement.
_LEAST_VARIANCE = 1e-6


class Departure(NamedTuple):
    """The largest departure from Gaussian shape."""

    where: str  # shard and coordinate
    how: str  # statistic and value
    size: float  # in multiples of the size that matters


class _Measure(NamedTuple):
    """A statistic of every column."""

    name: str
    value: np.ndarray
    matters: np.ndarray | float  # size that matters
    chance: np.ndarray  # size that Gaussian draws reach by chance


def departure(shards: Shards) -> Departure | None:
    """The largest departure from Gaussian shape; None if all shards are close enough."""
    labels = shards.layout.labels
    surely = sure(4 * len(shards.theta) * shards.dim)
    found = [_largest(_shift(shards, surely), labels)]
    for m, draws in enumerate(shards.theta):
        z = standardised(draws)
        names = [f"shard {m}'s {label}" for label in labels]
        found += [_largest(measure, names) for measure in _shape_of(z, surely)]
        scores, loadings = _principal(z)
        names = [f"a principal component of shard {m} (mostly {labels[i]})" for i in loadings]
        found += [_largest(measure, names) for measure in _shape_of(scores, surely) if names]
    return max((one for one in found if one is not None), key=lambda one: one.size, default=None)


def unfollowed(shards: Shards, h: float) -> str:
    """Describe the departure that kernels of h sds smooth away, about h² of it; empty if that is small."""
    far = departure(shards)
    if far is None or h**2 * far.size < _UNFOLLOWED:
        return ""
    return f"{far.where}, which is not Gaussian ({far.how}): transform it (take logarithms of positive quantities)"


def sure(tests: int) -> float:
    """Number of standard errors that the largest of `tests` estimates exceeds with probability `_CHANCE`."""
    return float(ndtri(1 - _CHANCE / tests))


def standardised(draws: Float[np.ndarray, "*M n d"]) -> Float[np.ndarray, "*M n d"]:
    """Draws minus their mean, divided by their sd."""
    return (draws - np.mean(draws, axis=-2, keepdims=True)) / np.std(draws, axis=-2, keepdims=True)


def memory(z: Float[np.ndarray, "*M n d"]) -> Float[np.ndarray, "*M d"]:
    """Lag-1 autocorrelation φ, at least 0 (antithetic draws count as independent)."""
    # Below 1, so that the effective sample size stays positive: 0.9999 means one effective draw in 20,000. Judgement.
    return np.clip(np.mean(z[..., 1:, :] * z[..., :-1, :], axis=-2), 0, 0.9999)


def effective(n: int, phi: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Effective sample size of the mean of n terms of an autoregressive series with lag-1 autocorrelation `phi`.

    If draws have autocorrelation φ, their k-th powers have about φᵏ, and products of two series φ_1 φ_2.
    """
    return n * (1 - phi) / (1 + phi)


def chance_correlation(n: Float[np.ndarray, "..."], tests: int) -> Float[np.ndarray, "..."]:
    """Limit that the largest of `tests` sample correlations of independent series rarely exceeds (Fisher)."""
    return np.tanh(sure(tests) / np.sqrt(np.maximum(n - 3, 1)))


def _largest(measure: _Measure, names: list[str] | tuple[str, ...]) -> Departure | None:
    ratio = np.where(np.abs(measure.value) > measure.chance, np.abs(measure.value) / measure.matters, 0)
    at = int(np.argmax(ratio))
    if ratio[at] <= 1:
        return None
    return Departure(names[at], f"{measure.name} {measure.value[at]:.2f}", float(ratio[at]))


def _shift(shards: Shards, surely: float) -> _Measure:
    """Shift of the product's means by the skewness of all shards, in sds of the product."""
    total, variance, precision = (np.zeros(shards.dim) for _ in range(3))
    for draws in shards.theta:
        z, sd = standardised(draws), np.std(draws, axis=0)
        total += np.mean(z**3, axis=0) / sd
        variance += 6 / effective(len(z), memory(z) ** 3) / sd**2
        precision += 1 / sd**2
    value, error = total / np.sqrt(precision) / 2, np.sqrt(variance / precision) / 2
    return _Measure("the skewness of all shards moves its mean, in sds, by", value, _SHIFT, surely * error)


def _shape_of(z: Float[np.ndarray, "n d"], surely: float) -> list[_Measure]:
    skewness, kurtosis, phi = np.mean(z**3, axis=0), np.mean(z**4, axis=0) - 3, memory(z)
    high = kurtosis > 0
    chance = _kurtosis_by_chance(effective(len(z), phi**4), np.where(high, surely, -surely))
    return [
        _Measure("skewness", skewness, _SKEWNESS, _skewness_by_chance(effective(len(z), phi**3), surely)),
        _Measure("excess kurtosis", kurtosis, np.where(high, _KURTOSIS[1], -_KURTOSIS[0]), np.abs(chance)),
    ]


def _skewness_by_chance(n: np.ndarray, normal: float) -> np.ndarray:
    """Quantile of the skewness of n Gaussian draws, given that of a standard normal (D'Agostino 1970)."""
    n = np.maximum(n, _LEAST_DRAWS)
    tails = 3 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    square = np.sqrt(2 * (tails - 1)) - 1
    stretched = np.sqrt(2 / (square - 1)) * np.sinh(normal * np.sqrt(np.log(square) / 2))
    return stretched * np.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))


def _kurtosis_by_chance(n: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Quantile of the excess kurtosis of n Gaussian draws, given that of a standard normal (Anscombe & Glynn 1983)."""
    n = np.maximum(n, _LEAST_DRAWS)
    sd = np.sqrt(24 * n * (n - 2) * (n - 3) / ((n + 3) * (n + 5))) / (n + 1)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + np.sqrt(1 + 4 / skew**2))
    root = np.maximum(1 - 2 / (9 * a) - normal * np.sqrt(2 / (9 * a)), 1e-3)
    return -6 / (n + 1) + sd * ((1 - 2 / a) / root**3 - 1) * np.sqrt((a - 4) / 2)


def _principal(z: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n k"], np.ndarray]:
    """Standardised principal component scores, and the coordinate with the largest loading of each.

    Empty if there are too few draws for a full covariance.
    """
    n, d = z.shape
    if d == 1 or n < ENOUGH * (d + 2):
        return z[:, :0], np.zeros(0, int)
    values, vectors = np.linalg.eigh(z.T @ z / n)
    kept = values > _LEAST_VARIANCE
    return z @ vectors[:, kept] / np.sqrt(values[kept]), np.argmax(np.abs(vectors[:, kept]), axis=0)


def correlated(shards: Shards) -> str:
    """Name the most strongly correlated pair of coordinates of any shard; empty if no correlation matters."""
    if shards.dim == 1:
        return ""
    worst, found = 0.0, ""
    for m, draws in enumerate(shards.theta):
        z = standardised(draws)
        phi = memory(z)
        chance = chance_correlation(effective(len(z), np.outer(phi, phi)), len(shards.theta) * shards.dim**2)
        size = np.abs(z.T @ z / len(z)) * (1 - np.eye(shards.dim))
        excess = size - np.maximum(_CORRELATION, chance)
        i, j = np.unravel_index(np.argmax(excess), excess.shape)
        if excess[i, j] > worst:
            worst = float(excess[i, j])
            pair = f"{shards.layout.labels[i]} and {shards.layout.labels[j]}"
            found = f"shard {m}'s {pair} (correlation {size[i, j]:.2f})"
    return found


def gaussian_status(made: str, shards: Shards, structure: Structure, inflated: float, remedies: Remedies) -> Status:
    """Status of a method that is exact for Gaussian shards with this structure; precisions are `inflated` times."""
    pair = "" if structure.packing.whole else correlated(shards)
    if pair:
        return neglected(structure, pair)
    far = departure(shards)
    if far is not None:
        return Status(
            StatusCode.NOT_GAUSSIAN,
            f"{far.where} is far from Gaussian ({far.how}), which this method assumes: transform it (take logarithms of"
            f" positive quantities), or {remedies.shape}.",
        )
    if inflated > _INFLATION:
        return Status(
            StatusCode.FEW_DRAWS,
            f"{min(shards.counts):,} draws are few for the covariance of {shards.dim} parameters (sds are about"
            f" {1 - inflated**-0.5:.0%} too small): draw more{remedies.dimensions}.",
        )
    return Status(
        StatusCode.DRAWN,
        f"{made} from {len(shards.theta)} shards; exact for Gaussian shards, and no shard is far from Gaussian.",
    )


def neglected(structure: Structure, pair: str) -> Status:
    """The status for a structure without correlations when this pair of coordinates is correlated."""
    text = f"{type(structure).__name__}() ignores the dependence of {pair}: choose Full() if there are enough draws."
    return Status(StatusCode.NEGLECTED_CORRELATION, text)
