"""What the ways share that estimate shards' densities by kernels (Neiswanger, Wang & Xing 2013): settings, and chains.

A kernel estimate is a mixture with one Gaussian per draw; `meeting.py` samples the product of M of them. The
bandwidth shrinks as in the paper's Algorithm 1, h = i^(-1/(4+d)) from i = 1 to i = n, in units of each shard's own
covariance. The paper keeps all that it draws on the way; here the wide kernels are burn-in, each stage going on where
the last ended, and all that is kept is of the narrowest: one target, on which chains can be compared.
"""

import abc
import dataclasses
import math

import jax
import numpy as np

from epvi.gaussian.structure import Structure
from epvi.ground.status import Status, StatusCode
from epvi.ground.validation import check_settings
from epvi.hub.product.mixing import effective_size, split_r_hat
from epvi.hub.samples.consensus import evenly_spaced
from epvi.hub.samples.meeting import Kept, Kernels, Meeting, check_memory
from epvi.hub.samples.method import Combination, DrawsMethod, Shards, check_covariance, generator, positive
from epvi.hub.samples.moments import DrawnGaussian, fit_gaussians
from epvi.hub.samples.shape import unfollowed

# Fewer kept a chain say too little of how well it mixed.
_PER_CHAIN = 50
# What a stage takes, in times that a chain needs to forget.
_BURN_IN = 5


@dataclasses.dataclass(frozen=True)
class KernelDiagnostics:
    """The last bandwidth, in sds of each shard, steps from one kept draw to the next, and how the chains mixed."""

    bandwidth: float
    thin: int
    r_hat_theta: float
    r_hat_log_density: float
    ess_theta: float
    ess_log_density: float


@dataclasses.dataclass(frozen=True)
class KernelMethod(DrawsMethod):
    """A way that estimates every shard's density with a kernel of h² times its covariance.

    `covariance` is `Diagonal()` or `Full()`, and h = `bandwidth` · i^(-1/(4+d)), where i goes from 1 to the number of
    draws in `stages` steps. Of `num_chains` chains every `thin`-th step is kept, about 1/h² when it is None, which is
    the time that a Gaussian product takes to forget where it was.
    """

    covariance: Structure
    bandwidth: float = 1.0
    stages: int = 10
    num_chains: int = 20
    thin: int | None = None

    def __post_init__(self) -> None:
        check_covariance(self.covariance)
        object.__setattr__(self, "bandwidth", positive("bandwidth", self.bandwidth))
        check_settings(self, stages=1, num_chains=1)
        if self.thin is not None:
            check_settings(self, thin=1)

    @abc.abstractmethod
    def kernels(self, draws: np.ndarray, gaussian: DrawnGaussian, h: float) -> Kernels:
        """The estimate of the density of a shard with these draws, to which this Gaussian was fitted."""

    @abc.abstractmethod
    def fault(self, shards: Shards, gaussians: list[DrawnGaussian], h: float) -> Status | None:
        """What kernels of h sds do wrong even to Gaussian shards, and what to do; None when nothing."""

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """What the chains kept at the last bandwidth, chain after chain."""
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
        remedy = "draw more, or lower bandwidth while chains mix"
        return Status(StatusCode.WIDE_KERNEL, f"kernels of {h:.2f} sds are too wide to follow {left}, {remedy}.")


def _mixed(found: KernelDiagnostics, count: int) -> Status:
    """Whether the chains are one sample of their target."""
    r_hat, ess = max(found.r_hat_theta, found.r_hat_log_density), min(found.ess_theta, found.ess_log_density)
    if not r_hat < 1.1:
        remedy = "raise thin or bandwidth, or use Parametric() or Weierstrass()"
        return Status(StatusCode.UNMIXED, f"the chains over draws disagree (split R-hat {r_hat:.2f}): {remedy}.")
    if ess < min(100, count / 2):
        text = f"only {ess:,.0f} effective draws of the chains: raise thin or num_samples."
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
