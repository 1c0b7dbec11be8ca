"""The orders up to which a function is differentiated, and the JAX transformations that compute them."""

import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# For the diagonal of a Hessian, Hessian-vector products are computed in batches of this many coordinates, which are in
# memory together. Judgement.
_DIRECTIONS = 16


class Order(enum.Enum):
    """Value only; value and gradient; these and the Hessian's diagonal; these and the full Hessian.

    SCORES is none of these: the sum over rows of the outer products of their score vectors.
    """

    VALUE = enum.auto()
    GRADIENT = enum.auto()
    DIAGONAL = enum.auto()
    FULL = enum.auto()
    SCORES = enum.auto()

    def shapes(self, d: int) -> list[tuple[int, ...]]:
        """Shapes of the value and derivatives at one point in d dimensions."""
        if self is Order.SCORES:
            return [(d, d)]
        second = {Order.DIAGONAL: [(d,)], Order.FULL: [(d, d)]}.get(self, [])
        return [()] if self is Order.VALUE else [(), (d,), *second]

    def derived(self, function: Callable) -> Callable:
        """Transform a scalar function of one point into one that returns its derivatives too, as a tuple."""
        ways = {
            Order.VALUE: lambda plain: plain,
            Order.GRADIENT: jax.value_and_grad,
            Order.DIAGONAL: _with_diagonal,
            Order.FULL: _with_hessian,
        }
        return ways[self](function)


def _with_hessian(function: Callable) -> Callable:
    def derived(point: Any) -> Any:
        (value, gradient), along = jax.linearize(jax.value_and_grad(function), point)
        return value, gradient, jax.vmap(lambda direction: along(direction)[1])(jnp.eye(len(point)))

    return derived


def _with_diagonal(function: Callable) -> Callable:
    def derived(point: Any) -> Any:
        d = len(point)
        (value, gradient), along = jax.linearize(jax.value_and_grad(function), point)

        def entry(i: Any) -> Any:
            return along(jnp.zeros_like(point).at[i].set(1.0))[1][i]

        return value, gradient, jax.lax.map(entry, jnp.arange(d), batch_size=min(d, _DIRECTIONS))

    return derived
