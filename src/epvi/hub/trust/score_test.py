"""Score test of every shard against the others, at the posterior's mode, with empirical Fisher information.

Takes of every shard the sum g_m of the gradients of its n_m rows' log likelihoods at one point (the score), the sum J_m
of their outer products (the empirical Fisher information), and the Hessian H_m. In coordinates in which −Σ H_m is the
identity, with S_m = −H_m the shard's share of the information, c_m = g_m − S_m Σ g is zero up to sampling noise if all
shards follow the same parameters. This holds for misspecified models, and for shards with too few rows to be fitted
alone. With V_m the covariance of g_m and J = Σ J_m, that of c_m is (I − S_m) V_m (I − S_m) + S_m (J − J_m) S_m. V_m is
estimated twice, from the rows of the others, as n_m/(N − n_m) (J − J_m), which is right when rows are dealt out at
random, and from the shard's own, as J_m, which is right for sites whose columns vary more. In every direction the
larger variance counts. A single row with a rare category or a far count then adds about 1 to the statistic, however far
it is: its own square is in the variance. Shards with few rows for the number of parameters are tested parameter by
parameter, those with next to none not at all.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import fdtrc

from epvi.gaussian.matrices import positive_definite
from epvi.gaussian.structures import form_of

# Significance level for all shards together. Judgement: the larger of two variances makes p-values too large, which
# leaves room for heavy tails, and for what is not linear. `python benchmarks/agreement.py` counts the false alarms.
FALSE_ALARMS = 1e-3
# Directions in which the scores of all rows have less than this part of the largest variance are left out. Judgement:
# rounding errors of float64 are below it.
_NO_VARIANCE = 1e-12
# All parameters are tested jointly in shards with at least so many rows for each, since the covariance of the shard's
# own scores is estimated; with fewer each parameter is tested by itself, from the second number of rows on. Judgement;
# the benchmark has such shards.
_ROWS_EACH, _FEWEST_ROWS = 3, 8
# With more parameters each is tested by itself, from diagonals. Judgement: the matrices of a shard take 10 ms here.
_MOST_JOINTLY = 256
# Numbers in the matrices of the shards that are tested at once. Judgement: 32 MB.
_NUMBERS = 2**22
# The expected score is linear in the distance to the mode: the test is not applied if the Newton step from the point is
# longer than this, in posterior sds (root mean square over parameters). Judgement; measured by the same benchmark.
_NEAR = 1.0


class Tested(NamedTuple):
    """What the test found.

    Attributes:
        p: Bonferroni-corrected p-values by shard; 1 where it could not be applied.
        judged: to which shards it was applied.
        near_mode: whether the point is near enough to the mode of all rows.
    """

    p: tuple[float, ...]
    judged: tuple[bool, ...]
    near_mode: bool = True


class Curvature(NamedTuple):
    """Gradient and Hessian of the log density of all rows, with the prior, at the point of the test."""

    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d ..."]

    @property
    def near_mode(self) -> bool:
        """Whether a Newton step would lead to a mode nearby."""
        d = len(self.gradient)
        if not form_of(self.hessian).whole:
            curvature = -self.hessian
            return bool(np.all(curvature > 0) and np.mean(self.gradient**2 / curvature) <= _NEAR**2)
        if not positive_definite(-self.hessian[None])[0]:
            return False
        step = np.linalg.solve(-self.hessian, self.gradient)
        return bool(self.gradient @ step <= _NEAR**2 * d)


def score_test(
    gradients: Float[np.ndarray, "M d"],
    products: Float[np.ndarray, "M d ..."],
    hessians: Float[np.ndarray, "M d ..."],
    num_rows: Float[np.ndarray, " M"],
    whole: Curvature | None = None,
) -> Tested:
    """Test every shard, where it can be; `whole` is that of all rows, to see whether the point is near their mode."""
    count, none = len(gradients), (False,) * len(gradients)
    if count < 2:
        return Tested((1.0,) * count, none)
    whole = Curvature(np.zeros(gradients.shape[1]), np.sum(hessians, axis=0)) if whole is None else whole
    if not whole.near_mode:
        return Tested((1.0,) * count, none, near_mode=False)
    whole_form = form_of(hessians[0]).whole and gradients.shape[1] <= _MOST_JOINTLY
    if not whole_form and form_of(hessians[0]).whole:
        products, hessians = (np.diagonal(some, axis1=1, axis2=2) for some in (products, hessians))
    judged = num_rows >= _FEWEST_ROWS
    p = np.ones(count)
    sums = ShardSums(*(np.sum(some, axis=0) for some in (gradients, products, hessians)))
    chosen = np.flatnonzero(judged)
    for some in np.array_split(chosen, max(len(chosen) * gradients.shape[1] ** 2 // _NUMBERS, 1)):
        part = ShardSums(gradients[some], products[some], hessians[some])
        p[some] = (_whole if whole_form else _diagonal)(part, sums, num_rows[some], float(np.sum(num_rows)))
    corrected = np.where(judged, np.minimum(np.count_nonzero(judged) * p, 1.0), 1.0)
    return Tested(tuple(corrected.tolist()), tuple(judged.tolist()))


class ShardSums(NamedTuple):
    """ShardSums over rows, of some shards (with a leading axis) or of all."""

    gradient: np.ndarray
    products: np.ndarray
    hessian: np.ndarray


def _whole(
    part: ShardSums, sums: ShardSums, num_rows: Float[np.ndarray, " n"], total_rows: float
) -> Float[np.ndarray, " n"]:
    """The p-values of some shards, from whole Hessians."""
    root = np.linalg.cholesky(-sums.hessian)
    back = np.linalg.inv(root)
    share, own = (_symmetric(back @ some @ back.T) for some in (-part.hessian, part.products))
    total = _symmetric(back @ sums.products @ back.T)
    away = part.gradient @ back.T - share @ (back @ sums.gradient)
    others = total - own
    by_others = _odds(num_rows, total_rows)[:, None, None] * others
    by_others, by_own = (_covariance(share, v, others) for v in (by_others, own))
    jointly = num_rows >= _ROWS_EACH * (len(root) + 1)
    p = np.ones(len(num_rows))
    if np.any(jointly):
        p[jointly] = _joint(away[jointly], by_others[jointly], by_own[jointly], num_rows[jointly])
    if not np.all(jointly):
        few = ~jointly
        first, second = (np.einsum("ij,njk,ik->ni", root, v[few], root) for v in (by_others, by_own))
        p[few] = _by_parameter(away[few] @ root.T, np.maximum(first, second), num_rows[few])
    return p


def _diagonal(
    part: ShardSums, sums: ShardSums, num_rows: Float[np.ndarray, " n"], total_rows: float
) -> Float[np.ndarray, " n"]:
    """The same from diagonals, as if parameters were independent."""
    curved = sums.hessian < 0
    share = np.divide(part.hessian, sums.hessian, out=np.zeros_like(part.hessian), where=curved)
    away = np.where(curved, part.gradient - share * sums.gradient, 0.0)
    others = np.maximum(sums.products - part.products, 0.0)
    kinds = _odds(num_rows, total_rows)[:, None] * others, part.products
    variances = [(1 - share) ** 2 * v + share**2 * others for v in kinds]
    return _by_parameter(away, np.maximum(*variances), num_rows)


def _covariance(share: np.ndarray, own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(I − S) V (I − S) + S (J − J_m) S."""
    left = np.eye(share.shape[1]) - share
    return _symmetric(left @ own @ left + share @ others @ share)


