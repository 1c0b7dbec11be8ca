"""Derivatives of a logistic regression's log likelihood over all rows, for references by Newton's method."""

import numpy as np
from scipy.special import expit

# Rows at a time.
BLOCK = 2**15


def logistic_derivatives(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and negative Hessian of the log likelihood of a logistic regression, in float64."""
    gradient, curvature = np.zeros(len(w)), np.zeros((len(w), len(w)))
    for start in range(0, len(y), BLOCK):
        block = x[start : start + BLOCK].astype(np.float64)
        p = expit(block @ w)
        gradient += (y[start : start + BLOCK] - p) @ block
        curvature += (block.T * (p * (1 - p))) @ block
    return gradient, curvature
