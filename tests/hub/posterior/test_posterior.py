"""Shard fits -> posterior -> draws, summaries, density, predictions; and what is refused on the way."""

import dataclasses
import sys
from fractions import Fraction

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import epvi
from epvi.gaussian.mixture import Estimate
from epvi.ground.status import Status, StatusCode
from epvi.hub.trust.agreement import Accord, Agreement
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.reasons import Verdict
from epvi.models import grid_places, logistic, poisson, simulate_logistic, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 2))
ROWS = {"x": X, "y": X @ np.array([1.0, -2.0]) + 0.5 * RNG.normal(size=120)}


def linear(x, y=None, *, spread=5.0):
    w = numpyro.sample("w", dist.Normal(0.0, spread).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    numpyro.deterministic("twice", 2 * w)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


# One object, so that what is compiled for it is compiled once.
LINEAR = epvi.Model(linear)


@pytest.fixture(scope="module")
def fits():
    parts = np.array_split(np.arange(120), 3)
    return [
        epvi.fit_shard(LINEAR, {k: v[part] for k, v in ROWS.items()}, f"{m}/3") for m, part in enumerate(parts, start=1)
    ]


@pytest.fixture(scope="module")
def posterior(fits):
    return epvi.combine(fits)


def test_the_order_of_arrival_does_not_matter(fits, posterior):
    again = epvi.combine([fits[2], fits[0], fits[1]])
    np.testing.assert_array_equal(again.mixture.means, posterior.mixture.means)
    assert [fit.shard for fit in again.fits] == [1, 2, 3]


def test_sds_of_single_parameters_are_corrected_in_draws_and_summaries(posterior):
    count, nothing = 64, Estimate(np.zeros(()), np.zeros(()))
    certificate = Certificate(
        verdict=Verdict.MARGINALS,
        text="trust means and sds",
        corrects=False,
        **dict.fromkeys(("ess", "efficiency", "k_hat", "mean_shift", "mean_error", "doubt"), 0.5),
        sd_ratios=(1.0, 1.0),
        elbo=nothing,
        log_evidence=None,
        agreement=Agreement(Accord.UNTESTED, "not tested.", ("1", "2", "3"), (1.0,) * 3),
        theta=np.zeros((count, 3)),
        weights=np.full(count, 1 / count),
        own=np.full(count, 1 / count),
        scales=np.array([1.1, 1.0, 1.5]),
    )
    made = posterior.with_certificate(certificate)
    mean, sd = np.asarray(posterior.mixture.mean()), np.asarray(posterior.mixture.sd())
    expected = mean + certificate.scales * (posterior.theta(500, seed=1) - mean)
    np.testing.assert_allclose(made.theta(500, seed=1), expected)
    before, after = posterior.summary(), made.summary()
    np.testing.assert_allclose(after.mean[:2], before.mean[:2])
    np.testing.assert_allclose(after.sd[:2], certificate.scales[:2] * sd[:2])
    np.testing.assert_allclose(after.quantiles[0] - mean[0], 1.1 * (before.quantiles[0] - mean[0]))
    # The logarithm of sigma has an sd that is 1.5 times as large.
    wide, narrow = (np.log(np.asarray(one.quantiles[2])) for one in (after, before))
    assert (wide[2] - wide[0]) / (narrow[2] - narrow[0]) == pytest.approx(1.5, rel=1e-3)


def test_draws_are_named_constrained_and_seeded(posterior):
    draws = posterior.sample(500, seed=1)
    assert {name: value.shape for name, value in draws.items()} == {"w": (500, 2), "sigma": (500,)}
    assert np.all(draws["sigma"] > 0)
    np.testing.assert_array_equal(draws["w"], posterior.sample(500, seed=1)["w"])
    assert not np.array_equal(draws["w"], posterior.sample(500, seed=2)["w"])


def test_the_summary_is_that_of_the_mixture(posterior):
    summary = posterior.summary((0.1, 0.9))
    assert summary.names == ("w[0]", "w[1]", "sigma")
    np.testing.assert_allclose(summary.mean[:2], posterior.mixture.mean()[:2])
    np.testing.assert_allclose(summary.sd[:2], posterior.mixture.sd()[:2])
    # σ is log-normal when the mixture has one component.
    m, s = posterior.mixture.mean()[2], posterior.mixture.sd()[2]
    assert posterior.mixture.num_components == 1
    error = summary.sd[2] / np.sqrt(10_000)
    assert abs(summary.mean[2] - np.exp(m + s**2 / 2)) < 4 * error
    # The density at its 10 % quantile is about 1.75/(10 sd); 4 standard errors of a quantile from 10,000 draws.
    assert abs(summary.quantiles[0, 0] - (summary.mean[0] - 1.2816 * summary.sd[0])) < 4 * summary.sd[0] * 0.0171
    text = str(summary)
    assert text.splitlines()[0].split() == ["mean", "sd", "10", "%", "90", "%"]
    assert len(text.splitlines()) == 4
    assert summary["sigma"]["sd"] == pytest.approx(summary.sd[2])


def test_the_log_density_takes_theta_and_named_values(posterior):
    theta = posterior.mixture.sample(7, seed=0)
    direct = posterior.log_density(theta)
    np.testing.assert_allclose(direct, posterior.mixture.log_density(theta))
    np.testing.assert_allclose(posterior.log_density(posterior.space.constrain(theta)), direct, rtol=1e-9)


def test_the_held_out_likelihood_is_the_log_of_the_mean_over_draws(posterior):
    rows = {name: column[:50] for name, column in ROWS.items()}
    found = epvi.log_predictive(LINEAR, posterior, rows, num_samples=300, seed=4)
    theta = posterior.mixture.sample(300, seed=4)
    w, sigma = theta[:, :2], np.exp(theta[:, 2])
    logs = -0.5 * ((rows["y"] - w @ rows["x"].T) / sigma[:, None]) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))[:, None]
    assert found == pytest.approx(float(np.mean(logsumexp(logs, axis=0) - np.log(300))), rel=1e-10)


