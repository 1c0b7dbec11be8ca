"""Split R-hat and effective sample sizes: of independent draws, slow chains, and series that do not move."""

import numpy as np

from epvi.hub.product.mixing import effective_size, split_r_hat

ONE = np.ones(1)


def test_independent_draws_count_in_full():
    series = np.random.default_rng(0).normal(size=(20, 500, 40))
    assert np.all(np.abs(split_r_hat(series, np.ones(40)) - 1) < 0.01)
    ess = effective_size(series, np.ones(40))
    # The estimator scatters by a tenth on single series, so the average is asked; it is capped from above.
    assert np.mean(ess) > 0.9 * 10_000
    assert np.all(ess <= 10_000)


def test_a_slow_chain_has_the_ess_of_its_autocorrelation():
    rng = np.random.default_rng(1)
    series, rho = np.empty((50, 2000, 1)), 0.9
    series[:, 0, 0] = rng.normal(size=50)
    for step in range(1, 2000):
        series[:, step, 0] = rho * series[:, step - 1, 0] + np.sqrt(1 - rho**2) * rng.normal(size=50)
    expected = 100_000 * (1 - rho) / (1 + rho)
    np.testing.assert_allclose(effective_size(series, ONE), expected, rtol=0.15)


def test_chains_that_agree_on_one_value_are_fine():
    rounding = 1e-14 * np.random.default_rng(0).normal(size=(4, 10, 1))
    assert split_r_hat(3.0 + rounding, ONE)[0] == 1
    assert effective_size(3.0 + rounding, ONE)[0] == 40


def test_chains_stuck_apart_are_seen():
    stuck = np.repeat(np.arange(4.0)[:, None, None], 10, axis=1)
    assert split_r_hat(stuck, ONE)[0] == np.inf
    assert effective_size(stuck, ONE)[0] == 1


def test_too_few_draws_say_so():
    short = np.random.default_rng(0).normal(size=(5, 3, 1))
    assert np.isnan(split_r_hat(short, ONE)[0])
    assert effective_size(short, ONE)[0] == 5
