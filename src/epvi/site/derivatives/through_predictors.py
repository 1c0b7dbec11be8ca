"""Differentiates a likelihood through its linear predictors: a few scalars per row, then matrix products.

Takes linear predictors and a block of rows; returns sums over the block of the derivatives with respect to the
coefficients ψ = (W, θ_S) and, once per pass, converts them to derivatives with respect to θ:

    ∇ℓ = Jᵀ Σ_i A_iᵀ φ'_i,   ∇²ℓ = Jᵀ (Σ_i A_iᵀ φ''_i A_i) J + Σ_j (Σ_i A_iᵀ φ'_i)_j ∇²ψ_j,   J = ∂ψ/∂θ

Row a of A_i is the gradient of φ's argument a with respect to ψ: x_i for a linear predictor, 1 for a coordinate of θ.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.site.derivatives.linear_predictors import Predictors
from epvi.site.derivatives.order import Order

# Most arguments of φ: p arguments have p(p + 1)/2 second derivatives per row, 36 for 8, each with a matrix product.
# Judgement.
MOST_ARGUMENTS = 8


class Sums(NamedTuple):
    """Sums over rows of the log likelihood and its derivatives with respect to ψ."""

    # The log likelihood.
    value: Any
    # The gradient, one piece per argument of φ.
    first: tuple[Any, ...]
    # The Hessian, one block per pair a <= b of arguments; for the diagonal one piece per argument; empty if not needed.
    second: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Linked:
    """A likelihood with linear predictors of few columns."""

    # The predictors as found in the program for the rows' dtype.
    found: Predictors
    # The same in the program for float64.
    exact: Predictors
    # The dtype of per-row arithmetic.
    dtype: Any

    @property
    def places(self) -> np.ndarray | None:
        """The index in θ of each entry of ψ, if all are coordinates of θ: then J only selects; None otherwise."""
        if any(places is None for places in self.found.places):
            return None
        cuts = [np.ravel(np.transpose(places)) for places in self.found.places if places is not None]
        return np.concatenate([*cuts, self.found.coordinates])

    @property
    def gives_diagonal(self) -> bool:
        """Whether the diagonal of the Hessian in θ follows from that in ψ: each coordinate occurs at most once in ψ."""
        return self.places is not None and len(np.unique(self.places)) == len(self.places)

    @property
    def held(self) -> int:
        """Intermediate numbers per row of a block that are in memory at once."""
        return 2 * sum(cut.height for cut in self.found.cuts) + 2 * len(self._pairs)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        p = self.found.num_arguments
        return [(a, b) for a in range(p) for b in range(a, p)]

    def zero(self, order: Order, num_points: int) -> Sums:
        """The sums over no rows."""
        cuts = zip(self.found.cuts, self.found.widths, strict=True)
        shapes: list[tuple[int, ...]] = [(cut.height,) for cut, width in cuts for _ in range(width)]
        shapes += [()] * len(self.found.coordinates)
        pairs = [shapes[a] + shapes[b] for a, b in self._pairs]
        second = {Order.GRADIENT: [], Order.DIAGONAL: shapes}.get(order, pairs)
        value, *parts = (np.zeros((num_points, *shape)) for shape in ((), *shapes, *second))
        return Sums(value, tuple(parts[: len(shapes)]), tuple(parts[len(shapes) :]))

    def sums(self, order: Order, point: Any, block: Mapping[str, Any], weights: Any) -> Sums:
        """The sums over a block, at one point θ."""
        matrices = [x.astype(self.dtype) for x in self.found.matrices(block)]
        etas = [x @ w.astype(self.dtype) for x, w in zip(matrices, self.exact.weights(point), strict=True)]
        theta = point.astype(self.dtype)
        p, coordinates = self.found.num_arguments, self.found.coordinates

        def moved(shift: Any) -> Any:
            """φ of every row with `shift` added to its arguments."""
            starts = np.cumsum([0, *self.found.widths])
            shifted = [eta + shift[None, a:b] for eta, a, b in zip(etas, starts, starts[1:], strict=False)]
            there = theta.at[coordinates].add(shift[starts[-1] :]) if len(coordinates) else theta
            return self.found.link(shifted, there, block)

        zero, axes = jnp.zeros(p, self.dtype), jnp.eye(p, dtype=self.dtype)
        value = jnp.sum(_weighted(weights, moved(zero).astype(jnp.float64)))
        first = _along(moved, axes)
        columns = [x for x, width in zip(matrices, self.found.widths, strict=True) for _ in range(width)]
        columns += [None] * len(coordinates)
        slopes = [_weighted(weights, slope) for slope in first(zero).astype(self.dtype)]
        gradient = tuple(_product(x, None, slope) for x, slope in zip(columns, slopes, strict=True))
        if order is Order.GRADIENT:
            return Sums(value, gradient, ())
        second = _along(first, axes)(zero).astype(self.dtype)
        if order is Order.DIAGONAL:
            bends = [_weighted(weights, second[a, a]) for a in range(p)]
            squares = [None if x is None else x**2 for x in columns]
            return Sums(value, gradient, tuple(_product(x, None, b) for x, b in zip(squares, bends, strict=True)))
        bends = [_weighted(weights, second[a, b]) for a, b in self._pairs]
        pieces = (_product(columns[a], columns[b], bend) for (a, b), bend in zip(self._pairs, bends, strict=True))
        return Sums(value, gradient, tuple(pieces))

    def curve(self, order: Order, sums: Sums, point: Any) -> tuple[Any, ...]:
        """Value, gradient and Hessian (or its diagonal) with respect to θ, from sums over all rows."""
        gradient = jnp.concatenate([jnp.ravel(piece) for piece in sums.first])
        d = len(point)
        if self.places is not None:
            along = jnp.zeros(d).at[self.places].add(gradient)
            if order is Order.GRADIENT:
                return sums.value, along
            if order is Order.DIAGONAL:
                bends = jnp.concatenate([jnp.ravel(piece) for piece in sums.second])
                return sums.value, along, jnp.zeros(d).at[self.places].add(bends)
            rows, columns = np.meshgrid(self.places, self.places, indexing="ij")
            return sums.value, along, jnp.zeros((d, d)).at[rows, columns].add(self._hessian(sums))
        hessian = None if order is Order.GRADIENT else self._hessian(sums)
        return sums.value, *in_theta(self._coefficients, gradient, hessian, point)

    def _coefficients(self, theta: Any) -> Any:
        """ψ(θ)."""
        weights = [jnp.ravel(w.T) for w in self.exact.weights(theta)]
        return jnp.concatenate([*weights, theta[self.found.coordinates]])

    def _hessian(self, sums: Sums) -> Any:
        """The full Hessian in ψ, assembled from the blocks of all pairs of arguments."""
        p = len(sums.first)
        pieces: dict[tuple[int, int], Any] = {}
        for (a, b), piece in zip(self._pairs, sums.second, strict=True):
            pieces[a, b] = jnp.reshape(piece, (sums.first[a].size, sums.first[b].size))
            pieces[b, a] = pieces[a, b].T
        return jnp.block([[pieces[a, b] for b in range(p)] for a in range(p)])


def _along(function: Any, axes: Any) -> Any:
    """The function of the directional derivatives along each axis, (p, ...), by forward mode."""

    def derived(at: Any) -> Any:
        return jax.vmap(lambda axis: jax.jvp(function, (at,), (axis,))[1])(axes)

    return derived


def _weighted(weights: Any, rows: Any) -> Any:
    """Weighted rows, by `where`, because weight zero times infinity would be NaN."""
    return jnp.where(weights > 0, weights.astype(rows.dtype) * rows, 0)


def _product(left: Any, right: Any, scale: Any) -> Any:
    """Σ_i scale_i l_i r_iᵀ over a block, converted to float64; None stands for a column of ones."""
    if left is None and right is None:
        return jnp.sum(scale.astype(jnp.float64))
    if right is None:
        return (scale @ left).astype(jnp.float64)
    if left is None:
        return (scale @ right).astype(jnp.float64)
    return ((left * scale[:, None]).T @ right).astype(jnp.float64)


def in_theta(coefficients: Callable, gradient: Any, hessian: Any | None, point: Any) -> tuple[Any, ...]:
    """Gradient and Hessian with respect to θ by the chain rule, from those with respect to ψ(θ); Hessian if given."""
    jacobian = jax.jacfwd(coefficients)(point)
    if hessian is None:
        return (jacobian.T @ gradient,)
    bent = jax.hessian(lambda theta: gradient @ coefficients(theta))(point)
    return jacobian.T @ gradient, jacobian.T @ hessian @ jacobian + bent


def per_point(function: Any, theta: Any) -> Any:
    """Apply a function of one point to each of K points in sequence, so that the block stays in the cache."""
    if theta.shape[0] == 1:
        return jax.tree.map(functools.partial(jnp.expand_dims, axis=0), function(theta[0]))
    return jax.lax.map(function, theta)
