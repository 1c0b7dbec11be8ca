"""Rounds of scoring: how many draws are scored in each."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.run import rounds as module


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 3))
    return {"x": x, "y": (rng.random(600) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)}


@pytest.fixture
def asked(monkeypatch):
    """The numbers of draws that were scored, round by round."""
    numbers, own = [], module._asked

    def counted(posterior, ask, rounds, seed):
        assert posterior.certificate is None
        numbers.append(rounds.scoring.num_draws)
        return own(posterior, ask, rounds, seed)

    monkeypatch.setattr(module, "_asked", counted)
    return numbers


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_last_round_has_all_draws_and_earlier_ones_may_have_few(rows, asked, seed):
    posterior = epvi.fit(logistic, rows, shards=6, seed=seed)
    assert asked[0] == 256
    assert asked[-1] == 2048
    assert posterior.certificate.num_draws == 2048
    assert len(posterior.certificate.weights) == 2048


@pytest.mark.parametrize("large", [0.0, np.inf])
def test_a_posterior_that_few_draws_end_is_scored_again_with_all(rows, asked, monkeypatch, large):
    monkeypatch.setattr(module, "_LARGE_STEP", large)
    posterior = epvi.fit(logistic, rows, shards=6, seed=1)
    assert posterior.certificate.num_draws == 2048
    assert asked.count(2048) >= 1
    assert asked[1] == (256 if large == 0.0 else 2048)


def test_a_number_of_rounds_that_was_asked_for_scores_all_draws(rows, asked):
    posterior = epvi.fit(logistic, rows, shards=6, refine=1, seed=1)
    assert set(asked) == {2048}
    assert posterior.certificate.num_draws == 2048


def test_fits_that_are_close_to_their_subposteriors_are_scored_with_all_draws_at_once(rows, asked, monkeypatch):
    monkeypatch.setattr(module, "_FAR_FITS", np.inf)
    epvi.fit(logistic, rows, shards=2, seed=1)
    assert asked[0] == 2048


def test_the_next_step_of_newtons_method_is_of_the_expected_size():
    """Of −n(exp(u) − u) in one dimension: third derivative −n, curvature n at the mode 0."""
    n, start = 400.0, 0.06
    moved = start - (np.exp(start) - 1) / np.exp(start)
    taken, following = 0.5 * n * (start - moved) ** 2, 0.5 * n * moved**2
    # Laplace's approximation of the evidence lacks (5/24) s² − (1/8) s₄ = 5/(24 n) − 1/(8 n) nats.
    np.testing.assert_allclose(module.next_step(taken, 5 / 24 / n, 1), following, rtol=0.2)
