"""Functions of a target and a subsample of rows, to be compiled: estimates by part, and the influence of each row."""

from typing import Any

import jax
import jax.numpy as jnp

from epvi.site.derivatives.kinds import kind_of, rows_dtype
from epvi.site.model.target import Target


def by_part(target: Target, count: int, size: int, theta: Any, rows: Any, weights: Any) -> Any:
    """Per point: weighted sums over each of `count` parts of `size` rows, and over the rows behind them."""
    dtype = rows_dtype(kind_of(rows))

    def sums(point: Any) -> Any:
        found = target.log_likelihood(point.astype(dtype), rows).astype(jnp.float64)
        found = jnp.where(weights > 0, weights * found, 0.0)
        parts = jnp.sum(found[: count * size].reshape(count, size), axis=1)
        return jnp.append(parts, jnp.sum(found[count * size :]))

    return jax.vmap(sums)(theta)


def remainders(target: Target, centre: Any, theta: Any, block: Any) -> Any:
    """Per row: |curvature| along the way from a centre to points, and |remainder| there, averaged over the points."""
    dtype = rows_dtype(kind_of(block))

    def value_at(point: Any) -> Any:
        return target.log_likelihood(point.astype(dtype), block)

    def sizes(point: Any) -> Any:
        # Derivatives at the centre, which is the same for all points: what they share is computed once.
        def slope(start: Any) -> Any:
            return jax.jvp(value_at, (start,), (point - centre,))

        (value, first), (_, second) = jax.jvp(slope, (centre,), (point - centre,))
        return jnp.abs(jnp.stack([second, value_at(point) - value - first - 0.5 * second]))

    return jnp.mean(jax.vmap(sizes)(theta), axis=0)
