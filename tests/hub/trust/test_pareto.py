"""Pareto-smoothed weights, beside those of ArviZ."""

import numpy as np
import pytest
from arviz_stats.base.array import array_stats

from epvi.hub.trust.pareto import pareto_smoothed


@pytest.mark.parametrize("n", [30, 100, 225, 256, 2048])
@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.4, 0.9, 1.5])
def test_weights_and_shape_are_those_of_arviz(n, shape):
    u = np.random.default_rng(n).uniform(size=n)
    log_w = -np.log1p(-u) if shape == 0 else np.log1p(np.expm1(-shape * np.log1p(-u)) / shape)
    smooth, k = pareto_smoothed(log_w)
    theirs, their_k = array_stats.psislw(-log_w)
    np.testing.assert_allclose(smooth, theirs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(k, their_k, rtol=0, atol=1e-12)


def test_light_tails_have_a_small_shape_and_heavy_ones_a_large_one():
    # Weights 1/u^k are Pareto with shape k; the prior draws k̂ towards 0.5.
    u = np.random.default_rng(1).uniform(size=2048)
    light, heavy = (pareto_smoothed(-k * np.log(u))[1] for k in (0.1, 1.2))
    assert light < 0.4
    assert heavy > 0.8


def test_few_weights_have_no_tail():
    smooth, k = pareto_smoothed(np.zeros(20))
    assert k == np.inf
    assert np.all(smooth == 0)
