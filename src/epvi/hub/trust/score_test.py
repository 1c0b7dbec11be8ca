"""Whether the shards agree at the posterior's mode: a score test, shard by shard, with the rows' own variation.

Takes of every shard the sum g_m of its n_m rows' gradients at one point, the sum J_m of their products, and its
curvature H_m. Where shards are of one model g_m is H_m H⁻¹ Σ g up to noise (H = Σ H_m, and H⁻¹ Σ g leads to the mode),
whether or not the model is right, and also where a shard alone tells too little to be fitted. How large the noise is,
all rows tell together (as for rows dealt out at random), and the shard's own (for sites whose columns vary more); a
shard is flagged when it is too far by both.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc, fdtrc

from epvi.gaussian.structures import form_of

# Rows that are rare or heavy-tailed make small p-values likelier than they should be: a fault makes far smaller ones.
_FALSE_ALARMS = 1e-5
# Directions in which a shard's rows vary less than this, beside all rows, are no evidence.
_LEAST = 1e-6


@dataclasses.dataclass(frozen=True)
class Agreement:
    """p-values by shard, corrected for their number, and which shards are too far from the others, worst first."""

    p: tuple[float, ...]
    flagged: list[int]


def agreement(
    gradients: Float[np.ndarray, "M d"],
    products: Float[np.ndarray, "M d ..."],
    hessians: Float[np.ndarray, "M d ..."],
    num_rows: Float[np.ndarray, " M"],
) -> Agreement:
    """Test every shard against all together; by single coordinates where only the diagonals of J_m are known."""
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
    values, vectors = np.linalg.eigh(pooled)
    told = values > 1e-12 * np.max(values, initial=0.0)
    if count < 2 or not np.any(told):
        return Agreement((1.0,) * count, [])
    # In units of all rows' noise.
    root = vectors[:, told] / np.sqrt(values[told])
    expected = _expected(gradients, hessians, num_rows)
    p = []
    for gradient, product, n in zip(gradients - expected, products, num_rows, strict=True):
        # All shards together have chosen the mode, this one with its share.
        away, spread = root.T @ gradient, n * (1 - n / total)
        by_all = float(chdtrc(len(away), float(away @ away) / spread)) if spread > 0 else 1.0
        p.append(min(1.0, count * max(by_all, _by_its_own(away, root.T @ product @ root, float(n), n / total))))
    return _flagged(tuple(p))


def _expected(
    gradients: Float[np.ndarray, "M d"], hessians: Float[np.ndarray, "M d d"], num_rows: Float[np.ndarray, " M"]
) -> Float[np.ndarray, "M d"]:
    """H_m H⁻¹ Σ g: what is left of the gradient at the point, shared by curvature, or by rows where that is none."""
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


def _by_its_own(away: np.ndarray, product: np.ndarray, num_rows: float, share: float) -> float:
    """The p-value of Hotelling's T² with the shard's own rows; 1 where they are too few for one."""
    shares, vectors = np.linalg.eigh(0.5 * (product + product.T) - np.outer(away, away) / num_rows)
    used = shares > _LEAST * num_rows
    dof = int(np.count_nonzero(used))
    if dof == 0 or num_rows <= dof + 1:
        return 1.0
    statistic = float(np.sum((vectors.T @ away)[used] ** 2 / shares[used])) / max(1 - share, 1e-9)
    return float(fdtrc(dof, num_rows - dof, statistic * (num_rows - dof) / dof))
