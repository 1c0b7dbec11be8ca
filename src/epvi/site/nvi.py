"""Nonparametric variational inference (Gershman, Hoffman & Blei 2012): the paper's local inference.

Takes a subposterior with log density f; gives q = Σ_k w_k N(μ_k, Σ_k). With q_k = (1/K) Σ_j N(μ_k; μ_j, Σ_k + Σ_j):

    L1 = (1/K) Σ_k [ f(μ_k) − log q_k ]
    L2 = (1/K) Σ_k [ f(μ_k) + ½ tr Σ_k ∇²f(μ_k) − log q_k ]

A sweep moves all means together on L1, takes the curvature there, and sets all covariances together on L2. L2's bound
of the entropy rewards splitting one Gaussian into several, which a product of many shards amplifies; so by default a
component stays only where the Monte Carlo bound asks for it, and weights are learned. `merge=False` is the paper's.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize

from epvi.errors import EpviError
from epvi.mixture import GaussianMixture
from epvi.site.density import Subposterior
from epvi.site.elbo import Drawn, base_draws, draw_from, with_best_weights
from epvi.site.inference import Inference, LocalFit, Report
from epvi.site.modes import Modes, Precision, climb_to, distinct, find_modes, second_order
from epvi.site.newton import climb
from epvi.site.overlap import (
    Dense,
    Family,
    best_covariances,
    family_of,
    mean_gradient,
    mean_hessian,
    overlap,
)
from epvi.site.rows import Columns, constant_columns, generator
from epvi.status import Status
from epvi.structure import Diagonal, Full, Spherical, Structure
from epvi.validation import check_settings

# Without a choice, covariances are full up to this dimension and diagonal above.
_FULL_UP_TO = 100
# f is evaluated at this many draws in one pass.
_DRAWS_AT_ONCE = 64
# More observed numbers than these do not help to find where the modes are.
_START_TERMS_PER_PARAMETER, _LEAST_START_TERMS, _LEAST_START_ROWS = 50, 1000, 50
# Below this many nats between the Monte Carlo bound and the evidence no further component is worth its cost.
_GOOD_ENOUGH = 0.02
# Two standard deviations from a mode a Gaussian has lost 2 nats; a direction that loses less than this is flat.
_LEAST_LOSS = 0.002
_DIRECTIONS_TRIED = 16
# What is left of a flat direction when a mixture is made in spite of it, relative and absolute.
_FLAT_FLOOR, _FLAT_PRECISION = 1e-8, 1e-8
# Means need not stand still within a sweep: the next one goes on from there.
_STEPS_PER_SWEEP = 25
# L1 leaves out what L2 counts, so sweeps can go round in a circle: then the best of them is taken.
_SWEEPS_WITHOUT_GAIN = 5
# A fit that was still gaining more than this many nats a sweep when it had to stop is not one to multiply.
_STILL_RISING = 0.1
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
class NVI(Inference):
    """Nonparametric variational inference with at most `num_components` Gaussians.

    `covariance` is `Spherical()` (the paper), `Diagonal()` or `Full()`; without it, full up to 100 parameters and
    diagonal above. Sweeps stop when the bound changes by less than `tolerance` nats. With `merge` (the default) modes
    are sought from `num_starts` starts, components that the Monte Carlo bound of `num_draws` draws does not ask for are
    merged and weights are learned; without it, all components stay, equally weighted, as in the paper.
    """

    num_components: int = 4
    covariance: Structure | None = None
    merge: bool = True
    num_starts: int = 16
    num_draws: int = 256
    max_sweeps: int = 20
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_settings(self, num_components=1, num_starts=1, num_draws=8, max_sweeps=1)
        if self.covariance is not None and not isinstance(self.covariance, Structure):
            raise EpviError(f"covariance is {self.covariance!r}: pass Spherical(), Diagonal() or Full().")
        if not isinstance(self.merge, bool):
            raise EpviError(f"merge is {self.merge!r}: pass True or False.")
        if not isinstance(self.tolerance, int | float) or not 0 < self.tolerance < 1:
            raise EpviError(f"tolerance is {self.tolerance!r}: pass a number of nats between 0 and 1.")

    @property
    def points_at_once(self) -> int:
        """All components move together."""
        return self.num_components

    def fit(
        self, subposterior: Subposterior, columns: Columns, *, common: jax.Array, key: jax.Array, report: Report
    ) -> LocalFit:
        """Fit the mixture."""
        d = subposterior.dim
        single = any(column.dtype == np.float32 for column in columns.values())
        precision = Precision(1e-6, 1e-6) if single else Precision(1e-9, 1e-12)
        structure = self.covariance or (Full() if d <= _FULL_UP_TO else Diagonal())
        work = _Work(self, subposterior, columns, structure, family_of(structure), precision, report)
        starts = generator(common).standard_normal((max(self.num_starts, self.num_components), d))
        # Numbers that overflow on the way are looked for where it matters, not warned of.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return work.merged(starts, generator(key)) if self.merge else work.plain(starts, generator(key))


@dataclasses.dataclass(frozen=True)
class _Work:
    """One fit under way."""

    settings: NVI
    subposterior: Subposterior
    columns: Columns
    structure: Structure
    family: Family
    precision: Precision
    report: Report

    def plain(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """The paper's method: K means from N(0, I), unit variances, equal weights."""
        k, d = self.settings.num_components, self.subposterior.dim
        self._refuse_non_finite(starts[:k])
        unit = np.broadcast_to(np.eye(d) if isinstance(self.structure, Full) else 1.0, (k, *self._packed_shape()))
        components = self.sweeps(starts[:k], np.array(unit), rng)
        drawn = self.draw(components, rng)
        nearest = climb_to(self.subposterior, components.means, self.precision)
        modes = distinct(self.subposterior.programs.target.space, nearest, k)
        flat = self._flat_direction(modes)
        if flat is not None:
            components = self.at_modes(modes, flat=True)
            drawn = self.draw(components, rng)
        return self.finished(components, drawn, flat)

    def merged(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """One Gaussian per mode, unless more components raise the Monte Carlo bound; weights learned."""
        modes = self.find_modes(starts, rng)
        flat = self._flat_direction(modes)
        plain = self.at_modes(modes, flat=flat is not None)
        best, drawn = plain, with_best_weights(self.draw(plain, rng))
        if flat is None and self.settings.num_components > 1 and self._falls_short(drawn):
            means, covariances = self._around(plain, rng)
            split = self.sweeps(means, covariances, rng)
            split_drawn = with_best_weights(self.draw(split, rng))
            if _asked_for(split_drawn, drawn):
                # The Monte Carlo bound vouches for it, whether or not L2 stood still.
                best, drawn = split._replace(converged=True), split_drawn
        return self.finished(best, drawn, flat)

    def find_modes(self, starts: np.ndarray, rng: np.random.Generator) -> Modes:
        """From a part of the rows first, when there are many, then on all."""
        k, n, d = self.settings.num_components, self.subposterior.num_rows, self.subposterior.dim
        terms = self.subposterior.programs.target.terms
        part = max(_LEAST_START_TERMS, _START_TERMS_PER_PARAMETER * d) // terms + _LEAST_START_ROWS
        starts = starts * np.resize([1.0, 1.0, 0.1, 3.0], len(starts))[:, None]
        starts = np.concatenate([starts, np.repeat(starts[:1], -len(starts) % k, axis=0)])
        few = self.subposterior if n <= 2 * part else self.subposterior.thinned(self.columns, part, rng)
        modes = find_modes(few, starts, k, self.precision)
        if not len(modes.points):
            self._refuse_non_finite(starts)
        if few is not self.subposterior:
            found = np.concatenate([modes.points, np.repeat(modes.points[:1], k - len(modes.points), axis=0)])
            modes = find_modes(self.subposterior, found, k, self.precision)
        self.report(1)
        return modes

    def _refuse_non_finite(self, starts: np.ndarray) -> None:
        at = self.subposterior.value(starts, _DRAWS_AT_ONCE)
        if np.any(np.isfinite(at)):
            return
        kind = "minus infinity" if np.all(at == -np.inf) else "not finite"
        raise EpviError(
            f"the log density is {kind} at all {len(starts)} starts: no parameter near the origin of the unconstrained"
            " space can have made these rows. Check the coding of the observed column, and scale columns to about 1."
        )

    def at_modes(self, modes: Modes, *, flat: bool) -> Components:
        """One Gaussian at each mode with the covariance that L2 gives a separate component."""
        curvature = self._packed(modes.curvature)
        if flat:
            # A mixture is made in spite of it, for the record.
            curvature = curvature + _FLAT_PRECISION * (np.eye(self.subposterior.dim) if self._dense else 1.0)
        floor = _FLAT_FLOOR if flat else self.precision.floor
        precisions, guarded = self.family.guarded(curvature, floor)
        covariances, _ = self.family.inverse(precisions, self.subposterior.dim)
        at = overlap(self.family, modes.points, covariances)
        bound = float(np.mean(modes.value + self._trace(covariances, precisions)) + at.bound)
        return Components(modes.points, covariances, (bound,), modes.converged, bool(np.any(guarded)))

    def sweeps(self, means: np.ndarray, covariances: np.ndarray, rng: np.random.Generator) -> Components:
        """Means on L1, covariances on L2, until L2 stands still."""
        history: list[float] = []
        guarded = np.zeros(len(means), bool)
        best, nudged, done = Components(means, covariances, (-np.inf,), False, False), 0, False
        for sweep in range(self.settings.max_sweeps):
            means, value, curvature = self._move_means(means, covariances)
            precisions, guarded = self.family.guarded(curvature, self.precision.floor)
            covariances = best_covariances(self.family, means, precisions, covariances)
            bound = (
                np.mean(value + self._trace(covariances, curvature)) + overlap(self.family, means, covariances).bound
            )
            history.append(float(bound))
            if not bound <= best.history[-1]:
                best = Components(means, covariances, tuple(history), False, bool(np.any(guarded)))
            self.report(sweep + 2)
            still = len(history) > 1 and abs(history[-1] - history[-2]) < self.settings.tolerance
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
                tolerance=self.precision.tolerance,
                floor=self.precision.floor,
                max_steps=_STEPS_PER_SWEEP,
            )
            moved = found.points.reshape(k, d)
        else:
            moved = self._move_first_order(means, covariances)
        at = self.subposterior.full(moved) if self._wants_full else self.subposterior.diagonal(moved)
        assert at.hessian is not None
        return moved, at.value, self._packed(-at.hessian)

    @property
    def _dense(self) -> bool:
        return isinstance(self.structure, Full)

    @property
    def _wants_full(self) -> bool:
        return isinstance(self.structure, Full) or second_order(1, self.subposterior.dim)

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

    def draw(self, components: Components, rng: np.random.Generator) -> Drawn:
        """f at draws, as many of every component."""
        z = base_draws(rng, self.settings.num_draws // len(components.means), self.subposterior.dim)
        return draw_from(self._value, self.family, components.means, components.covariances, z)

    def finished(self, components: Components, drawn: Drawn, flat: str | None) -> LocalFit:
        """The mixture with its status."""
        packed = components.covariances[:, 0] if isinstance(self.structure, Spherical) else components.covariances
        if isinstance(self.structure, Full):
            packed = 0.5 * (packed + np.swapaxes(packed, 1, 2))
        elbo = drawn.elbo()
        if flat is not None:
            status = Status(False, flat)
        elif not np.isfinite(elbo.value):
            status = Status(
                False, "non-finite: f is not finite at draws of the fit: rescale columns or bound parameters."
            )
        elif not components.converged:
            status = _stopped(components.history)
        else:
            note = " (a curvature that was not that of a maximum was guarded)" if components.guarded else ""
            status = Status(True, f"converged: {len(components.means)} components{note}.")
        mixture = GaussianMixture.from_covariances(components.means, packed, np.exp(drawn.log_weights))
        return LocalFit(mixture, status, components.history, elbo, int(self.subposterior.passes))

    def _falls_short(self, drawn: Drawn) -> bool:
        """Whether the bound is so far below the evidence that further components could help."""
        elbo = drawn.elbo()
        return not drawn.log_evidence() - float(elbo.value) < _GOOD_ENOUGH + 2 * float(elbo.standard_error)

    def _around(self, plain: Components, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """K starts: the modes, and draws around them in turn."""
        k, d = self.settings.num_components, self.subposterior.dim
        which = np.resize(np.arange(len(plain.means)), k)
        roots = self.family.root(self.family.inverse(plain.covariances, d)[0])
        moved = self.family.apply(roots[which], rng.standard_normal((k, d)))
        moved[: len(plain.means)] *= 0.1
        return plain.means[which] + moved, plain.covariances[which]

    def _flat_direction(self, modes: Modes) -> str | None:
        """What to say when the heaviest mode does not fall off in some direction; None when it does in all."""
        d = self.subposterior.dim
        point, value = modes.points[0], modes.value[0]
        if modes.curvature.ndim == 3:
            eigenvalues, vectors = np.linalg.eigh(modes.curvature[0])
            size = np.maximum(np.abs(eigenvalues), self.precision.floor * np.max(np.abs(eigenvalues)) + 1e-290)
            directions = (vectors / np.sqrt(size)).T
        else:
            size = self.family.guarded(modes.curvature[:1], self.precision.floor)[0][0]
            size = np.maximum(np.abs(modes.curvature[0]), self.precision.floor * np.max(np.abs(modes.curvature[0])))
            directions = np.diag(size**-0.5)
        widest = directions[np.argsort(size)[: min(d, _DIRECTIONS_TRIED)]]
        loss = value - self._value(np.concatenate([point + 2 * widest, point - 2 * widest]))
        loss = np.min(loss.reshape(2, -1), axis=0)
        if not np.any(loss < _LEAST_LOSS):
            return None
        name = self.subposterior.programs.target.space.coordinate(int(np.argmax(np.abs(widest[np.argmin(loss)]))))
        constant = constant_columns(self.columns)
        hint = f" (constant here: {', '.join(constant[:3])})" if constant else ""
        return (
            f"flat direction: these rows and their share of the prior do not bound {name}{hint}. Take fewer shards,"
            " give a proper prior, or leave out columns that others determine or that separate the labels."
        )

    def _value(self, theta: np.ndarray) -> np.ndarray:
        return self.subposterior.value(theta, _DRAWS_AT_ONCE)

    def _packed_shape(self) -> tuple[int, ...]:
        return self.structure.packed_shape(self.subposterior.dim)

    def _packed(self, curvature: np.ndarray) -> np.ndarray:
        """What the structure keeps of −H: the matrix, its diagonal, or the mean of that."""
        if isinstance(self.structure, Full):
            return curvature
        diagonal = np.diagonal(curvature, axis1=1, axis2=2) if curvature.ndim == 3 else curvature
        return np.mean(diagonal, axis=1, keepdims=True) if isinstance(self.structure, Spherical) else diagonal

    def _trace(self, covariances: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        return self.family.trace(covariances, curvature, self.subposterior.dim)

    def _variances(self, covariances: np.ndarray) -> np.ndarray:
        return np.diagonal(covariances, axis1=1, axis2=2) if isinstance(self.family, Dense) else covariances

    def _coincide(self, means: np.ndarray, covariances: np.ndarray) -> bool:
        spread = np.sqrt(self._variances(covariances))
        away = np.max(np.abs(means[:, None] - means[None]) / spread[:, None], axis=-1)
        return bool(np.any(away[np.triu_indices(len(means), 1)] < _COINCIDE))


def _stopped(history: tuple[float, ...]) -> Status:
    """What to say of a fit that ran out of sweeps (or, without any, of steps towards a mode)."""
    if len(history) < 2:
        return Status(False, "stopped early: no climb reached a mode. Raise num_starts, or scale columns to about 1.")
    gain = abs(history[-1] - history[-2])
    text = f"stopped early after {len(history)} sweeps, the bound still moving by {gain:.2g} nats a sweep"
    remedy = "" if gain < _STILL_RISING else ": raise max_sweeps"
    return Status(gain < _STILL_RISING, f"{text}{remedy}.")


def _asked_for(split: Drawn, plain: Drawn) -> bool:
    """Whether more components raise the Monte Carlo bound beyond its standard error."""
    a, b = split.elbo(), plain.elbo()
    error = float(np.hypot(a.standard_error, b.standard_error))
    return bool(np.isfinite(a.value)) and float(a.value) - float(b.value) > 2 * error + _GOOD_ENOUGH
