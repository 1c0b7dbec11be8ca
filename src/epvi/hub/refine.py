"""Further rounds: natural-gradient steps on the ELBO of all rows, each confirmed or undone by the next answers.

Takes the shards' expected values, gradients and Hessians under the Gaussians c of the posterior q, one per mode with
weights π_c; gives the Gaussians of the next round. With step size ρ and log p = Σ_m log p_m:

    Λ_c ← Λ_c − ρ E_c[∇² log p − ∇² log q],  μ_c ← μ_c + ρ Λ_c⁻¹ E_c[∇ log p − ∇ log q],
    log π_c ← log π_c + ρ E_c[log p − log q] + const

All expectations are averages over the same base draws in every round, so that what a step gains is known from pairs.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

from epvi.draws import mapped
from epvi.errors import EpviError
from epvi.hub.answered import Answered, collect
from epvi.hub.asking import base_of
from epvi.hub.certify import Certificate, certificate_of
from epvi.hub.normals import log_components
from epvi.hub.product import ProductMixture
from epvi.hub.verdict import when_refined
from epvi.mixture import Estimate, GaussianMixture
from epvi.scores import Expected, Scores
from epvi.status import Status
from epvi.structure import Full

if TYPE_CHECKING:
    from epvi.hub.posterior import Posterior

# A step that moves the posterior by less than this, in nats, is not worth a round: 0.03 sds of one parameter.
WORTH = 5e-4
# No precision changes by more than this factor in one step, in any direction.
_MOST = 1e4
# A mean moves by at most so many sds in one step.
_LONGEST = 10.0
# Steps below this size are given up.
_LEAST_RATE = 0.1
# How near base draws are that were made again.
_SAME_DRAWS = 1e-6
# Modes that turn out lighter than this are dropped, as most stray ones are.
_LIGHTEST = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Gaussians with base draws, and what all shards together said of them."""

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
        """E_c ∇ log q (C, d) and E_c ∇² log q (C, d, d) or its diagonal (C, d)."""
        means, roots = np.asarray(self.gaussians.means), np.asarray(self.gaussians.roots)
        dense = isinstance(self.gaussians.structure, Full)
        precisions = roots @ np.swapaxes(roots, 1, 2) if dense else roots**2
        if len(means) == 1:
            # The base draws' mean is zero.
            return np.zeros_like(means), -precisions
        r = softmax(self._logs(), axis=-1)
        slopes = [self._slopes(c, means, precisions) for c in range(len(means))]
        gradients, hessians = [], []
        for own, slope in zip(r, slopes, strict=True):
            whole = np.einsum("rj,rjd->rd", own, slope)
            gradients.append(np.mean(whole, axis=0))
            average = np.mean(own, axis=0)
            if dense:
                outer = np.einsum("rj,rja,rjb->ab", own, slope, slope) - whole.T @ whole
            else:
                outer = np.einsum("rj,rja->a", own, slope**2) - np.sum(whole**2, axis=0)
            hessians.append(outer / len(own) - np.tensordot(average, precisions, axes=1))
        return np.stack(gradients), np.stack(hessians)

    def _slopes(self, c: int, means: np.ndarray, precisions: np.ndarray) -> Float[np.ndarray, "R C d"]:
        """−Λ_j(θ − μ_j) at the draws of Gaussian c, for every j."""
        away = mapped(self.gaussians, self.base)[c][:, None] - means
        if precisions.ndim == 3:
            return -np.einsum("rja,jab->rjb", away, precisions)
        return -away * precisions

    def _logs(self) -> Float[np.ndarray, "C R C"]:
        return np.stack([log_components(self.gaussians, own) for own in mapped(self.gaussians, self.base)])


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """Where a refinement is: after how many rounds, with which step size, and what was before the last step.

    `gained` are the nats that confirmed steps have gained. Without `before` no step is waiting to be confirmed; with
    it, `mixture` and `certificate` are the posterior's as it was, to go back to.
    """

    rounds: int
    rate: float
    gained: float
    before: Moments | None = None
    mixture: GaussianMixture | None = None
    certificate: Certificate | None = None


def refine(posterior: "Posterior", scores: Iterable[Scores], *, accept_missing: bool = False) -> "Posterior":
    """Take the answers to a posterior's draws: confirm or undo its last step, and take the next.

    The posterior that comes back has draws for the sites to score again, unless `posterior.step.before` is None: then
    nothing was left to improve, and it has its certificate.
    """
    answered = collect(posterior, scores)
    return advance(posterior, answered, certificate_of(posterior, answered, accept_missing))


