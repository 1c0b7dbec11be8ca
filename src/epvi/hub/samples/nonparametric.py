"""The nonparametric density product (Neiswanger, Wang & Xing 2013, Algorithm 1): the product of kernel estimates.

    q_m(θ) = (1/n) Σ_t N(θ | θ_mt, h² Σ_m),   Σ_m the diagonal of the shard's covariance, or all of it

Asymptotically exact as n → ∞ and h → 0. At finite h, smoothing adds h² Σ_m to every shard's covariance. Sds of the
product grow by the factor √(1 + h²) if all shards are Gaussian with the same covariance, and by much more if Σ_m is
diagonal and the shards are strongly correlated.
"""

import dataclasses

import numpy as np

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Diagonal
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.kernel import KernelMethod
from epvi.hub.samples.meeting import Kernels
from epvi.hub.samples.method import METHODS, Shards
from epvi.hub.samples.moments import fit_best

# Largest acceptable relative increase of the product's sds by smoothing. Judgement.
_WIDENING = 0.1


@METHODS.add
@dataclasses.dataclass(frozen=True)
class Nonparametric(KernelMethod):
    """Draws of the product of kernel density estimates, sampled by Markov chains over the shards' draws.

    Neiswanger, Wang & Xing, Asymptotically Exact, Embarrassingly Parallel MCMC (2013; UAI 2014), section 3.2. It
    assumes no shape of the shards, only that their draws overlap. The number of draws it needs grows fast with the
    dimension, because kernels of `bandwidth` · n^(-1/(4+d)) sds widen the result (the status says by how much).
    """

    covariance: Structure = dataclasses.field(default_factory=Diagonal)

    def kernels(self, draws: np.ndarray, gaussian: Gaussian, h: float) -> Kernels:
        """Equally weighted Gaussians at the draws."""
        return Kernels(draws, np.full(len(draws), -np.log(len(draws))), gaussian.root / h, gaussian.structure.packing)

    def fault(self, shards: Shards, gaussians: list[Gaussian], h: float) -> Status | None:
        """Report by how much the kernels widen the product, if that is too much."""
        best = gaussians if self.covariance.packing.whole else fit_best(shards)
        widening = _widening(best, gaussians, h)
        if widening <= _WIDENING:
            return None
        return Status(
            StatusCode.WIDE_KERNEL,
            f"kernels of {h:.2f} sds make sds about {widening:.0%} too wide: use Semiparametric(), or draw more, or"
            " lower bandwidth if the chains still mix.",
        )


def _widening(shards: list[Gaussian], kernels: list[Gaussian], h: float) -> float:
    """Largest relative increase of the product's sds when h² times the kernel covariances is added to all shards'."""
    packing, d = shards[0].structure.packing, len(shards[0].mean)
    narrow = np.sum([one.precision for one in shards], axis=0)
    # The kernels' covariances, packed like those of the shards.
    added = [packing.kept(kernel.covariance, kernel.structure.packing, d) for kernel in kernels]
    wide = np.sum([packing.inverse(one.covariance + h**2 * a) for one, a in zip(shards, added, strict=True)], axis=0)
    variances = [packing.diagonal(packing.inverse(precision), d) for precision in (wide, narrow)]
    return float(np.sqrt(np.max(variances[0] / variances[1]))) - 1
