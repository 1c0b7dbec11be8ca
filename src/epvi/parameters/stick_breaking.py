"""NumPyro's stick-breaking bijection of the simplex in NumPy: logarithms of the weights, and their derivatives.

For weights w of K categories and θ ∈ ℝ^(K−1): log w_k = log z_k + Σ_{j<k} log(1 − z_j), z_j = 1/(1 + exp(a_j − θ_j)),
a_j = log(K − 1 − j), z_{K−1} = 1 (indices from 0). Its Jacobian determinant is Π_k w_k, which no permutation of the
categories changes: permuting them preserves volume in θ, and maps modes of a symmetric density of θ to modes.
"""

import numpy as np
from jaxtyping import Float


def log_weights(theta: Float[np.ndarray, "*stack J"]) -> Float[np.ndarray, "*stack K"]:
    """The logarithms of the weights."""
    x = theta - _offsets(theta.shape[-1])
    end = np.zeros((*theta.shape[:-1], 1))
    broken, rest = -np.logaddexp(0.0, -x), np.cumsum(-np.logaddexp(0.0, x), axis=-1)
    return np.concatenate([broken, end], axis=-1) + np.concatenate([end, rest], axis=-1)


def from_log_weights(logs: Float[np.ndarray, "*stack K"]) -> Float[np.ndarray, "*stack J"]:
    """Inverse of `log_weights`; a constant added to all logarithms changes nothing."""
    return logs[..., :-1] - _log_rest(logs) + _offsets(logs.shape[-1] - 1)


def slopes(theta: Float[np.ndarray, "*stack J"]) -> Float[np.ndarray, "*stack K J"]:
    """∂ log w_k / ∂θ_j: 1 − z_j at k = j, −z_j at k > j, otherwise 0."""
    num = theta.shape[-1]
    z = np.exp(-np.logaddexp(0.0, _offsets(num) - theta))[..., None, :]
    k, j = np.arange(num + 1)[:, None], np.arange(num)
    return np.where(k == j, 1 - z, np.where(k > j, -z, 0.0))


def inverse_slopes(logs: Float[np.ndarray, "*stack K"]) -> Float[np.ndarray, "*stack J K"]:
    """∂θ_j / ∂ log w_k: 1 at k = j, minus w_k's share of the weights behind j at k > j, otherwise 0."""
    num = logs.shape[-1]
    j, k = np.arange(num - 1)[:, None], np.arange(num)
    with np.errstate(over="ignore"):
        shares = np.exp(logs[..., None, :] - _log_rest(logs)[..., None])
    return np.where(k == j, 1.0, np.where(k > j, -shares, 0.0))


def _log_rest(logs: np.ndarray) -> np.ndarray:
    """log Σ_{k>j} w_k for j = 0 .. K−2."""
    return np.logaddexp.accumulate(logs[..., :0:-1], axis=-1)[..., ::-1]


def _offsets(num: int) -> np.ndarray:
    return np.log(num - np.arange(num))
