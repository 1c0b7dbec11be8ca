"""Natural-gradient steps on the ELBO of a Gaussian mixture with one component per mode, and the ELBO that they gain.

Takes the shards' expected values, gradients and Hessians of log p_m under the components c of q, with weights π_c;
gives the mixture of the next round. With step size ρ and log p = Σ_m log p_m:

    Λ_c ← Λ_c − ρ E_c[∇² log p − ∇² log q],  μ_c ← μ_c + ρ Λ_c⁻¹ E_c[∇ log p − ∇ log q],
    log π_c ← log π_c + ρ E_c[log p − log q] + const

All expectations are averages over the same base draws in every round (common random numbers), so that differences of
the ELBO between rounds have small standard errors.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp, softmax

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.quasi_random import log_components
from epvi.wire.answer import Expected
from epvi.wire.request import mapped

# In one step the precision in any direction grows at most by the first factor. Where the expected curvature is not
# positive-definite, it shrinks at most by the second, or by 1 − ρ if that is larger, as no precision would be right
# there. Judgement; with 10⁻⁴ for the second, source analyses with 90 rows a shard had most steps undone.
_MOST, _LEAST = 1e4, 0.2
# The longest move of a mean in one step, in sds (Mahalanobis). Judgement: expectations under q say nothing beyond.
_LONGEST = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class JointMoments:
    """Expectations of log p and its derivatives under Gaussians.

    Attributes:
        gaussians: the components of q.
        base: standard normal base draws z, mapped to θ = μ + L⁻ᵀz for each component.
        expected: log p at every mapped draw, and its average gradient and Hessian, summed over all shards.
    """

    gaussians: GaussianMixture
    base: Float[np.ndarray, "R d"]
    expected: Expected

    def gains(self) -> Float[np.ndarray, "C R"]:
        """log p − log q at every base draw of every Gaussian."""
        return self.expected.values - logsumexp(self._logs(), axis=-1)

    def bounds(self) -> Float[np.ndarray, " R"]:
        """Σ_c π_c (log p − log q) at every base draw: their mean is the ELBO."""
        return np.exp(np.asarray(self.gaussians.log_weights)) @ self.gains()

    def of_log_q(self) -> tuple[np.ndarray, np.ndarray]:
        """E_c ∇ log q (C, d) and E_c ∇² log q, packed."""
        means, packing = np.asarray(self.gaussians.means), self.gaussians.structure.packing
        precisions = packing.precision(np.asarray(self.gaussians.roots))
        if len(means) == 1:
            # The gradient of log q is linear and the base draws have mean zero.
            return np.zeros_like(means), -precisions
        r = softmax(self._logs(), axis=-1)
        slopes = [self._slopes(c, means, precisions) for c in range(len(means))]
        gradients, hessians = [], []
        for own, slope in zip(r, slopes, strict=True):
            whole = np.einsum("rj,rjd->rd", own, slope)
            gradients.append(np.mean(whole, axis=0))
            average = np.mean(own, axis=0)
            outer = packing.outer(own.ravel(), slope.reshape(own.size, -1)) - packing.outer(np.ones(len(own)), whole)
            hessians.append(outer / len(own) - np.tensordot(average, precisions, axes=1))
        return np.stack(gradients), np.stack(hessians)

    def _slopes(self, c: int, means: np.ndarray, precisions: np.ndarray) -> Float[np.ndarray, "R C d"]:
        """−Λ_j(θ − μ_j) at the draws of Gaussian c, for every j."""
        away = mapped(self.gaussians, self.base)[c][:, None] - means
        return -self.gaussians.structure.packing.times(precisions, away)

    def _logs(self) -> Float[np.ndarray, "C R C"]:
        return np.stack([log_components(self.gaussians, own) for own in mapped(self.gaussians, self.base)])


def paired_difference(before: JointMoments, after: JointMoments) -> Estimate:
    """The gain in ELBO, with its standard error over antithetic pairs of base draws."""
    difference = after.bounds() - before.bounds()
    pairs = difference.reshape(2, -1).mean(axis=0)
    return Estimate(np.asarray(np.mean(pairs)), np.asarray(np.std(pairs, ddof=1) / np.sqrt(len(pairs))))


def stepped(moments: JointMoments, rate: float) -> GaussianMixture | None:
    """The mixture after a natural-gradient step; None where a mean or covariance would not be finite."""
    gaussians, (gradient, hessian) = moments.gaussians, moments.of_log_q()
    structure, packing = gaussians.structure, gaussians.structure.packing
    g = moments.expected.gradient - gradient
    h = moments.expected.hessian - hessian
    means, covariances = [], []
    for mean, root, slope, bend in zip(np.asarray(gaussians.means), np.asarray(gaussians.roots), g, h, strict=True):
        covariance = packing.relaxed(root, bend, rate, _LEAST, _MOST)
        step = packing.times(covariance, rate * slope)
        moved = mean + _capped(step, packing.whiten(root, step[None])[0]), packing.symmetrised(covariance)
        if not all(np.all(np.isfinite(part)) for part in moved):
            return None
        means.append(moved[0])
        covariances.append(moved[1])
    log_weights = np.asarray(gaussians.log_weights) + rate * np.mean(moments.gains(), axis=1)
    packed = np.stack(covariances).reshape(len(means), *structure.user_shape(gaussians.dim))
    return GaussianMixture.from_covariances(np.stack(means), packed, softmax(log_weights), structure)


def only(mixture: GaussianMixture, kept: Bool[np.ndarray, " C"]) -> GaussianMixture:
    """The kept components, with their weights normalised."""
    log_weights, means, roots = (np.asarray(x)[kept] for x in (mixture.log_weights, mixture.means, mixture.roots))
    return GaussianMixture(log_weights - logsumexp(log_weights), means, roots, mixture.structure)


def _capped(step: np.ndarray, white: np.ndarray) -> np.ndarray:
    """The step, shortened to at most `_LONGEST` sds."""
    return step * min(1.0, _LONGEST / max(float(np.linalg.norm(white)), 1e-300))


def divergence(a: GaussianMixture, b: GaussianMixture) -> float:
    """An upper bound on KL(a‖b) in nats: that between components of equal index, averaged, plus that of the weights."""
    total, packing = 0.0, a.structure.packing
    listed = zip(
        *(np.asarray(x) for x in (a.log_weights, a.means, a.roots, b.log_weights, b.means, b.roots)), strict=True
    )
    for log_a, mean_a, root_a, log_b, mean_b, root_b in listed:
        own = packing.divergence(root_a, root_b, mean_b - mean_a)
        total += float(np.exp(log_a) * (own + log_a - log_b))
    return total
