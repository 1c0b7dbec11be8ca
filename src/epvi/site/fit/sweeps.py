"""Sweeps of nonparametric variational inference: all means together on L1, all covariances together on L2.

Takes starts; gives the components at which L2 stands still, or the best on the way. Second-order while all means
together have few coordinates, L-BFGS above.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from epvi.gaussian.structure import Full, Spherical, Structure
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.fit.entropy_bound import (
    Dense,
    Family,
    best_covariances,
    mean_gradient,
    mean_hessian,
    overlap,
)
from epvi.site.fit.modes import second_order
from epvi.site.fit.newton import Tolerances, climb

# Means need not stand still within a sweep: the next one goes on from there.
_STEPS_PER_SWEEP = 25
# L1 leaves out what L2 counts, so sweeps can go round in a circle: then the best of them is taken.
_SWEEPS_WITHOUT_GAIN = 5
# Components nearer than this, in standard deviations, are one component as far as the bound can tell.
_COINCIDE = 0.2


class Components(NamedTuple):
    """Means (K, d), packed covariances, and the bound L2 after each sweep."""

    means: np.ndarray
    covariances: np.ndarray
    history: tuple[float, ...]
    converged: bool
    guarded: bool


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Sweeps on one subposterior in one covariance structure."""

    subposterior: Subposterior
    structure: Structure
    family: Family
    precision: Tolerances
    max_sweeps: int
    tolerance: float

    def run(self, means: np.ndarray, covariances: np.ndarray, rng: np.random.Generator) -> Components:
        """Means on L1, covariances on L2, until L2 stands still."""
        history: list[float] = []
        guarded = np.zeros(len(means), bool)
        best, nudged, done = Components(means, covariances, (-np.inf,), False, False), 0, False
        for _ in range(self.max_sweeps):
            means, value, curvature = self._move_means(means, covariances)
            precisions, guarded = self.family.guarded(curvature, self.precision.floor)
            covariances = best_covariances(self.family, means, precisions, covariances)
            bound = np.mean(value + self.trace(covariances, curvature)) + overlap(self.family, means, covariances).bound
            history.append(float(bound))
            if not bound <= best.history[-1]:
                best = Components(means, covariances, tuple(history), False, bool(np.any(guarded)))
            still = len(history) > 1 and abs(history[-1] - history[-2]) < self.tolerance
            if (still or len(history) == 1) and nudged < 2 and self._coincide(means, covariances):
                # Coinciding components are a saddle of the bound: apart and narrower at once they climb, one after
                # the other they fall back.
                means = means + np.sqrt(self._variances(covariances)) * rng.standard_normal(means.shape)
                covariances = 0.5 * covariances
                nudged += 1
            elif still or len(history) - len(best.history) >= _SWEEPS_WITHOUT_GAIN:
                done = still
                break
        if done:
            return Components(means, covariances, tuple(history), True, bool(np.any(guarded)))
        return best._replace(history=tuple(history))

    def _move_means(self, means: np.ndarray, covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The means that maximise L1, with f and the packed curvature −∇²f there."""
        k, d = means.shape
        if second_order(k, d):
            found = climb(
                lambda flat: self._first_bound(flat, covariances),
                means.reshape(1, -1),
                self.precision._replace(trusting=False),
                _STEPS_PER_SWEEP,
            )
            moved = found.points.reshape(k, d)
        else:
            moved = self._move_first_order(means, covariances)
        at = self.curve(moved)
        assert at.hessian is not None
        return moved, at.value, self.packed(-at.hessian)

    def curve(self, means: np.ndarray) -> Curve:
        """f at the means with its curvature, of which only the diagonal is taken where that is all that is used."""
        whole = isinstance(self.structure, Full) or second_order(1, self.subposterior.dim)
        return (self.subposterior.full if whole else self.subposterior.diagonal)(means)

    def _first_bound(self, flat: np.ndarray, covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """L1 of all means as one vector, with its gradient and Hessian."""
        k, d = len(covariances), self.subposterior.dim
        means = flat.reshape(k, d)
        at, between = self.subposterior.full(means), overlap(self.family, means, covariances)
        assert at.hessian is not None
        hessian = mean_hessian(self.family, between).reshape(k, d, k, d)
        hessian[np.arange(k), :, np.arange(k), :] += at.hessian / k
        gradient = at.gradient / k + mean_gradient(between)
        value = np.mean(at.value) + between.bound
        return np.array([value]), gradient.reshape(1, -1), hessian.reshape(1, k * d, k * d)

    def _move_first_order(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            moved = flat.reshape(means.shape)
            at, between = self.subposterior.gradient(moved), overlap(self.family, moved, covariances)
            value = np.mean(at.value) + between.bound
            if not np.isfinite(value):
                return np.inf, np.zeros(flat.size)
            return -float(value), -(at.gradient / len(means) + mean_gradient(between)).ravel()

        options = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-12, "gtol": 1e-6}
        return minimize(loss, means.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(means.shape)

    def packed(self, curvature: np.ndarray) -> np.ndarray:
        """What the structure keeps of −H: the matrix, its diagonal, or the mean of that."""
        if isinstance(self.structure, Full):
            return curvature
        diagonal = np.diagonal(curvature, axis1=1, axis2=2) if curvature.ndim == 3 else curvature
        return np.mean(diagonal, axis=1, keepdims=True) if isinstance(self.structure, Spherical) else diagonal

    def trace(self, covariances: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """½ tr Σ_k H_k of every component, from packed curvatures −H."""
        return self.family.trace(covariances, curvature, self.subposterior.dim)

    def _variances(self, covariances: np.ndarray) -> np.ndarray:
        return np.diagonal(covariances, axis1=1, axis2=2) if isinstance(self.family, Dense) else covariances

    def _coincide(self, means: np.ndarray, covariances: np.ndarray) -> bool:
        spread = np.sqrt(self._variances(covariances))
        away = np.max(np.abs(means[:, None] - means[None]) / spread[:, None], axis=-1)
        return bool(np.any(away[np.triu_indices(len(means), 1)] < _COINCIDE))
