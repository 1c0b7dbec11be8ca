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
from epvi.ground.errors import EpviError
from epvi.parameters.space import Space
from epvi.site.derivatives.flat_program import Program, flattened
from epvi.site.derivatives.gathers import Index, find_indices, first_outside
from epvi.site.derivatives.kinds import Kind, kind_of, rows_dtype
from epvi.site.derivatives.linear_predictors import find_predictors
from epvi.site.derivatives.on_subsamples import by_part, remainders
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.prior_part import PriorPart, share_at
from epvi.site.derivatives.through_marginal import LinkedMarginal
from epvi.site.derivatives.through_predictors import Linked, each_point
from epvi.site.derivatives.through_wide_predictor import Wide, is_wide
from epvi.site.model.model import Model
from epvi.site.model.target import Target

# Rows whose codes are checked in one call. Judgement: it bounds the memory.
_ROWS_AT_ONCE = 2**14
# Number of rows on which linear predictors are searched for in float64. Judgement: few, since `is_wide` evaluates them.
_ROWS_TO_LOOK = 8


def programs_of(model: Model, rows: Mapping[str, np.ndarray], like: "Programs | None" = None) -> "Programs":
    """The compiled passes of a model for rows with such columns; equal models share one object.

    A model that cannot be compared with others gets its own. One that differs from the model of `like` only in what is
    declared exchangeable takes over what was compiled there.
    """
    signature: Kind = tuple((name, column.shape[1:], column.dtype.str) for name, column in rows.items())
    made = functools.partial(like.declared, model.exchangeable or ()) if like else lambda: Programs(model.on(rows))
    return kept((model.shared_key(), signature), made)


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
    _linked: dict[Kind, Linked | Wide | LinkedMarginal | None] = dataclasses.field(default_factory=dict)
    # The likelihood's operations, and its indices made of rows, by kind of block.
    _flat: dict[Kind, Program] = dataclasses.field(default_factory=dict)
    _indices: dict[Kind, list[Index]] = dataclasses.field(default_factory=dict)

    @property
    def num_programs(self) -> int:
        """The number of compiled programs, including those that the target was checked with."""
        return sum(map(number_of, [*self._made.values(), *self.target.tries.values()]))

    def declared(self, groups: tuple[tuple[str, ...], ...]) -> "Programs":
        """The same with these groups of parameters declared exchangeable."""
        space = Space(self.target.space.parameters, groups)
        return dataclasses.replace(self, target=dataclasses.replace(self.target, space=space))

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
        return self.once("rows", jax.vmap(self.target.log_likelihood, (0, None)))

    def by_part(self, count: int, size: int) -> Callable:
        """Per point: weighted sums of the rows' log likelihoods, (K, count + 1).

        They are over each of `count` consecutive parts of `size` rows, and over all rows behind these.
        """
        return self.once(("by part", count, size), functools.partial(by_part, self.target, count, size))

    def scores(self, block: Mapping[str, Any] | None) -> Pass:
        """Per point: the sum over rows of the outer products of their score vectors, (d, d); without the prior."""
        return self._pass(Order.SCORES, block)

    def _outer(self, point: Any, block: Any, weights: Any) -> Any:
        dtype = rows_dtype(kind_of(block))
        rows = jax.jacfwd(lambda theta: self.target.log_likelihood(theta.astype(dtype), block))(point)
        rows = jnp.where(weights[:, None] > 0, rows, 0.0).astype(jnp.float64)
        return (weights[:, None] * rows).T @ rows

    def remainders(self) -> Callable:
        """Per row of a block and averaged over points: |curvature| along the way there from a centre, and |remainder|.

        The curvature is the second-order term of the row's expansion about the centre, the remainder what is left over.
        """
        return self.once("remainders", functools.partial(remainders, self.target))

    def at_one_point(self) -> Callable:
        """At one point θ: log prior, its directional derivative along θ, and the log likelihoods of a block's rows."""
        return self.once("at one point", self._at_one_point)

    def _at_one_point(self, point: Any, block: Any) -> Any:
        return *jax.jvp(self.target.log_prior, (point,), (point,)), self.target.log_likelihood(point, block)

    def outside(self) -> Callable:
        """The number of rows of a block with an observed value outside the support of its distribution."""
        return self.once("outside", self._outside)

    def _outside(self, block: dict[str, Any], weights: Any) -> dict[str, Any]:
        bad = self.target.outside(block)
        return {name: jnp.sum(rows & (weights > 0)) for name, rows in bad.items()}

    def refuse_indices(self, block: Mapping[str, Any], weights: np.ndarray, begin: int) -> None:
        """Refuse rows of a block whose codes index parameters out of range; `begin` is the number of rows before it.

        Only columns that serve as nothing but indices are checked. Rows of weight zero are not.
        """
        kind = kind_of(block)
        if kind not in self._indices:
            self._indices[kind] = find_indices(self._program(block))
        indices = self._indices[kind]
        if not indices:
            return
        check = functools.partial(first_outside, self._program(block), indices)
        with jax.enable_x64(True):
            rows, codes = map(np.asarray, self.once(("indices", kind), check)(block, weights))
        first = int(np.argmin(rows))
        if rows[first] < len(weights):
            raise EpviError(indices[first].refusal(begin + int(rows[first]), int(codes[first])))

    def refuse_codes(self, columns: Mapping[str, np.ndarray]) -> None:
        """The same for all rows of a table, before they are divided into shards: the row is then the user's."""
        if not find_indices(self._program(_few(columns))):
            return
        n = len(next(iter(columns.values())))
        size = min(n, _ROWS_AT_ONCE)
        for start in range(0, n, size):
            # The last block overlaps with the one before, so that all have the same shape.
            begin = min(start, n - size)
            block = {name: column[begin : begin + size] for name, column in columns.items()}
            self.refuse_indices(block, np.ones(size), begin)

    def linked(self, block: Mapping[str, Any], order: Order = Order.FULL) -> Linked | Wide | LinkedMarginal | None:
        """The linear predictors for blocks of this kind, if derivatives of this order can be computed through them."""
        kind = kind_of(block)
        if kind not in self._linked:
            self._linked[kind] = self._find_linked(block, kind)
        found = self._linked[kind]
        return found if found is not None and found.gives(order) else None

    def _find_linked(self, block: Mapping[str, Any], kind: Kind) -> Linked | Wide | LinkedMarginal | None:
        if self.target.links is not None:
            return self.target.links(block)
        dtype = rows_dtype(kind)
        few = _few(block)
        with jax.enable_x64(True):
            found = find_predictors(self._program(block))
            exact = None if found is None else find_predictors(self._program(few))
        if found is None or exact is None:
            return None
        if (found.widths, found.heights, *found.coordinates) != (exact.widths, exact.heights, *exact.coordinates):
            # The number of rows is also the length of another axis of some value, which was taken for that of the rows.
            return None
        linked = Linked(found, exact, dtype)
        if linked.is_narrow:
            return linked
        return Wide(found, exact, dtype) if is_wide(exact, self.target.space.dim, few) else None

    def _program(self, block: Mapping[str, Any]) -> Program:
        """The likelihood's operations for blocks of this kind."""
        kind = kind_of(block)
        if kind not in self._flat:
            theta = jax.ShapeDtypeStruct((self.target.space.dim,), rows_dtype(kind))
            shapes = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in block.items()}
            with jax.enable_x64(True):
                self._flat[kind] = flattened(self.target.log_likelihood, theta, shapes)
        return self._flat[kind]

    def once(self, name: Any, function: Callable, *, donated: int | None = None) -> Callable:
        """The compiled function of this name; `donated` is the argument whose memory its result may take."""
        # `setdefault` is atomic, so that two threads get the same function.
        if name not in self._made:
            self._made.setdefault(name, jax.jit(function, donate_argnums=donated))
        return self._made[name]

    def _pass(self, order: Order, block: Mapping[str, Any] | None) -> Pass:
        linked = None if block is None else self.linked(block, order)
        key = None if block is None else kind_of(block)
        meant = _as_it_is
        if linked is not None and block is not None:
            # The conversion of sums to θ does not depend on the number of rows of a block.
            meant = self.once(("meant", order, kind_of(block, 0)), jax.vmap(functools.partial(linked.curve, order)))
        zero, add = functools.partial(self._zero, order, linked), functools.partial(self._add, order, linked)
        finish = functools.partial(self._finish, order, meant)
        return Pass(zero, self.once(("add", order, key), add, donated=0), finish)

    def zero(self, order: Order, block: Mapping[str, Any], num_points: int) -> Any:
        """The sums over no rows."""
        return self._zero(order, self.linked(block, order), num_points)

    def _zero(self, order: Order, linked: Linked | Wide | LinkedMarginal | None, num_points: int) -> Any:
        if linked is not None:
            return linked.zero(order, num_points)
        parts = tuple(np.zeros((num_points, *shape)) for shape in order.shapes(self.target.space.dim))
        return parts if order is not Order.VALUE else parts[0]

    def together(self, order: Order, block: Mapping[str, Any], size: int) -> Callable:
        """Sums over blocks of `size` rows of a window, each for one of C points: see `windows.py`.

        The function of points (C, q, d), weights of their shards' rows (C,), items, the window and weights of its rows
        (or None) gives sums with leading axes (C, q).
        """
        function = functools.partial(self._together, order, self.linked(block, order), size)
        return self.once(("together", order, size, kind_of(block, 0)), function)

    def _together(
        self,
        order: Order,
        linked: Linked | Wide | LinkedMarginal | None,
        size: int,
        theta: Any,
        weights: Any,
        items: Any,
        window: Any,
        by_row: Any,
    ) -> Any:
        count, q = theta.shape[:2]

        def of_item(i: Any, total: Any) -> Any:
            point, block, own = item_of(items, i, size, weights, window, by_row)
            return self._add(order, linked, total, theta[point], block, own, (point,))

        zero = self._zero(order, linked, 1)
        start = jax.tree.map(lambda part: jnp.zeros((count, q, *part.shape[1:])), zero)
        return jax.lax.fori_loop(0, items.used, of_item, start)

    def finished(self, order: Order, kind: Kind | None, linked: Linked | Wide | LinkedMarginal | None) -> Callable:
        """The function of sums over rows (P, ...), points (P, d) and shares of the prior (P,) to log p_m."""
        # A function of its own, which is traced once and not for each number of points.
        prior_of = self.once(("share of the prior", order), functools.partial(share_at, self.target, order))

        def one(sums: Any, point: Any, share: Any) -> Any:
            rows = sums if linked is None else linked.curve(order, sums, point)
            if order is Order.SCORES:
                return rows
            made = _added(rows, prior_of(share, point))
            return (made,) if order is Order.VALUE else made

        return self.once(("finished", order, kind), jax.vmap(one))

    def _add(
        self,
        order: Order,
        linked: Linked | Wide | LinkedMarginal | None,
        total: Any,
        theta: Any,
        block: Any,
        weights: Any,
        at: tuple[Any, ...] = (),
    ) -> Any:
        """The total with a block added for K points, at an index of its axes before that of the points."""
        if linked is not None:
            return each_point(
                lambda total, k, point: linked.add(order, total, (*at, k), point, block, weights), total, theta
            )
        more = self._over_rows(order, theta, block, weights)
        return jax.tree.map(lambda whole, part: whole.at[at].add(part) if at else whole + part, total, more)

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
        if order is Order.SCORES:
            return meant(total, theta)
        return self.once(("prior", order), functools.partial(self._prior, order))(meant(total, theta), theta, prior)

    def _prior(self, order: Order, total: Any, theta: Any, prior: PriorPart) -> Any:
        def log_density(point: Any) -> Any:
            return prior.log_density(self.target, point)

        return _added(total, jax.vmap(order.derived(log_density))(theta))


def item_of(items: Any, i: Any, size: int, weights: Any, window: Any, by_row: Any) -> tuple[Any, Any, Any]:
    """Item i of a call (see `windows.py`): the index of its point, its block of rows, and their weights."""
    point, row = items.point[i], jnp.arange(size)
    block = _slices(window, items.start[i], size)
    own = jnp.where((row >= items.low[i]) & (row < items.high[i]), weights[point], 0.0)
    if by_row is not None:
        own = own * jax.lax.dynamic_slice_in_dim(by_row, items.start[i], size)
    return point, block, own


def _few(block: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The first rows of a block, in float64."""
    size = _ROWS_TO_LOOK
    few = {name: np.resize(np.asarray(x[:size]), (size, *x.shape[1:])) for name, x in block.items()}
    return {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in few.items()}


def _slices(window: Mapping[str, Any], start: Any, size: int) -> dict[str, Any]:
    return {name: jax.lax.dynamic_slice_in_dim(column, start, size) for name, column in window.items()}


def _added(total: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, total, more)


def _as_it_is(total: Any, theta: Any) -> Any:
    return total
