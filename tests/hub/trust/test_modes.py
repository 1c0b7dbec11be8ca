"""Gaussians of modes, stray modes, and quasi-random points: the small tools of the later rounds."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from epvi import Diagonal, Full, GaussianMixture
from epvi.gaussian.quasi_random import base_draws, draw, log_density, uniform_points
from epvi.hub.trust.modes import joined, one_per_mode, stray_modes


def clouds(d, centres, weights, each=20, spread=0.3):
    """Components scattered around centres, with unit covariances."""
    rng = np.random.default_rng(0)
    means = np.concatenate([c + spread * rng.standard_normal((each, d)) for c in centres])
    parts = np.repeat(np.asarray(weights) / each, each)
    return GaussianMixture.from_covariances(means, np.broadcast_to(np.eye(d), (len(means), d, d)), parts)


def test_a_cloud_of_components_is_one_gaussian_with_its_moments():
    mixture = clouds(3, [np.ones(3)], [1.0])
    (made,) = [one_per_mode(mixture)]
    assert made.num_components == 1
    np.testing.assert_allclose(made.means[0], mixture.mean(), atol=1e-3)
    np.testing.assert_allclose(made.covariances()[0], mixture.covariance(), rtol=1e-3, atol=1e-3)


def test_separate_modes_keep_their_weights():
    mixture = clouds(2, [np.full(2, -4.0), np.full(2, 4.0)], [0.2, 0.8])
    made = one_per_mode(mixture)
    np.testing.assert_allclose(made.weights, [0.8, 0.2], rtol=1e-3)
    np.testing.assert_allclose(made.mean(), mixture.mean(), atol=0.01)


def test_in_many_dimensions_gaussians_are_diagonal():
    d = 101
    made = one_per_mode(GaussianMixture.from_covariances(np.zeros((1, d)), np.ones((1, d))))
    assert made.structure == Diagonal()


def shard(means, variance, weights=None):
    means = np.asarray(means, float)
    return GaussianMixture.from_covariances(means, np.full((len(means), means.shape[1]), variance), weights)


def test_a_mode_that_shards_have_and_the_posterior_lacks_is_found_where_they_have_it():
    d, m = 10, 8
    there = np.zeros(d)
    there[0] = 6.0
    # Shards are √m times as wide as the posterior, and off by as much.
    rng = np.random.default_rng(1)
    shards = [shard([rng.normal(0, 1, d), there + rng.normal(0, 1, d)], 1.0) for _ in range(m)]
    own = GaussianMixture.from_covariances(np.zeros((1, d)), np.full((1, d, d), 0) + np.eye(d) / m)
    stray = stray_modes(shards, own)
    assert stray is not None
    assert stray.num_components == 1
    assert np.linalg.norm(np.asarray(stray.means)[0] - there) < 4 * np.sqrt(d / m)
    both = joined(own, stray, 0.01)
    np.testing.assert_allclose(both.weights, [0.99, 0.01])


def test_shards_of_one_mode_have_no_stray_ones():
    d, m = 5, 10
    means = np.random.default_rng(0).normal(0, 1, (m, 2, d))
    own = GaussianMixture.from_covariances(np.zeros((1, d)), (np.eye(d) / m)[None])
    assert stray_modes([shard(two, 1.0) for two in means], own) is None


@pytest.mark.parametrize(("n", "d"), [(64, 1), (64, 9), (256, 60)])
def test_base_draws_have_a_mean_of_zero_and_unit_variances(n, d):
    z = base_draws(n, d, (0, 1))
    assert z.shape == (n, d)
    np.testing.assert_allclose(np.mean(z, axis=0), 0, atol=1e-14)
    covariance = z.T @ z / n
    if 4 * d <= n:
        np.testing.assert_allclose(covariance, np.eye(d), atol=1e-12)
    np.testing.assert_allclose(np.diagonal(covariance), 1, atol=1e-12)


def test_points_are_the_same_for_the_same_key_and_inside_the_cube():
    one, again, other = uniform_points(100, 3, (0, 1)), uniform_points(100, 3, (0, 1)), uniform_points(100, 3, (0, 2))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)
    assert np.all((one > 0) & (one < 1))


def test_draws_of_a_mixture_and_its_density_agree():
    covariances = np.stack([[[1.0, 0.8], [0.8, 1.0]], [[0.2, 0.0], [0.0, 2.0]]])
    mixture = GaussianMixture.from_covariances([[0.0, 0.0], [3.0, -1.0]], covariances, [0.3, 0.7])
    n = 4096
    theta = draw(mixture, uniform_points(n, 3, (0, 0)))
    # Quasi-random draws are better than random ones.
    np.testing.assert_array_less(np.abs(np.mean(theta, axis=0) - mixture.mean()) / mixture.sd(), 2 / np.sqrt(n))
    np.testing.assert_allclose(np.cov(theta.T), mixture.covariance(), atol=0.05)
    parts = [multivariate_normal(m, c).pdf(theta) for m, c in zip(mixture.means, covariances, strict=True)]
    np.testing.assert_allclose(log_density(mixture, theta), np.log(0.3 * parts[0] + 0.7 * parts[1]), rtol=1e-9)
    assert mixture.structure == Full()