def settle(posterior: "Posterior", scores: Iterable[Scores], *, accept_missing: bool = False) -> "Posterior":
    """Take the answers to a posterior's draws and take no further step: its last one is confirmed or undone."""
    answered = collect(posterior, scores)
    return confirmed(posterior, answered, certificate_of(posterior, answered, accept_missing))[0]


def advance(posterior: "Posterior", answered: Answered, certificate: Certificate, worth: float = WORTH) -> "Posterior":
    """The posterior of the next round, or the one to stay with when the step would not be worth it."""
    stays, moments = confirmed(posterior, answered, certificate)
    if moments is None:
        raise EpviError(
            "the scores hold no moments, which a refinement needs: have the sites score draws that ask for them"
            " (posterior.ask(), epvi certify --draws)."
        )
    step = stays.step or Step(0, 1.0, 0.0)
    if step.rate < _LEAST_RATE:
        return finished(stays)
    after = stepped(moments, step.rate)
    if after is None:
        return finished(stays)
    kept = np.asarray(after.log_weights) >= np.log(_LIGHTEST)
    if divergence(_only(moments.gaussians, kept), _only(after, kept)) < worth:
        return finished(stays)
    after = _only(after, kept)
    waiting = Step(step.rounds + 1, step.rate, step.gained, moments, stays.mixture, stays.certificate)
    return _with(stays, after, waiting, None)


def finished(posterior: "Posterior") -> "Posterior":
    """The posterior that no further round will improve: its verdict says so."""
    found = posterior.certificate
    if found is None:
        return posterior
    return posterior.with_certificate(dataclasses.replace(found, text=when_refined(posterior, found.text)))


def confirmed(
    posterior: "Posterior", answered: Answered, certificate: Certificate
) -> tuple["Posterior", Moments | None]:
    """The posterior after its last step was confirmed or undone, and its moments."""
    moments = moments_of(posterior, answered)
    step = posterior.step
    if step is not None and step.before is not None and moments is not None:
        _check_pairs(step.before, moments, answered.scores[0])
    if step is None or step.before is None:
        return dataclasses.replace(posterior, certificate=certificate), moments
    settled = dataclasses.replace(step, before=None, mixture=None, certificate=None)
    gain = _gain(step, moments, certificate)
    if gain > 0:
        kept = dataclasses.replace(settled, rate=1.0, gained=step.gained + gain)
        return _with(posterior, posterior.mixture, kept, certificate), moments
    undone = dataclasses.replace(settled, rate=0.5 * step.rate)
    mixture = step.before.gaussians if step.mixture is None else step.mixture
    return _with(posterior, mixture, undone, step.certificate), step.before


def moments_of(posterior: "Posterior", answered: Answered) -> Moments | None:
    """What the shards together said of the posterior's Gaussians."""
    if answered.moments is None:
        return None
    base = base_of(answered.scores[0].asked, posterior.space.dim)
    return Moments(answered.proposal.modes, base, answered.moments)


def _check_pairs(before: Moments, after: Moments, one: Scores) -> None:
    """Refuse answers that cannot be set beside those before the last step, draw by draw."""
    if before.base.shape != after.base.shape or np.any(np.abs(before.base - after.base) > _SAME_DRAWS):
        raise EpviError(
            f"{one.called} answers draws of another seed than those before the last step, with which they are compared:"
            " have the sites score draws of the same seed (those that epvi refine wrote)."
        )


def _gain(step: Step, after: Moments | None, now: Certificate) -> float:
    """How many nats the step gained: by pairs of base draws, as far as the certificates' own draws allow it."""
    assert step.before is not None
    if step.certificate is None:
        return float(paired_difference(step.before, after).value) if after is not None else 0.0
    now_bound, then_bound = now.elbo, step.certificate.elbo
    noise = 2 * float(np.hypot(now_bound.standard_error, then_bound.standard_error))
    told = float(now_bound.value) - float(then_bound.value)
    if not np.isfinite(now_bound.value):
        return -np.inf
    if not np.isfinite(then_bound.value):
        return np.inf if after is None else float(paired_difference(step.before, after).value)
    if after is None:
        return told
    # Steps may suit the base draws better than the posterior: other draws must not deny it.
    return min(float(paired_difference(step.before, after).value), told + noise)


def paired_difference(before: Moments, after: Moments) -> Estimate:
    """What the ELBO gained, with its standard error over base draws, each with its mirror image."""
    difference = after.bounds() - before.bounds()
    pairs = difference.reshape(2, -1).mean(axis=0)
    return Estimate(np.asarray(np.mean(pairs)), np.asarray(np.std(pairs, ddof=1) / np.sqrt(len(pairs))))


