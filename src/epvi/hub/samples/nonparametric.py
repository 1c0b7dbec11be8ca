"""The nonparametric density product (Neiswanger, Wang & Xing 2013, Algorithm 1): a kernel estimate of every shard.

    q_m(θ) = (1/n) Σ_t N(θ | θ_mt, h² Σ_m),   Σ_m the diagonal of the shard's covariance, or all of it

Asymptotically exact: for n → ∞, h → 0. At finite h, smoothing widens every shard's covariance by h² Σ_m: sds of the
product by √(1 + h²) when all shards are Gaussians of one covariance, and by much more when a diagonal Σ_m is put to
shards that are narrow across the axes.
"""

import dataclasses

import numpy as np

from epvi.gaussian.structure import Diagonal, Full, Structure
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.kernel import KernelMethod
from epvi.hub.samples.meeting import Kernels
from epvi.hub.samples.method import Shards
from epvi.hub.samples.moments import DrawnGaussian, fit_best, inverse

# Sds that are wider than this are not those of the posterior.
_WIDENING = 0.1


@dataclasses.dataclass(frozen=True)
class Nonparametric(KernelMethod):
    """Draws of the product of kernel estimates, sampled by Markov chains over which of the shards' draws meet.

    Neiswanger, Wang & Xing, Asymptotically Exact, Embarrassingly Parallel MCMC (2013; UAI 2014), section 3.2. It
    assumes nothing of the shards' shapes but that their draws overlap; it needs more draws with every dimension,
    because kernels of `bandwidth` · n^(-1/(4+d)) sds widen the result (the status says by how much).
    """

    covariance: Structure = dataclasses.field(default_factory=Diagonal)

    def kernels(self, draws: np.ndarray, gaussian: DrawnGaussian, h: float) -> Kernels:
        """Equal Gaussians at the draws."""
        return Kernels(draws, np.full(len(draws), -np.log(len(draws))), gaussian.root / h)

    def fault(self, shards: Shards, gaussians: list[DrawnGaussian], h: float) -> Status | None:
        """By how much the kernels widen what they estimate, where that is too much."""
        best = gaussians if isinstance(self.covariance, Full) else fit_best(shards)
        widening = _widening(best, gaussians, h)
        if widening <= _WIDENING:
            return None
        return Status(
            StatusCode.WIDE_KERNEL,
            f"kernels of {h:.2f} sds make sds about {widening:.0%} too wide: use Semiparametric(), or draw more, or"
            " lower bandwidth as far as the chains mix.",
        )


def _widening(shards: list[DrawnGaussian], kernels: list[DrawnGaussian], h: float) -> float:
    """The share by which the sd of the product grows most when h² times their kernels' covariances widen all shards."""
    narrow = np.sum([one.precision for one in shards], axis=0)
    wide = np.sum(
        [inverse(one.covariance + h**2 * _like(one, kernel)) for one, kernel in zip(shards, kernels, strict=True)],
        axis=0,
    )
    variances = [_diagonal(inverse(precision)) for precision in (wide, narrow)]
    return float(np.sqrt(np.max(variances[0] / variances[1]))) - 1


def _like(one: DrawnGaussian, kernel: DrawnGaussian) -> np.ndarray:
    """The kernel's covariance, packed as that of the shard is."""
    covariance = kernel.covariance
    if covariance.ndim == one.precision.ndim:
        return covariance
    return np.diag(np.broadcast_to(covariance, len(one.mean)))


def _diagonal(packed: np.ndarray) -> np.ndarray:
    return np.diag(packed) if packed.ndim == 2 else packed
