"""Measures the error of the integrals over the effects of groups, by a finer rule at a few draws of the others."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.conditional import blocks
from epvi.site.model.target import Target
from epvi.site.rows.bundles import LEVELS, LOCAL
from epvi.site.rows.columns import Columns

# Points φ at which it is measured, and rows that are used. Judgement: a second.
_POINTS, _ROWS = 16, 2**16


def integral_error(target: Target, columns: Columns, phi: Float[np.ndarray, "S p"]) -> float:
    """The sd over φ of the error of the sum of log integrals, in nats.

    A log density with an error δ has means that are off by Cov(θ, δ), at most sd(δ) posterior sds. Of many rows the
    error is computed for some bundles, and scaled to all.
    """
    assert target.integral_errors is not None
    number, places = columns[LOCAL].shape
    some = np.unique(np.linspace(0, number - 1, min(number, max(_ROWS // places, 1))).astype(int))
    chosen, total = {name: column[some] for name, column in columns.items()}, np.zeros(min(_POINTS, len(phi)))
    with jax.enable_x64(True), promotion_allowed():
        for block, own in blocks(chosen):
            levels = np.full_like(block[LEVELS], -1)
            levels.ravel()[own] = block[LEVELS].ravel()[own]
            total += np.asarray(target.integral_errors(jnp.asarray(phi[:_POINTS]), {**block, LEVELS: levels}))
    return float(np.std(total)) * number / len(some)
