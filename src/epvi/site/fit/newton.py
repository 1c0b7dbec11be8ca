"""Newton's method with a trust region, for B independent problems at once.

Takes a function that gives value, gradient and Hessian at B points (one pass over the rows serves all) and B starts;
gives the B maxima. Where the curvature is not that of a maximum, its sign is turned (the step still climbs).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.eigen import Eigen, eigen_of

Evaluate = Callable[[np.ndarray], Sequence[np.ndarray]]

# The step is accepted when it gains this part of what the quadratic model promised.
_LEAST_GAIN = 1e-4
# The radius need not be met exactly: a few steps towards it are enough.
_DAMPINGS = 20
# When so little is left to gain, and the next step is known to leave next to nothing, the climb is over.
_LITTLE_LEFT = 0.1
# Nor may that step be about to change the curvature by more than this part, in any direction.
_STEADY = 0.02


class Climbed(NamedTuple):
    """Where B climbs ended. `decrement` is ½ gᵀ|H|⁻¹g: what the quadratic model says is still to gain, in nats.

    `concave` tells whether the curvature was that of a maximum all the way.
    """

    points: Float[np.ndarray, "B D"]
    value: Float[np.ndarray, " B"]
    gradient: Float[np.ndarray, "B D"]
    hessian: Float[np.ndarray, "B D D"]
    decrement: Float[np.ndarray, " B"]
    converged: Bool[np.ndarray, " B"]
    concave: Bool[np.ndarray, " B"]


class Tolerances(NamedTuple):
    """How finely rows resolve.

    When to stop, in nats; the least curvature, relative to the largest, that is told from zero; which part of a value
    is lost in rounding. With `trusting` a climb ends before its last step when those before foretell where it goes.
    """

    tolerance: float
    floor: float
    # Judgement: about 500 times the machine epsilon of float64, since a log density is a sum over many rows.
    rounding: float = 1e-13
    trusting: bool = False


# 100 steps at most. Judgement: quadratic convergence takes far fewer, and all callers in epvi set their own limit.
def climb(evaluate: Evaluate, start: np.ndarray, precision: Tolerances, max_steps: int = 100) -> Climbed:
    """Maximise from each start until the decrement is below the tolerance."""
    tolerance, floor, rounding, trusting = precision
    points = np.array(start, np.float64)
    value, gradient, hessian = (np.array(part) for part in evaluate(points))
    eigen = eigen_of(hessian, floor)
    radius = np.maximum(1.0, np.linalg.norm(points / eigen.units, axis=1))
    dead = ~(np.isfinite(value) & np.all(np.isfinite(gradient), axis=1) & np.all(np.isfinite(hessian), axis=(1, 2)))
    decrement, concave, foretold = _decrement(gradient, eigen), eigen.falls.copy(), np.zeros(len(points), bool)
    for _ in range(max_steps):
        active = ~(dead | foretold | (decrement <= tolerance))
        active &= radius > 1e-13 * (1 + np.linalg.norm(points / eigen.units, axis=1))
        if not np.any(active):
            break
        step, promised = _steps(gradient, eigen, radius)
        tried = np.where(active[:, None], points + step, points)
        new = evaluate(tried)
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isfinite(new[0]), new[0] - value, -np.inf)
        good = np.all(np.isfinite(new[1]), axis=1) & np.all(np.isfinite(new[2]), axis=(1, 2))
        # Near the maximum the gain drowns in rounding: there a step is taken on the quadratic model's word.
        drowned = promised <= rounding * (1 + np.abs(value))
        taken = active & good & ((gain >= _LEAST_GAIN * promised) | (drowned & np.isfinite(gain)))
        length = np.linalg.norm(step / eigen.units, axis=1)
        with np.errstate(invalid="ignore"):
            ratio = np.where(drowned & taken, 1.0, gain / np.maximum(promised, 1e-300))
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
    """Whether the next decrement is known to be below the tolerance.

    Newton's method squares it: the last step's ratio tells by which factor beside.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return (now <= _LITTLE_LEFT) & (now < 0.1 * before) & (now**3 / before**2 <= tolerance)


def _steady(change: np.ndarray, step: np.ndarray, gradient: np.ndarray, eigen: Eigen) -> np.ndarray:
    """Whether the next step leaves the curvature as it is, told by how the last one changed it.

    In every direction: where few rows tell of a coefficient, it is far from its mode when all others are at theirs.
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
    """The gradient's coordinates along the eigenvectors."""
    return np.einsum("bij,bi->bj", eigen.vectors, gradient * eigen.units)


def _decrement(gradient: np.ndarray, eigen: Eigen) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * np.sum(_along(gradient, eigen) ** 2 / eigen.size, axis=1)


def _steps(gradient: np.ndarray, eigen: Eigen, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p = (|H| + νI)⁻¹ g, in units, with the least ν ≥ 0 that keeps |p| within the radius, and gᵀp − ½pᵀ|H|p."""
    along, eigenvalues = _along(gradient, eigen), eigen.size
    damping = _damping(along, eigenvalues, radius)
    coordinates = along / (eigenvalues + damping[:, None])
    promised = np.sum(along * coordinates - 0.5 * eigenvalues * coordinates**2, axis=1)
    return np.einsum("bij,bj->bi", eigen.vectors, coordinates) * eigen.units, promised


def _damping(along: np.ndarray, eigenvalues: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The least ν ≥ 0 for which |(|H| + ν)⁻¹ g| is within the radius.

    Newton's method on 1/|p| − 1/radius, which is nearly straight: from below it comes nearer with every step.
    """
    # No single coordinate of the step may be longer than the radius.
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
