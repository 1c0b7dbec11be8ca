"""The semiparametric density product (Neiswanger, Wang & Xing 2013): a Gaussian times a kernel-estimated correction.

    q_m(θ) = (1/n) Σ_t N(θ | θ_mt, h² Σ̂_m) N(θ | μ̂_m, Σ̂_m) / N(θ_mt | μ̂_m, Σ̂_m)

Every term is a weighted Gaussian. With s = h² / (1 + h²) its precision is Σ̂_m⁻¹ / s, its mean (1 − s) θ_mt + s μ̂_m,
and its log weight (s/2) (θ_mt − μ̂_m)ᵀ Σ̂_m⁻¹ (θ_mt − μ̂_m) up to a constant. So a shard is a mixture of Gaussians, and
the Gibbs sampler of the nonparametric method applies.
"""

import dataclasses

import numpy as np

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Full
from epvi.ground.status import Status
from epvi.hub.samples.kernel import KernelMethod
from epvi.hub.samples.meeting import Kernels
from epvi.hub.samples.method import METHODS, Shards
from epvi.hub.samples.shape import correlated, neglected


@METHODS.add
@dataclasses.dataclass(frozen=True)
class Semiparametric(KernelMethod):
    """Draws of the product of semiparametric density estimates, sampled by Markov chains over the shards' draws.

    Neiswanger, Wang & Xing, Asymptotically Exact, Embarrassingly Parallel MCMC (2013; UAI 2014), section 3.3. Kernels
    of any bandwidth h leave Gaussian shards unchanged; for other shards the method is exact as n → ∞ and h → 0.
    """

    covariance: Structure = dataclasses.field(default_factory=Full)

    def kernels(self, draws: np.ndarray, gaussian: Gaussian, h: float) -> Kernels:
        """Gaussians shrunk towards the mean, with larger weights for draws far from it."""
        s = h**2 / (1 + h**2)
        log_weights, packing = 0.5 * s * gaussian.squares(draws), gaussian.structure.packing
        means = (1 - s) * draws + s * gaussian.mean
        return Kernels(means, log_weights - np.logaddexp.reduce(log_weights), gaussian.root / np.sqrt(s), packing)

    def fault(self, shards: Shards, gaussians: list[Gaussian], h: float) -> Status | None:
        """Report correlations that a diagonal covariance ignores."""
        pair = "" if self.covariance.packing.whole else correlated(shards)
        return neglected(self.covariance, pair) if pair else None
