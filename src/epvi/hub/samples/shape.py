"""How far the shards' draws are from Gaussian, and what that does to a product that takes them for Gaussians.

Of every coordinate and principal component of each shard: skewness γ and excess kurtosis, both 0 for a Gaussian; two
well separated modes have a kurtosis near −2. And of all shards together, because what each of them has of skewness
adds up: with sds s_m it moves the mean of the product, in sds of the result, by about

    ½ Σ_m (γ_m / s_m) / √(Σ_m 1 / s_m²),   which is ½ γ √M for equal shards.

The limits are sizes that matter, or what chance makes of the largest of so many estimates where that is larger.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from epvi.gaussian.structure import Full, Structure
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import Remedies, Shards
from epvi.hub.samples.moments import ENOUGH

_SHIFT = 0.3
_SKEWNESS = 0.7
_KURTOSIS = (-1.0, 2.0)
# The probability with which Gaussian shards are held to be something else.
_CHANCE = 1e-3
# So much of h² sizes is a mean off by about a quarter of an sd, as measured on products of gamma densities.
_UNFOLLOWED = 0.4
_INFLATION = 1.1
_CORRELATION = 0.5
# With fewer, what is known of skewness and kurtosis by chance is too rough.
_LEAST_DRAWS = 20
# Components with less of the variance of a coordinate are rounding.
_LEAST_VARIANCE = 1e-6


class Departure(NamedTuple):
    """What is least Gaussian, in words, and by how many times the size that matters."""

    where: str
    how: str
    size: float


class _Measure(NamedTuple):
    """One number per column, the size of it that matters, and the size that chance makes."""

    name: str
    value: np.ndarray
    matters: np.ndarray | float
    chance: np.ndarray


def departure(shards: Shards) -> Departure | None:
    """Where draws are far from Gaussian; None where all are near enough."""
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
    """What kernels of h sds leave of a departure, about the share h² of it, in words; empty when little is left."""
    far = departure(shards)
    if far is None or h**2 * far.size < _UNFOLLOWED:
        return ""
    return f"{far.where}, which is not Gaussian ({far.how}): transform it (the logarithm of what is positive)"


def sure(tests: int) -> float:
    """The standard errors that the largest of so many estimates hardly ever has by chance."""
    return float(ndtri(1 - _CHANCE / tests))


def standardised(draws: Float[np.ndarray, "*M n d"]) -> Float[np.ndarray, "*M n d"]:
    """Draws less their mean, in sds."""
    return (draws - np.mean(draws, axis=-2, keepdims=True)) / np.std(draws, axis=-2, keepdims=True)


def memory(z: Float[np.ndarray, "*M n d"]) -> Float[np.ndarray, "*M d"]:
    """The correlation φ of each draw with the next; 0 when they are independent or antithetic."""
    return np.clip(np.mean(z[..., 1:, :] * z[..., :-1, :], axis=-2), 0, 0.9999)


def effective(n: int, phi: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """As many independent terms say as much of a mean as n with this correlation of each with the next.

    For draws with correlation φ, that is about φᵏ for moments of order k, and φ_1 φ_2 for correlations.
    """
    return n * (1 - phi) / (1 + phi)


def chance_correlation(n: Float[np.ndarray, "..."], tests: int) -> Float[np.ndarray, "..."]:
    """What the largest correlation of so many hardly ever exceeds when there is none, on Fisher's scale."""
    return np.tanh(sure(tests) / np.sqrt(np.maximum(n - 3, 1)))


def _largest(measure: _Measure, names: list[str] | tuple[str, ...]) -> Departure | None:
    ratio = np.where(np.abs(measure.value) > measure.chance, np.abs(measure.value) / measure.matters, 0)
    at = int(np.argmax(ratio))
    if ratio[at] <= 1:
        return None
    return Departure(names[at], f"{measure.name} {measure.value[at]:.2f}", float(ratio[at]))


def _shift(shards: Shards, surely: float) -> _Measure:
    """By how much skewness moves the means of the product."""
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
    """The skewness of n Gaussian draws at this quantile of a standard normal (D'Agostino 1970)."""
    n = np.maximum(n, _LEAST_DRAWS)
    tails = 3 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    square = np.sqrt(2 * (tails - 1)) - 1
    stretched = np.sqrt(2 / (square - 1)) * np.sinh(normal * np.sqrt(np.log(square) / 2))
    return stretched * np.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))


def _kurtosis_by_chance(n: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """The excess kurtosis of n Gaussian draws at this quantile of a standard normal (Anscombe & Glynn 1983)."""
    n = np.maximum(n, _LEAST_DRAWS)
    sd = np.sqrt(24 * n * (n - 2) * (n - 3) / ((n + 3) * (n + 5))) / (n + 1)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + np.sqrt(1 + 4 / skew**2))
    root = np.maximum(1 - 2 / (9 * a) - normal * np.sqrt(2 / (9 * a)), 1e-3)
    return -6 / (n + 1) + sd * ((1 - 2 / a) / root**3 - 1) * np.sqrt((a - 4) / 2)


def _principal(z: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n k"], np.ndarray]:
    """Scores on the principal components, and the coordinate that each is mostly of; none where draws are few."""
    n, d = z.shape
    if d == 1 or n < ENOUGH * (d + 2):
        return z[:, :0], np.zeros(0, int)
    values, vectors = np.linalg.eigh(z.T @ z / n)
    kept = values > _LEAST_VARIANCE
    return z @ vectors[:, kept] / np.sqrt(values[kept]), np.argmax(np.abs(vectors[:, kept]), axis=0)


def correlated(shards: Shards) -> str:
    """Which two coordinates of a shard are far from independent, in words; empty when none are."""
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
    """The sentence of a way that is exact for Gaussian shards of this structure, with precisions `inflated` times."""
    pair = "" if isinstance(structure, Full) else correlated(shards)
    if pair:
        return neglected(structure, pair)
    far = departure(shards)
    if far is not None:
        return Status(
            StatusCode.NOT_GAUSSIAN,
            f"{far.where} is far from Gaussian ({far.how}), which this way takes it for: transform it (the logarithm of"
            f" what is positive), or {remedies.shape}.",
        )
    if inflated > _INFLATION:
        return Status(
            StatusCode.FEW_DRAWS,
            f"{min(shards.counts):,} draws are few for the covariance of {shards.dim} numbers (sds come out about"
            f" {1 - inflated**-0.5:.0%} too small): draw more{remedies.dimensions}.",
        )
    return Status(
        StatusCode.DRAWN,
        f"{made} from {len(shards.theta)} shards, exact as far as all shards are Gaussian, and none is far from it.",
    )


def neglected(structure: Structure, pair: str) -> Status:
    """What is wrong with a structure that has no correlations, when this pair has one."""
    text = f"{type(structure).__name__}() leaves out how {pair} move together: choose Full() if draws suffice."
    return Status(StatusCode.NEGLECTED_CORRELATION, text)
