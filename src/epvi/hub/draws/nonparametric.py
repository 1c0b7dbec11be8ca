"""The nonparametric density product (Neiswanger, Wang & Xing 2013, Algorithm 1): a kernel estimate of every shard.

    q_m(θ) = (1/n) Σ_t N(θ | θ_mt, h² Σ_m),   Σ_m the diagonal of the shard's covariance, or all of it

Asymptotically exact: for n → ∞, h → 0. At finite h, smoothing widens every shard's covariance by h² Σ_m.
"""

import dataclasses

import numpy as np

from epvi.hub.draws.kernel import KernelMethod
from epvi.hub.draws.meeting import Kernels
from epvi.hub.draws.moments import Gaussian
from epvi.structure import Diagonal, Structure

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

    def kernels(self, draws: np.ndarray, gaussian: Gaussian, h: float) -> Kernels:
        """Equal Gaussians at the draws."""
        return Kernels(draws, np.full(len(draws), -np.log(len(draws))), gaussian.root / h)

    def fault(self, h: float) -> str:
        """By how much the kernels widen what they estimate, where that is too much."""
        widening = np.sqrt(1 + h**2) - 1
        if widening <= _WIDENING:
            return ""
        return (
            f"kernels of {h:.2f} sds make sds about {widening:.0%} too wide: use Semiparametric(), or draw more, or"
            " lower bandwidth as far as the chains mix."
        )
