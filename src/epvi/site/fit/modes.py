"""Finds the modes of a subposterior by optimisation from several starts.

Takes a subposterior and starts; returns the modes with their Laplace approximations, in decreasing order of mass. On a
shard with many rows the optimisations from all starts use a subsample of the rows, and only the modes found there are
then refined on all rows.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import OptimizeResult, minimize

from epvi.gaussian.eigen import eigen_of
from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.parameters.alignment import nearest
from epvi.parameters.space import Space
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.fit.newton import Climbed, Tolerances, climb

# Two optimisations ended in the same mode if their ends are closer than this, in standard deviations of the mode.
# Judgement: far above the optimiser's error, and modes closer than that are one for a Gaussian approximation.
SAME_MODE = 0.5
# Modes with less than e^-20, about 2e-9, of the mass of the heaviest mode are left out. Judgement.
_LEAST_LOG_MASS = -20.0
# Most Newton steps from a start. Usually some starts converge within the first limit; if none does, the highest ends
# get the second: along the curved ridges of a source analysis with 90 rows per shard it takes up to 200 steps.
_MOST_STEPS, _MORE_STEPS = 60, 240
# Newton's method is used up to this many coordinates (of all points together), L-BFGS above. Judgement: a Hessian of
# this size takes 5 MB, and its eigendecomposition under a second.
MOST_SECOND_ORDER = 800
# The same limit for shards with many rows, where a Hessian costs up to d times as much as a gradient. Above it the
# Hessian of a subsample of the rows preconditions L-BFGS on all rows. Judgement.
MOST_ON_TALL = 128
# L-BFGS in whitened coordinates stops when the quadratic model has at most this many nats left to gain. Judgement: the
# end is then at most √(2 · 0.001) = 0.04 standard deviations from the mode.
_LEFT = 1e-3


class Modes(NamedTuple):
    """G modes: the ends of G optimisations."""

    # The modes θ.
    points: Float[np.ndarray, "G d"]
    # f, the log density.
    value: Float[np.ndarray, " G"]
    # ∇f, close to zero.
    gradient: Float[np.ndarray, "G d"]
    # −H: (G, d, d), or its diagonal (G, d) when d is large.
    curvature: np.ndarray
    # Whether the optimisation met its tolerance.
    converged: Bool[np.ndarray, " G"]
    # Whether the Hessian was negative-definite at all points that the optimisation visited.
    concave: Bool[np.ndarray, " G"]

    @property
    def form(self) -> Packing:
        """The form of the curvatures."""
        return form_of(self.curvature[0])

    def log_mass(self) -> Float[np.ndarray, " G"]:
        """Laplace approximation of the log mass of each mode, up to a constant: f − ½ log|−H|."""
        return self.value - np.asarray(self.form.half_log_abs_det(self.curvature))


def second_order(num_points: int, d: int) -> bool:
    """Whether there are few enough coordinates for Newton's method."""
    return num_points * d <= MOST_SECOND_ORDER


def find_modes(subposterior: Subposterior, starts: np.ndarray, num_points: int, precision: Tolerances) -> Modes:
    """Optimise from every start, `num_points` in parallel, and keep at most `num_points` distinct modes.

    When the first batch of starts all converges to one mode through log-concave regions only, the other starts are
    skipped.
    """
    first, *rest = (starts[i : i + num_points] for i in range(0, len(starts), num_points))
    few_slopes = subposterior.weight > 1 and starts.shape[1] > MOST_ON_TALL
    climber = _climb_by_slopes if few_slopes else functools.partial(climb_to, precision=precision)
    ends = climber(subposterior, first)
    kept = distinct_of(subposterior, ends, num_points)
    if len(first) > 1 and len(kept.points) == 1 and np.all(ends.concave & ends.converged):
        return kept
    found = [ends, *(climber(subposterior, some) for some in rest)]
    ends = Modes(*map(np.concatenate, zip(*found, strict=True)))
    if len(ends.points) and not few_slopes and not np.any(ends.converged):
        highest = np.argsort(-ends.value, kind="stable")[:num_points]
        longer = climb_to(subposterior, ends.points[highest], precision, _MORE_STEPS)
        # If none converges there may be no mode, and the longer runs have only diverged further.
        ends = longer if np.any(longer.converged) else ends
    return distinct_of(subposterior, ends, num_points)


