"""Looking around the heaviest draws shows where a ridge goes on that no proposal has reached."""

import numpy as np
from scipy.special import softmax

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import draw, uniform_points
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.surroundings import around_heaviest
from epvi.hub.trust.propose import Source

NUM_DRAWS = 1024


def bent(theta):
    """A ridge x_i ≈ a² of three dimensions, with a ~ N(0, 1)."""
    return -0.5 * theta[:, 0] ** 2 - 12.5 * np.sum((theta[:, 1:] - theta[:, :1] ** 2) ** 2, axis=1)


def scored(log_p, mixture, key):
    theta = draw(mixture, uniform_points(NUM_DRAWS, mixture.dim + 1, key))
    return ScoredDraws(theta, log_p(theta), (Source(((NUM_DRAWS, mixture),)),))


def searched(log_p, pool, count=6):
    """The pool after so many rounds around its heaviest draws."""
    rng = np.random.default_rng(0)
    for i in range(count):
        pool = pool.joined(scored(log_p, around_heaviest(pool, rng), (1, i)))
    return pool


def moments(pool):
    weights = softmax(pool.log_weights())
    mean = weights @ pool.theta
    return mean, np.sqrt(weights @ (pool.theta - mean) ** 2)


def test_a_ridge_is_followed_to_its_ends():
    middle = GaussianMixture.from_covariances(np.array([[0.0, 0.2, 0.2]]), np.diag([0.3, 0.2, 0.2])[None])
    begun = scored(bent, middle, (0,))
    (_, few), (mean, sd) = moments(begun), moments(searched(bent, begun))
    assert few[0] < 0.85
    np.testing.assert_allclose(mean, [0.0, 1.0, 1.0], atol=0.15)
    np.testing.assert_allclose(sd, [1.0, np.sqrt(2.04), np.sqrt(2.04)], rtol=0.1)


def test_where_nothing_was_missed_nothing_changes():
    wide = GaussianMixture.from_covariances(np.zeros((1, 3)), 1.5 * np.eye(3)[None])

    def normal(theta):
        return -0.5 * np.sum(theta**2, axis=1)

    begun = scored(normal, wide, (0,))
    made = searched(normal, begun)
    weights = softmax(begun.log_weights()), softmax(made.log_weights())
    assert np.max(weights[1]) < np.max(weights[0])
    np.testing.assert_allclose(moments(made)[0], 0.0, atol=0.1)
    np.testing.assert_allclose(moments(made)[1], 1.0, rtol=0.06)


def test_densities_of_joined_pools_are_those_of_all_proposals():
    one, other = (GaussianMixture.from_covariances(np.full((1, 2), m), np.eye(2)[None]) for m in (0.0, 1.0))
    pools = [scored(lambda theta: -np.sum(theta**2, axis=1), q, (i,)) for i, q in enumerate((one, other, one))]
    joined = pools[0].joined(pools[1]).joined(pools[2])
    again = ScoredDraws(joined.theta, joined.log_p, joined.sources)
    np.testing.assert_allclose(joined.log_weights(), again.log_weights())
