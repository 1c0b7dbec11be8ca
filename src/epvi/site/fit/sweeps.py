"""Sweeps of nonparametric variational inference: maximise L1 over all means, then L2 over all covariances, in turn.

Takes starting components; returns those at which L2 has converged, or else those of the sweep with the highest L2. The
means are optimised by Newton's method while they have few coordinates in all, and by L-BFGS above.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.packing import Packing
from epvi.gaussian.structure import Structure
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.fit.entropy_bound import best_covariances, mean_gradient, overlap
from epvi.site.fit.mean_steps import FirstBound, Placed
from epvi.site.fit.means_apart import maximise
from epvi.site.fit.modes import second_order
from epvi.site.fit.newton import Tolerances

# Most Newton steps of the means in a sweep. Judgement: they need not converge, since the next sweep continues.
_STEPS_PER_SWEEP = 25
# L1 lacks the trace term of L2, so sweeps can cycle: after this many sweeps without a new highest L2 they stop, and the
# best is returned. Judgement.
_SWEEPS_WITHOUT_GAIN = 5
# Components closer than this, in standard deviations of every coordinate, count as coinciding, a saddle point of the
# bound. Judgement.
_COINCIDE = 0.2


class Components(NamedTuple):
    """The components of a mixture during or after a fit."""

    # μ_k, (K, d).
    means: np.ndarray
    # Σ_k, packed.
    covariances: np.ndarray
    # L2 after each sweep, in nats.
    history: tuple[float, ...]
    # Whether L2 changed by less than the tolerance at last.
    converged: bool
    # Whether a curvature −H was not positive-definite and had to be changed.
    guarded: bool

    def mixture(self, structure: Structure, weights: np.ndarray) -> GaussianMixture:
        """The mixture of these components with the given weights."""
        packed = structure.packing.symmetrised(self.covariances)
        shape = (len(packed), *structure.user_shape(self.means.shape[1]))
        return GaussianMixture.from_covariances(self.means, packed.reshape(shape), weights, structure)


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Sweeps on one subposterior with one covariance structure."""

    # The density to be approximated.
    subposterior: Subposterior
    # The covariance structure of the components.
    structure: Structure
    # Numerical tolerances of Newton's method.
    precision: Tolerances
    # Most sweeps.
    max_sweeps: int
    # Change of L2, in nats, below which the sweeps stop.
    tolerance: float

    def roughly(self, tolerance: float) -> "Sweeps":
        """Sweeps that stop at this tolerance, in nats: on a subsample, from which sweeps on more rows go on."""
        precision = self.precision._replace(tolerance=max(tolerance, self.precision.tolerance))
        return dataclasses.replace(self, precision=precision, tolerance=max(tolerance, self.tolerance))

    def run(
        self, means: np.ndarray, covariances: np.ndarray, rng: np.random.Generator, at: Curve | None = None
    ) -> Components:
        """Alternate means (L1) and covariances (L2) until L2 changes by less than the tolerance.

        `at` is f at the means with its derivatives, if it is known.
        """
        history: list[float] = []
        guarded = np.zeros(len(means), bool)
        best, nudged, done = Components(means, covariances, (-np.inf,), False, False), 0, False
        placed = None if at is None else Placed.of(means, at)
        for _ in range(self.max_sweeps):
            placed = self._move_means(means, covariances, placed)
            means, value, curvature = placed.means, placed.at.value, self._curvature(placed.at)
            precisions, guarded = self._packing.guarded(curvature, self.precision.floor)
            covariances = best_covariances(self._packing, means, precisions, covariances)
            entropy = overlap(self._packing, means, covariances).bound
            bound = np.mean(value + self.trace(covariances, curvature)) + entropy
            history.append(float(bound))
            if not bound <= best.history[-1]:
                best = Components(means, covariances, tuple(history), False, bool(np.any(guarded)))
            still = len(history) > 1 and abs(history[-1] - history[-2]) < self.tolerance
            if (still or len(history) == 1) and nudged < 2 and self._coincide(means, covariances):
                # Coinciding components are a saddle point of the bound. Moving them apart and halving their
                # covariances at the same time leaves it; either alone returns to it.
                means = means + np.sqrt(self._variances(covariances)) * rng.standard_normal(means.shape)
                covariances = 0.5 * covariances
                nudged, placed = nudged + 1, None
            elif still or len(history) - len(best.history) >= _SWEEPS_WITHOUT_GAIN:
                done = still
                break
        if done:
            return Components(means, covariances, tuple(history), True, bool(np.any(guarded)))
        return best._replace(history=tuple(history))

    def _move_means(self, means: np.ndarray, covariances: np.ndarray, before: Placed | None) -> Placed:
        """The means that maximise L1, with f and its derivatives there; `before` is what is known at the means."""
        if not second_order(*means.shape):
            moved = self._move_first_order(means, covariances)
            return Placed.of(moved, self.curve(moved))
        before = Placed.of(means, self.curve(means)) if before is None else before
        bound = FirstBound(self.subposterior, self._packing, covariances)
        return maximise(bound, before, self.precision._replace(trusting=False), _STEPS_PER_SWEEP)

    def _curvature(self, at: Curve) -> np.ndarray:
        assert at.hessian is not None
        return self.packed(-at.hessian, at.form)

    @property
    def _packing(self) -> Packing:
        return self.structure.packing

    def curve(self, means: np.ndarray) -> Curve:
        """f at the means with its derivatives; only the Hessian's diagonal if the structure and d need no more."""
        whole = self._packing.whole or second_order(1, self.subposterior.dim)
        return (self.subposterior.full if whole else self.subposterior.diagonal)(means)

    def _move_first_order(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            moved = flat.reshape(means.shape)
            at, between = self.subposterior.gradient(moved), overlap(self._packing, moved, covariances)
            value = np.mean(at.value) + between.bound
            if not np.isfinite(value):
                return np.inf, np.zeros(flat.size)
            return -float(value), -(at.gradient / len(means) + mean_gradient(between)).ravel()

        # Limits and tolerances of L-BFGS, far below the tolerance of the sweeps. Judgement.
        options = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-12, "gtol": 1e-6}
        return minimize(loss, means.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(means.shape)

    def packed(self, curvature: np.ndarray, form: Packing) -> np.ndarray:
        """Curvatures −H, given in `form`, as the covariance structure packs them."""
        return self._packing.kept(curvature, form, self.subposterior.dim)

    def trace(self, covariances: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """½ tr Σ_k H_k of every component, from packed curvatures −H."""
        return np.asarray(self._packing.half_trace(covariances, curvature, self.subposterior.dim))

    def _variances(self, covariances: np.ndarray) -> np.ndarray:
        return self._packing.diagonal(covariances, self.subposterior.dim)

    def _coincide(self, means: np.ndarray, covariances: np.ndarray) -> bool:
        spread = np.sqrt(self._variances(covariances))
        away = np.max(np.abs(means[:, None] - means[None]) / spread[:, None], axis=-1)
        return bool(np.any(away[np.triu_indices(len(means), 1)] < _COINCIDE))