def climb_to(
    subposterior: Subposterior, starts: np.ndarray, precision: Tolerances, max_steps: int = _MOST_STEPS
) -> Modes:
    """The maxima reached from some starts, without those where f or its derivatives are not finite."""
    if not second_order(1, starts.shape[1]):
        return _climb_first_order(subposterior, starts)
    ended = climb(lambda theta, active: subposterior.second_order(theta), starts, precision, max_steps)
    if precision.trusting and np.any(ended.converged):
        ended = _last_step(subposterior, ended, precision._replace(trusting=False))
    return _finite(ended.points, ended.value, ended.gradient, -ended.hessian, ended.converged, ended.concave)


def _last_step(subposterior: Subposterior, ended: Climbed, precision: Tolerances) -> Climbed:
    """Take the last step without a pass: the rows' part by its Taylor expansion, the prior's part exactly.

    With many rows the expansion is accurate over so short a step; the step may be longer along parameters that only the
    prior determines, such as scales.
    """
    prior = dataclasses.replace(subposterior, rows={}, report=lambda passes: None)
    at = prior.second_order(ended.points)
    value, gradient, hessian = ended.value - at[0], ended.gradient - at[1], ended.hessian - at[2]

    def expanded(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, ...]:
        delta, more = theta - ended.points, prior.second_order(theta)
        bent = np.einsum("bij,bj->bi", hessian, delta)
        here = value + np.sum(delta * (gradient + 0.5 * bent), axis=1)
        return here + more[0], gradient + bent + more[1], hessian + more[2]

    last = climb(expanded, ended.points, precision, _MOST_STEPS)
    known = ended.converged
    return Climbed(
        *(np.where(np.reshape(known, (-1,) + (1,) * (a.ndim - 1)), a, b) for a, b in zip(last, ended, strict=True))
    )


def _climb_first_order(subposterior: Subposterior, starts: np.ndarray) -> Modes:
    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = subposterior.gradient(flat.reshape(starts.shape))
        value = np.sum(at.value)
        return (-value, -at.gradient.ravel()) if np.isfinite(value) else (np.inf, np.zeros(flat.size))

    # Limits of L-BFGS, and tolerances close to rounding, so that the ends of several starts can be compared. Judgement.
    options = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-6}
    ended = minimize(loss, starts.ravel(), jac=True, method="L-BFGS-B", options=options)
    points = ended.x.reshape(starts.shape)
    at = subposterior.diagonal(points)
    assert at.hessian is not None
    converged = np.full(len(starts), bool(ended.success))
    return _finite(points, at.value, at.gradient, -at.hessian, converged, np.zeros(len(starts), bool))


def _climb_by_slopes(subposterior: Subposterior, starts: np.ndarray) -> Modes:
    """Maxima in many dimensions on a subsample of rows: L-BFGS by gradients, then L-BFGS preconditioned by the Hessian.

    Hessians are computed only at the start and after the first stage; `concave` refers to the one at the start.
    """

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = subposterior.gradient(point[None])
        return (-float(at.value[0]), -at.gradient[0]) if np.isfinite(at.value[0]) else (np.inf, 0 * point)

    found = []
    for start in starts:
        # A loose tolerance, because the preconditioned stage follows. Judgement.
        ended = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-7})
        near, far = subposterior.second_order(ended.x[None]), subposterior.second_order(start[None])
        concave = eigen_of(far[2], 1e-12).falls
        rough = Modes(ended.x[None], near[0], near[1], -near[2], np.zeros(1, bool), concave)
        point, value, gradient, _, converged, _ = _climb_whitened(subposterior, rough, 0)
        found.append((point, value, gradient, -near[2], converged, concave))
    return _finite(*map(np.concatenate, zip(*found, strict=True)))


def follow(subposterior: Subposterior, before: Modes, precision: Tolerances) -> Modes:
    """The modes of more rows, starting from the modes of a subsample."""
    d = before.points.shape[1]
    if d <= MOST_ON_TALL or not before.form.whole:
        return climb_to(subposterior, before.points, precision)
    return _finite(
        *map(
            np.concatenate,
            zip(*[_climb_whitened(subposterior, before, i) for i in range(len(before.points))], strict=True),
        )
    )


