"""The separate modes of a subposterior, found from several starts.

Takes a subposterior and starts; gives the modes with their Laplace approximations, the heaviest first. On a tall shard
the climbs are made on a part of the rows, and only the modes that they find are followed on all rows.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from epvi.alignment import order_like
from epvi.site.density import Subposterior
from epvi.site.newton import climb, eigen_of
from epvi.space import Space

# Two climbs ended in the same mode when they are nearer than this, in its standard deviations.
_SAME_MODE = 0.5
# Modes with less than e^-20 of the heaviest one's mass are left out.
_LEAST_LOG_MASS = -20.0
# Climbs that take longer than this end nowhere.
_MOST_STEPS = 60
# Newton's method is used up to this many coordinates (of all points together), L-BFGS above.
MOST_SECOND_ORDER = 800


class Precision(NamedTuple):
    """How finely the rows' arithmetic resolves: when to stop, and the least curvature told from zero."""

    tolerance: float
    floor: float


class Modes(NamedTuple):
    """Modes with values, what is left of the gradient, and curvatures −H: (G, d, d), or (G, d) when d is large."""

    points: Float[np.ndarray, "G d"]
    value: Float[np.ndarray, " G"]
    gradient: Float[np.ndarray, "G d"]
    curvature: np.ndarray
    converged: Bool[np.ndarray, " G"]

    def log_mass(self) -> Float[np.ndarray, " G"]:
        """Laplace's approximation, up to a constant: f − ½ log|−H|."""
        if self.curvature.ndim == 2:
            return self.value - 0.5 * np.sum(np.log(np.maximum(np.abs(self.curvature), 1e-290)), axis=1)
        eigen = eigen_of(self.curvature, 1e-12)
        return self.value - 0.5 * np.sum(np.log(eigen.size) - 2 * np.log(eigen.units), axis=1)


def second_order(num_points: int, d: int) -> bool:
    """Whether there are few enough coordinates for Newton's method."""
    return num_points * d <= MOST_SECOND_ORDER


def find_modes(subposterior: Subposterior, starts: np.ndarray, num_points: int, precision: Precision) -> Modes:
    """Climb from every start, `num_points` at a time, and keep at most `num_points` different ends."""
    space = subposterior.programs.target.space
    found = [climb_to(subposterior, starts[i : i + num_points], precision) for i in range(0, len(starts), num_points)]
    return distinct(space, Modes(*map(np.concatenate, zip(*found, strict=True))), num_points)


def climb_to(subposterior: Subposterior, starts: np.ndarray, precision: Precision) -> Modes:
    """The maxima reached from some starts; ends that are not finite are left out."""
    if second_order(1, starts.shape[1]):
        ended = climb(
            subposterior.second_order,
            starts,
            tolerance=precision.tolerance,
            floor=precision.floor,
            max_steps=_MOST_STEPS,
        )
        good = np.isfinite(ended.value) & np.all(np.isfinite(ended.hessian), axis=(1, 2))
        parts = ended.points, ended.value, ended.gradient, -ended.hessian, ended.converged
        return Modes(*(part[good] for part in parts))

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = subposterior.gradient(flat.reshape(starts.shape))
        value = np.sum(at.value)
        return (-value, -at.gradient.ravel()) if np.isfinite(value) else (np.inf, np.zeros(flat.size))

    options = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-6}
    ended = minimize(loss, starts.ravel(), jac=True, method="L-BFGS-B", options=options)
    at = subposterior.diagonal(ended.x.reshape(starts.shape))
    assert at.hessian is not None
    good = np.isfinite(at.value) & np.all(np.isfinite(at.hessian), axis=1)
    converged = np.full(len(starts), bool(ended.success))
    parts = ended.x.reshape(starts.shape), at.value, at.gradient, -at.hessian, converged
    return Modes(*(part[good] for part in parts))


def distinct(space: Space, ends: Modes, most: int) -> Modes:
    """The different modes among the ends, the heaviest first; relabellings of one mode count once.

    Ends of climbs that were not over count only where no climb was.
    """
    if not len(ends.points):
        return ends
    if np.any(ends.converged):
        ends = Modes(*(part[ends.converged] for part in ends))
    log_mass = ends.log_mass()
    kept: list[int] = []
    points, gradient, curvature = ends.points.copy(), ends.gradient.copy(), ends.curvature.copy()
    for i in np.argsort(-np.round(log_mass, 3), kind="stable"):
        if log_mass[i] < log_mass.max() + _LEAST_LOG_MASS or len(kept) == most:
            break
        if kept and space.exchangeable:
            first = kept[0]
            order = order_like(space, points[i], points[first], _diagonal(curvature[first]))
            points[i], gradient[i] = points[i][order], gradient[i][order]
            curvature[i] = curvature[i][order] if curvature.ndim == 2 else curvature[i][np.ix_(order, order)]
        if all(_apart(points[i] - points[j], curvature[j]) > _SAME_MODE for j in kept):
            kept.append(int(i))
    return Modes(points[kept], ends.value[kept], gradient[kept], curvature[kept], ends.converged[kept])


def _diagonal(curvature: np.ndarray) -> np.ndarray:
    return np.abs(np.diag(curvature) if curvature.ndim == 2 else curvature)


def _apart(delta: np.ndarray, curvature: np.ndarray) -> float:
    """The distance in standard deviations."""
    moved = curvature @ delta if curvature.ndim == 2 else curvature * delta
    return float(np.sqrt(max(delta @ moved, 0.0)))