def _odds(num_rows: Float[np.ndarray, " n"], total: float) -> Float[np.ndarray, " n"]:
    """n_m / (N − n_m)."""
    return num_rows / np.maximum(total - num_rows, 1.0)


def _joint(
    away: Float[np.ndarray, "n d"],
    by_all: Float[np.ndarray, "n d d"],
    by_own: Float[np.ndarray, "n d d"],
    num_rows: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """The p-values of Hotelling's T² with the larger of both variances in each direction.

    Directions are the eigenvectors of the second covariance in coordinates in which the first is the identity; those
    without variance in the first, where no shard can differ, are left out.
    """
    values, vectors = np.linalg.eigh(by_all)
    known = values > _NO_VARIANCE * np.max(values, axis=1, keepdims=True)
    whiten = vectors * np.where(known, 1 / np.sqrt(np.where(known, values, 1.0)), 0.0)[:, None]
    variances, axes = np.linalg.eigh(_symmetric(np.swapaxes(whiten, 1, 2) @ by_own @ whiten))
    white = np.einsum("nji,nj->ni", axes, np.einsum("nji,nj->ni", whiten, away))
    square = np.sum(white**2 / np.maximum(variances, 1.0), axis=1)
    dof = np.maximum(np.count_nonzero(known, axis=1), 1)
    # F = T² (n − d) / (d (n − 1)), where the covariance has divisor n − 1.
    return fdtrc(dof, num_rows - dof, square * (num_rows - dof) / (dof * num_rows))


def _by_parameter(
    away: Float[np.ndarray, "n d"], variance: Float[np.ndarray, "n d"], num_rows: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """The smallest p-value of the parameters, each by itself, Bonferroni-corrected."""
    square = np.divide(away**2, variance, out=np.zeros_like(away), where=variance > 0)
    n = num_rows[:, None]
    return np.minimum(away.shape[1] * np.min(fdtrc(1, n - 1, square * (n - 1) / n), axis=1), 1.0)


def _symmetric(matrices: np.ndarray) -> np.ndarray:
    return 0.5 * (matrices + np.swapaxes(matrices, -1, -2))
