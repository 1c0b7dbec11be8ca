"""Evaluates the subposteriors of several shards together, each at its own points, in one pass over all their rows.

Takes compiled programs, the rows of B shards one after the other, and the shards' shares of the prior. A pass costs
what its rows cost, however many shards they are divided into: one compiled program loops over blocks of rows, each with
the point of the shard that it belongs to. `subposterior.py` has the same for one shard.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import WHOLE
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.in_batches import in_batches
from epvi.site.derivatives.kinds import kind_of
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.prior_part import PriorShare
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.windows import Call, Windows
from epvi.site.rows.columns import Columns, let_go
from epvi.site.rows.scarce import Scarce, find_scarce

# Most numbers of the sums that one call returns, 4 MB in float64, and most points of a call. Judgement.
_MOST_SUMS, _MOST_POINTS = 2**19, 64
# Totals over the rows are converted to derivatives of log p_m for this many points at a time: the numbers of points for
# which programs are compiled. Judgement: one, the usual number of components, and batches of shards.
_TOGETHER = (1, 4, 16, 64, 512)
# The same for values only, without derivatives.
_VALUES_TOGETHER = (*_TOGETHER, 4096)
# The same for bundles of groups: fewer programs, since there is more to compile. Judgement.
_FEW_TOGETHER = (4, 64)
# Most numbers of derivatives that are made of totals at a time, 8 MB in float64, so that they stay in the cache.
# Judgement.
_MOST_DERIVATIVES = 2**20
# So many numbers of derivatives and points are made in less time than a call takes. Judgement: with fewer points a call
# is filled up, so that no program has to be traced for them, which takes a tenth of a second for each number of points.
_LITTLE = 2**12
# Most rows of a window of subsamples, whose passes are short anyway. Judgement.
_PART_WINDOW = 2**13
# Calls that may be under way: JAX computes asynchronously, and their sums are in memory. Judgement.
_UNDER_WAY = 8


class _Pass(NamedTuple):
    """What a pass of one order of derivatives uses, looked up once."""

    # The linear predictors, if derivatives of this order can be computed through them.
    linked: Any
    # The sums over no rows, at one point.
    zero: Any
    # The compiled sums over the rows of a window.
    sums: Callable


@dataclasses.dataclass(eq=False)
class Subposteriors:
    """The subposteriors of B shards."""

    # Compiled programs of the model.
    programs: Programs
    # The rows of all shards, one shard after the other.
    rows: Columns
    # Where the shards' rows are, and in which windows and blocks they are read.
    windows: Windows
    # The share of the prior of each shard.
    shares: Float[np.ndarray, " B"]
    # Weight of each row's log likelihood, by shard: for subsamples, the number of rows that each represents.
    weights: Float[np.ndarray, " B"]
    # Weight of each row besides, (N,); None if all are 1.
    by_row: Float[np.ndarray, " N"] | None = None
    # Called after each pass with the shards that took part, and their numbers of passes so far.
    report: Callable[[np.ndarray, np.ndarray], None] = lambda shards, passes: None
    # Number of passes of each shard so far; by default none.
    passes: Int[np.ndarray, " B"] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    # The time that passes took, of all shards.
    seconds: float = 0.0
    # What passes use, by the order of their derivatives.
    _passes: dict[Order, _Pass] = dataclasses.field(default_factory=dict, init=False, repr=False)
    # The compiled functions of sums and points to derivatives, by order, of rows and of the prior alone.
    _finished: dict[tuple[Order, bool], Callable] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.passes):
            self.passes = np.zeros(self.num_shards, np.int64)

    @property
    def num_shards(self) -> int:
        """B."""
        return len(self.shares)

    @property
    def sizes(self) -> Int[np.ndarray, " B"]:
        """The number of rows of each shard."""
        return np.diff(self.windows.bounds)

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.programs.target.space.dim

    def of_rows(
        self,
        sizes: Int[np.ndarray, " b"],
        places: Int[np.ndarray, " n"],
        shares: Float[np.ndarray, " b"],
        weights: Float[np.ndarray, " b"],
        by_row: Float[np.ndarray, " n"] | None = None,
    ) -> "Subposteriors":
        """The subposteriors of chosen rows: those in `places`, the first sizes[0] for the first one, and so on."""
        columns = {name: np.take(column, places, axis=0) for name, column in self.rows.items()}
        if self.programs.target.bundle > 1:
            # Programs for bundles take seconds to compile.
            windows = self.windows.of_others(sizes)
        else:
            window = min(self.windows.window, _PART_WINDOW, 2 ** math.ceil(math.log2(max(len(places), 2))))
            windows = Windows.of(sizes, window, int(np.max(sizes)))
        return Subposteriors(self.programs, columns, windows, shares, weights, by_row)

    def thinned(
        self, shards: Int[np.ndarray, " b"], chosen: list[np.ndarray], represented: list[np.ndarray] | None = None
    ) -> "Subposteriors":
        """Subsamples of some shards: `chosen` has the increasing indices of rows within each shard.

        `represented` says how many rows each of them represents; by default equally many.
        """
        places = np.concatenate([self.windows.bounds[m] + rows for m, rows in zip(shards, chosen, strict=True)])
        sizes = np.array([len(rows) for rows in chosen])
        each = self.sizes[shards] / sizes
        by_row = None if represented is None else np.concatenate(represented) / np.repeat(each, sizes)
        return self.of_rows(sizes, places, self.shares[shards], self.weights[shards] * each, by_row)

    def sampled(
        self, shards: Int[np.ndarray, " b"], sizes: Sequence[int], rngs: Sequence[np.random.Generator]
    ) -> "Subposteriors":
        """Random subsamples of some shards with so many rows each, and more rows that have scarce values."""
        uniform = [
            rng.choice(self.sizes[m], n, replace=False, shuffle=False)
            for m, n, rng in zip(shards, sizes, rngs, strict=True)
        ]
        if self.scarce is None:
            return self.thinned(shards, [np.sort(rows) for rows in uniform])
        made = [self.scarce[m].besides(rows, rng) for m, rows, rng in zip(shards, uniform, rngs, strict=True)]
        return self.thinned(shards, [rows for rows, _ in made], [each for _, each in made])

    @functools.cached_property
    def scarce(self) -> list[Scarce] | None:
        """The rows of each shard with scarce values; None if there are none, or if rows are bundles of groups."""
        return None if self.programs.target.bundle > 1 else find_scarce(self.rows, self.windows.bounds)

    def second_order(
        self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient and Hessian at points of the shards `owner`, which increase."""
        return self.derivatives(theta, owner, WHOLE)

    def alone(self, shard: int) -> Subposterior:
        """The subposterior of one shard."""
        own = slice(int(self.windows.bounds[shard]), int(self.windows.bounds[shard + 1]))
        rows, share = {name: column[own] for name, column in self.rows.items()}, PriorShare(float(self.shares[shard]))
        by_row = None if self.by_row is None else self.by_row[own]
        return Subposterior(self.programs, rows, share, self.windows.window, float(self.weights[shard]), by_row)

    def derivatives(
        self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"], form: Packing
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient, and the Hessian packed in `form`, at points of the shards `owner`, which increase."""
        order = Order.FULL if form.whole else Order.DIAGONAL
        value, gradient, hessian = self._evaluated(order, theta[:, None], owner)
        return value[:, 0], gradient[:, 0], hessian[:, 0]

    def gradient(self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"]) -> tuple[np.ndarray, np.ndarray]:
        """Value and gradient at points of the shards `owner`, which increase."""
        value, gradient = self._evaluated(Order.GRADIENT, theta[:, None], owner)
        return value[:, 0], gradient[:, 0]

    def value(self, theta: Float[np.ndarray, "P q d"], owner: Int[np.ndarray, " P"]) -> Float[np.ndarray, "P q"]:
        """Log p_m at q points for each of some shards."""
        return self._evaluated(Order.VALUE, theta, owner)[0]

    def spread(self, point: Float[np.ndarray, " d"]) -> Float[np.ndarray, "B d d"]:
        """For each shard the sum over its rows of the outer products of their score vectors at one point."""
        if self.programs.target.conditional is not None and self.by_row is None:
            return np.stack([self.alone(m).spread(point) for m in range(self.num_shards)])
        theta = np.broadcast_to(point, (self.num_shards, 1, self.dim))
        sums = self._sums(Order.SCORES, theta, np.arange(self.num_shards))
        flat = jax.tree.map(lambda part: part[:, 0], sums)
        return self._with_prior(Order.SCORES, flat, theta[:, 0], self.shares)[0]

    def only(self, shards: Int[np.ndarray, " b"]) -> "Subposteriors":
        """The shares of the prior of some shards, without rows."""
        nothing = dataclasses.replace(self.windows, bounds=np.zeros(len(shards) + 1, np.int64))
        return Subposteriors(self.programs, {}, nothing, self.shares[shards], self.weights[shards])

    def prior_values(self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """The values of the shares of the prior."""
        return self._with_prior(Order.VALUE, np.zeros(len(theta)), theta, self.shares[owner], alone=True)[0]

    def prior_alone(self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"]) -> tuple[np.ndarray, ...]:
        """Value, gradient and Hessian of the shares of the prior."""
        return self._prior_parts(theta, self.shares[owner])

    def whole_prior(self, theta: Float[np.ndarray, "P d"]) -> tuple[np.ndarray, ...]:
        """Value, gradient and Hessian of the whole prior."""
        return self._prior_parts(theta, np.ones(len(theta)))

    def _prior_parts(self, theta: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, ...]:
        nothing = [np.zeros((len(theta), *shape)) for shape in Order.FULL.shapes(self.dim)]
        return self._with_prior(Order.FULL, tuple(nothing), theta, shares, alone=True)

    def prior_gradients(
        self, theta: Float[np.ndarray, "P d"], owner: Int[np.ndarray, " P"]
    ) -> Float[np.ndarray, "P d"]:
        """The gradients of the shares of the prior."""
        nothing = [np.zeros((len(theta), *shape)) for shape in Order.GRADIENT.shapes(self.dim)]
        return self._with_prior(Order.GRADIENT, tuple(nothing), theta, self.shares[owner], alone=True)[1]

    def _evaluated(self, order: Order, theta: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, ...]:
        start = time.perf_counter()
        sums = self._sums(order, theta, owner)
        p, q, d = theta.shape
        flat = jax.tree.map(lambda part: part.reshape(p * q, *part.shape[2:]), sums)
        shares = np.repeat(self.shares[owner], q)
        made = self._with_prior(order, flat, theta.reshape(p * q, d), shares)
        self.count_pass(np.unique(owner))
        self.seconds += time.perf_counter() - start
        return tuple(part.reshape(p, q, *part.shape[1:]) for part in made)

    def count_pass(self, shards: Int[np.ndarray, " b"]) -> None:
        """Count and report a pass over the rows of some shards."""
        self.passes[shards] += 1
        self.report(shards, self.passes[shards])

    def linked(self, order: Order) -> Any:
        """The linear predictors of the rows, if derivatives of this order can be computed through them."""
        return self._pass(order).linked

    def _pass(self, order: Order) -> _Pass:
        if order not in self._passes:
            programs, block = self.programs, self.block
            sums = programs.together(order, block, self.windows.block)
            self._passes[order] = _Pass(programs.linked(block, order), programs.zero(order, block, 1), sums)
        return self._passes[order]

    def in_theta(self, order: Order, sums: Any, theta: Float[np.ndarray, "P d"]) -> tuple[np.ndarray, ...]:
        """Derivatives of log likelihoods with respect to θ, from sums over rows through linear predictors."""
        return self._with_prior(order, sums, theta, np.zeros(len(theta)))

    @functools.cached_property
    def block(self) -> Columns:
        """A block of rows, for its shapes."""
        window = self.windows.cut(self.rows, 0)
        return {name: column[: self.windows.block] for name, column in window.items()}

    def _sums(self, order: Order, theta: np.ndarray, owner: np.ndarray) -> Any:
        """Sums over each shard's rows, with leading axes (P, q)."""
        p, q, d = theta.shape
        if q > 1 and self.programs.target.bundle > 1:
            # One program serves any number of points of each shard.
            made = self._sums(order, theta.reshape(p * q, 1, d), np.repeat(owner, q))
            return jax.tree.map(lambda part: part.reshape(p, q, *part.shape[2:]), made)
        _, zero, program = self._pass(order)
        # Points and sums are both held.
        numbers = q * max(sum(part.size for part in jax.tree.leaves(zero)), d)
        most = 2 ** int(np.log2(min(max(_MOST_SUMS // numbers, 1), _MOST_POINTS)))
        total = jax.tree.map(lambda part: np.zeros((p, q, *part.shape[1:])), zero)

        def run(call: Call) -> Any:
            points = np.zeros((most, q, d))
            points[: len(call.points)] = theta[call.points]
            return program(points, self.weights_of(owner[call.points], most), call.items, *self.window(call))

        return self.over_windows(total, owner, most, run)

    def weights_of(self, shards: Int[np.ndarray, " c"], most: int) -> Float[np.ndarray, " C"]:
        """The weights of the rows of some shards, with zeros up to the number of points of a call."""
        weights = np.zeros(most)
        weights[: len(shards)] = self.weights[shards]
        return weights

    def window(self, call: Call) -> tuple[dict[str, Any], Any]:
        """The window of rows of a call, and their weights if rows have some; on the device if passes share it."""
        if self.windows.num_rows <= self.windows.window:
            return self._only_window
        return self._cut(call.first)

    def _cut(self, first: int) -> tuple[Columns, np.ndarray | None]:
        by_row = None if self.by_row is None else self.windows.rows(self.by_row, first)
        return self.windows.cut(self.rows, first), by_row

    @functools.cached_property
    def _only_window(self) -> Any:
        """The window of all rows, which passes share: a search on a subsample takes many."""
        with jax.enable_x64(True):
            return jax.device_put(self._cut(0))

    def over_windows(self, total: Any, owner: np.ndarray, most: int, run: Callable[[Call], Any]) -> Any:
        """Add what a program gives for each call to the total, whose leading axis is that of the points."""
        under_way: list[tuple[Call, Any]] = []

        def finish(call: Call, made: Any) -> None:
            for whole, part in zip(jax.tree.leaves(total), jax.tree.leaves(made), strict=True):
                whole[call.points] += np.asarray(part)[: len(call.points)]

        held = 0
        with jax.enable_x64(True), promotion_allowed():
            for call in self.windows.calls(owner, most):
                under_way.append((call, run(call)))
                if len(under_way) >= _UNDER_WAY:
                    finish(*under_way.pop(0))
                    let_go(self.rows, held, under_way[0][0].first)
                    held = under_way[0][0].first
            for one in under_way:
                finish(*one)
            let_go(self.rows, held, self.windows.num_rows)
        return total

    def _with_prior(
        self, order: Order, sums: Any, theta: np.ndarray, shares: np.ndarray, *, alone: bool = False
    ) -> tuple[np.ndarray, ...]:
        """Log p_m and its derivatives from sums over the rows, in batches of points; or those of the prior alone."""
        program = self._finish(order, alone)
        shapes = order.shapes(self.dim)
        sizes = _VALUES_TOGETHER if order is Order.VALUE else _TOGETHER
        if self.programs.target.bundle > 1:
            sizes = _FEW_TOGETHER
        numbers = sum(map(math.prod, shapes))
        # The first size, and programs for smaller numbers of points only where filling up to it would cost time.
        least = max((size for size in sizes if size * (numbers + self.dim) <= _LITTLE), default=sizes[0])
        known = [size for size in sizes if size == least or (least < size and size * numbers <= _MOST_DERIVATIVES)]
        with jax.enable_x64(True), promotion_allowed():
            return in_batches(program, (sums, theta, shares), shapes, known)

    def _finish(self, order: Order, alone: bool) -> Callable:
        if (order, alone) not in self._finished:
            linked = None if alone else self.linked(order)
            kind = None if linked is None else kind_of(self.block, 0)
            self._finished[order, alone] = self.programs.finished(order, kind, linked)
        return self._finished[order, alone]
