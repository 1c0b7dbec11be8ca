"""How far the shards' draws are from Gaussian, for the ways that take them as Gaussians.

Skewness and excess kurtosis of every coordinate; both are 0 for a Gaussian, and two well separated modes have a
kurtosis near −2. Draws from a Markov chain are correlated, so the limits are sizes that matter, not significance
alone.
"""

from typing import NamedTuple

import numpy as np

from epvi.hub.draws.method import Remedies, Shards
from epvi.status import Status
from epvi.structure import Full, Structure

_SKEWNESS = 0.7
_KURTOSIS = (-1.0, 2.0)
# Estimates within so many standard errors of independent draws are never held against a shard.
_STANDARD_ERRORS = 5
_INFLATION = 1.1
_CORRELATION = 0.5


class Departure(NamedTuple):
    """The coordinate that is least Gaussian, in words."""

    where: str
    how: str


def departure(shards: Shards) -> Departure | None:
    """Where draws are far from Gaussian; None where all are near enough."""
    worst, found = 1.0, None
    for m, draws in enumerate(shards.theta):
        z = (draws - np.mean(draws, axis=0)) / np.std(draws, axis=0)
        for how, value, limit in _shape_of(z):
            ratio = np.abs(value) / limit
            at = int(np.argmax(ratio))
            if ratio[at] > worst:
                worst = float(ratio[at])
                found = Departure(f"shard {m}'s {shards.layout.labels[at]}", f"{how} {value[at]:.2f}")
    return found


def _shape_of(z: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, value and limit of each measure, per coordinate."""
    skewness, kurtosis = np.mean(z**3, axis=0), np.mean(z**4, axis=0) - 3
    least = _STANDARD_ERRORS / np.sqrt(len(z))
    kurtosis_limit = np.where(kurtosis < 0, -_KURTOSIS[0], _KURTOSIS[1])
    return [
        ("skewness", skewness, np.full(len(skewness), max(_SKEWNESS, least * np.sqrt(6)))),
        ("excess kurtosis", kurtosis, np.maximum(kurtosis_limit, least * np.sqrt(24))),
    ]


def correlated(shards: Shards) -> str:
    """Which two coordinates of a shard are far from independent, in words; empty when none are."""
    if shards.dim == 1:
        return ""
    worst, found = _CORRELATION, ""
    for m, draws in enumerate(shards.theta):
        correlation = np.abs(np.corrcoef(draws, rowvar=False)) * (1 - np.eye(shards.dim))
        i, j = np.unravel_index(np.argmax(correlation), correlation.shape)
        if correlation[i, j] > worst:
            worst = float(correlation[i, j])
            found = f"shard {m}'s {shards.layout.labels[i]} and {shards.layout.labels[j]} (correlation {worst:.2f})"
    return found


def gaussian_status(made: str, shards: Shards, structure: Structure, inflated: float, remedies: Remedies) -> Status:
    """The sentence of a way that is exact for Gaussian shards of this structure, with precisions `inflated` times."""
    pair = "" if isinstance(structure, Full) else correlated(shards)
    if pair:
        return Status(
            False, f"{type(structure).__name__}() leaves out how {pair} move together: choose Full() if draws suffice."
        )
    far = departure(shards)
    if far is not None:
        return Status(
            False,
            f"{far.where} is far from Gaussian ({far.how}), which this way takes it for: transform it (the logarithm of"
            f" what is positive), or {remedies.shape}.",
        )
    if inflated > _INFLATION:
        return Status(
            False,
            f"{min(shards.counts):,} draws are few for the covariance of {shards.dim} numbers (sds come out about"
            f" {1 - inflated**-0.5:.0%} too small): draw more{remedies.dimensions}.",
        )
    return Status(
        True,
        f"{made} from {len(shards.theta)} shards, exact as far as all shards are Gaussian, and none is far from it.",
    )
