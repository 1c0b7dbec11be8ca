"""Differentiates a likelihood through its linear predictors: a few scalars per row, then matrix products.

Takes linear predictors and a block of rows; returns sums over the block of the derivatives with respect to the
coefficients ψ = (W, θ_S) and, once per pass, converts them to derivatives with respect to θ:

    ∇ℓ = Jᵀ Σ_i A_iᵀ φ'_i,   ∇²ℓ = Jᵀ (Σ_i A_iᵀ φ''_i A_i) J + Σ_j (Σ_i A_iᵀ φ'_i)_j ∇²ψ_j,   J = ∂ψ/∂θ

Row a of A_i is the gradient of φ's argument a with respect to ψ: x_i for a linear predictor, 1 for a coordinate of θ.
The sum of the outer products of score vectors is the same with φ'_ia φ'_ib in the place of φ''_iab, and no last term.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.site.derivatives.argument_sums import ArgumentSums, Sums
from epvi.site.derivatives.cuts import GatherCut
from epvi.site.derivatives.linear_predictors import Predictors
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.straight import Straight, find_straight

# Most values of a row with respect to which φ is differentiated: 8 have 36 second derivatives per row. Judgement.
_MOST_VALUES = 8
# Most arguments that are combined to them: 16 have 136 sums over rows. Judgement.
_MOST_ARGUMENTS = 16
# Most numbers that the sums over rows may have, 256 MB in float64. Judgement: more than a Hessian of 5,000 parameters.
_MOST_SUMS = 2**25
# Products of a Hessian with this many coordinates' directions are in memory together. Judgement.
_DIRECTIONS = 64
# Most second derivatives of rows, at several points, that are in memory at once: 2 MB in float64. Judgement.
_MOST_AT_ONCE = 2**18


@dataclasses.dataclass(frozen=True)
class Linked:
    """A likelihood with few linear predictors per row."""

    # The predictors as found in the program for the rows' dtype.
    found: Predictors
    # The same in the program for float64.
    exact: Predictors
    # The dtype of per-row arithmetic.
    dtype: Any

    @functools.cached_property
    def places(self) -> list[np.ndarray] | None:
        """For each argument the indices in θ of its coefficients, if all are coordinates: J only selects; or None."""
        if any(places is None for places in self.found.places):
            return None
        each = [column for places in self.found.places if places is not None for column in places.T]
        return each + [np.array([i]) for i in self.found.coordinates]

    @functools.cached_property
    def straight(self) -> Straight | None:
        """The values that the arguments of φ are combined to, if they are fewer."""
        return find_straight(self.found)

    @property
    def width(self) -> int:
        """The number of values of a row with respect to which φ is differentiated."""
        return self.found.num_arguments if self.straight is None else self.straight.width

    @property
    def is_narrow(self) -> bool:
        """Whether φ has few enough arguments."""
        return self.width <= _MOST_VALUES and self.found.num_arguments <= _MOST_ARGUMENTS

    @property
    def has_each_once(self) -> bool:
        """Whether the diagonal of the Hessian in θ is that in ψ: coordinates of θ that occur at most once in ψ."""
        places = None if self.places is None else np.concatenate(self.places)
        return places is not None and len(np.unique(places)) == len(places)

    def gives(self, order: Order) -> bool:
        """Whether derivatives of this order can be computed."""
        return order is not Order.VALUE and self._layout(order).size <= _MOST_SUMS

    @property
    def held(self) -> int:
        """Intermediate numbers per row of a block that are in memory at once."""
        layout = self._layout(Order.FULL)
        return 2 * sum(a.height for a in self.found.arguments if a.matrix is not None) + 2 * (
            len(layout.terms) + layout.width
        )

    def _layout(self, order: Order) -> ArgumentSums:
        """The layout of the sums; the diagonal in θ may need all second derivatives in ψ."""
        needed = Order.FULL if order is Order.DIAGONAL and not self.has_each_once else order
        return ArgumentSums(self.found.arguments, needed)

    def zero(self, order: Order, num_points: int) -> Sums:
        """The sums over no rows."""
        return self._layout(order).zero(num_points)

    def add(self, order: Order, total: Sums, at: tuple[Any, ...], point: Any, block: Any, weights: Any) -> Sums:
        """The total with a block added at an index of its leading axes, for one point θ."""
        layout, values = self._layout(order), self.found.of_rows(block)
        matrices = {j: x.astype(self.dtype) for j, x in self.found.matrices(values).items()}
        moved, parts = self._shifts(self.etas(point, values, matrices), point.astype(self.dtype), block)
        slopes, bends = self._link_derivatives(layout.order, moved)
        value = jnp.zeros(()) if order is Order.SCORES else self._value(moved, weights)
        scales = _scales(parts, slopes, bends, weights)
        return layout.add(total, at, value, scales, matrices, self.found.codes(values))

    def bends(self, point: Any, block: Any, shifts: Any) -> Any:
        """φ'' of every row at shifts (S, p) of the values u that it depends on at a point, (S, n, p, p).

        Shifts are in units of one plus the spread of each value over the rows.
        """
        values = self.found.of_rows(block)
        matrices = {j: x.astype(self.dtype) for j, x in self.found.matrices(values).items()}
        etas, axes = self.etas(point, values, matrices), jnp.eye(self.width, dtype=self.dtype)
        moved, _ = self._shifts(etas, point.astype(self.dtype), block)
        unit = 1 + jnp.max(jnp.stack([jnp.std(eta) for eta in etas]))
        found = jax.vmap(_along(_along(moved, axes), axes))((unit * shifts).astype(self.dtype))
        return jnp.moveaxis(found, 3, 1)

    def zero_average(self, order: Order, num_shards: int, num_points: int) -> Sums:
        """The sums over no rows of `add_average`."""
        return self.zero(order, num_shards)._replace(value=np.zeros((num_shards, num_points)))

    def add_average(
        self, order: Order, total: Sums, at: tuple[Any, ...], points: Any, block: Any, weights: Any
    ) -> Sums:
        """The total with a block added: the log likelihood at R points, and derivatives averaged over the points.

        Only if the coefficients of predictors are coordinates of θ (`places`).
        """
        layout, values = self._layout(order), self.found.of_rows(block)
        matrices = {j: x.astype(self.dtype) for j, x in self.found.matrices(values).items()}

        def at_point(point: Any) -> Any:
            moved, _ = self._shifts(self.etas(point, values, matrices), point.astype(self.dtype), block)
            return *self._link_derivatives(layout.order, moved), self._value(moved, weights)

        def some(so_far: Any, few: Any) -> Any:
            *found, value = jax.vmap(at_point)(few)
            return [whole + jnp.sum(part, axis=0) for whole, part in zip(so_far, found, strict=True)], value

        p, n = self.width, len(weights)
        zero = [jnp.zeros((*axes, n), self.dtype) for axes in ((p,), (p, p))]
        batch = math.gcd(len(points), 2 ** int(math.log2(max(_MOST_AT_ONCE // (n * p * p), 1))))
        sums, value = jax.lax.scan(some, zero, points.reshape(-1, batch, points.shape[1]))
        slopes, bends = (part / len(points) for part in sums)
        # The coefficients of the values that φ depends on are made of rows alone.
        _, parts = self._shifts(self.etas(points[0], values, matrices), points[0].astype(self.dtype), block)
        scales = _scales(parts, slopes, bends, weights)
        return layout.add(total, at, jnp.ravel(value), scales, matrices, self.found.codes(values))

    def _link_derivatives(self, order: Order, moved: Callable) -> tuple[Any, Any]:
        """φ' (p, n) and φ'' (p, p, n) with respect to the values that φ depends on; None for φ'' if it is not used."""
        zero, axes = jnp.zeros(self.width, self.dtype), jnp.eye(self.width, dtype=self.dtype)
        first = _along(moved, axes)
        bends = _along(first, axes)(zero).astype(self.dtype) if order in (Order.DIAGONAL, Order.FULL) else None
        return first(zero).astype(self.dtype), bends

    def _value(self, moved: Callable, weights: Any) -> Any:
        """The weighted sum of the log likelihood."""
        return jnp.sum(_weighted(weights, moved(jnp.zeros(self.width, self.dtype)).astype(jnp.float64)))

    def _shifts(self, etas: list[Any], theta: Any, block: Any) -> tuple[Callable, list[dict[int, Any]]]:
        """φ of every row with a shift added to the values u that it depends on, and ∂u for each argument.

        If these are not fewer than the arguments, u are the arguments themselves.
        """
        if self.straight is not None:
            straight = self.straight
            u, at = straight.combined(etas, theta, block), straight.coordinates

            def moved(shift: Any) -> Any:
                there = theta.at[at].add(shift[u.shape[1] :]) if len(at) else theta
                return straight.link(u + shift[None, : u.shape[1]], there, block)

            return moved, straight.coefficients(etas, theta, block)
        starts, coordinates = np.cumsum([0, *self.found.widths]), self.found.coordinates

        def each(shift: Any) -> Any:
            shifted = [eta + shift[None, a:b] for eta, a, b in zip(etas, starts, starts[1:], strict=False)]
            there = theta.at[coordinates].add(shift[starts[-1] :]) if len(coordinates) else theta
            return self.found.link(shifted, there, block)

        return each, [{a: jnp.ones((), self.dtype)} for a in range(self.found.num_arguments)]

    def etas(self, point: Any, values: Mapping[int, Any], matrices: Mapping[int, Any]) -> list[Any]:
        """The linear predictors η_j (n, C_j), from values of the rows and the matrices made of them."""
        weights = [w.astype(self.dtype) for w in self.exact.weights(point)]
        return [
            cut.predictors(values, w) if isinstance(cut, GatherCut) else matrices[j] @ w
            for j, (cut, w) in enumerate(zip(self.found.cuts, weights, strict=True))
        ]

    def derivatives(
        self, order: Order, etas: list[Any], theta: Any, block: Mapping[str, Any]
    ) -> Callable[[int, int | None], Any]:
        """The function of one or two arguments to the derivatives of all rows, (n,)."""
        moved, parts = self._shifts(etas, theta, block)
        slopes, bends = self._link_derivatives(order, moved)
        return _scales(parts, slopes, bends, jnp.ones(self.found.program.n, self.dtype))

    def curve(self, order: Order, sums: Sums, point: Any) -> tuple[Any, ...]:
        """Value, gradient and Hessian (or its diagonal) with respect to θ, from sums over all rows.

        For the order of scores, the sum of their outer products alone.
        """
        layout, d = self._layout(order), len(point)
        if self.places is None or (order is Order.DIAGONAL and layout.order is Order.FULL):
            return self._by_chain_rule(order, sums, point)
        if order is Order.SCORES:
            return (layout.matrix(sums, self.places, d),)
        places = np.concatenate(self.places)
        gradient = jnp.zeros(d).at[places].add(jnp.concatenate(layout.vectors(sums, second=False)))
        if order is Order.GRADIENT:
            return sums.value, gradient
        if order is Order.DIAGONAL:
            bends = jnp.concatenate(layout.vectors(sums, second=True))
            return sums.value, gradient, jnp.zeros(d).at[places].add(bends)
        return sums.value, gradient, layout.matrix(sums, self.places, d)

    def _by_chain_rule(self, order: Order, sums: Sums, point: Any) -> tuple[Any, ...]:
        """The same if ψ(θ) does not just select: derivatives of gᵀψ + ½ (ψ − ψ₀)ᵀ H (ψ − ψ₀), g and H from the sums.

        The products with H and Jᵀ have the shapes of the sums, so that J, which is sparse, is never multiplied whole.
        """
        layout, d, start = self._layout(order), len(point), self.coefficients(point)
        is_scores = order is Order.SCORES
        gradient = [jnp.zeros_like(w) for w in start] if is_scores else layout.vectors(sums, second=False)

        def slope(theta: Any) -> Any:
            now, pull = jax.vjp(self.coefficients, theta)
            bent = layout.times(sums, [after - before for after, before in zip(now, start, strict=True)])
            return pull([g + more for g, more in zip(gradient, bent, strict=True)])[0]

        if order is Order.GRADIENT:
            return sums.value, jax.vjp(self.coefficients, point)[1](gradient)[0]

        def along(i: Any) -> Any:
            row = jax.jvp(slope, (point,), (jnp.zeros(d).at[i].set(1.0),))[1]
            return row[i] if order is Order.DIAGONAL else row

        bends = jax.lax.map(along, jnp.arange(d), batch_size=min(d, _DIRECTIONS))
        return (bends,) if is_scores else (sums.value, slope(point), bends)

    def coefficients(self, theta: Any) -> list[Any]:
        """ψ(θ), one part for each argument."""
        columns = [column for w in self.exact.weights(theta) for column in w.T]
        return columns + [theta[i : i + 1] for i in self.found.coordinates]


