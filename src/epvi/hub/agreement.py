"""Whether the shards agree at the posterior's mode: Rao's score test, shard by shard.

Takes every shard's gradient g_m and curvature I_m = −∇² log p_m at one point. Where the shards are of one model, g_m is
about normal with covariance I_m − I_m I⁻¹ I_m (I = Σ I_m; all shards together have chosen the mode), also where a shard
alone tells too little for a fit of its own to be compared.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc

# A run of shards of one model is flagged this rarely.
_FALSE_ALARMS = 0.005
# Directions that a shard tells less than this share of, or all of, are no evidence.
_LEAST = 1e-3


@dataclasses.dataclass(frozen=True)
class Agreement:
    """p-values by shard, corrected for their number, and which shards are too far from the others."""

    p: tuple[float, ...]
    flagged: list[int]


def agreement(gradients: Float[np.ndarray, "M d"], hessians: Float[np.ndarray, "M ..."]) -> Agreement:
    """Test every shard against all together."""
    if len(gradients) < 2:
        return Agreement((1.0,) * len(gradients), [])
    if hessians.ndim == 2:
        statistics = [_diagonal_test(gradients, hessians, m) for m in range(len(gradients))]
    else:
        total = -np.sum(hessians, axis=0)
        values, vectors = np.linalg.eigh(total)
        root = vectors / np.sqrt(np.maximum(values, 1e-12 * np.max(np.abs(values))))
        left = root.T @ np.sum(gradients, axis=0)
        statistics = [
            _test(root.T @ gradient, root.T @ -hessian @ root, left)
            for gradient, hessian in zip(gradients, hessians, strict=True)
        ]
    p = tuple(min(1.0, len(gradients) * float(chdtrc(dof, x))) if dof else 1.0 for x, dof in statistics)
    worst = sorted((value, m) for m, value in enumerate(p) if value < _FALSE_ALARMS)
    return Agreement(p, [m for _, m in worst])


def _test(gradient: np.ndarray, information: np.ndarray, left: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom, in coordinates in which I is the identity."""
    shares, vectors = np.linalg.eigh(0.5 * (information + information.T))
    # Newton's step to the mode takes from each shard its share of what is left of the gradient.
    along = vectors.T @ gradient - shares * (vectors.T @ left)
    told = (shares > _LEAST) & (shares < 1 - _LEAST)
    spread = shares[told] * (1 - shares[told])
    return float(np.sum(along[told] ** 2 / spread)), int(np.count_nonzero(told))


def _diagonal_test(gradients: np.ndarray, hessians: np.ndarray, m: int) -> tuple[float, int]:
    total = np.maximum(-np.sum(hessians, axis=0), 1e-290)
    root = 1 / np.sqrt(total)
    shares = -hessians[m] / total
    along = root * gradients[m] - shares * root * np.sum(gradients, axis=0)
    told = (shares > _LEAST) & (shares < 1 - _LEAST)
    spread = shares[told] * (1 - shares[told])
    return float(np.sum(along[told] ** 2 / spread)), int(np.count_nonzero(told))
