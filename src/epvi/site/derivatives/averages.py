"""Averages over many points of the derivatives of log likelihoods, with one matrix product for all points.

Takes R points and the rows of B shards; gives the log likelihood of each shard at each point, and the averages over the
points of its gradient and Hessian. Where the coefficients of linear predictors are coordinates of θ,

    1/R Σ_r Σ_i φ''(η_ir) x_i x_iᵀ = Σ_i [ 1/R Σ_r φ''(η_ir) ] x_i x_iᵀ,

so the derivatives of φ are averaged in each row, and multiplied with the rows once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.ground.compiled import Held, kept, number_of
from epvi.site.derivatives.kinds import kind_of
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import item_of
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.through_predictors import Linked
from epvi.site.derivatives.windows import Call, Windows

# Most rows of a window of one subsample, whose passes are short anyway. Judgement.
_WINDOW = 2**11
# Points at which derivatives of the prior are computed in one call. Judgement: it bounds the memory.
_PRIOR_AT_ONCE = 64
# Most shards of one call. Judgement.
_MOST_SHARDS = 16


class Averages(NamedTuple):
    """Log likelihoods of B shards at R points, and their derivatives averaged over the points; without the prior."""

    value: Float[np.ndarray, "B R"]
    gradient: Float[np.ndarray, "B d"]
    # In the shape of its order: (B, d, d), or diagonals (B, d).
    hessian: np.ndarray


class _InEachRow(Held):
    """The compiled program of one likelihood, order of derivatives and size of blocks."""

    def __init__(self, linked: Linked, order: Order, size: int) -> None:
        self._linked, self._order, self._size = linked, order, size
        self.run = jax.jit(self._averaged)

    @property
    def num_programs(self) -> int:
        return number_of(self.run)

    def _averaged(self, points: Any, weights: Any, items: Any, window: Any, by_row: Any) -> Any:
        def add(i: Any, total: Any) -> Any:
            shard, block, own = item_of(items, i, self._size, weights, window, by_row)
            return self._linked.add_average(self._order, total, (shard,), points, block, own)

        zero = self._linked.zero_average(self._order, len(weights), len(points))
        return jax.lax.fori_loop(0, items.used, add, jax.tree.map(jnp.asarray, zero))


def averages(each: Subposteriors, points: Float[np.ndarray, "R d"], order: Order) -> Averages | None:
    """The averages for every shard; None where the model has no linear predictors with coordinates as coefficients."""
    linked = each.linked(order)
    if not isinstance(linked, Linked) or linked.places is None:
        return None
    size, shards = each.windows.block, np.arange(each.num_shards)
    key = ("averages", each.programs, order, size, kind_of(each.block, 0))
    program = kept(key, lambda: _InEachRow(linked, order, size)).run
    most = min(2 ** int(np.ceil(np.log2(each.num_shards))), _MOST_SHARDS)

    def run(call: Call) -> Any:
        return program(points, each.weights_of(shards[call.points], most), call.items, *each.window(call))

    total = linked.zero_average(order, each.num_shards, len(points))
    sums = each.over_windows(total, shards, most, run)
    nowhere = np.broadcast_to(points[0], (each.num_shards, each.dim))
    alone = sums._replace(value=np.zeros(each.num_shards))
    _, gradient, hessian = each.in_theta(order, alone, nowhere)
    each.count_pass(shards)
    return Averages(sums.value, gradient, hessian)


def average_curve(sub: Subposterior, points: Float[np.ndarray, "R d"], form: Packing, batch: int) -> Curve:
    """Log p_m of one shard, or a subsample of its rows, at every point, with gradient and Hessian averaged over them.

    Where these cannot be averaged in each row, they are computed at `batch` points at a time.
    """
    window = min(2 ** int(np.ceil(np.log2(sub.num_rows))), _WINDOW)
    windows = Windows.of(np.array([sub.num_rows]), window, window)
    each = Subposteriors(sub.programs, sub.rows, windows, np.zeros(1), np.array([sub.weight]), sub.by_row)
    found = averages(each, points, Order.FULL if form.whole else Order.DIAGONAL)
    if found is None:
        return _averaged(sub, points, form, batch)
    prior = _averaged(sub.without_its_rows(), points, form, _PRIOR_AT_ONCE)
    assert prior.hessian is not None
    sub.passes += 1
    rows = (part[0] for part in found)
    return Curve(*(a + b for a, b in zip(rows, prior[:3], strict=True)), form=form)


def _averaged(sub: Subposterior, points: Float[np.ndarray, "R d"], form: Packing, batch: int) -> Curve:
    values, gradient, hessian = [], 0.0, 0.0
    for i, some in enumerate(in_batches(points, batch)):
        at, used = sub.curve(some, form), min(batch, len(points) - i * batch)
        values.append(at.value[:used])
        gradient += np.sum(at.gradient[:used], axis=0)
        hessian += np.sum(np.asarray(at.hessian)[:used], axis=0)
    return Curve(np.concatenate(values), np.asarray(gradient) / len(points), np.asarray(hessian) / len(points), form)


def in_batches(theta: np.ndarray, batch: int) -> list[np.ndarray]:
    """Points in batches of equal size, the last padded with copies of the last point."""
    filled = np.concatenate([theta, np.repeat(theta[-1:], -len(theta) % batch, axis=0)])
    return np.split(filled, len(filled) // batch)
