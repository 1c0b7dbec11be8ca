"""What a shard hands over whose subposterior is no density of its own: slope and curvature at a stated point.

A shard with a flat direction, separated labels or no mode still informs parameters that all shards together determine.
Of f = log p_m it gives the natural parameters of its quadratic expansion about a point θ₀:

    Λ = −∇²f(θ₀) with negative eigenvalues set to 0,  η = ∇f(θ₀) + Λ θ₀

θ₀ is the mode under a stand-in for the prior, N(0, I/κ) with κ = min(n, d) for n rows: as strong as the rows while
these are so few that they can be fitted exactly, when a scale would tend to zero, and weak beside many rows.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.fit.inference import Information, Lack, LocalFit
from epvi.site.fit.ladder import NEAR_ENOUGH
from epvi.site.fit.modes import second_order
from epvi.site.fit.newton import Tolerances, climb

# Least precision in any direction, relative to the largest and absolute, so that the natural parameters are those of a
# Gaussian, and travel as such. Judgement: an sd of 10,000 is negligible beside any information.
_RELATIVE, _ABSOLUTE = 1e-8, 1e-8
# Most Newton steps to the point, which need not be accurate. Judgement.
_MOST_STEPS = 60


def information(
    subposteriors: Sequence[Subposterior], starts: Float[np.ndarray, "n d"], structure: Structure, lack: Lack
) -> LocalFit | None:
    """The information of the last subposterior; the others are subsamples of its rows, on which the search begins.

    None if derivatives are not finite anywhere on the way. `lack` says why the subposterior is no density.
    """
    point = _point(subposteriors, starts)
    if point is None:
        return None
    whole, packing, d = subposteriors[-1], structure.packing, subposteriors[-1].dim
    at = whole.curve(np.repeat(point[None], len(starts), axis=0), packing)
    assert at.hessian is not None
    gradient, curvature = at.gradient[0], packing.kept(-at.hessian[0], at.form, d)
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(curvature))):
        return None
    precision = packing.raised(curvature, _RELATIVE) + _ABSOLUTE * packing.identity(d)
    root = packing.root(packing.symmetrised(precision))
    mixture = GaussianMixture(np.zeros(1), (point + packing.solve(root, gradient))[None], root[None], structure)
    unknown = Estimate(np.asarray(np.nan), np.asarray(np.nan))
    made = Information(point, lack.finding)
    return LocalFit(mixture, lack.status, (), unknown, np.nan, int(whole.passes), whole.seconds, made)


def _point(subposteriors: Sequence[Subposterior], starts: np.ndarray) -> Float[np.ndarray, " d"] | None:
    """θ₀, from the origin and other starts; None if the log density is not finite at any of them."""
    points = np.concatenate([np.zeros_like(starts[:1]), starts[1:]])
    for subposterior in subposteriors:
        found = _highest(subposterior, points)
        if found is None:
            return None
        points = np.repeat(found[None], len(starts), axis=0)
    return points[0]


def _highest(subposterior: Subposterior, starts: np.ndarray) -> Float[np.ndarray, " d"] | None:
    """The highest end of climbs under the stand-in."""
    d = subposterior.dim
    strength = max(min(subposterior.num_rows * subposterior.weight, d), 1.0)
    if not second_order(1, d):
        return _by_gradients(subposterior, starts, strength)

    def evaluate(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, ...]:
        value, gradient, hessian = subposterior.second_order(theta)
        lower = 0.5 * strength * np.sum(theta**2, axis=1)
        return value - lower, gradient - strength * theta, hessian - strength * np.eye(d)

    ended = climb(evaluate, starts, Tolerances(NEAR_ENOUGH**2, 1e-12), _MOST_STEPS)
    good = np.isfinite(ended.value) & np.all(np.isfinite(ended.gradient), axis=1)
    good &= np.all(np.isfinite(ended.hessian), axis=(1, 2))
    return ended.points[int(np.argmax(np.where(good, ended.value, -np.inf)))] if np.any(good) else None


def _by_gradients(subposterior: Subposterior, starts: np.ndarray, strength: float) -> Float[np.ndarray, " d"] | None:
    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = subposterior.gradient(point[None])
        value = float(at.value[0]) - 0.5 * strength * float(point @ point)
        return (-value, strength * point - at.gradient[0]) if np.isfinite(value) else (np.inf, 0 * point)

    for start in starts:
        if np.isfinite(loss(start)[0]):
            # The point need not be accurate: a loose tolerance. Judgement.
            return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-7}).x
    return None
