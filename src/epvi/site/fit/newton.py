"""Maximises B independent functions in parallel, by Newton's method with a trust region.

Takes a function that gives value, gradient and Hessian at B points (in one pass over the rows) and B starts; returns
the B maxima. Where the Hessian H is not negative-definite, |H| (absolute eigenvalues) takes the place of −H, which
still gives an ascent direction.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.eigen import Eigen, eigen_of

Evaluate = Callable[[np.ndarray], Sequence[np.ndarray]]

# A step is accepted if it gains at least this fraction of what the quadratic model predicts: the usual constant of
# sufficient increase (Nocedal & Wright 2006, section 3.1).
_LEAST_GAIN = 1e-4
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


# 100 steps at most. Judgement: quadratic convergence takes far fewer, and all callers in epvi set their own limit.
def climb(evaluate: Evaluate, start: np.ndarray, precision: Tolerances, max_steps: int = 100) -> Climbed:
    """Maximise from each start until the Newton decrement is below the tolerance."""
    tolerance, floor, rounding, trusting = precision
    points = np.array(start, np.float64)
    value, gradient, hessian = (np.array(part) for part in evaluate(points))
    eigen = eigen_of(hessian, floor)
    radius = np.maximum(1.0, np.linalg.norm(points / eigen.units, axis=1))
    dead = ~(np.isfinite(value) & np.all(np.isfinite(gradient), axis=1) & np.all(np.isfinite(hessian), axis=(1, 2)))
    decrement, concave, foretold = _decrement(gradient, eigen), eigen.falls.copy(), np.zeros(len(points), bool)
    for _ in range(max_steps):
        active = ~(dead | foretold | (decrement <= tolerance))
        # A radius at the rounding error of the point allows no further progress.
        active &= radius > 1e-13 * (1 + np.linalg.norm(points / eigen.units, axis=1))
        if not np.any(active):
            break
        step, promised = _steps(gradient, eigen, radius)
        tried = np.where(active[:, None], points + step, points)
        new = evaluate(tried)
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isfinite(new[0]), new[0] - value, -np.inf)
        good = np.all(np.isfinite(new[1]), axis=1) & np.all(np.isfinite(new[2]), axis=(1, 2))
        # Near the maximum the gain is below the rounding error: there steps are accepted without a check of the gain.
        drowned = promised <= rounding * (1 + np.abs(value))
        taken = active & good & ((gain >= _LEAST_GAIN * promised) | (drowned & np.isfinite(gain)))
        length = np.linalg.norm(step / eigen.units, axis=1)
        with np.errstate(invalid="ignore"):
            ratio = np.where(drowned & taken, 1.0, gain / np.maximum(promised, 1e-300))
        # The usual rules of the radius (Nocedal & Wright 2006, algorithm 4.1), but growing faster: by 4 instead of 2.
        radius = np.where(active & (~taken | (ratio < 0.25)), 0.25 * np.minimum(length, radius), radius)
        radius = np.where(active & taken & (ratio > 0.75), np.maximum(radius, 4 * length), radius)
        bent = hessian.copy()
        points[taken], value[taken] = tried[taken], new[0][taken]
        gradient[taken], hessian[taken] = new[1][taken], new[2][taken]
        eigen = eigen_of(hessian, floor)
        before, decrement = decrement, _decrement(gradient, eigen)
        concave &= eigen.falls
        if trusting:
            foretold |= taken & _foretold(before, decrement, tolerance) & _steady(bent - hessian, step, gradient, eigen)
    converged = ~dead & (foretold | (decrement <= tolerance))
    return Climbed(points, value, gradient, hessian, decrement, converged, concave)


def _foretold(before: np.ndarray, now: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether the next decrement is predicted to be below the tolerance.

    Newton's method converges quadratically: next = C now², with C = now / before² estimated from the last step.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return (now <= _LITTLE_LEFT) & (now < 0.1 * before) & (now**3 / before**2 <= tolerance)


def _steady(change: np.ndarray, step: np.ndarray, gradient: np.ndarray, eigen: Eigen) -> np.ndarray:
    """Whether the next step hardly changes the Hessian, predicted from the change by the last step.

    Checked in every direction, because a coefficient that few rows inform can be far from its mode when all others have
    converged.
    """
    steady = []
    for one, moved, slope, size, vectors, units in zip(change, step, gradient, *eigen[:3], strict=True):
        root = units[:, None] * vectors / np.sqrt(size)
        changed, along = np.linalg.eigh(root.T @ np.where(np.isfinite(one), one, np.inf) @ root)
        last = np.abs(along.T @ (np.sqrt(size) * (vectors.T @ (moved / units))))
        following = np.abs(along.T @ (root.T @ slope))
        steady.append(np.all(np.abs(changed) * np.minimum(following, last) <= _STEADY * last))
    return np.array(steady)


def _along(gradient: np.ndarray, eigen: Eigen) -> np.ndarray:
    """The gradient in the basis of the scaled Hessian's eigenvectors."""
    return np.einsum("bij,bi->bj", eigen.vectors, gradient * eigen.units)


def _decrement(gradient: np.ndarray, eigen: Eigen) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * np.sum(_along(gradient, eigen) ** 2 / eigen.size, axis=1)


def _steps(gradient: np.ndarray, eigen: Eigen, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trust-region step p = (|H| + νI)⁻¹ g, in scaled coordinates, and its predicted gain gᵀp − ½pᵀ|H|p.

    ν ≥ 0 is the least damping that keeps |p| within the radius.
    """
    along, eigenvalues = _along(gradient, eigen), eigen.size
    damping = _damping(along, eigenvalues, radius)
    coordinates = along / (eigenvalues + damping[:, None])
    promised = np.sum(along * coordinates - 0.5 * eigenvalues * coordinates**2, axis=1)
    return np.einsum("bij,bj->bi", eigen.vectors, coordinates) * eigen.units, promised


def _damping(along: np.ndarray, eigenvalues: np.ndarray, radius: np.ndarray) -> np.ndarray:
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
