"""Systematic resampling: R indices with expected counts proportional to weights, from one uniform number."""

import numpy as np
from jaxtyping import Float, Int

from epvi.ground.float64 import AnyArray


def systematic(uniform: float, log_weights: Float[AnyArray, " n"], size: int) -> Int[np.ndarray, " R"]:
    """Sorted indices; the count of index i differs from its expectation `size` · w_i / Σ w by less than one."""
    log_weights = np.asarray(log_weights)
    cumulative = np.cumsum(np.exp(log_weights - np.max(log_weights)))
    points = (np.arange(size) + uniform) * (cumulative[-1] / size)
    return np.searchsorted(cumulative[:-1], points, side="right")
