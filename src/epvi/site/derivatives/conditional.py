"""The effects of each group given the other parameters φ: mean, covariance, and how they change with φ.

Takes the marginal likelihood of bundles and a point φ₀; gives moments of the conditional distribution of each level's
effects from the nodes of the integral (`integral.py`), with derivatives in φ. Levels without rows have their prior.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.integral import joint_at
from epvi.site.derivatives.integrated import Groups, Marginal
from epvi.site.rows.bundles import COUNT, LEVELS, LOCAL
from epvi.site.rows.columns import Columns

# Most rows of a block, of which the derivatives of all nodes are in memory. Judgement.
_ROWS_AT_ONCE = 2**14


class Conditional(NamedTuple):
    """Moments of the effects of G levels given φ near φ₀, linear in φ.

    The covariance is C Cᵀ with C lower triangular; `root` has the rows of C one after the other, with the logarithms of
    its diagonal.
    """

    mean: Float[np.ndarray, "G s"]
    mean_slope: Float[np.ndarray, "G s p"]
    root: Float[np.ndarray, "G t"]
    root_slope: Float[np.ndarray, "G t p"]


def conditional_moments(marginal: Marginal, columns: Columns, phi: Float[np.ndarray, " p"]) -> Conditional:
    """The moments of all levels' effects given φ near the given point."""
    columns = _with_all_levels(columns, marginal.places.num_levels)
    size = max(_ROWS_AT_ONCE // columns[LOCAL].shape[1], 1)
    number = len(columns[LOCAL])

    def moments(phi: Any, block: Any) -> tuple[Any, Any]:
        groups = Groups(block)
        joint, nodes = marginal.at(phi, groups)
        made = _moments(jax.nn.softmax(joint_at(joint, nodes), axis=0), nodes.z)
        return made, made

    program = jax.jit(jax.jacfwd(moments, has_aux=True))
    s = marginal.places.per_level
    shapes = ((s,), (s, len(phi)), (s * (s + 1) // 2,), (s * (s + 1) // 2, len(phi)))
    found = Conditional(*(np.zeros((marginal.places.num_levels, *shape)) for shape in shapes))
    with jax.enable_x64(True), promotion_allowed():
        for start in range(0, number, size):
            # The last block overlaps with the one before, so that all have the same shape.
            first = max(min(start, number - size), 0)
            block = {name: column[first : first + size] for name, column in columns.items()}
            slopes, values = program(jnp.asarray(phi, jnp.float64), block)
            levels = block[LEVELS].ravel()
            there = levels >= 0
            made = Conditional(values[0], slopes[0], values[1], slopes[1])
            for whole, part in zip(found, made, strict=True):
                whole[levels[there]] = np.asarray(part)[there]
    return found


def _moments(weights: Any, z: Any) -> tuple[Any, Any]:
    """Mean and root of the covariance, from nodes (Q, L, s) with weights (Q, L)."""
    mean = jnp.sum(weights[..., None] * z, axis=0)
    away = z - mean
    s = z.shape[-1]
    root: dict[tuple[int, int], Any] = {}
    for j in range(s):
        for i in range(j, s):
            moment = jnp.sum(weights * away[..., i] * away[..., j], axis=0)
            rest = moment - sum(root[i, k] * root[j, k] for k in range(j))
            root[i, j] = jnp.sqrt(rest) if i == j else rest / root[j, j]
    entries = [jnp.log(root[i, j]) if i == j else root[i, j] for i in range(s) for j in range(i + 1)]
    return mean, jnp.stack(entries, axis=1)


def _with_all_levels(columns: Columns, num_levels: int) -> Columns:
    """The bundles, and further ones without rows for the levels that have none."""
    width = columns[LEVELS].shape[1]
    missing = np.setdiff1d(np.arange(num_levels), columns[LEVELS])
    count = -(-len(missing) // width)
    if not count:
        return columns
    made = {name: np.concatenate([x, np.repeat(x[:1], count, axis=0)]) for name, x in columns.items()}
    levels = np.full(count * width, -1, columns[LEVELS].dtype)
    levels[: len(missing)] = missing
    made[LEVELS][-count:], made[COUNT][-count:], made[LOCAL][-count:] = levels.reshape(count, width), 0, 0
    return made
