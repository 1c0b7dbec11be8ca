"""The Gaussian that is fitted to each shard's draws, by its sample mean and covariance, and products of Gaussians.

The inverse of a full sample covariance is too large by a factor of about (n − 1) / (n − d − 2): `inflation` says how
much that is.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from epvi.gaussian.gaussian import Gaussian, product_of
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Diagonal, Full
from epvi.ground.errors import EpviError
from epvi.hub.samples.method import DrawsMethod, Remedies, Shards

# Correlations whose least eigenvalue is below this have no inverse to speak of.
_SINGULAR = 1e-10
# So many draws per dimension tell a full covariance well.
ENOUGH = 10


def product(gaussians: Sequence[Gaussian]) -> Gaussian:
    """The normalised product: precisions add, means are averaged with them."""
    centre = gaussians[0].mean
    made = product_of([dataclasses.replace(one, mean=one.mean - centre) for one in gaussians])
    return dataclasses.replace(made, mean=centre + made.mean)


def fit_gaussians(shards: Shards, structure: Structure, remedies: Remedies = DrawsMethod.remedies) -> list[Gaussian]:
    """The Gaussian of every shard's sample moments, or a refusal when they do not make a density."""
    packing = structure.packing
    if packing.whole:
        for m in range(len(shards.theta)):
            _check_covariance(m, shards, remedies)
    return [Gaussian(np.mean(x, axis=0), packing.inverse(packing.covariance_of(x)), structure) for x in shards.theta]


def sum_of(one: Gaussian, other: Gaussian, mean: np.ndarray) -> Gaussian:
    """The Gaussian with this mean and the sum of both covariances."""
    structure = one.structure
    return Gaussian(mean, structure.packing.inverse(one.covariance + other.covariance), structure)


def fit_best(shards: Shards) -> list[Gaussian]:
    """The Gaussians with full covariances where the draws tell them, else with diagonal ones; never a refusal."""
    if min(shards.counts) >= ENOUGH * (shards.dim + 2):
        with contextlib.suppress(EpviError):
            return fit_gaussians(shards, Full())
    return fit_gaussians(shards, Diagonal())


def inflation(n: int, d: int, structure: Structure) -> float:
    """The factor by which precisions come out too large that were fitted to n draws."""
    return (n - 1) / (n - d - 2) if structure.packing.whole else 1.0


def _check_covariance(m: int, shards: Shards, remedies: Remedies) -> None:
    draws = shards.theta[m]
    n, d = draws.shape
    least = 2 * (d + 2)
    if n < least:
        raise EpviError(
            f"shard {m} has {n:,} draws for a full covariance of {d} numbers: draw at least"
            f" {least:,}{remedies.dimensions}."
        )
    if d == 1:
        return
    values, vectors = np.linalg.eigh(np.corrcoef(draws, rowvar=False))
    if values[0] < _SINGULAR:
        one, other = (shards.layout.labels[i] for i in np.argsort(-np.abs(vectors[:, 0]))[:2])
        raise EpviError(
            f"shard {m}'s covariance is singular: {one} follows from {other} (and maybe others); leave quantities out"
            f" that are computed from others{remedies.dimensions}."
        )