def stepped(moments: Moments, rate: float) -> GaussianMixture | None:
    """The Gaussians after a natural-gradient step; None where what the shards said is not finite."""
    gaussians, (gradient, hessian) = moments.gaussians, moments.of_log_q()
    g = moments.expected.gradient - gradient
    h = moments.expected.hessian - hessian
    means, covariances = [], []
    for mean, root, slope, bend in zip(np.asarray(gaussians.means), np.asarray(gaussians.roots), g, h, strict=True):
        moved = _one_step(mean, root, rate * slope, rate * bend)
        if not all(np.all(np.isfinite(part)) for part in moved):
            return None
        means.append(moved[0])
        covariances.append(moved[1])
    log_weights = np.asarray(gaussians.log_weights) + rate * np.mean(moments.gains(), axis=1)
    return GaussianMixture.from_covariances(np.stack(means), np.stack(covariances), softmax(log_weights))


def _only(mixture: GaussianMixture, kept: np.ndarray) -> GaussianMixture:
    """Some of the Gaussians, with weights that sum to 1."""
    log_weights, means, roots = (np.asarray(x)[kept] for x in (mixture.log_weights, mixture.means, mixture.roots))
    return GaussianMixture(log_weights - logsumexp(log_weights), means, roots, mixture.structure)


def _one_step(mean: np.ndarray, root: np.ndarray, slope: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and covariance of one Gaussian after Λ' = Λ − bend, μ' = μ + Λ'⁻¹ slope."""
    if root.ndim == 1:
        ratio = np.clip(1 - bend / root**2, 1 / _MOST, _MOST)
        variance = 1 / (root**2 * ratio)
        step = variance * slope
        return mean + _capped(step, root * step), variance
    # In units of its own sds, L⁻¹ Λ' L⁻ᵀ, eigenvalues are what precisions change by.
    half = np.linalg.solve(root, np.linalg.solve(root, bend).T)
    values, vectors = np.linalg.eigh(np.eye(len(mean)) - 0.5 * (half + half.T))
    units = np.linalg.solve(root.T, vectors / np.sqrt(np.clip(values, 1 / _MOST, _MOST)))
    covariance = units @ units.T
    step = covariance @ slope
    return mean + _capped(step, root.T @ step), 0.5 * (covariance + covariance.T)


def _capped(step: np.ndarray, white: np.ndarray) -> np.ndarray:
    """The step, not longer than so many sds: what is farther is not known from here."""
    return step * min(1.0, _LONGEST / max(float(np.linalg.norm(white)), 1e-300))


def divergence(a: GaussianMixture, b: GaussianMixture) -> float:
    """KL(a‖b) in nats, Gaussian by Gaussian, with that of the weights."""
    total = 0.0
    dense = isinstance(a.structure, Full)
    listed = zip(
        *(np.asarray(x) for x in (a.log_weights, a.means, a.roots, b.log_weights, b.means, b.roots)), strict=True
    )
    for log_a, mean_a, root_a, log_b, mean_b, root_b in listed:
        delta = mean_b - mean_a
        if dense:
            # Lᵀ_b L⁻ᵀ_a, whose squared entries sum to tr Λ_b Σ_a.
            ratio = np.linalg.solve(root_a, root_b)
            trace, white = float(np.sum(ratio**2)), delta @ root_b
            log_ratio = np.sum(np.log(np.diagonal(root_b))) - np.sum(np.log(np.diagonal(root_a)))
        else:
            trace, white = float(np.sum((root_b / root_a) ** 2)), delta * root_b
            log_ratio = np.sum(np.log(root_b)) - np.sum(np.log(root_a))
        own = 0.5 * (trace - len(mean_a) + white @ white) - log_ratio
        total += float(np.exp(log_a) * (own + log_a - log_b))
    return total


def _with(
    posterior: "Posterior", gaussians: GaussianMixture, step: Step, certificate: Certificate | None
) -> "Posterior":
    """The posterior with these Gaussians in the place of its own."""
    count = "one Gaussian" if gaussians.num_components == 1 else f"{gaussians.num_components} Gaussians"
    rounds = f"{step.rounds} round{'s' if step.rounds != 1 else ''}"
    if step.before is None:
        status = Status(True, f"refined: {count} after {rounds}, {step.gained:.3g} nats better than the product.")
    else:
        status = Status(False, f"{count} after {rounds}: the last step is not confirmed yet; have the sites score it.")
    product = ProductMixture(gaussians, None, None, status)
    return dataclasses.replace(posterior, product=product, step=step, certificate=certificate)