def test_blocks_do_not_change_the_held_out_likelihood(posterior, monkeypatch):
    whole = epvi.log_predictive(LINEAR, posterior, ROWS, num_samples=50)
    monkeypatch.setattr(sys.modules["epvi.site.tasks.predictive"], "_BLOCK", 50 * 7)  # 120 rows in blocks of 7
    assert epvi.log_predictive(LINEAR, posterior, ROWS, num_samples=50) == pytest.approx(whole, rel=1e-12)


def test_predictions_come_as_from_numpyro(posterior):
    made = epvi.predict(LINEAR, posterior, {"x": X[:4]}, num_samples=2000, seed=0)
    assert made["y"].shape == (2000, 4)
    assert made["twice"].shape == (2000, 2)
    mean = X[:4] @ posterior.mixture.mean()[:2]
    error = made["y"].std(axis=0) / np.sqrt(2000)
    assert np.all(np.abs(made["y"].mean(axis=0) - mean) < 4 * error + 1e-3)
    # Observed columns are left out, not echoed.
    again = epvi.predict(LINEAR, posterior, {"x": X[:4], "y": np.full(4, 99.0)}, num_samples=2000, seed=0)
    np.testing.assert_array_equal(again["y"], made["y"])


def test_predictions_keep_optional_columns_that_are_not_observed():
    rng = np.random.default_rng(1)
    rows = {"x": np.ones((80, 1)), "y": rng.poisson(2.0, 80), "exposure": np.ones(80)}
    posterior = epvi.combine([epvi.fit_shard(poisson, rows, "1/1")])
    new = {"x": np.ones((2, 1)), "exposure": np.array([1.0, 10.0])}
    mean = epvi.predict(poisson, posterior, new, num_samples=4000)["y"].mean(axis=0)
    assert mean[1] / mean[0] == pytest.approx(10.0, rel=0.15)


