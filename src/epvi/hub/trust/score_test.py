"""Score test of every shard against all shards together, at the posterior's mode, with empirical Fisher information.

Takes of every shard the sum g_m of the gradients of its n_m rows' log likelihoods at one point (the score), the sum J_m
of their outer products (the empirical Fisher information), and the Hessian H_m. If all shards follow the same
parameters, g_m = H_m H⁻¹ Σ g up to sampling noise, where H = Σ H_m and −H⁻¹ Σ g is the Newton step to the mode. This
holds for misspecified models, and for shards with too few rows to be fitted alone. The covariance of the noise is
estimated twice, from all rows (right when rows are dealt out at random) and from the shard's own rows (right for sites
whose columns vary more than others'), and in every direction the larger variance counts. A single row with a rare
category or a far count then adds about 1 to the statistic, however far it is: its own square is in the variance.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc, fdtrc

from epvi.gaussian.matrices import positive_definite
from epvi.gaussian.structures import WHOLE, form_of

# Significance level for all shards together. Judgement: heavy-tailed or rare rows make the asymptotic p-values too
# small, while a real fault (wrong units, swapped labels) gives p-values smaller by many orders of magnitude.
_FALSE_ALARMS = 1e-5
# Directions in which the scores of all rows have less than this part of the largest variance are left out. Judgement:
# rounding errors of float64 are below it.
_NO_VARIANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Bonferroni-corrected p-values by shard, and the positions of the rejected shards, smallest p-value first."""

    p: tuple[float, ...]
    flagged: list[int]


def agreement(
    gradients: Float[np.ndarray, "M d"],
    products: Float[np.ndarray, "M d ..."],
    hessians: Float[np.ndarray, "M d ..."],
    num_rows: Float[np.ndarray, " M"],
) -> Agreement:
    """Test every shard; coordinate by coordinate (Bonferroni-corrected) where only the diagonal of J_m is known."""
    if not form_of(products[0]).whole:
        tests = [
            agreement(gradients[:, [i]], products[:, [i], None], hessians[:, [i], None], num_rows)
            for i in range(gradients.shape[1])
        ]
        p = np.minimum(len(tests) * np.min([test.p for test in tests], axis=0), 1.0)
        return _flagged(tuple(p.tolist()))
    count, total = len(gradients), np.sum(num_rows)
    mean = np.sum(gradients, axis=0) / total
    pooled = np.sum(products, axis=0) / total - np.outer(mean, mean)
    # Whitens the scores: a row's score then has identity covariance.
    root = _whitening(pooled)
    if count < 2 or not root.size:
        return Agreement((1.0,) * count, [])
    expected = _expected(gradients, hessians, num_rows)
    p = []
    for gradient, product, n in zip(gradients - expected, products, num_rows, strict=True):
        # The mode depends on this shard as well, which reduces the variance of its score by n/N.
        away, spread = root.T @ gradient, n * (1 - n / total)
        by_all = float(chdtrc(len(away), float(away @ away) / spread)) if spread > 0 else 1.0
        # The larger variances only raise the p-value: where it is large already, they are not needed.
        p.append(
            min(1.0, count * _p_value(away, root.T @ product @ root, float(n), n / total))
            if count * by_all < 1
            else 1.0
        )
    return _flagged(tuple(p))


def _whitening(pooled: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d r"]:
    """R with Rᵀ C R = I for a covariance C; fewer columns where some directions have no variance."""
    clear = pooled - _NO_VARIANCE * np.trace(pooled) * np.eye(len(pooled))
    if np.all(np.isfinite(pooled)) and positive_definite(clear[None])[0]:
        return WHOLE.inverse_root(pooled).T
    values, vectors = np.linalg.eigh(pooled)
    told = values > _NO_VARIANCE * np.max(values, initial=0.0)
    return vectors[:, told] / np.sqrt(values[told])


def _expected(
    gradients: Float[np.ndarray, "M d"], hessians: Float[np.ndarray, "M d d"], num_rows: Float[np.ndarray, " M"]
) -> Float[np.ndarray, "M d"]:
    """H_m H⁻¹ Σ g: the expected score of every shard at a point that is not quite the mode.

    Where −H is not positive definite, Σ g is divided by numbers of rows instead.
    """
    whole = np.sum(gradients, axis=0)
    by_rows = np.outer(num_rows / np.sum(num_rows), whole)
    try:
        np.linalg.cholesky(-np.sum(hessians, axis=0))
        return hessians @ np.linalg.solve(np.sum(hessians, axis=0), whole)
    except np.linalg.LinAlgError:
        return by_rows


def _flagged(p: tuple[float, ...]) -> Agreement:
    worst = sorted((value, m) for m, value in enumerate(p) if value < _FALSE_ALARMS)
    return Agreement(p, [m for _, m in worst])


def _p_value(away: Float[np.ndarray, " r"], product: Float[np.ndarray, "r r"], num_rows: float, share: float) -> float:
    """The p-value of Hotelling's T² with the larger of both variances in each direction; 1 where rows are too few.

    Directions are the eigenvectors of the covariance of the shard's own scores, where that of all rows is the identity.
    """
    dof = len(away)
    if num_rows <= dof + 1:
        return 1.0
    covariance = 0.5 * (product + product.T) / num_rows - np.outer(away, away) / num_rows**2
    variances, vectors = np.linalg.eigh(covariance)
    square = float(np.sum((vectors.T @ away) ** 2 / (num_rows * np.maximum(variances, 1.0)))) / max(1 - share, 1e-9)
    # F = T² (n − d) / (d (n − 1)), where the covariance has divisor n − 1.
    return float(fdtrc(dof, num_rows - dof, square * (num_rows - dof) / (dof * num_rows)))
