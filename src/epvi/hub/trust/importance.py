"""Importance weights of scored draws: how good a posterior is, and what it comes to when it is corrected.

Takes a `Proposal` and the log joint at its draws; gives `Weights`. With w ∝ p/g and v ∝ q/g, both normalised over the
draws, an expectation under p is that under q, which is known, plus Σ (w − v) h: where q is p nothing is left of the
noise. PSIS (Vehtari et al. 2024) smooths the largest weights and tells by k̂ how heavy their tail is.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.hub.trust.propose import Proposal

# Weights below exp of this of the largest are none.
_NOTHING = -600.0


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """`corrected` are w and `own` are v, normalised; `ess` is the effective number of draws under w.

    `efficiency` is that relative to v's, `tail` the share of the weight of the draws that k̂ is about. `shift` is by how
    many sds each mean moves under w, `sd_ratio` what becomes of each sd, `noise` the standard error of the shifts.
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


def weigh(proposal: Proposal, log_p: Float[np.ndarray, " S"], q: GaussianMixture) -> Weights:
    """The weights of all draws."""
    log_w = log_p - proposal.log_g
    log_v = proposal.log_q - proposal.log_g
    smooth, k_hat = _smoothed(log_w)
    corrected, own = softmax(smooth), softmax(log_v)
    ess = float(1 / np.sum(corrected**2))
    shift, sd_ratio, noise = _moved(proposal.theta, corrected, own, q)
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
        log_evidence=_log_evidence(log_w, log_v),
    )


def _tail_length(n: int) -> int:
    """How many of the largest weights PSIS looks at."""
    return int(np.ceil(min(0.2 * n, 3 * np.sqrt(n))))


def _smoothed(log_w: Float[np.ndarray, " S"]) -> tuple[Float[np.ndarray, " S"], float]:
    # Pandas and xarray come with it where they are installed.
    from arviz_stats.base.array import array_stats

    # Without a floor of their own, draws of no weight would make NaN.
    floored = np.maximum(log_w - np.max(log_w), _NOTHING)
    if np.ptp(floored) < 1e-9:
        return floored, -np.inf
    # It takes log likelihoods, as for leaving rows out, where the weights are their inverses.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        smooth, k_hat = array_stats.psislw(-floored)
    # One draw that has all of the weight leaves no tail to fit.
    if not np.all(np.isfinite(smooth)) or not np.isfinite(k_hat):
        return floored, np.inf
    return np.asarray(smooth, np.float64), float(k_hat)


def _moved(
    theta: np.ndarray, w: np.ndarray, v: np.ndarray, q: GaussianMixture
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By how many sds means move, by which factor sds, and the standard error of the first."""
    z = (theta - np.asarray(q.mean())) / np.asarray(q.sd())
    shift = (w - v) @ z
    # The variance of z under q is 1.
    variance = 1 + (w - v) @ z**2 - shift**2
    noise = np.sqrt((w - v) ** 2 @ (z - shift) ** 2)
    return shift, np.sqrt(np.maximum(variance, 1e-12)), noise


def _elbo(proposal: Proposal, log_p: np.ndarray) -> Estimate:
    """E_q[log p − log q], from the posterior's own draws."""
    ratio = (log_p - proposal.log_q)[: proposal.num_own]
    if not np.all(np.isfinite(ratio)):
        return Estimate(np.asarray(-np.inf), np.asarray(np.inf))
    return Estimate(np.asarray(np.mean(ratio)), np.asarray(np.std(ratio, ddof=1) / np.sqrt(len(ratio))))


def _log_evidence(log_w: np.ndarray, log_v: np.ndarray) -> Estimate:
    """log ∫ p: the mean of p/g over that of q/g, whose expectation is 1 and whose noise is the same where q is p."""
    ratio = float(np.asarray(logsumexp(log_w)) - np.asarray(logsumexp(log_v)))
    relative = np.exp(log_w - ratio) - np.exp(log_v)
    return Estimate(np.asarray(ratio), np.asarray(np.std(relative, ddof=1) / np.sqrt(len(relative))))
