"""The entropy lower bound of a uniform mixture, its derivatives, and the covariances that maximise L2, in plain NumPy.

With S_kj = Σ_k + Σ_j, the bound of Gershman, Hoffman & Blei (2012), generalised to any covariance structure, is

    E = −(1/K) Σ_k log (1/K) Σ_j N(μ_k; μ_j, S_kj)

K is small and no rows are involved, so nothing here is compiled.
"""

import contextlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from epvi.gaussian.packing import Packing

_LOG_2PI = float(np.log(2 * np.pi))


class Overlap(NamedTuple):
    """E and the terms of its derivatives."""

    # E, in nats: minus the average of log q_k.
    bound: float
    # log q_k = log (1/K) Σ_j N(μ_k; μ_j, S_kj).
    logs: Float[np.ndarray, " K"]
    # Responsibilities r_kj = N(μ_k; μ_j, S_kj) / Σ_i N(μ_k; μ_i, S_ki).
    shares: Float[np.ndarray, "K K"]
    # S_kj⁻¹, packed.
    inverses: np.ndarray
    # a_kj = S_kj⁻¹(μ_k − μ_j).
    slopes: Float[np.ndarray, "K K d"]


def overlap(packing: Packing, means: np.ndarray, covariances: np.ndarray) -> Overlap:
    """The entropy lower bound of the uniform mixture of these components."""
    k, d = means.shape
    sums = covariances[:, None] + covariances[None, :]
    inverses, log_dets = packing.inverse(sums), packing.log_det(sums, d)
    delta = means[:, None] - means[None, :]
    slopes = packing.times(inverses, delta)
    logs = -0.5 * (np.sum(delta * slopes, axis=-1) + log_dets + d * _LOG_2PI)
    # In place of SciPy's logsumexp, whose checks take longer than all of this; no term is infinite.
    most = logs.max(axis=1)
    terms = np.exp(logs - most[:, None])
    sums = terms.sum(axis=1)
    own = most + np.log(sums / k)
    return Overlap(-float(own.mean()), own, terms / sums[:, None], inverses, slopes)


def mean_gradient(at: Overlap) -> Float[np.ndarray, "K d"]:
    """∂E/∂μ_i = (1/K) Σ_j (r_ij + r_ji) a_ij."""
    return np.einsum("ij,ijd->id", at.shares + at.shares.T, at.slopes) / len(at.shares)


def covariance_gradient(packing: Packing, at: Overlap) -> np.ndarray:
    """∂E/∂Σ_i = −(1/K) Σ_j (r_ij + r_ji) ½(a_ij a_ijᵀ − S_ij⁻¹), packed."""
    k, d = at.slopes.shape[1:]
    slopes = packing.overlap_gradient(at.slopes, at.inverses, d)
    return -np.einsum("ij,ij...->i...", at.shares + at.shares.T, slopes) / k


def mean_hessian(packing: Packing, at: Overlap) -> Float[np.ndarray, "D D"]:
    """∂²E/∂μ∂μ over all means, (K·d, K·d).

    The Hessian of log Σ_j N_kj is Σ_j r_kj (g_kj g_kjᵀ + ∇²log N_kj) − ḡ_k ḡ_kᵀ. There g_kj = ∇log N_kj is −a_kj for
    μ_k and a_kj for μ_j, and ḡ_k = Σ_j r_kj g_kj.
    """
    k, d = at.slopes.shape[1:]
    shares = np.where(np.eye(k, dtype=bool), 0.0, at.shares)
    # r_ij (a_ij a_ijᵀ − S_ij⁻¹) enters the blocks (i, i) and (j, j), and with the other sign (i, j) and (j, i).
    outer = at.slopes[..., :, None] * at.slopes[..., None, :] - packing.dense(at.inverses, d)
    pairs = shares[..., None, None] * outer
    pairs = pairs + np.swapaxes(pairs, 0, 1)
    total = -np.swapaxes(pairs, 1, 2)
    total[np.arange(k), :, np.arange(k), :] += np.sum(pairs, axis=1)
    average = shares[..., None] * at.slopes
    average[np.arange(k), np.arange(k)] -= np.sum(average, axis=1)
    average = average.reshape(k, k * d)
    return -(total.reshape(k * d, k * d) - average.T @ average) / k


def best_covariances(packing: Packing, means: np.ndarray, precisions: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The covariances that maximise L2 at these means, given positive-definite curvatures Λ = −H.

    They are parametrised as Σ_k = C_k T_k T_kᵀ C_kᵀ with C_k C_kᵀ = Λ_k⁻¹: then ½ tr Σ_k H_k = −½|T_k|², and the
    problem is well scaled. L-BFGS starts from Λ⁻¹ or from the covariances `start`, whichever has the higher L2.
    """
    k, d = means.shape
    roots = packing.covariance_root(precisions)
    if k == 1:
        # −½|T|² + log|T| has its maximum at T = I.
        return packing.grown(roots, np.zeros_like(precisions))

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        t = flat.reshape(precisions.shape)
        covariances = packing.grown(roots, t)
        at = overlap(packing, means, covariances)
        value = np.mean(packing.growth_trace(t, d)) + at.bound
        # `grown_gradient` adds the trace term's gradient without the factor 1/K that the bound's gradient already has.
        slope = packing.grown_gradient(roots, t, k * covariance_gradient(packing, at), d) / k
        return -float(value), -slope.ravel()

    # Sds within e^±15, about 3 million, times those of the curvature: keeps exp finite. Judgement.
    bounds = [(-15.0, 15.0)] * precisions.size
    guesses = [np.zeros_like(precisions)]
    with contextlib.suppress(np.linalg.LinAlgError):  # a start that cannot be factored is skipped
        guesses.append(packing.growth(roots, start))
    guess = min(guesses, key=lambda t: loss(t.ravel())[0])
    # Tolerances far below that of the sweeps (1e-4 nats), since no pass over rows is needed here. Judgement.
    found = minimize(
        loss, guess.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12, "gtol": 1e-7}
    )
    return packing.grown(roots, found.x.reshape(precisions.shape))
