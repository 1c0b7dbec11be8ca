"""Gradients of log likelihoods at many points, as matrix products over all points at once.

Takes R points and the rows of several shards; gives ∇ log p_m(θ_r) for each, from one derivative with respect to a
shift of every point. Gradients at one point after the other would read the rows R times.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.compiled import Held, kept, number_of
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.kinds import kind_of, rows_dtype
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposteriors import Subposteriors

# Points in one pass over the rows. Judgement: enough for matrix products to be fast.
_AT_ONCE = 256


class _AtPoints(Held):
    """The compiled program of one target."""

    def __init__(self, programs: Programs) -> None:
        self._target = programs.target
        self.run = jax.jit(self._gradients)

    @property
    def num_programs(self) -> int:
        return number_of(self.run)

    def _gradients(self, points: Any, block: Any, weights: Any) -> Any:
        dtype = rows_dtype(kind_of(block))

        def total(shifts: Any) -> Any:
            moved = (points + shifts).astype(dtype)
            rows = jax.vmap(lambda point: self._target.log_likelihood(point, block))(moved).astype(jnp.float64)
            # `where`, because weight zero times an infinite log likelihood would be NaN.
            return jnp.sum(jnp.where(weights > 0, weights * rows, 0.0))

        return jax.grad(total)(jnp.zeros(points.shape))


def gradients_at(each: Subposteriors, points: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "B R d"]:
    """The gradients of log p_m of every shard at the points."""
    program = kept(("gradients at points", each.programs), lambda: _AtPoints(each.programs)).run
    windows, made = each.windows, []
    for b, (start, stop) in enumerate(zip(windows.bounds, windows.bounds[1:], strict=False)):
        total = each.prior_gradients(points, np.full(len(points), b))
        with jax.enable_x64(True), promotion_allowed():
            for first in range(int(start), int(stop), windows.window):
                block, weights = windows.cut(each.rows, first), (np.arange(windows.window) < stop - first) + 0.0
                if each.by_row is not None:
                    weights = weights * windows.rows(each.by_row, first)
                for at in range(0, len(points), _AT_ONCE):
                    some = slice(at, at + _AT_ONCE)
                    total[some] += each.weights[b] * np.asarray(program(points[some], block, weights))
        made.append(total)
    return np.stack(made)
