"""Systematic resampling: R indices in proportion to weights, with one uniform number."""

import numpy as np
from jaxtyping import Float, Int

from epvi.ground.float64 import AnyArray


def systematic(uniform: float, log_weights: Float[AnyArray, " n"], size: int) -> Int[np.ndarray, " R"]:
    """Sorted indices; index i appears within one of `size` w_i / Σ w times, and that often on average."""
    log_weights = np.asarray(log_weights)
    cumulative = np.cumsum(np.exp(log_weights - np.max(log_weights)))
    points = (np.arange(size) + uniform) * (cumulative[-1] / size)
    return np.searchsorted(cumulative[:-1], points, side="right")
