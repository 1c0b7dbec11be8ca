"""Fit a Gaussian to each shard's draws by sample mean and covariance, and multiply Gaussians.

Precisions are packed as in `gaussian/structure.py`: a (d, d) matrix, or (d,) or (1,) numbers if diagonal. The inverse
of a full sample covariance is too large on average, by the factor (n − 1) / (n − d − 2) for Gaussian draws
(`inflation`).
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Diagonal, Full, Structure
from epvi.ground.errors import EpviError
from epvi.hub.samples.method import DrawsMethod, Remedies, Shards

Packed = Float[np.ndarray, "..."]
# A correlation matrix with a smaller eigenvalue counts as singular. Judgement: its inverse has about 6 of the 16 digits
# of float64.
_SINGULAR = 1e-10
# Draws per dimension from which on a full sample covariance is reliable. Judgement: the bias of its inverse is then
# about 10 %, the limit `_INFLATION` in shape.py.
ENOUGH = 10


class DrawnGaussian(NamedTuple):
    """The Gaussian N(μ, Λ⁻¹), with Λ packed."""

    mean: Float[np.ndarray, " d"]
    precision: Packed

    @property
    def covariance(self) -> Packed:
        """Λ⁻¹, packed."""
        return inverse(self.precision)

    @property
    def root(self) -> Packed:
        """L with L Lᵀ = Λ."""
        return np.linalg.cholesky(self.precision) if self.precision.ndim == 2 else np.sqrt(self.precision)

    def squares(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """(x − μ)ᵀ Λ (x − μ) for every row."""
        return np.sum(times(x - self.mean, self.root) ** 2, axis=1)

    def sample(self, count: int, rng: np.random.Generator) -> Float[np.ndarray, "n d"]:
        """Independent draws."""
        # x = L⁻ᵀ z, which for row vectors is z L⁻¹.
        return self.mean + times(rng.standard_normal((count, len(self.mean))), inverse(self.root))

    def as_mixture(self) -> GaussianMixture:
        """The Gaussian as a mixture with one component."""
        covariance = self.covariance
        if covariance.shape == (1,):
            return GaussianMixture.from_covariances(self.mean[None], covariance)
        return GaussianMixture.from_covariances(self.mean[None], covariance[None])


def times(x: Float[np.ndarray, "n d"], packed: Packed) -> Float[np.ndarray, "n d"]:
    """xᵀ A for every row x: A x if A is symmetric, Lᵀ x if it is a root L."""
    return x @ packed if packed.ndim == 2 else x * packed


def inverse(packed: Packed) -> Packed:
    """The inverse of a packed matrix."""
    return np.linalg.inv(packed) if packed.ndim == 2 else 1 / packed


def product(gaussians: Sequence[DrawnGaussian]) -> DrawnGaussian:
    """The normalised product: precisions add up, and the mean is the precision-weighted average."""
    centre = gaussians[0].mean
    precision = np.sum([one.precision for one in gaussians], axis=0)
    eta = np.sum([times((one.mean - centre)[None], one.precision) for one in gaussians], axis=0)
    return DrawnGaussian(centre + times(eta, inverse(precision))[0], precision)


def fit_gaussians(
    shards: Shards, structure: Structure, remedies: Remedies = DrawsMethod.remedies
) -> list[DrawnGaussian]:
    """The Gaussian with each shard's sample mean and covariance; refused if a full covariance is singular."""
    if isinstance(structure, Full):
        for m in range(len(shards.theta)):
            _check_covariance(m, shards, remedies)
    return [DrawnGaussian(np.mean(x, axis=0), inverse(_covariance_of(x, structure))) for x in shards.theta]


def fit_best(shards: Shards) -> list[DrawnGaussian]:
    """Gaussians with full covariances if there are enough draws, else with diagonal ones; never refused."""
    if min(shards.counts) >= ENOUGH * (shards.dim + 2):
        with contextlib.suppress(EpviError):
            return fit_gaussians(shards, Full())
    return fit_gaussians(shards, Diagonal())


def inflation(n: int, d: int, structure: Structure) -> float:
    """Factor by which a precision fitted to n draws is too large on average (inverse Wishart)."""
    return (n - 1) / (n - d - 2) if isinstance(structure, Full) else 1.0


def _covariance_of(draws: Float[np.ndarray, "n d"], structure: Structure) -> Packed:
    if isinstance(structure, Full):
        return np.atleast_2d(np.cov(draws, rowvar=False))
    variances = np.var(draws, axis=0, ddof=1)
    return variances if isinstance(structure, Diagonal) else np.mean(variances, keepdims=True)


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
