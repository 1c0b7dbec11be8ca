"""Differentiates a likelihood through one linear predictor with many columns, if it is a sum of terms per column.

Takes a predictor η = X W(θ) of shape (n, C) with log likelihood ℓ_i = Σ_c φ_c(η_ic, θ_S, row i), as when a row observes
many numbers; returns sums over rows, as `through_predictors.py` does for a few columns. Of the C² second derivatives of
a row only the C on the diagonal are not zero:

    ∂²ℓ/∂W_c² = Σ_i φ''_ic x_i x_iᵀ   for all c in one matrix product of (x_i ⊗ x_i) and φ''
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.cuts import MatrixCut
from epvi.site.derivatives.linear_predictors import Predictors
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.second_pattern import Pattern, free_of, of_product, patterns
from epvi.site.derivatives.separability import is_separate

# Most coordinates of θ that the likelihood may use directly: each takes a derivative of all rows. Judgement.
_MOST_BESIDE = 4
# Most entries of ψ, whose Hessian is formed (32 MB for 2000), and most entries of a row's x ⊗ x. Judgement.
_MOST_COEFFICIENTS, _MOST_PRODUCTS = 2000, 1024


class WideSums(NamedTuple):
    """Sums over rows of the log likelihood and its derivatives with respect to W (V, C) and θ_S."""

    # The log likelihood.
    value: Any
    # Gradient with respect to W, (V, C).
    weights: Any
    # Gradient with respect to θ_S.
    beside: Any
    # Hessian of each column of W, (V, V, C); it is zero between columns.
    curvature: Any
    # Mixed second derivatives of W and θ_S, (V, C, S).
    mixed: Any
    # Hessian of θ_S, (S, S).
    curvature_beside: Any


@dataclasses.dataclass(frozen=True)
class Wide:
    """A likelihood with one linear predictor of many columns."""

    # The predictor as found in the program for the rows' dtype.
    found: Predictors
    # The same in the program for float64.
    exact: Predictors
    # The dtype of per-row arithmetic.
    dtype: Any

    def gives(self, order: Order) -> bool:
        """Whether derivatives of this order can be computed."""
        return order in (Order.GRADIENT, Order.FULL)

    @property
    def held(self) -> int:
        """Intermediate numbers per row of a block that are in memory at once."""
        return self._height**2 + 6 * self._width

    @property
    def _height(self) -> int:
        return self.found.cuts[0].height

    @property
    def _width(self) -> int:
        return self.found.widths[0]

    def zero(self, order: Order, num_points: int) -> WideSums:
        """The sums over no rows."""
        v, c, s = self._height, self._width, len(self.found.coordinates)
        shapes = [(), (v, c), (s,), (v, v, c), (v, c, s), (s, s)]
        if order is Order.GRADIENT:
            shapes[3:] = [(0,)] * 3
        return WideSums(*(np.zeros((num_points, *shape)) for shape in shapes))

    def add(self, order: Order, total: WideSums, at: tuple[Any, ...], point: Any, block: Any, weights: Any) -> WideSums:
        """The total with a block added at an index of its leading axes, for one point θ."""
        more = self.sums(order, point, block, weights)
        return jax.tree.map(lambda whole, part: whole.at[at].add(part), total, more)

    def sums(self, order: Order, point: Any, block: Mapping[str, Any], weights: Any) -> WideSums:
        """The sums over a block, at one point θ."""
        x, (w,) = self.found.matrices(self.found.of_rows(block))[0], self.exact.weights(point)
        x, at, theta = x.astype(self.dtype), self.found.coordinates, point.astype(self.dtype)

        def summed(eta: Any, beside: Any) -> Any:
            there = theta.at[at].set(beside) if len(at) else theta
            rows = self.found.link([eta], there, block).astype(jnp.float64)
            return jnp.sum(jnp.where(weights > 0, weights * rows, 0.0))

        eta, beside = x @ w.astype(self.dtype), theta[at]
        slopes = jax.value_and_grad(summed, argnums=(0, 1))
        value, (slope, slope_beside) = slopes(eta, beside)
        first = (x.T @ slope).astype(jnp.float64), slope_beside.astype(jnp.float64)
        if order is Order.GRADIENT:
            nothing = jnp.zeros(0, jnp.float64)
            return WideSums(value, *first, nothing, nothing, nothing)

        def along(eta_too: Any, axis: Any) -> Any:
            return jax.jvp(lambda e, b: slopes(e, b)[1], (eta, beside), (eta_too, axis))[1]

        # One directional derivative along all ones gives all diagonal second derivatives, since the others are zero.
        bend, _ = along(jnp.ones_like(eta), jnp.zeros_like(beside))
        mixed, bend_beside = jax.vmap(functools.partial(along, jnp.zeros_like(eta)))(jnp.eye(len(at), dtype=self.dtype))
        products = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        curvature = (products.T @ bend).reshape(self._height, self._height, self._width)
        mixed = jnp.einsum("nv,snc->vcs", x, mixed)
        return WideSums(value, *first, *(part.astype(jnp.float64) for part in (curvature, mixed, bend_beside)))

    def curve(self, order: Order, sums: WideSums, point: Any) -> tuple[Any, ...]:
        """Value, gradient and Hessian with respect to θ, from sums over all rows."""
        slope = jnp.concatenate([jnp.ravel(sums.weights.T), sums.beside])
        if order is Order.GRADIENT:
            return sums.value, jax.vjp(self._coefficients, point)[1](slope)[0]
        jacobian = self._jacobian(point)
        return sums.value, jacobian.T @ slope, self._through(jacobian, sums) + self._bent(slope, point)

    def _coefficients(self, theta: Any, known: Mapping[int, Any] | None = None) -> Any:
        """ψ(θ): the columns of W in sequence, and θ_S; `known` are values of θ that need not be computed again."""
        (w,) = self.exact.weights(theta, known)
        return jnp.concatenate([jnp.ravel(w.T), theta[self.found.coordinates]])

    @functools.cached_property
    def _patterns(self) -> dict[int, Pattern]:
        """Which derivatives of the values that W is computed from can be different from zero."""
        return patterns(self.exact.program, self.exact.cuts[0].of_theta)

    @functools.cached_property
    def _curved(self) -> Any:
        """Coordinates of θ: ψ is linear in all others together."""
        return of_product([self._patterns[number] for number in self.exact.cuts[0].of_theta]).curved

    def _jacobian(self, point: Any) -> Any:
        """∂ψ/∂θ, (p, d): along the curved coordinates and along the others, each while the rest of W is known."""
        d, program = len(point), self.exact.program
        made = jnp.zeros((d, len(self._coefficients(point))))
        for along in (self._curved, np.setdiff1d(np.arange(d), self._curved)):
            if len(along):
                free = free_of(self._patterns, along)
                known = dict(zip(free, program.run({program.theta: point}, free), strict=True))
                made = made.at[along].set(_along(functools.partial(self._coefficients, known=known), point, along))
        return made.T

    def _bent(self, slope: Any, point: Any) -> Any:
        """The Hessian of slope · ψ(θ), which is zero where no curved coordinate takes part."""
        bent = jnp.zeros((len(point), len(point)))
        if not len(self._curved):
            return bent
        rows = _along(jax.grad(lambda theta: slope @ self._coefficients(theta)), point, self._curved)
        return bent.at[self._curved].set(rows).at[:, self._curved].set(rows.T)

    def _through(self, jacobian: Any, sums: WideSums) -> Any:
        """Jᵀ H J for the Hessian H with respect to ψ, of which only the blocks of each column of W are not zero."""
        v, c, d = self._height, self._width, jacobian.shape[1]
        columns, beside = jacobian[: c * v].reshape(c, v, d), jacobian[c * v :]
        # Batched products with the columns first, and one product over all of them after that.
        along = jnp.moveaxis(sums.curvature, 2, 0) @ columns + jnp.swapaxes(sums.mixed, 0, 1) @ beside
        crossed = jnp.reshape(columns, (c * v, d)).T @ jnp.reshape(along, (c * v, d))
        mixed = jnp.einsum("cvd,vcs->sd", columns, sums.mixed)
        return crossed + beside.T @ (mixed + sums.curvature_beside @ beside)


def _along(function: Any, point: Any, coordinates: np.ndarray) -> Any:
    """The derivatives of a function along some coordinates, (c, ...)."""
    axes = np.eye(len(point))[coordinates]
    return jax.vmap(lambda axis: jax.jvp(function, (point,), (axis,))[1])(axes)


def is_wide(exact: Predictors, d: int, block: Mapping[str, Any]) -> bool:
    """Whether there is one predictor and the log likelihood is a sum of terms that each depend on one of its columns.

    Checked on the program's operations, and by second derivatives of some rows at random values of η in float64, since
    functions may define their own derivatives: those between columns must be exactly zero, and at least half of those
    within a column must not be.
    """
    if len(exact.cuts) != 1 or not isinstance(exact.cuts[0], MatrixCut) or len(exact.coordinates) > _MOST_BESIDE:
        return False
    width, height = exact.widths[0], exact.cuts[0].height
    if width < 2 or width * height > _MOST_COEFFICIENTS or height**2 > _MOST_PRODUCTS:
        return False
    if not is_separate(exact):
        return False

    @jax.jit
    def bends(eta: Any, theta: Any) -> Any:
        def of_shift(shift: Any) -> Any:
            return exact.link([eta + shift[None]], theta, block)

        return jax.jacfwd(jax.jacfwd(of_shift))(jnp.zeros(width))

    rng, n = np.random.default_rng(0), len(next(iter(block.values())))
    between = ~np.eye(width, dtype=bool)
    with jax.enable_x64(True), promotion_allowed():
        for scale in (1.0, 1.0, 5.0, 5.0):
            found = np.asarray(bends(scale * rng.normal(size=(n, width)), rng.normal(size=d)))
            if np.any(found[:, between] != 0) or not np.all(np.isfinite(found)):
                return False
            if np.count_nonzero(found[:, ~between]) < found[:, ~between].size // 2:
                return False
    return True
