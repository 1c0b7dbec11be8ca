"""Two modes in every shard: what becomes of their masses in the product."""

import numpy as np
import pytest
from modes import WAYS, mass, misses, table, true_mass, two_mode_shards

from epvi import Anchored, Exact, GaussianMixture, multiply


def test_the_quadrature_agrees_with_enumeration():
    shards = two_mode_shards(10, seed=1)
    assert abs(mass(multiply(shards, Exact())) - true_mass(shards)) < 1e-9


@pytest.mark.parametrize("m", [16, 64, 200])
def test_anchored_keeps_the_mode_mass(m):
    assert misses(m, WAYS["Anchored"]).mean() <= 0.03


@pytest.mark.slow
def test_the_whole_table():
    figures = table()
    assert max(figures["Anchored"]) <= 0.03
    # What the others miss by is shown, and is the reason for a fourth way.
    assert figures["Chain, 50 chains, every step (the paper)"][-1] > 0.05
    assert figures["Subset, pairs, R = 500"][-1] > 0.05


def test_many_separate_modes_in_a_hundred_dimensions():
    """Eight modes per shard at the corners of a cube, 100 dimensions: the masses come out by 4 standard errors."""
    rng = np.random.default_rng(0)
    corners = np.zeros((8, 100))
    corners[:, :3] = 4.0 * np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    m, true = 40, rng.dirichlet(np.full(8, 5.0))
    tilts = rng.normal(size=(m, 8))
    tilts += np.log(true) / m - tilts.mean(0)
    shards = []
    for tilt in tilts:
        # Unnormalised weights whose product over the shards is the true mass at each corner.
        weights = np.exp(tilt)
        shards.append(GaussianMixture.from_covariances(corners, np.ones(8), weights / weights.sum()))
    product = multiply(shards, Anchored(num_samples=4000), seed=3)
    assert product.status.ok
    nearest = np.argmin(np.sum((product.mixture.means[:, None, :3] - corners[None, :, :3]) ** 2, axis=2), axis=1)
    got = np.bincount(nearest, weights=product.mixture.weights, minlength=8)
    standard_error = np.sqrt(true * (1 - true) / product.diagnostics.ess)
    assert np.all(np.abs(got - true) < 4 * standard_error)