def _climb_whitened(subposterior: Subposterior, before: Modes, i: int) -> tuple[np.ndarray, ...]:
    """L-BFGS in coordinates whitened by the subsample's Hessian; its end with the Hessian's diagonal on all rows."""
    eigen = eigen_of(before.curvature[i], 1e-9)
    scale = eigen.units[:, None] * eigen.vectors / np.sqrt(eigen.size)
    seen: list[tuple[float, np.ndarray]] = []

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        point = centre + scale @ z
        at = subposterior.gradient(point[None])
        slope = at.gradient[0] @ scale
        if not np.isfinite(at.value[0]):
            return np.inf, 0 * z
        seen.append((0.5 * float(slope @ slope), point))
        return -float(at.value[0]), -slope

    def stop_when_little_is_left(intermediate_result: OptimizeResult) -> None:
        if seen[-1][0] <= _LEFT:
            raise StopIteration

    # SciPy's first step is short; start from a full Newton step if that increases f.
    centre, origin = before.points[i], np.zeros(before.points.shape[1])
    value, slope = loss(origin)
    if not seen:
        # Nothing is finite here: −∞ as value, so that `_finite` leaves this mode out.
        return tuple(part[i : i + 1] for part in before._replace(value=np.full(len(before.value), -np.inf)))
    centre = before.points[i] - scale @ slope
    if not loss(origin)[0] < value:
        centre = before.points[i]
    # SciPy's own tolerances are off: the callback stops. Limits of steps and evaluations are judgement.
    options = {"maxiter": 200, "maxfun": 400, "ftol": 0.0, "gtol": 0.0}
    minimize(loss, origin, jac=True, method="L-BFGS-B", options=options, callback=stop_when_little_is_left)
    left, point = min(seen, key=lambda one: one[0])
    at = subposterior.diagonal(point[None])
    assert at.hessian is not None
    return point[None], at.value, at.gradient, -at.hessian, np.array([left <= _LEFT]), before.concave[i : i + 1]


def _finite(*parts: np.ndarray) -> Modes:
    _, value, gradient, curvature, _, _ = parts
    good = np.isfinite(value) & np.all(np.isfinite(gradient), axis=1)
    good &= np.all(np.isfinite(curvature), axis=tuple(range(1, curvature.ndim)))
    return Modes(*(part[good] for part in parts))


def distinct_of(subposterior: Subposterior, ends: Modes, most: int) -> Modes:
    """The distinct modes; of a subsample of rows also those of little mass, which may have more mass given all rows."""
    least = _LEAST_LOG_MASS if subposterior.weight == 1 else -np.inf
    return distinct(subposterior.programs.target.space, ends, most, least)


def distinct(space: Space, ends: Modes, most: int, least: float = _LEAST_LOG_MASS) -> Modes:
    """The distinct modes among the ends, in decreasing order of mass; relabellings of one mode count once.

    Ends that have not converged count only if none has.
    """
    if not len(ends.points):
        return ends
    if np.any(ends.converged):
        ends = Modes(*(part[ends.converged] for part in ends))
    log_mass = ends.log_mass()
    kept: list[int] = []
    points, gradient, curvature = ends.points.copy(), ends.gradient.copy(), ends.curvature.copy()
    for i in np.argsort(-np.round(log_mass, 3), kind="stable"):
        if log_mass[i] < log_mass.max() + least or len(kept) == most:
            break
        if kept and space.exchangeable:
            first = kept[0]
            precision = np.abs(ends.form.diagonal(curvature[first], space.dim))
            like_first = nearest(space, points[i], points[first], precision)
            gradient[i] = like_first.gradient(gradient[i], points[i])
            curvature[i] = like_first.curvature(ends.form, curvature[i], points[i])
            points[i] = like_first.point(points[i])
        if all(_apart(points[i] - points[j], curvature[j], ends.form) > SAME_MODE for j in kept):
            kept.append(int(i))
    return Modes(
        points[kept], ends.value[kept], gradient[kept], curvature[kept], ends.converged[kept], ends.concave[kept]
    )


def _apart(delta: np.ndarray, curvature: np.ndarray, form: Packing) -> float:
    """Mahalanobis distance, in standard deviations."""
    return float(np.sqrt(max(delta @ form.times(curvature, delta), 0.0)))
