"""Pareto-smoothed importance weights (Vehtari, Simpson, Gelman, Yao & Gabry 2024, arXiv 1507.02646).

Takes log weights; gives them with the largest ones replaced by quantiles of a generalised Pareto distribution that is
fitted to them, and the shape k̂ of that distribution.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

# The tail: min(n/5, 3√n) weights, and at least five (appendix H of the paper).
_SHARE, _ROOTS, _LEAST = 5, 3, 5
# The prior of the fit (Zhang & Stephens 2009): its constant, the least number of points of the quadrature, and how many
# weights with k = 0.5 the prior of k counts as (appendix G of the paper).
_PRIOR_B, _LEAST_POINTS, _PRIOR_WEIGHTS, _PRIOR_K = 3, 30, 10, 0.5
# Points of the quadrature with less weight than ten units of rounding are left out, as in the authors' program.
_NEGLIGIBLE = 10 * float(np.finfo(np.float64).eps)


def pareto_smoothed(log_w: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
    """The smoothed log weights, normalised, and k̂; as they are, with k̂ infinite, where no tail can be fitted."""
    n = len(log_w)
    length = min(n // _SHARE, int(_ROOTS * np.sqrt(n)))
    smooth = log_w - np.max(log_w)
    if length < _LEAST:
        return smooth, np.inf
    order = np.argsort(smooth)
    at, cutoff = order[n - length :], np.exp(smooth[order[n - length - 1]])
    k, scale = _fitted(np.exp(smooth[at]) - cutoff)
    if not (np.isfinite(k) and scale > 0):
        return smooth, np.inf
    # No smoothed weight exceeds the largest one, which is 1.
    smooth[at] = np.minimum(np.log(cutoff + scale * _quantiles(length, k)), 0.0)
    return smooth - float(np.asarray(logsumexp(smooth))), k


def _quantiles(n: int, k: float) -> Float[np.ndarray, " n"]:
    """The quantiles of the generalised Pareto distribution of scale 1 at (i − ½) / n."""
    logs = -np.log1p(-np.arange(0.5, n) / n)
    return logs if k == 0 else np.expm1(k * logs) / k


def _fitted(x: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Shape k and scale σ of sorted exceedances: posterior means by quadrature over b = −k/σ."""
    n = len(x)
    count = _LEAST_POINTS + int(np.sqrt(n))
    b = 1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    b = b / (_PRIOR_B * x[int(n / 4 + 0.5) - 1]) + 1 / x[-1]
    k = np.mean(np.log1p(-b[:, None] * x), axis=1)
    profile = n * (np.log(-b / k) - k - 1)
    weights = np.exp(profile - np.asarray(logsumexp(profile)))
    kept = weights >= _NEGLIGIBLE
    mean = float(np.sum(b[kept] * weights[kept]) / np.sum(weights[kept]))
    shape = float(np.mean(np.log1p(-mean * x)))
    return (n * shape + _PRIOR_WEIGHTS * _PRIOR_K) / (n + _PRIOR_WEIGHTS), -shape / mean
