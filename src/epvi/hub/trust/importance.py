"""Importance weights of scored draws, and the corrected means and sds that follow from them.

Takes a `Proposal` with density g, the log joint density p at its draws, and the posterior q; gives `Weights`. With
w ∝ p/g and v ∝ q/g, both normalised over the draws, E_p h is estimated by E_q h + Σ (w − v) h: E_q h is known exactly
and serves as a control variate, so that the Monte Carlo error vanishes where q = p. PSIS (Vehtari et al. 2024) smooths
the largest weights and estimates the Pareto shape k̂ of their tail.

If units of the model are exchangeable, p has a copy of everything in each of their labellings, and q approximates one:
p is then restricted to the labelling nearest to q (`OneLabelling`), and draws in another have no weight. The evidence
is that of all labellings.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.hub.trust.pareto import pareto_smoothed
from epvi.hub.trust.propose import Proposal
from epvi.parameters.one_labelling import OneLabelling
from epvi.parameters.space import Space

# Log weights are floored at this, relative to the largest: exp(-600) is about 1e-261, nothing beside 1, but not yet the
# underflow to 0 (below exp(-745)) that gives NaN in PSIS.
_NOTHING = -600.0


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """Importance weights and what follows from them.

    Attributes:
        corrected: w, normalised and smoothed by PSIS.
        own: v, normalised: the weights if the posterior q were exact.
        ess: effective sample size 1 / Σ w².
        efficiency: `ess` relative to that of v.
        k_hat: Pareto shape k̂ of the tail of w; −inf for equal weights, inf when it cannot be estimated.
        tail: sum of the weights to which the Pareto tail was fitted.
        shift: change of every mean under w, in sds of q.
        sd_ratio: corrected sd over that of q, by coordinate.
        noise: standard errors of `shift`.
        elbo: E_q[log p − log q] with its standard error.
        log_evidence: log ∫ p with its standard error.
        log_labellings: log of the number of labellings of exchangeable units, each with the same part of the evidence.
    """

    corrected: Float[np.ndarray, " S"]
    own: Float[np.ndarray, " S"]
    ess: float
    efficiency: float
    k_hat: float
    tail: float
    shift: Float[np.ndarray, " d"]
    sd_ratio: Float[np.ndarray, " d"]
    noise: Float[np.ndarray, " d"]
    elbo: Estimate
    log_evidence: Estimate
    log_labellings: float = 0.0


def weigh(proposal: Proposal, log_p: Float[np.ndarray, " S"], q: GaussianMixture, space: Space) -> Weights:
    """The importance weights of all draws, with their diagnostics."""
    log_w, log_count = log_p - proposal.log_g, 0.0
    if space.exchangeable:
        one = OneLabelling.around(q, space)
        log_w, log_count = np.where(one.has(proposal.theta), log_w, -np.inf), one.log_count
    log_v = proposal.log_q - proposal.log_g
    smooth, k_hat = _smoothed(log_w)
    corrected, own = softmax(smooth), softmax(log_v)
    ess = float(1 / np.sum(corrected**2))
    shift, sd_ratio, noise = moved(proposal.theta, corrected, own, q)
    return Weights(
        corrected=corrected,
        own=own,
        ess=ess,
        efficiency=ess * float(np.sum(own**2)),
        k_hat=k_hat,
        tail=float(np.sum(np.sort(corrected)[-_tail_length(len(corrected)) :])),
        shift=shift,
        sd_ratio=sd_ratio,
        noise=noise,
        elbo=_elbo(proposal, log_p),
        log_evidence=_log_evidence(log_w + log_count, log_v),
        log_labellings=log_count,
    )


def _tail_length(n: int) -> int:
    """How many of the largest weights PSIS fits the Pareto tail to (Vehtari et al. 2024): min(n/5, 3√n)."""
    return int(np.ceil(min(0.2 * n, 3 * np.sqrt(n))))


def _smoothed(log_w: Float[np.ndarray, " S"]) -> tuple[Float[np.ndarray, " S"], float]:
    floored = np.maximum(log_w - np.max(log_w), _NOTHING)
    if np.ptp(floored) < 1e-9:
        return floored, -np.inf
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        smooth, k_hat = pareto_smoothed(floored)
    # With all weight on one draw there is no tail to fit.
    if not np.all(np.isfinite(smooth)) or not np.isfinite(k_hat):
        return floored, np.inf
    return smooth, k_hat


def moved(
    theta: np.ndarray, w: np.ndarray, v: np.ndarray, q: GaussianMixture
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shifts of the means in sds of q, ratios of the sds, and the standard errors of the shifts."""
    z = (theta - np.asarray(q.mean())) / np.asarray(q.sd())
    shift = (w - v) @ z
    # Var_q z = 1 by construction.
    variance = 1 + (w - v) @ z**2 - shift**2
    noise = np.sqrt((w - v) ** 2 @ (z - shift) ** 2)
    return shift, np.sqrt(np.maximum(variance, 1e-12)), noise


def _elbo(proposal: Proposal, log_p: np.ndarray) -> Estimate:
    """E_q[log p − log q], from the draws that came from q itself."""
    ratio = (log_p - proposal.log_q)[: proposal.num_own]
    if not np.all(np.isfinite(ratio)):
        return Estimate(np.asarray(-np.inf), np.asarray(np.inf))
    return Estimate(np.asarray(np.mean(ratio)), np.asarray(np.std(ratio, ddof=1) / np.sqrt(len(ratio))))


def _log_evidence(log_w: np.ndarray, log_v: np.ndarray) -> Estimate:
    """log ∫ p, estimated by the log of Σ p/g over Σ q/g.

    The denominator has a known expectation (n, since ∫ q = 1) and serves as a control: where q ∝ p the errors cancel.
    """
    ratio = float(np.asarray(logsumexp(log_w)) - np.asarray(logsumexp(log_v)))
    relative = np.exp(log_w - ratio) - np.exp(log_v)
    return Estimate(np.asarray(ratio), np.asarray(np.std(relative, ddof=1) / np.sqrt(len(relative))))