def _along(function: Any, axes: Any) -> Any:
    """The function of the directional derivatives along each axis, (p, ...), by forward mode."""

    def derived(at: Any) -> Any:
        return jax.vmap(lambda axis: jax.jvp(function, (at,), (axis,))[1])(axes)

    return derived


def _scales(parts: list[dict[int, Any]], slopes: Any, bends: Any, weights: Any) -> Callable[[int, int | None], Any]:
    """The function of one or two arguments of φ to its derivatives by them, with the weights of the rows, (n,).

    `parts` has ∂u for each argument. Without φ'', that of two arguments is the product of first derivatives.
    """

    def scale(a: int, b: int | None) -> Any:
        if b is None:
            return sum(c * slopes[k] for k, c in parts[a].items())
        if bends is None:
            return scale(a, None) * scale(b, None)
        return sum(c * e * bends[k, m] for k, c in parts[a].items() for m, e in parts[b].items())

    return lambda a, b: _weighted(weights, scale(a, b))


def _weighted(weights: Any, rows: Any) -> Any:
    """Weighted rows, by `where`, because weight zero times infinity would be NaN."""
    return jnp.where(weights > 0, weights.astype(rows.dtype) * rows, 0)


def each_point(add: Callable, total: Any, theta: Any) -> Any:
    """Apply add(total, k, point) for each of K points in sequence, so that the block stays in the cache."""
    if theta.shape[0] == 1:
        return add(total, 0, theta[0])
    return jax.lax.fori_loop(0, theta.shape[0], lambda k, total: add(total, k, theta[k]), total)
