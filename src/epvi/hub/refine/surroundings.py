"""Look around the draws that weigh most, where the proposals of all rounds are too small for the density.

Along a thin, curved ridge rounds of mixtures end where no straight component reaches: all draws have even weights, two
runs agree, and the ridge goes on. The outermost draws then have the largest weights of all, since few proposals reach
them. Narrow Gaussians around these, shaped like the draws nearby, give draws farther along the ridge, which weigh most
in the next round. Where nothing was missed they only make the largest weights smaller.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.refine.pool import ScoredDraws

# Draws to look around in a round. Judgement: enough for both ends of several ridges; more take longer to evaluate.
_CENTRES = 24
# Each is looked around by two Gaussians, with the sds of draws nearby times these. Judgement: the narrow one stays on a
# thin ridge, the wide one is ahead on a ridge that bends little.
_SDS = np.array([1.0, 2.5])
# Centres are drawn with chances in proportion to this power of the weights, and the draws that tell how wide the
# Gaussians are to this one. Judgement: centres among the heaviest, neighbours wherever there is mass.
_HEAVY, _FLAT = 2.0, 0.5
# Neighbours among so many draws, and how many of them for each number of a point: twice as many as span the space.
_MOST_NEIGHBOURS, _NEIGHBOURS_EACH = 2048, 2
# Variance added in every direction, relative to that of all draws: neighbours may lie in a plane.
_LEAST_VARIANCE = 1e-8


def around_heaviest(pool: ScoredDraws, rng: np.random.Generator) -> GaussianMixture:
    """Gaussians around the draws with the largest weights, each with the covariance of the draws nearby."""
    # Imported here: few posteriors come this far.
    from scipy.spatial import KDTree

    log_w, d = pool.log_weights(), pool.theta.shape[1]
    white, root = _whitened(pool.theta, softmax(log_w))
    chosen = rng.choice(len(log_w), _CENTRES, p=softmax(_HEAVY * log_w))
    some = white[_spread(softmax(_FLAT * log_w), rng)]
    nearest = KDTree(some).query(white[chosen], k=min(_NEIGHBOURS_EACH * (d + 1), len(some)))[1]
    away = some[nearest.reshape(_CENTRES, -1)] - white[chosen][:, None]
    shapes = np.einsum("kni,knj->kij", away, away) / away.shape[1] + _LEAST_VARIANCE * np.eye(d)
    covariances = root @ (shapes + np.swapaxes(shapes, 1, 2)) @ root.T / 2
    both = (_SDS[:, None, None, None] ** 2 * covariances).reshape(-1, d, d)
    return GaussianMixture.from_covariances(np.tile(pool.theta[chosen], (len(_SDS), 1)), both)


def _whitened(
    theta: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "d d"]]:
    """The draws in coordinates in which they have unit covariance, and the way back."""
    away = theta - weights @ theta
    covariance = (weights[:, None] * away).T @ away
    root = np.linalg.cholesky(covariance + np.diag(_LEAST_VARIANCE * np.diagonal(covariance) + 1e-300))
    return np.linalg.solve(root, away.T).T, root


def _spread(chances: Float[np.ndarray, " n"], rng: np.random.Generator) -> np.ndarray:
    """Draws chosen with these chances, each at most once: systematic resampling."""
    points = (np.arange(_MOST_NEIGHBOURS) + rng.uniform()) / _MOST_NEIGHBOURS
    return np.unique(np.minimum(np.searchsorted(np.cumsum(chances), points), len(chances) - 1))
