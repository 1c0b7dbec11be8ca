"""Did the chains mix: split R̂ and effective sample size of series (chains, draws, quantities), by NumPyro.

NumPyro's functions divide by the variance, so a series that does not move (by more than rounding, 1e-9 of `scale`) is
decided here. When all chains agree on its value, R̂ is 1 and every draw counts; when each chain is stuck at its own,
R̂ is infinite and all draws together count as one; so it is for a series that is not finite.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "C n q"]
PerQuantity = Float[np.ndarray, " q"]


def split_r_hat(series: Series, scale: PerQuantity) -> PerQuantity:
    """Split R̂ of every quantity; NaN with fewer than four draws a chain."""
    from numpyro.diagnostics import split_gelman_rubin

    if series.shape[1] < 4:
        return np.full(series.shape[2], np.nan)
    return _where_it_moves(split_gelman_rubin, series, scale, agreed=1.0, stuck=np.inf)


def effective_size(series: Series, scale: PerQuantity) -> PerQuantity:
    """Effective number of draws, at most as many as there are; one per chain with fewer than four draws a chain."""
    from numpyro.diagnostics import effective_sample_size

    chains, draws, quantities = series.shape
    if draws < 4:
        return np.full(quantities, float(chains))
    ess = _where_it_moves(effective_sample_size, series, scale, agreed=float(chains * draws), stuck=1.0)
    return np.minimum(ess, chains * draws)


def _where_it_moves(estimate: Callable, series: Series, scale: PerQuantity, agreed: float, stuck: float) -> PerQuantity:
    with np.errstate(invalid="ignore"):
        moving = np.max(np.ptp(series, axis=1), axis=0) > 1e-9 * scale
        apart = np.ptp(series, axis=(0, 1)) > 1e-9 * scale
    result = np.where(apart, stuck, agreed)
    broken = ~np.all(np.isfinite(series), axis=(0, 1))
    result[broken] = stuck
    moving &= ~broken
    if np.any(moving):
        result[moving] = estimate(series[:, :, moving])
    return result
