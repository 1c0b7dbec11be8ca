"""Parts of the compiled searches for means that maximise L1: the subposterior, the entropy bound, trust-region steps.

They are the formulas of `entropy_bound.py`, `newton.py` and `mean_steps.py`, for use inside a compiled program.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.prior_part import PriorPart
from epvi.site.fit.mean_steps import FirstBound, Placed
from epvi.site.fit.newton import Tolerances

_LOG_2PI = float(np.log(2 * np.pi))
# Most iterations for the damping of a step, as in `newton.py`.
_DAMPINGS = 20


class RowBlock(NamedTuple):
    """The subposterior: a block of rows with their weights, and the prior factor."""

    block: dict[str, Any]
    weights: Any
    prior: PriorPart

    def value(self, programs: Programs, points: Any) -> Any:
        """f at some points."""
        made = programs.value(self.block)
        return made.finish(made.add(made.zero(len(points)), points, self.block, self.weights), points, self.prior)

    def full(self, programs: Programs, points: Any) -> Any:
        """f with gradient and Hessian."""
        made = programs.full(self.block)
        return made.finish(made.add(made.zero(len(points)), points, self.block, self.weights), points, self.prior)


class Pairs(NamedTuple):
    """S_kj⁻¹ as matrices, and log|S_kj|: covariances do not change while the means move."""

    inverses: Any
    log_dets: Any

    def slopes(self, means: Any) -> tuple[Any, Any]:
        """a_kj = S_kj⁻¹(μ_k − μ_j), and log N(μ_k; μ_j, S_kj)."""
        delta = means[:, None] - means[None, :]
        slopes = jnp.einsum("kjab,kjb->kja", self.inverses, delta)
        return slopes, -0.5 * (jnp.sum(delta * slopes, axis=-1) + self.log_dets + means.shape[1] * _LOG_2PI)

    def bound(self, means: Any) -> Any:
        """E = −(1/K) Σ_k log q_k, up to a constant."""
        return -jnp.mean(jax.nn.logsumexp(self.slopes(means)[1], axis=1))


class Limits(NamedTuple):
    """Numbers of `Tolerances`, and the most steps."""

    tolerance: Any
    floor: Any
    rounding: Any
    max_steps: Any


class State(NamedTuple):
    """Means during the search."""

    means: Any
    # f by a pass that computes f alone: only such values are compared.
    f: Any
    # Value, gradient and Hessian of f.
    at: tuple[Any, Any, Any]
    # As in `Placed`; a radius before the first step is negative.
    radii: Any
    units: Any


def prepared(bound: FirstBound, placed: Placed, precision: Tolerances, max_steps: int) -> tuple:
    """The arguments of a compiled search: rows, pairs, limits and means."""
    subposterior, d = bound.subposterior, placed.means.shape[1]
    sums = bound.covariances[:, None] + bound.covariances[None, :]
    pairs = Pairs(bound.packing.dense(bound.packing.inverse(sums), d), np.asarray(bound.packing.log_det(sums, d)))
    (block, weights), *_ = subposterior.blocks()
    limits = Limits(precision.tolerance, precision.floor, precision.rounding, float(max_steps))
    radii = np.where(np.isfinite(placed.radii), placed.radii, -1.0)
    begin = State(placed.means, placed.at.value, placed.at[:3], radii, placed.units)
    return RowBlock(block, weights, subposterior.prior), pairs, limits, begin


class TrustStep(NamedTuple):
    """A trust-region step p = (|H| + νI)⁻¹ g in scaled coordinates."""

    step: Any
    # The gain that the quadratic model promises, and the gain of the full Newton step.
    promised: Any
    decrement: Any
    # The least absolute eigenvalue, with damping, or a lower bound of it that is as high as was asked for.
    least: Any


def units_of(hessian: Any) -> Any:
    """`units_of` in `eigen.py`."""
    diagonal = jnp.abs(jnp.diagonal(hessian, axis1=-2, axis2=-1))
    return 1 / jnp.sqrt(jnp.maximum(diagonal, 1e-24 * jnp.max(diagonal, axis=-1, keepdims=True) + 1e-200))


def by_eigenvalues(gradient: Any, hessian: Any, radius: Any, floor: Any) -> TrustStep:
    """`damped_steps` in `newton.py`, of one scaled problem."""
    hessian = jnp.where(jnp.all(jnp.isfinite(hessian)), hessian, -jnp.eye(len(hessian)))
    eigenvalues, vectors = jnp.linalg.eigh(hessian)
    size = jnp.abs(eigenvalues)
    size = jnp.maximum(size, floor * jnp.max(size) + 1e-290)
    along = vectors.T @ gradient
    added = damping(along, size, radius)
    coordinates = along / (size + added)
    promised = jnp.sum(along * coordinates - 0.5 * size * coordinates**2)
    return TrustStep(vectors @ coordinates, promised, 0.5 * jnp.sum(along**2 / size), jnp.min(size) + added)


def by_cholesky(gradient: Any, hessian: Any, radius: Any, floor: Any, least: Any) -> TrustStep:
    """The same; without eigenvalues where the full Newton step is within the radius, as it is near a maximum.

    Only where the curvature is certainly at least `least`: no eigenvalue of −H is below 1 / tr(−H)⁻¹.
    """
    identity = jnp.eye(len(hessian))
    factor = jnp.linalg.cholesky(-hessian)
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    step, bound = inverse.T @ (inverse @ gradient), 1 / jnp.sum(inverse**2)
    gain = 0.5 * gradient @ step
    # Eigenvalues of a matrix with unit diagonal are at most D: those above D · floor are above `floor` of the largest.
    known = jnp.all(jnp.isfinite(factor)) & (bound >= jnp.maximum(least, floor * len(hessian)))
    return jax.lax.cond(
        known & (jnp.linalg.norm(step) <= radius),
        lambda: TrustStep(step, gain, gain, bound),
        lambda: by_eigenvalues(gradient, hessian, radius, floor),
    )


def damping(along: Any, size: Any, radius: Any) -> Any:
    """`damping_of` in `newton.py`, of one step."""

    def more(carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        added, _, count = carried
        inner = size + added
        square = jnp.sum((along / inner) ** 2)
        length = jnp.sqrt(square)
        further = square / jnp.sum((along / inner) ** 2 / inner) * (length / radius - 1)
        long = (length > radius * (1 + 1e-3)) & jnp.isfinite(further)
        return jnp.where(long, added + further, added), long, count + 1

    # A lower bound of ν to start from: no single coordinate of the step may exceed the radius.
    least = jnp.maximum(jnp.max(jnp.abs(along) / radius - size), 0.0)
    start = (least, jnp.asarray(True), jnp.asarray(0))
    return jax.lax.while_loop(lambda one: one[1] & (one[2] < _DAMPINGS), more, start)[0]
