"""Split R̂ and effective sample size of series (chains, draws, quantities), from NumPyro.

NumPyro's functions divide by the variance, so series that are constant within every chain are handled here. If all
chains agree on the value, R̂ is 1 and every draw counts; if chains are stuck at different values, or a series is not
finite, R̂ is infinite and the effective sample size is 1.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "C n q"]
PerQuantity = Float[np.ndarray, " q"]


def split_r_hat(series: Series, scale: PerQuantity) -> PerQuantity:
    """Split R̂ of every quantity; NaN with fewer than four draws per chain."""
    from numpyro.diagnostics import split_gelman_rubin

    # The variance within half a chain needs two draws.
    if series.shape[1] < 4:
        return np.full(series.shape[2], np.nan)
    return _where_it_moves(split_gelman_rubin, series, scale, agreed=1.0, stuck=np.inf)


def effective_size(series: Series, scale: PerQuantity) -> PerQuantity:
    """Effective sample size, at most the number of draws; with fewer than four draws per chain, one per chain."""
    from numpyro.diagnostics import effective_sample_size

    chains, draws, quantities = series.shape
    if draws < 4:
        return np.full(quantities, float(chains))
    ess = _where_it_moves(effective_sample_size, series, scale, agreed=float(chains * draws), stuck=1.0)
    return np.minimum(ess, chains * draws)


def _where_it_moves(estimate: Callable, series: Series, scale: PerQuantity, agreed: float, stuck: float) -> PerQuantity:
    """Apply `estimate` to the series that vary within some chain; `agreed` or `stuck` stands for the others."""
    with np.errstate(invalid="ignore"):
        # Ranges below 1e-9 of the quantity's scale are rounding errors. Judgement: float64 has 16 digits.
        moving = np.max(np.ptp(series, axis=1), axis=0) > 1e-9 * scale
        apart = np.ptp(series, axis=(0, 1)) > 1e-9 * scale
    result = np.where(apart, stuck, agreed)
    broken = ~np.all(np.isfinite(series), axis=(0, 1))
    result[broken] = stuck
    moving &= ~broken
    if np.any(moving):
        result[moving] = estimate(series[:, :, moving])
    return result
