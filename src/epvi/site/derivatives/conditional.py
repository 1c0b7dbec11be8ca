"""The effects of each group given the other parameters φ: mean, covariance, and how they change with φ.

Takes the target of bundles with group effects integrated out, and a point φ₀; gives moments of the conditional
distribution of each level's effects from the nodes of the integral (`integral.py`), with derivatives in φ. Levels
without rows have their prior. Near φ₀ the moments also tell where the nodes of the integrals have to be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.float64 import promotion_allowed
from epvi.site.model.target import Target
from epvi.site.rows.bundles import COUNT, LEVELS, LOCAL, PILOT
from epvi.site.rows.columns import Columns

# Most rows of a block, of which the derivatives of all nodes are in memory. Judgement.
_ROWS_AT_ONCE = 2**14


class Conditional(NamedTuple):
    """Moments of the effects of L groups given φ near φ₀, linear in φ.

    The covariance is C Cᵀ with C lower triangular; `root` has the rows of C one after the other, with the logarithms of
    its diagonal.
    """

    mean: Float[np.ndarray, "L s"]
    root: Float[np.ndarray, "L t"]
    mean_slope: Float[np.ndarray, "L s p"]
    root_slope: Float[np.ndarray, "L t p"]


def conditional_moments(target: Target, columns: Columns, phi: Float[np.ndarray, " p"], num_levels: int) -> Conditional:
    """The moments of all levels' effects given φ near the given point."""
    columns = _with_all_levels(columns, num_levels)
    found = _moments(target, columns, phi)
    levels = columns[LEVELS].ravel()
    there = levels >= 0
    made = Conditional(*(np.zeros((num_levels, *part.shape[1:])) for part in found))
    for whole, part in zip(made, found, strict=True):
        whole[levels[there]] = part[there]
    return made


def prepared(target: Target, columns: Columns, phi: Float[np.ndarray, " p"]) -> Columns:
    """The columns with a further one that makes integrals near φ cheaper, if group effects are integrated out."""
    if target.conditional is None:
        return columns
    found = _moments(target, columns, phi)
    parts = [np.broadcast_to(phi, (len(found.mean), len(phi))), *(part.reshape(len(part), -1) for part in found)]
    flat = np.concatenate(parts, axis=1).reshape(*columns[LEVELS].shape, -1)
    floats = {column.dtype for column in columns.values() if column.dtype.kind == "f"}
    pilot = flat.astype(np.float32) if floats == {np.dtype(np.float32)} else flat
    return dict(sorted({**columns, PILOT: pilot}.items()))


def _moments(target: Target, columns: Columns, phi: Float[np.ndarray, " p"]) -> Conditional:
    """The moments of the effects of all groups of all bundles, also of absent ones."""
    assert target.conditional is not None
    number, width = columns[LEVELS].shape
    size = min(max(_ROWS_AT_ONCE // columns[LOCAL].shape[1], 1), number)
    pieces = []
    with jax.enable_x64(True), promotion_allowed():
        for start in range(0, number, size):
            # The last block overlaps with the one before, so that all have the same shape.
            first = min(start, number - size)
            block = {name: column[first : first + size] for name, column in columns.items()}
            slopes, values = target.conditional(jnp.asarray(phi, jnp.float64), block)
            pieces.append([np.asarray(part)[(start - first) * width :] for part in (*values, *slopes)])
    return Conditional(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


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
