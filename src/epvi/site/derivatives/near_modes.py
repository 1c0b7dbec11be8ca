"""Values of log densities of shards near their modes, where rows are bundles of groups, in float32.

Takes the modes of shards with their Taylor expansions; gives values at points near each mode from differences to the
value at the mode. Integrals over effects are computed with nodes about the moments that the effects have at the mode
(`conditional.py`). The log density itself at a few of the points says how large the error is.
"""

import numpy as np
from jaxtyping import Float, Int

from epvi.site.derivatives.conditional import prepared
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.smooth_remainder import in_float32
from epvi.site.derivatives.subposteriors import Subposteriors

# Points of each shard at which the error is measured. Judgement: it only has to be far below what is tolerable.
_COMPARED = 2


def near_modes(
    sub: Subposteriors, shards: Int[np.ndarray, " b"], at: Taylors, theta: Float[np.ndarray, "b q d"]
) -> tuple[Float[np.ndarray, "b q"], Float[np.ndarray, " b"]]:
    """Values of some shards at q points near each mode, and the root mean squares of their errors."""
    pieces = []
    for m, centre in zip(shards, at.centre, strict=True):
        own = slice(int(sub.windows.bounds[m]), int(sub.windows.bounds[m + 1]))
        columns = {name: column[own] for name, column in sub.rows.items()}
        pieces.append(prepared(sub.programs.target, columns, centre))
    rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    fast = Subposteriors(
        sub.programs,
        {name: in_float32(column) for name, column in rows.items()},
        sub.windows.of_others(sub.sizes[shards]),
        sub.shares[shards],
        sub.weights[shards],
    )
    points = np.concatenate([at.centre[:, None], theta], axis=1)
    own = np.arange(len(shards))
    values = fast.value(points, own)
    found = at.value[:, None] + values[:, 1:] - values[:, :1]
    exact = sub.value(theta[:, :_COMPARED], shards)
    return found, np.sqrt(np.mean((found[:, :_COMPARED] - exact) ** 2, axis=1))
