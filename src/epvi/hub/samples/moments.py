"""Fit a Gaussian to each shard's draws by sample mean and covariance, and multiply Gaussians.

The inverse of a full sample covariance is too large on average, by the factor (n − 1) / (n − d − 2) for Gaussian draws
(`inflation`).
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

# A correlation matrix with a smaller eigenvalue counts as singular. Judgement: its inverse has about 6 of the 16 digits
# of float64.
_SINGULAR = 1e-10
# Draws per dimension from which on a full sample covariance is reliable. Judgement: the bias of its inverse is then
# about 10 %, the limit `_INFLATION` in shape.py.
ENOUGH = 10


def product(gaussians: Sequence[Gaussian]) -> Gaussian:
    """The normalised product: precisions add up, and the mean is the precision-weighted average."""
    centre = gaussians[0].mean
    made = product_of([dataclasses.replace(one, mean=one.mean - centre) for one in gaussians])
    return dataclasses.replace(made, mean=centre + made.mean)


def fit_gaussians(shards: Shards, structure: Structure, remedies: Remedies = DrawsMethod.remedies) -> list[Gaussian]:
    """The Gaussian with each shard's sample mean and covariance; refused if a full covariance is singular."""
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
    """Gaussians with full covariances if there are enough draws, else with diagonal ones; never refused."""
    if min(shards.counts) >= ENOUGH * (shards.dim + 2):
        with contextlib.suppress(EpviError):
            return fit_gaussians(shards, Full())
    return fit_gaussians(shards, Diagonal())


def inflation(n: int, d: int, structure: Structure) -> float:
    """Factor by which a precision fitted to n draws is too large on average (inverse Wishart)."""
    return (n - 1) / (n - d - 2) if structure.packing.whole else 1.0


def _check_covariance(m: int, shards: Shards, remedies: Remedies) -> None:
    draws = shards.theta[m]
    n, d = draws.shape
    # The inverse covariance is then about twice too large on average. Judgement.
    least = 2 * (d + 2)
    if n < least:
        raise EpviError(
            f"shard {m} has {n:,} draws for a full covariance of {d} parameters: draw at least"
            f" {least:,}{remedies.dimensions}."
        )
    if d == 1:
        return
    values, vectors = np.linalg.eigh(np.corrcoef(draws, rowvar=False))
    if values[0] < _SINGULAR:
        one, other = (shards.layout.labels[i] for i in np.argsort(-np.abs(vectors[:, 0]))[:2])
        raise EpviError(
            f"shard {m}'s covariance is singular: {one} follows from {other} (and maybe others); leave out quantities"
            f" that are computed from others{remedies.dimensions}."
        )