@pytest.mark.slow
def test_fixed_arguments_reach_the_predictions():
    model = epvi.Model(linear, spread=0.01)
    posterior = epvi.combine([epvi.fit_shard(model, ROWS, "1/1")])
    assert np.max(np.abs(posterior.mixture.mean()[:2])) < 0.5
    assert epvi.predict(model, posterior, {"x": X[:3]}, num_samples=10)["y"].shape == (10, 3)


def test_exchangeable_sources_are_aligned_whatever_order_a_shard_found_them_in():
    places = grid_places(16)
    rows, _ = simulate_tlsa(400, 3, places=places, num_sources=2, seed=5)
    model = epvi.Model(tlsa, places=places, num_sources=2, exchangeable=EXCHANGEABLE)
    parts = np.array_split(np.arange(400), 3)
    inference = epvi.NVI(1, num_starts=4)
    fits = [
        epvi.fit_shard(model, {k: v[p] for k, v in rows.items()}, f"{m}/3", inference=inference)
        for m, p in enumerate(parts, start=1)
    ]
    straight = epvi.combine(fits)
    # Turn the sources of the second shard around: the same posterior up to that order.
    space = fits[1].space
    order = np.arange(space.dim)
    blocks = space.blocks(EXCHANGEABLE[0])
    order[blocks[0]], order[blocks[1]] = blocks[1].copy(), blocks[0].copy()
    turned = epvi.GaussianMixture.from_covariances(
        np.asarray(fits[1].mixture.means)[:, order],
        np.asarray(fits[1].mixture.covariances())[:, order][:, :, order],
        fits[1].mixture.weights,
    )
    again = epvi.combine([fits[0], dataclasses.replace(fits[1], mixture=turned), fits[2]])
    np.testing.assert_allclose(again.mixture.mean(), straight.mixture.mean(), atol=1e-8)
    np.testing.assert_allclose(again.mixture.sd(), straight.mixture.sd(), rtol=1e-6)


def test_shares_of_the_prior_can_be_unequal():
    halves = {k: v[:60] for k, v in ROWS.items()}, {k: v[60:] for k, v in ROWS.items()}
    even = epvi.combine([epvi.fit_shard(LINEAR, rows, f"{m}/2") for m, rows in enumerate(halves, start=1)])
    uneven = epvi.combine(
        [
            epvi.fit_shard(LINEAR, halves[0], "1/2", prior=Fraction(3, 4)),
            epvi.fit_shard(LINEAR, halves[1], "2/2", prior="1/4"),
        ]
    )
    np.testing.assert_allclose(uneven.mixture.mean()[:2], even.mixture.mean()[:2], atol=0.02)


def test_a_share_given_as_a_decimal_is_that_decimal():
    parts = np.array_split(np.arange(120), 10)
    inference = epvi.NVI(1, num_starts=2, num_draws=8)
    fits = [
        epvi.fit_shard(LINEAR, {k: v[p] for k, v in ROWS.items()}, f"{m}/10", prior=0.1, inference=inference)
        for m, p in enumerate(parts, start=1)
    ]
    assert len(epvi.combine(fits).fits) == 10


