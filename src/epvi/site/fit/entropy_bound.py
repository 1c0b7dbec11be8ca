"""The entropy bound of a uniform mixture, its derivatives, and the variances that maximise L2, in plain NumPy.

With S_kj = Σ_k + Σ_j, the bound of Gershman, Hoffman & Blei (2012), generalised to any covariance structure, is

    E = −(1/K) Σ_k log (1/K) Σ_j N(μ_k; μ_j, S_kj)

K is small and no rows are involved, so nothing here is compiled.
"""

import abc
import contextlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import logsumexp

from epvi.gaussian.structure import Full, Structure
from epvi.site.derivatives.eigen import eigen_of, units_of

_LOG_2PI = float(np.log(2 * np.pi))


class Family(abc.ABC):
    """A covariance structure's arithmetic on stacks of packed covariances (1,), (d,) or (d, d)."""

    @abc.abstractmethod
    def inverse(self, packed: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Packed inverses, and log-determinants."""

    @abc.abstractmethod
    def apply(self, packed: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The matrix times x."""

    @abc.abstractmethod
    def gradient(self, a: np.ndarray, inverse: np.ndarray, d: int) -> np.ndarray:
        """∂ log N / ∂S = ½(a aᵀ − S⁻¹), packed, for a = S⁻¹δ."""

    @abc.abstractmethod
    def dense(self, packed: np.ndarray, d: int) -> np.ndarray:
        """A packed matrix as (d, d)."""

    @abc.abstractmethod
    def guarded(self, curvature: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
        """Positive precisions from curvatures −H, and which components needed it: L2 has no maximum without."""

    @abc.abstractmethod
    def root(self, precision: np.ndarray) -> np.ndarray:
        """C with C Cᵀ = Λ⁻¹."""

    @abc.abstractmethod
    def grown(self, root: np.ndarray, t: np.ndarray) -> np.ndarray:
        """The covariance C T Tᵀ Cᵀ, with T = exp(t), or triangular with an exponential diagonal."""

    @abc.abstractmethod
    def grown_gradient(self, root: np.ndarray, t: np.ndarray, gradient: np.ndarray, d: int) -> np.ndarray:
        """The gradient in t of ⟨gradient, C T Tᵀ Cᵀ⟩ − ½|T|², the trace term of L2 at the guarded curvature."""

    @abc.abstractmethod
    def trace_term(self, t: np.ndarray, d: int) -> np.ndarray:
        """−½|T|²: ½ tr Σ H at the guarded curvature."""

    @abc.abstractmethod
    def trace(self, covariance: np.ndarray, curvature: np.ndarray, d: int) -> np.ndarray:
        """½ tr Σ H for packed covariances and curvatures −H."""


class Elementwise(Family):
    """Spherical (one number) and diagonal (d numbers)."""

    def inverse(self, packed: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
        return 1 / packed, np.sum(np.log(packed), axis=-1) * (d / packed.shape[-1])

    def apply(self, packed: np.ndarray, x: np.ndarray) -> np.ndarray:
        return packed * x

    def gradient(self, a: np.ndarray, inverse: np.ndarray, d: int) -> np.ndarray:
        per_coordinate = 0.5 * (a**2 - inverse)
        return per_coordinate if inverse.shape[-1] == d else np.sum(per_coordinate, axis=-1, keepdims=True)

    def dense(self, packed: np.ndarray, d: int) -> np.ndarray:
        return np.diag(np.broadcast_to(packed, (d,)))

    def guarded(self, curvature: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
        return np.maximum(np.abs(curvature), 1e-290), np.any(curvature <= 0, axis=-1)

    def root(self, precision: np.ndarray) -> np.ndarray:
        return precision**-0.5

    def grown(self, root: np.ndarray, t: np.ndarray) -> np.ndarray:
        return (root * np.exp(t)) ** 2

    def grown_gradient(self, root: np.ndarray, t: np.ndarray, gradient: np.ndarray, d: int) -> np.ndarray:
        return 2 * gradient * self.grown(root, t) - np.exp(2 * t) * (d / t.shape[-1])

    def trace_term(self, t: np.ndarray, d: int) -> np.ndarray:
        return -0.5 * np.sum(np.exp(2 * t), axis=-1) * (d / t.shape[-1])

    def trace(self, covariance: np.ndarray, curvature: np.ndarray, d: int) -> np.ndarray:
        return -0.5 * np.sum(covariance * curvature, axis=-1) * (d / covariance.shape[-1])


class Dense(Family):
    """Full covariance matrices."""

    def inverse(self, packed: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.inv(packed), np.linalg.slogdet(packed)[1]

    def apply(self, packed: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.einsum("...ij,...j->...i", packed, x)

    def gradient(self, a: np.ndarray, inverse: np.ndarray, d: int) -> np.ndarray:
        return 0.5 * (a[..., :, None] * a[..., None, :] - inverse)

    def dense(self, packed: np.ndarray, d: int) -> np.ndarray:
        return packed

    def guarded(self, curvature: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
        units = units_of(curvature)
        eigenvalues = np.linalg.eigvalsh(curvature * units[..., :, None] * units[..., None, :])
        bad = np.any(eigenvalues < floor * np.max(np.abs(eigenvalues), axis=-1, keepdims=True), axis=-1)
        eigen = eigen_of(curvature, floor)
        spread = eigen.vectors / units[..., :, None]
        mended = (spread * eigen.size[..., None, :]) @ np.swapaxes(spread, -1, -2)
        return np.where(bad[..., None, None], mended, curvature), bad

    def root(self, precision: np.ndarray) -> np.ndarray:
        # By eigenvectors, because a guarded precision may be too nearly singular for Cholesky.
        eigen = eigen_of(precision, 1e-15)
        return eigen.vectors * eigen.units[..., :, None] / np.sqrt(eigen.size)[..., None, :]

    def grown(self, root: np.ndarray, t: np.ndarray) -> np.ndarray:
        spread = root @ self._triangle(t)
        return spread @ np.swapaxes(spread, -1, -2)

    def grown_gradient(self, root: np.ndarray, t: np.ndarray, gradient: np.ndarray, d: int) -> np.ndarray:
        triangle = self._triangle(t)
        slope = np.tril(2 * np.swapaxes(root, -1, -2) @ gradient @ root @ triangle - triangle)
        diagonal = np.arange(d)
        slope[..., diagonal, diagonal] *= triangle[..., diagonal, diagonal]
        return slope

    def trace_term(self, t: np.ndarray, d: int) -> np.ndarray:
        return -0.5 * np.sum(self._triangle(t) ** 2, axis=(-1, -2))

    def trace(self, covariance: np.ndarray, curvature: np.ndarray, d: int) -> np.ndarray:
        return -0.5 * np.sum(covariance * curvature, axis=(-1, -2))

    @staticmethod
    def _triangle(t: np.ndarray) -> np.ndarray:
        lower = np.tril(t, -1)
        diagonal = np.arange(t.shape[-1])
        lower[..., diagonal, diagonal] = np.exp(t[..., diagonal, diagonal])
        return lower


def family_of(structure: Structure) -> Family:
    """The arithmetic of a structure."""
    return Dense() if isinstance(structure, Full) else Elementwise()


class Overlap(NamedTuple):
    """E and what its derivatives are made of: r_kj, S_kj⁻¹, a_kj = S_kj⁻¹(μ_k − μ_j)."""

    bound: float
    shares: Float[np.ndarray, "K K"]
    inverses: np.ndarray
    slopes: Float[np.ndarray, "K K d"]


def overlap(family: Family, means: np.ndarray, covariances: np.ndarray) -> Overlap:
    """The entropy bound at these components."""
    k, d = means.shape
    inverses, log_dets = family.inverse(covariances[:, None] + covariances[None, :], d)
    delta = means[:, None] - means[None, :]
    slopes = family.apply(inverses, delta)
    logs = -0.5 * (np.sum(delta * slopes, axis=-1) + log_dets + d * _LOG_2PI)
    totals = np.asarray(logsumexp(logs, axis=1))
    return Overlap(float(np.log(k) - np.mean(totals)), np.exp(logs - totals[:, None]), inverses, slopes)


def mean_gradient(at: Overlap) -> Float[np.ndarray, "K d"]:
    """∂E/∂μ_i = (1/K) Σ_j (r_ij + r_ji) a_ij."""
    return np.einsum("ij,ijd->id", at.shares + at.shares.T, at.slopes) / len(at.shares)


def covariance_gradient(family: Family, at: Overlap) -> np.ndarray:
    """∂E/∂Σ_i = −(1/K) Σ_j (r_ij + r_ji) ½(a_ij a_ijᵀ − S_ij⁻¹), packed."""
    k, d = at.slopes.shape[1:]
    return -np.einsum("ij,ij...->i...", at.shares + at.shares.T, family.gradient(at.slopes, at.inverses, d)) / k


def mean_hessian(family: Family, at: Overlap) -> Float[np.ndarray, "D D"]:
    """∂²E/∂μ∂μ over all means, (K·d, K·d).

    Of log Σ_j N_kj it is Σ_j r_kj (g_kj g_kjᵀ + ∇²log N_kj) − ḡ_k ḡ_kᵀ, with g_kj = −a_kj at μ_k and a_kj at μ_j.
    """
    k, d = at.slopes.shape[1:]
    total = np.zeros((k, d, k, d))
    for i in range(k):
        pull = np.zeros((k, k, d))  # g_ij for every j, over all means
        pull[np.arange(k), np.arange(k)] = at.slopes[i]
        pull[:, i] -= at.slopes[i]
        flat = pull.reshape(k, k * d)
        average = at.shares[i] @ flat
        curved = (at.shares[i][:, None] * flat).T @ flat - np.outer(average, average)
        total += curved.reshape(k, d, k, d)
        for j in range(k):
            if i != j:
                precision = at.shares[i, j] * family.dense(at.inverses[i, j], d)
                total[i, :, i, :] -= precision
                total[j, :, j, :] -= precision
                total[i, :, j, :] += precision
                total[j, :, i, :] += precision
    return -total.reshape(k * d, k * d) / k


def best_covariances(family: Family, means: np.ndarray, precisions: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The covariances that maximise L2 at these means, given guarded curvatures Λ = −H; `start` are covariances.

    Σ_k = C_k T_k T_kᵀ C_kᵀ with C_k C_kᵀ = Λ_k⁻¹: then ½ tr Σ_k H_k = −½|T_k|², and the problem is well scaled.
    """
    k, d = means.shape
    roots = family.root(precisions)
    if k == 1:
        # −½|T|² + log|T| has its maximum at T = I.
        return family.grown(roots, np.zeros_like(precisions))

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        t = flat.reshape(precisions.shape)
        covariances = family.grown(roots, t)
        at = overlap(family, means, covariances)
        value = np.mean(family.trace_term(t, d)) + at.bound
        # The trace term's gradient has weight 1/K, as the bound's already has.
        slope = family.grown_gradient(roots, t, k * covariance_gradient(family, at), d) / k
        return -float(value), -slope.ravel()

    bounds = [(-15.0, 15.0)] * precisions.size
    guesses = [np.zeros_like(precisions)]
    with contextlib.suppress(np.linalg.LinAlgError):  # a start that cannot be factored is none
        guesses.append(_relative(family, roots, start))
    guess = min(guesses, key=lambda t: loss(t.ravel())[0])
    found = minimize(
        loss, guess.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12, "gtol": 1e-7}
    )
    return family.grown(roots, found.x.reshape(precisions.shape))


def _relative(family: Family, roots: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """The t at which `grown` gives these covariances."""
    if isinstance(family, Elementwise):
        return np.clip(0.5 * np.log(covariances) - np.log(roots), -14.0, 14.0)
    inverse = np.linalg.inv(roots)
    triangle = np.linalg.cholesky(inverse @ covariances @ np.swapaxes(inverse, -1, -2))
    diagonal = np.arange(triangle.shape[-1])
    t = np.tril(triangle, -1)
    t[..., diagonal, diagonal] = np.clip(np.log(triangle[..., diagonal, diagonal]), -14.0, 14.0)
    return np.clip(t, -14.0, 14.0)
