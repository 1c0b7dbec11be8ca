"""Compiled programs for a pass over the rows: sums over a block at K points, and their total with the prior.

Takes a target; returns programs that are compiled once per shape of block and used by all shards of a process. Models
with linear predictors are differentiated through them; all others by JAX in all coordinates.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.compiled import Held, kept, number_of
from epvi.site.derivatives.linear_predictors import Predictors, find_predictors
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.prior_part import PriorPart
from epvi.site.derivatives.through_predictors import MOST_ARGUMENTS, Linked, per_point
from epvi.site.derivatives.through_wide_predictor import Wide, is_wide
from epvi.site.model.model import Model
from epvi.site.model.target import Target

# Number of rows on which linear predictors are searched for in float64. Judgement: few, since `is_wide` evaluates them.
_ROWS_TO_LOOK = 8

# Name, shape and dtype of every column of a block: blocks of one kind share compiled programs.
Kind = tuple[tuple[str, tuple[int, ...], str], ...]


def programs_of(model: Model, rows: Mapping[str, np.ndarray]) -> "Programs":
    """The compiled passes of a model for rows with such columns; equal models share one object.

    A model that cannot be compared with others gets its own.
    """
    signature: Kind = tuple((name, column.shape[1:], column.dtype.str) for name, column in rows.items())
    return kept((model.shared_key(), signature), lambda: Programs(model.on(rows)))


class Pass(NamedTuple):
    """The three functions of a pass over the rows at K points."""

    # zero(K): the sums over no rows.
    zero: Callable[[int], Any]
    # add(total, theta, block, weights): the sums with a block added.
    add: Callable
    # finish(total, theta, prior): log p_m and its derivatives, of the rows and of the prior together.
    finish: Callable


@dataclasses.dataclass(eq=False)
class Programs(Held):
    """The compiled passes of one target, shared by all shards of a process."""

    # The log prior and log likelihood.
    target: Target
    # Compiled functions, by what they compute.
    _made: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # Linear predictors, by kind of block; None if there are none.
    _linked: dict[Kind, Linked | Wide | None] = dataclasses.field(default_factory=dict)

    @property
    def num_programs(self) -> int:
        """The number of compiled programs, including those that the target was checked with."""
        return sum(map(number_of, [*self._made.values(), *self.target.tries.values()]))

    def value(self, block: Mapping[str, Any] | None) -> Pass:
        """Per point: the value."""
        return self._pass(Order.VALUE, block)

    def gradient(self, block: Mapping[str, Any] | None) -> Pass:
        """Per point: value and gradient."""
        return self._pass(Order.GRADIENT, block)

    def full(self, block: Mapping[str, Any] | None) -> Pass:
        """Per point: value, gradient and Hessian."""
        return self._pass(Order.FULL, block)

    def diagonal(self, block: Mapping[str, Any] | None) -> Pass:
        """Per point: value, gradient and the diagonal of the Hessian."""
        return self._pass(Order.DIAGONAL, block)

    def rows(self) -> Callable:
        """Per point and row of a block: the log likelihood, (K, n)."""
        return self._once("rows", jax.vmap(self.target.log_likelihood, (0, None)))

    def outer(self) -> Callable:
        """At one point: the sum over a block's rows of the outer products of their score vectors, (d, d)."""
        return self._once("outer", self._outer)

    def _outer(self, point: Any, block: Any, weights: Any) -> Any:
        dtype = rows_dtype(kind_of(block))
        rows = jax.jacfwd(lambda theta: self.target.log_likelihood(theta.astype(dtype), block))(point)
        rows = jnp.where(weights[:, None] > 0, rows, 0.0).astype(jnp.float64)
        return (weights[:, None] * rows).T @ rows

    def at_one_point(self) -> Callable:
        """At one point θ: log prior, its directional derivative along θ, and the log likelihoods of a block's rows."""
        return self._once("at one point", self._at_one_point)

    def _at_one_point(self, point: Any, block: Any) -> Any:
        return *jax.jvp(self.target.log_prior, (point,), (point,)), self.target.log_likelihood(point, block)

    def outside(self) -> Callable:
        """The number of rows of a block with an observed value outside the support of its distribution."""
        return self._once("outside", self._outside)

    def _outside(self, block: dict[str, Any], weights: Any) -> dict[str, Any]:
        bad = self.target.outside(block)
        return {name: jnp.sum(rows & (weights > 0)) for name, rows in bad.items()}

    def linked(self, block: Mapping[str, Any], order: Order = Order.FULL) -> Linked | Wide | None:
        """The linear predictors for blocks of this kind, if derivatives of this order can be computed through them."""
        kind = kind_of(block)
        if kind not in self._linked:
            self._linked[kind] = self._find_linked(block, kind)
        found = self._linked[kind] if order not in (Order.VALUE, Order.SCORES) else None
        return None if found is not None and order is Order.DIAGONAL and not found.gives_diagonal else found

    def _find_linked(self, block: Mapping[str, Any], kind: Kind) -> Linked | Wide | None:
        dtype = rows_dtype(kind)
        few = {
            name: np.resize(np.asarray(column[:_ROWS_TO_LOOK]), (_ROWS_TO_LOOK, *column.shape[1:]))
            for name, column in block.items()
        }
        few = {name: column.astype(np.float64) if column.dtype.kind == "f" else column for name, column in few.items()}
        with jax.enable_x64(True):
            found = self._look(block, dtype)
            exact = None if found is None else self._look(few, np.float64)
        if found is None or exact is None:
            return None
        if found.num_arguments <= MOST_ARGUMENTS:
            return Linked(found, exact, dtype)
        return Wide(found, exact, dtype) if is_wide(exact, self.target.space.dim, few) else None

    def _look(self, block: Mapping[str, Any], dtype: Any) -> Predictors | None:
        theta = jax.ShapeDtypeStruct((self.target.space.dim,), dtype)
        shapes = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in block.items()}
        return find_predictors(self.target.log_likelihood, theta, shapes)

    def _once(self, name: Any, function: Callable) -> Callable:
        # `setdefault` is atomic, so that two threads get the same function.
        return self._made[name] if name in self._made else self._made.setdefault(name, jax.jit(function))

    def _pass(self, order: Order, block: Mapping[str, Any] | None) -> Pass:
        linked = None if block is None else self.linked(block, order)
        key = None if block is None else kind_of(block)
        if linked is None or block is None:
            zero, meant = functools.partial(_zero, order, self.target.space.dim), _as_it_is
        else:
            zero = functools.partial(linked.zero, order)
            # The conversion of sums to θ does not depend on the number of rows of a block.
            meant = self._once(("meant", order, kind_of(block, 0)), jax.vmap(functools.partial(linked.curve, order)))
        return Pass(
            zero,
            self._once(("add", order, key), functools.partial(self._add, order, linked)),
            functools.partial(self._finish, order, meant),
        )

    def zero(self, order: Order, block: Mapping[str, Any], num_points: int) -> Any:
        """The sums over no rows."""
        linked = self.linked(block, order)
        return _zero(order, self.target.space.dim, num_points) if linked is None else linked.zero(order, num_points)

    def together(self, order: Order, block: Mapping[str, Any], size: int) -> Callable:
        """Sums over blocks of `size` rows of a window, each for one of C points: see `windows.py`.

        The function of points (C, q, d), weights of their shards' rows (C,), items, the window and weights of its rows
        (or None) gives sums with leading axes (C, q).
        """
        function = functools.partial(self._together, order, self.linked(block, order), size)
        return self._once(("together", order, size, kind_of(block, 0)), function)

    def _together(
        self,
        order: Order,
        linked: Linked | Wide | None,
        size: int,
        theta: Any,
        weights: Any,
        items: Any,
        window: Any,
        by_row: Any,
    ) -> Any:
        count, q = theta.shape[:2]

        def of_item(i: Any, total: Any) -> Any:
            point, row = items.point[i], jnp.arange(size)
            block = _slices(window, items.start[i], size)
            own = jnp.where((row >= items.low[i]) & (row < items.high[i]), weights[point], 0.0)
            if by_row is not None:
                own = own * jax.lax.dynamic_slice_in_dim(by_row, items.start[i], size)
            more = self._sums_over(order, linked, theta[point], block, own)
            return jax.tree.map(lambda whole, part: whole.at[point].add(part), total, more)

        zero = self.zero(order, _slices(window, 0, size), 1)
        start = jax.tree.map(lambda part: jnp.zeros((count, q, *part.shape[1:])), zero)
        return jax.lax.fori_loop(0, items.used, of_item, start)

    def _sums_over(self, order: Order, linked: Linked | Wide | None, theta: Any, block: Any, weights: Any) -> Any:
        """Sums over a block at K points."""
        if linked is None:
            return self._over_rows(order, theta, block, weights)
        return per_point(lambda point: linked.sums(order, point, block, weights), theta)

    def finished(self, order: Order, kind: Kind | None, linked: Linked | Wide | None) -> Callable:
        """The function of sums over rows (P, ...), points (P, d) and shares of the prior (P,) to log p_m."""

        def one(sums: Any, point: Any, share: Any) -> Any:
            rows = sums if linked is None else linked.curve(order, sums, point)
            prior = order.derived(lambda theta: share * self.target.log_prior(theta))(point)
            made = _added(rows, prior)
            return (made,) if order is Order.VALUE else made

        return self._once(("finished", order, kind), jax.vmap(one))

    def _add(
        self, order: Order, linked: Linked | Wide | None, total: Any, theta: Any, block: Any, weights: Any
    ) -> Any:
        return _added(total, self._sums_over(order, linked, theta, block, weights))

    def _over_rows(self, order: Order, theta: Any, block: Any, weights: Any) -> Any:
        """Sums over a block at K points, by JAX in all coordinates."""
        if order is Order.SCORES:
            return (jax.vmap(lambda point: self._outer(point, block, weights))(theta),)
        dtype = rows_dtype(kind_of(block))

        def over_rows(point: Any) -> Any:
            rows = self.target.log_likelihood(point.astype(dtype), block).astype(jnp.float64)
            # `where`, because weight zero times an infinite log likelihood would be NaN.
            return jnp.sum(jnp.where(weights > 0, weights * rows, 0.0))

        return jax.vmap(order.derived(over_rows))(theta)

    def _finish(self, order: Order, meant: Callable, total: Any, theta: Any, prior: PriorPart) -> Any:
        return self._once(("prior", order), functools.partial(self._prior, order))(meant(total, theta), theta, prior)

    def _prior(self, order: Order, total: Any, theta: Any, prior: PriorPart) -> Any:
        def log_density(point: Any) -> Any:
            return prior.log_density(self.target, point)

        return _added(total, jax.vmap(order.derived(log_density))(theta))


def kind_of(block: Mapping[str, Any], num_rows: int | None = None) -> Kind:
    """The kind of a block, with its own number of rows or with `num_rows`; each kind needs its own program."""
    return tuple(
        (name, (len(column) if num_rows is None else num_rows, *column.shape[1:]), np.dtype(column.dtype).str)
        for name, column in block.items()
    )


def rows_dtype(kind: Kind) -> Any:
    """The dtype of per-row arithmetic: float32 if all floating-point columns are float32, else float64."""
    floats = {dtype for _, _, dtype in kind if np.dtype(dtype).kind == "f"}
    return jnp.float32 if floats == {np.dtype(np.float32).str} else jnp.float64


def _slices(window: Mapping[str, Any], start: Any, size: int) -> dict[str, Any]:
    return {name: jax.lax.dynamic_slice_in_dim(column, start, size) for name, column in window.items()}


def _added(total: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, total, more)


def _zero(order: Order, d: int, num_points: int) -> Any:
    parts = tuple(np.zeros((num_points, *shape)) for shape in order.shapes(d))
    return parts if order is not Order.VALUE else parts[0]


def _as_it_is(total: Any, theta: Any) -> Any:
    return total
