"""Base class of the kernel-density methods (Neiswanger, Wang & Xing 2013): settings, annealing and diagnostics.

A kernel density estimate is a mixture with one Gaussian per draw; `meeting.py` samples the product of M of them. The
bandwidth is annealed as in Algorithm 1 of that paper, h = i^(-1/(4+d)) for i = 1 to n, in sds of each shard. The paper
keeps draws of all bandwidths. Here the wider bandwidths are burn-in, each stage starting where the last ended, and only
draws at the narrowest bandwidth are kept, so that all chains have the same target and R̂ can compare them.
"""

import abc
import dataclasses
import math

import jax
import numpy as np

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structure import Structure
from epvi.ground.status import Status, StatusCode
from epvi.ground.validation import check_settings
from epvi.hub.product.mixing import effective_size, split_r_hat
from epvi.hub.samples.consensus import evenly_spaced
from epvi.hub.samples.meeting import Kept, Kernels, Meeting, check_memory
from epvi.hub.samples.method import Combination, DrawsMethod, Shards, check_covariance, generator, positive
from epvi.hub.samples.moments import fit_gaussians
from epvi.hub.samples.shape import unfollowed

# Least draws kept per chain, for split R̂ and the effective sample size. Judgement.
_PER_CHAIN = 50
# Burn-in of every stage, in autocorrelation times of a chain (1/h² steps, see `KernelMethod`). Judgement: e⁻⁵ < 1 % of
# the initial deviation remains.
_BURN_IN = 5


@dataclasses.dataclass(frozen=True)
class KernelDiagnostics:
    """How well the chains mixed.

    Attributes:
        bandwidth: the final bandwidth h, in sds of each shard.
        thin: steps from one kept draw to the next.
        r_hat_theta: largest split R̂ of θ over coordinates.
        r_hat_log_density: split R̂ of the product's log density.
        ess_theta: smallest effective sample size of θ over coordinates.
        ess_log_density: effective sample size of the product's log density.
    """

    bandwidth: float
    thin: int
    r_hat_theta: float
    r_hat_log_density: float
    ess_theta: float
    ess_log_density: float


@dataclasses.dataclass(frozen=True)
class KernelMethod(DrawsMethod):
    """Base class of methods that estimate every shard's density by Gaussian kernels with h² times its covariance.

    Attributes:
        covariance: structure of the kernels' covariance, `Diagonal()` or `Full()`.
        bandwidth: factor c of the bandwidth h = c · i^(-1/(4+d)).
        stages: number of bandwidths in the annealing from i = 1 to i = n, the number of draws per shard.
        num_chains: number of Markov chains.
        thin: steps from one kept draw to the next; None for 1/h², the autocorrelation time if shards are Gaussian.
    """

    covariance: Structure
    bandwidth: float = 1.0
    # Bandwidths. Judgement: in 1,000 draws of 2 parameters each is then 0.88 times the one before.
    stages: int = 10
    # Chains. Judgement; as in `Chain`.
    num_chains: int = 20
    thin: int | None = None

    def __post_init__(self) -> None:
        check_covariance(self.covariance)
        object.__setattr__(self, "bandwidth", positive("bandwidth", self.bandwidth))
        check_settings(self, stages=1, num_chains=1)
        if self.thin is not None:
            check_settings(self, thin=1)

    @abc.abstractmethod
    def kernels(self, draws: np.ndarray, gaussian: Gaussian, h: float) -> Kernels:
        """The density estimate of one shard, from its draws and the Gaussian fitted to them."""

    @abc.abstractmethod
    def fault(self, shards: Shards, gaussians: list[Gaussian], h: float) -> Status | None:
        """What is wrong with bandwidth h even for Gaussian shards, and what to do; None if nothing is."""

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Anneal the bandwidth, then draw at the narrowest; draws are returned chain after chain."""
        count = min(shards.counts) if num_samples is None else num_samples
        check_memory(self.num_chains, max(shards.counts))
        gaussians, rng = fit_gaussians(shards, self.covariance), generator(key)
        centre = np.mean([one.mean for one in gaussians], axis=0)
        starts = rng.integers(len(gaussians), size=self.num_chains)
        theta = np.stack([rng.choice(shards.theta[m]) for m in starts]) - centre
        per_chain = max(_PER_CHAIN, -(-count // self.num_chains))
        widths = self._bandwidths(min(shards.counts), shards.dim)

        def meeting(h: float) -> Meeting:
            made = [self.kernels(*shard, h) for shard in zip(shards.theta, gaussians, strict=True)]
            return Meeting([one._replace(means=one.means - centre) for one in made], rng)

        for stage in widths:
            theta, _ = meeting(stage).run(theta, kept=1, thin=_BURN_IN * self._steps(stage))
        h = widths[-1]
        _, kept = meeting(h).run(theta, per_chain, self._steps(h))
        flat = centre + kept.theta.reshape(-1, shards.dim)
        diagnostics = _diagnose(kept, h, self._steps(h))
        status = _mixed(diagnostics, count)
        if status.ok:
            status = self.fault(shards, gaussians, h) or self._smoothed(shards, h) or status
        return Combination(flat[evenly_spaced(len(flat), count)], status, diagnostics)

    def _steps(self, h: float) -> int:
        return math.ceil(h**-2) if self.thin is None else self.thin

    def _bandwidths(self, n: int, d: int) -> list[float]:
        """h = i^(-1/(4+d)) for i from 1 to n, evenly spaced in log i."""
        shares = np.linspace(0, 1, self.stages) if self.stages > 1 else np.ones(1)
        return [self.bandwidth * float(n) ** float(-share / (4 + d)) for share in shares]

    def _smoothed(self, shards: Shards, h: float) -> Status | None:
        left = unfollowed(shards, h)
        if not left:
            return None
        remedy = "draw more, or lower bandwidth if chains mix"
        return Status(StatusCode.WIDE_KERNEL, f"kernels of {h:.2f} sds are too wide to follow {left}, {remedy}.")


def _mixed(found: KernelDiagnostics, count: int) -> Status:
    """Whether the chains mixed."""
    r_hat, ess = max(found.r_hat_theta, found.r_hat_log_density), min(found.ess_theta, found.ess_log_density)
    # The customary limit of R̂ (Gelman & Rubin 1992).
    if not r_hat < 1.1:
        remedy = "raise thin or bandwidth, or use Parametric() or Weierstrass()"
        return Status(StatusCode.UNMIXED, f"the chains over draws disagree (split R-hat {r_hat:.2f}): {remedy}.")
    # With 100 effective draws a mean has a standard error of 0.1 sd. Judgement.
    if ess < min(100, count / 2):
        text = f"the chains have only {ess:,.0f} effective draws: raise thin or num_samples."
        return Status(StatusCode.FEW_EFFECTIVE, text)
    mixed = f"split R-hat {r_hat:.3f}, {ess:,.0f} effective"
    text = f"mixed: {count:,} draws with kernels of {found.bandwidth:.2f} sds ({mixed})."
    return Status(StatusCode.MIXED, text)


def _diagnose(kept: Kept, h: float, thin: int) -> KernelDiagnostics:
    sd, one = np.std(kept.theta, axis=(0, 1)), np.ones(1)
    return KernelDiagnostics(
        bandwidth=h,
        thin=thin,
        r_hat_theta=float(np.max(split_r_hat(kept.theta, sd))),
        r_hat_log_density=float(split_r_hat(kept.log_density, one)[0]),
        ess_theta=float(np.min(effective_size(kept.theta, sd))),
        ess_log_density=float(effective_size(kept.log_density, one)[0]),
    )
