"""The semiparametric density product (Neiswanger, Wang & Xing 2013): a Gaussian, and kernels for what it misses.

    q_m(θ) = (1/n) Σ_t N(θ | θ_mt, h² Σ̂_m) N(θ | μ̂_m, Σ̂_m) / N(θ_mt | μ̂_m, Σ̂_m)

Every term is a Gaussian with a weight: with s = h² / (1 + h²) its precision is Σ̂_m⁻¹ / s, its mean (1 − s) θ_mt + s
μ̂_m, and its log weight (s/2) (θ_mt − μ̂_m)ᵀ Σ̂_m⁻¹ (θ_mt − μ̂_m) up to a constant. So a shard is an ordinary mixture
again, and the same chain runs.
"""

import dataclasses

import numpy as np

from epvi.gaussian.structure import Full, Structure
from epvi.ground.status import Status
from epvi.hub.samples.kernel import KernelMethod
from epvi.hub.samples.meeting import Kernels
from epvi.hub.samples.method import Shards
from epvi.hub.samples.moments import DrawnGaussian
from epvi.hub.samples.shape import correlated, neglected


@dataclasses.dataclass(frozen=True)
class Semiparametric(KernelMethod):
    """Draws of the product of Gaussians times kernel estimates, sampled by Markov chains over the shards' draws.

    Neiswanger, Wang & Xing, Asymptotically Exact, Embarrassingly Parallel MCMC (2013; UAI 2014), section 3.3. For
    Gaussian shards the kernels add no width whatever h is; for others it is exact as n → ∞ and h → 0.
    """

    covariance: Structure = dataclasses.field(default_factory=Full)

    def kernels(self, draws: np.ndarray, gaussian: DrawnGaussian, h: float) -> Kernels:
        """Gaussians drawn towards the mean, of which the far ones weigh more."""
        s = h**2 / (1 + h**2)
        log_weights = 0.5 * s * gaussian.squares(draws)
        means = (1 - s) * draws + s * gaussian.mean
        return Kernels(means, log_weights - np.logaddexp.reduce(log_weights), gaussian.root / np.sqrt(s))

    def fault(self, shards: Shards, gaussians: list[DrawnGaussian], h: float) -> Status | None:
        """Correlations that the Gaussians leave to the kernels."""
        pair = "" if isinstance(self.covariance, Full) else correlated(shards)
        return neglected(self.covariance, pair) if pair else None
