"""Maximises B independent functions in parallel, by Newton's method with a trust region.

Takes a function that gives value, gradient and Hessian at B points (in one pass over the rows) and B starts; returns
the B maxima. Where the Hessian H is not negative-definite, |H| (absolute eigenvalues) takes the place of −H, which
still gives an ascent direction.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.eigen import Eigen, eigen_of, units_of
from epvi.gaussian.matrices import positive_definite

# Value, gradient and Hessian at B points; the second argument says at which of them they are needed.
Evaluate = Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]]

# A step is accepted if it gains at least this fraction of what the quadratic model predicts: the usual constant of
# sufficient increase (Nocedal & Wright 2006, section 3.1).
LEAST_GAIN = 1e-4
# Most iterations for the damping ν that makes a step as long as the radius, which need hold only to 0.1 %. Judgement:
# the iteration converges within a few.
_DAMPINGS = 20
# Early stopping (`trusting`): only when the decrement is at most this many nats, and the next one is predicted to be
# below the tolerance. Judgement.
_LITTLE_LEFT = 0.1
# Early stopping: only when the next step is predicted to change the Hessian by at most this fraction, in every
# direction. Judgement: standard deviations then change by at most 1 %.
_STEADY = 0.02


class Climbed(NamedTuple):
    """The ends of B optimisations."""

    # Where they ended.
    points: Float[np.ndarray, "B D"]
    # Value, gradient g and Hessian H there.
    value: Float[np.ndarray, " B"]
    gradient: Float[np.ndarray, "B D"]
    hessian: Float[np.ndarray, "B D D"]
    # Newton decrement ½ gᵀ|H|⁻¹g: the gain, in nats, that the quadratic model still predicts.
    decrement: Float[np.ndarray, " B"]
    # Whether the decrement is below the tolerance, or predicted to be after one more step.
    converged: Bool[np.ndarray, " B"]
    # Whether the Hessian was negative-definite at all accepted points.
    concave: Bool[np.ndarray, " B"]


class Tolerances(NamedTuple):
    """Numerical tolerances, which depend on the precision of the rows (float32 or float64)."""

    # Newton decrement at which to stop, in nats.
    tolerance: float
    # Least absolute eigenvalue of a Hessian, relative to the largest, that is distinguished from zero.
    floor: float
    # Relative rounding error of a value. Judgement: about 500 times the machine epsilon of float64, since a log density
    # is a sum over many rows.
    rounding: float = 1e-13
    # Whether to stop one step early when the previous steps predict that it will converge.
    trusting: bool = False


class Newton(NamedTuple):
    """Newton steps p = |H|⁻¹ g of B functions."""

    # p.
    step: Float[np.ndarray, "B D"]
    # ½ gᵀp: the gain, in nats, that the quadratic model predicts.
    decrement: Float[np.ndarray, " B"]
    # The scale of each coordinate, see `units_of`.
    units: Float[np.ndarray, "B D"]
    # Whether H is negative-definite.
    falls: Bool[np.ndarray, " B"]

    def length(self, vectors: np.ndarray) -> np.ndarray:
        """Lengths of vectors in the coordinates in which radii are measured."""
        return np.linalg.norm(vectors / self.units, axis=-1)


# Which of B climbs need not go on, by their points, Hessians and Newton steps there.
Enough = Callable[[np.ndarray, np.ndarray, Newton], np.ndarray]


# 100 steps at most. Judgement: quadratic convergence takes far fewer, and all callers in epvi set their own limit.
def climb(
    evaluate: Evaluate,
    start: np.ndarray,
    precision: Tolerances,
    max_steps: int = 100,
    enough: Enough | None = None,
) -> Climbed:
    """Maximise from each start until the Newton decrement is below the tolerance, or until it is `enough`.

    `evaluate(points, active)` need not compute anything at points that are not active.
    """
    tolerance, floor, rounding, trusting = precision
    points = np.array(start, np.float64)
    value, gradient, hessian = (np.array(part) for part in evaluate(points, np.ones(len(points), bool)))
    newton = newton_steps(gradient, hessian, floor)
    radius = np.maximum(1.0, newton.length(points))
    dead = ~(np.isfinite(value) & np.all(np.isfinite(gradient), axis=1) & np.all(np.isfinite(hessian), axis=(1, 2)))
    concave, foretold = newton.falls.copy(), np.zeros(len(points), bool)
    for _ in range(max_steps):
        if enough is not None:
            foretold |= enough(points, hessian, newton)
        active = ~(dead | foretold | (newton.decrement <= tolerance))
        # A radius at the rounding error of the point allows no further progress.
        active &= radius > 1e-13 * (1 + newton.length(points))
        if not np.any(active):
            break
        step, promised = _within(newton, gradient, hessian, radius, active, floor)
        tried = np.where(active[:, None], points + step, points)
        new = evaluate(tried, active)
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isfinite(new[0]), new[0] - value, -np.inf)
        good = np.all(np.isfinite(new[1]), axis=1) & np.all(np.isfinite(new[2]), axis=(1, 2))
        # Near the maximum the gain is below the rounding error: there steps are accepted without a check of the gain.
        drowned = promised <= rounding * (1 + np.abs(value))
        taken = active & good & ((gain >= LEAST_GAIN * promised) | (drowned & np.isfinite(gain)))
        length = newton.length(step)
        with np.errstate(invalid="ignore"):
            ratio = np.where(drowned & taken, 1.0, gain / np.maximum(promised, 1e-300))
        # The usual rules of the radius (Nocedal & Wright 2006, algorithm 4.1), but growing faster: by 4 instead of 2.
        radius = np.where(active & (~taken | (ratio < 0.25)), 0.25 * np.minimum(length, radius), radius)
        radius = np.where(active & taken & (ratio > 0.75), np.maximum(radius, 4 * length), radius)
        before, last = newton, hessian[taken]
        points[taken], value[taken] = tried[taken], new[0][taken]
        gradient[taken], hessian[taken] = new[1][taken], new[2][taken]
        newton = _renewed(newton, gradient, hessian, taken, floor)
        concave &= newton.falls
        if trusting:
            near = taken & _foretold(before.decrement, newton.decrement, tolerance)
            for i in np.flatnonzero(near):
                change = last[np.count_nonzero(taken[:i])] - hessian[i]
                foretold[i] |= _is_steady(change, step[i], gradient[i], hessian[i], floor)
    converged = ~dead & (foretold | (newton.decrement <= tolerance))
    return Climbed(points, value, gradient, hessian, newton.decrement, converged, concave)


def newton_steps(gradient: np.ndarray, hessian: np.ndarray, floor: float) -> Newton:
    """The full Newton steps: by Cholesky where −H is positive-definite, otherwise by eigenvalues."""
    finite = np.all(np.isfinite(hessian), axis=(-2, -1)) & np.all(np.isfinite(gradient), axis=-1)
    hessian = np.where(finite[:, None, None], hessian, -np.eye(hessian.shape[-1]))
    slope, units = np.where(finite[:, None], gradient, 0.0), units_of(hessian)
    scaled = -hessian * units[:, :, None] * units[:, None, :]
    # Eigenvalues of a matrix with unit diagonal are at most D: those above D · floor are above `floor` of the largest.
    least = floor * scaled.shape[-1] * np.eye(scaled.shape[-1])
    falls, step = positive_definite(scaled - least), np.empty_like(gradient)
    step[falls] = units[falls] * np.linalg.solve(scaled[falls], (slope * units)[falls][..., None])[..., 0]
    others = ~falls
    if np.any(others):
        eigen = eigen_of(hessian[others], floor)
        along = np.einsum("bij,bi->bj", eigen.vectors, slope[others] * eigen.units) / eigen.size
        step[others] = np.einsum("bij,bj->bi", eigen.vectors, along) * eigen.units
        falls[others] = eigen.falls
    with np.errstate(over="ignore", invalid="ignore"):
        decrement = np.where(finite, 0.5 * np.sum(slope * step, axis=1), np.nan)
    return Newton(step, decrement, units, falls & finite)


def _renewed(newton: Newton, gradient: np.ndarray, hessian: np.ndarray, taken: np.ndarray, floor: float) -> Newton:
    """Newton steps at the points that have moved; the others are known."""
    if not np.any(taken):
        return newton
    made = Newton(*(part.copy() for part in newton))
    for whole, part in zip(made, newton_steps(gradient[taken], hessian[taken], floor), strict=True):
        whole[taken] = part
    return made


def _foretold(before: np.ndarray, now: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether the next decrement is predicted to be below the tolerance.

    Newton's method converges quadratically: next = C now², with C = now / before² estimated from the last step.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return (now <= _LITTLE_LEFT) & (now < 0.1 * before) & (now**3 / before**2 <= tolerance)


def _is_steady(change: np.ndarray, step: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, floor: float) -> bool:
    """Whether the next step from one point hardly changes the Hessian, predicted from the change by the last step.

    Checked in every direction, because a coefficient that few rows inform can be far from its mode when all others have
    converged.
    """
    eigen = eigen_of(hessian, floor)
    root = eigen.units[:, None] * eigen.vectors / np.sqrt(eigen.size)
    changed, along = np.linalg.eigh(root.T @ np.where(np.isfinite(change), change, np.inf) @ root)
    last = np.abs(along.T @ (np.sqrt(eigen.size) * (eigen.vectors.T @ (step / eigen.units))))
    following = np.abs(along.T @ (root.T @ gradient))
    return bool(np.all(np.abs(changed) * np.minimum(following, last) <= _STEADY * last))


def _within(
    newton: Newton, gradient: np.ndarray, hessian: np.ndarray, radius: np.ndarray, active: np.ndarray, floor: float
) -> tuple[np.ndarray, np.ndarray]:
    """The Newton steps, shortened where they are longer than the radius, and their predicted gains."""
    step, promised = newton.step.copy(), newton.decrement.copy()
    long = active & (newton.length(step) > radius * (1 + 1e-3))
    if np.any(long):
        eigen = eigen_of(hessian[long], floor)
        step[long], promised[long] = damped_steps(gradient[long], eigen, radius[long])
    return step, promised


def damped_steps(gradient: np.ndarray, eigen: Eigen, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trust-region step p = (|H| + νI)⁻¹ g, in scaled coordinates, and its predicted gain gᵀp − ½pᵀ|H|p.

    ν ≥ 0 is the least damping that keeps |p| within the radius.
    """
    along = np.einsum("bij,bi->bj", eigen.vectors, gradient * eigen.units)
    eigenvalues = eigen.size
    added = damping_of(along, eigenvalues, radius)
    coordinates = along / (eigenvalues + added[:, None])
    promised = np.sum(along * coordinates - 0.5 * eigenvalues * coordinates**2, axis=1)
    return np.einsum("bij,bj->bi", eigen.vectors, coordinates) * eigen.units, promised


def damping_of(along: np.ndarray, eigenvalues: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The least ν ≥ 0 for which |(|H| + ν)⁻¹ g| is within the radius.

    Newton's method for 1/|p| = 1/radius, which is nearly linear in ν; from below it converges monotonically (Nocedal &
    Wright 2006, section 4.3).
    """
    # A lower bound of ν to start from: no single coordinate of the step may exceed the radius.
    damping = np.maximum(np.max(np.abs(along) / radius[:, None] - eigenvalues, axis=1), 0.0)
    for _ in range(_DAMPINGS):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            damped = eigenvalues + damping[:, None]
            step = along / damped
            square = np.sum(step**2, axis=1)
            length = np.sqrt(square)
            more = square / np.sum(step**2 / damped, axis=1) * (length / radius - 1)
        long = (length > radius * (1 + 1e-3)) & np.isfinite(more)
        if not np.any(long):
            break
        damping = np.where(long, damping + more, damping)
    return damping