def test_predictions_with_another_model_are_refused(posterior):
    def renamed(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    with pytest.raises(epvi.EpviError, match="has a parameter 'w', which the model does not have"):
        epvi.predict(renamed, posterior, {"x": X[:3]})


@pytest.mark.slow
def test_shards_that_are_far_from_gaussian_are_said_to_be():
    """Twenty rows a shard and an unknown sd: its fits are off in one direction, which the product amplifies."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 5))
    rows = {"x": x, "y": x @ np.ones(5) + rng.normal(size=200)}

    def regression(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 5.0).expand([5]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)

    model = epvi.Model(regression)

    def combined(num_shards):
        parts = np.array_split(np.arange(200), num_shards)
        return epvi.combine(
            epvi.fit_shard(model, {k: v[p] for k, v in rows.items()}, f"{m}/{num_shards}", inference=epvi.NVI(1))
            for m, p in enumerate(parts, start=1)
        )

    assert "nats from their subposteriors" in combined(10).status.text
    assert "nats from their subposteriors" not in combined(1).status.text


def test_a_shard_must_not_be_there_twice_or_be_missing(fits):
    with pytest.raises(epvi.EpviError, match="shard 2 of 3 is there twice"):
        epvi.combine([fits[0], fits[1], fits[1]])
    with pytest.raises(epvi.EpviError, match=r"sum to 2/3, not to 1 \(missing: 3\)"):
        epvi.combine(fits[:2])
    with pytest.raises(epvi.EpviError, match="shard 1 of 3 is one of 3 shards and shard 2 of 3 one of 2"):
        epvi.combine([fits[0], dataclasses.replace(fits[1], num_shards=2)])
    with pytest.raises(epvi.EpviError, match="there are no fits"):
        epvi.combine([])


def test_predictions_need_a_posterior(untyped):
    with pytest.raises(epvi.EpviError, match=r"pass what epvi\.fit or epvi\.combine gives"):
        epvi.predict(LINEAR, 3, {"x": X[:3]})
    with pytest.raises(epvi.EpviError, match=r"pass what epvi\.fit or epvi\.combine gives"):
        epvi.log_predictive(LINEAR, 3, ROWS)


def test_other_models_and_bad_fits_are_refused(fits, posterior):
    rows, _ = simulate_logistic(50, 2, seed=0)
    other = epvi.fit_shard(logistic, rows, "2/3")
    with pytest.raises(epvi.EpviError, match=r"shard 2 of 3 has the parameters \(alpha, w \(2,\)\)"):
        epvi.combine([fits[0], other, fits[2]])
    bad = dataclasses.replace(fits[1], status=Status(StatusCode.FLAT_DIRECTION, "flat direction: x."))
    with pytest.raises(epvi.EpviError, match="shard 2 of 3 did not end well: flat direction"):
        epvi.combine([fits[0], bad, fits[2]])
    with pytest.raises(epvi.EpviError, match="pass the model that the posterior was fitted with"):
        epvi.log_predictive(logistic, posterior, rows)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", 3, "a/b", "1/0", None])
def test_a_shards_number_is_checked(shard, untyped):
    with pytest.raises(epvi.EpviError, match='write "3/6"'):
        epvi.fit_shard(LINEAR, ROWS, shard)


@pytest.mark.parametrize("prior", [-1, 2, "x", "1/0", float("nan")])
def test_a_share_is_checked(prior, untyped):
    with pytest.raises(epvi.EpviError, match="prior is"):
        epvi.fit_shard(LINEAR, ROWS, "1/2", prior=prior)


def test_models_of_densities_have_no_predictions(posterior):
    model = epvi.Model.from_log_density(lambda v: -(v["a"] ** 2), lambda v, rows: rows["x"] * v["a"], {"a": ()})
    with pytest.raises(epvi.EpviError, match="cannot draw rows"):
        epvi.predict(model, posterior, {"x": np.ones(3)})


def test_a_jax_key_is_a_seed(posterior):
    a = posterior.sample(3, seed=7)["w"]
    np.testing.assert_array_equal(a, posterior.sample(3, seed=jax.random.key(7))["w"])


def test_bad_questions_are_answered_in_a_sentence(posterior, untyped):
    with pytest.raises(epvi.EpviError, match="num_samples is 0"):
        posterior.sample(0, seed=0)
    with pytest.raises(epvi.EpviError, match="quantiles are"):
        posterior.summary((0.0, 1.0))
    with pytest.raises(epvi.EpviError, match="the summary has no 'v'"):
        posterior.summary()["v"]
    with pytest.raises(epvi.EpviError, match="pass exactly w, sigma"):
        posterior.log_density({"w": np.zeros(2)})
