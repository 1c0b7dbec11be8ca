"""Up to which order a function is differentiated, and how JAX does it along every coordinate."""

import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Second derivatives are taken along this many directions at a time when only the diagonal is wanted: they are held
# together in memory. Judgement.
_DIRECTIONS = 16


class Order(enum.Enum):
    """The value alone; with the gradient; with the gradient and the Hessian's diagonal; with the whole Hessian."""

    VALUE = enum.auto()
    GRADIENT = enum.auto()
    DIAGONAL = enum.auto()
    FULL = enum.auto()

    def shapes(self, d: int) -> list[tuple[int, ...]]:
        """The shapes of what comes of one point in d dimensions."""
        second = {Order.DIAGONAL: [(d,)], Order.FULL: [(d, d)]}.get(self, [])
        return [()] if self is Order.VALUE else [(), (d,), *second]

    def derived(self, function: Callable) -> Callable:
        """A scalar function of one point with its derivatives: the value alone, or a tuple."""
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
