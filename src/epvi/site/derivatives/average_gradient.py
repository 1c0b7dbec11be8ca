"""The gradient of a log likelihood averaged over many points, as matrix products over all points at once.

Takes R points and blocks of rows; gives Σ_i (1/R) Σ_r ∇ log p(x_i | θ_r), from one derivative with respect to a shift
that all points have in common. Gradients at one point after the other would read the rows R times.
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
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.columns import Columns


class _Averaged(Held):
    """The compiled program of one target."""

    def __init__(self, programs: Programs) -> None:
        self._target = programs.target
        self.run = jax.jit(self._averaged)

    @property
    def num_programs(self) -> int:
        return number_of(self.run)

    def _averaged(self, points: Any, block: Any, weights: Any) -> Any:
        dtype = rows_dtype(kind_of(block))

        def average(shift: Any) -> Any:
            rows = jax.vmap(lambda point: self._target.log_likelihood((point + shift).astype(dtype), block))(points)
            # `where`, because weight zero times an infinite log likelihood would be NaN.
            return jnp.sum(jnp.where(weights > 0, weights * jnp.mean(rows, axis=0).astype(jnp.float64), 0.0))

        return jax.grad(average)(jnp.zeros(points.shape[1]))


def average_gradient(
    programs: Programs,
    rows: Columns,
    windows: Windows,
    shard: int,
    points: Float[np.ndarray, "R d"],
    by_row: Float[np.ndarray, " N"] | None = None,
) -> Float[np.ndarray, " d"]:
    """The average over points of the gradient of one shard's log likelihood, with weights of its rows if given."""
    program = kept(("average gradient", programs), lambda: _Averaged(programs)).run
    start, stop = int(windows.bounds[shard]), int(windows.bounds[shard + 1])
    total = np.zeros(points.shape[1])
    with jax.enable_x64(True), promotion_allowed():
        for first in range(start, stop, windows.window):
            weights = (np.arange(windows.window) < stop - first).astype(np.float64)
            if by_row is not None:
                weights = weights * windows.rows(by_row, first)
            total += np.asarray(program(points, windows.cut(rows, first), weights))
    return total
