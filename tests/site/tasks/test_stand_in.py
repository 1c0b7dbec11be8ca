"""Shares of the prior when a shard is missing: carried by a present site, stood in for without rows, or not needed."""

import dataclasses
from fractions import Fraction

import jax.numpy as jnp
import missing
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from quick import quick_for
from sentences import refused

import epvi
from epvi.ground.status import Status, StatusCode
from epvi.models import logistic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 2))
ROWS = {"x": X, "y": X @ np.array([1.0, -2.0]) + RNG.normal(size=90)}
PARTS = [{name: column[m::3] for name, column in ROWS.items()} for m in range(3)]
MEAN, SPREAD = np.array([1.0, -2.0]), np.array([0.5, 3.0])
CORRELATED = np.array([[2.0, 0.9], [0.9, 0.5]])


def regression(prior):
    """Rows with unit noise and coefficients w under this prior."""

    def model(x, y=None):
        w = numpyro.sample("w", prior())
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


def normal():
    return dist.Normal(MEAN, SPREAD).to_event(1)


def flat():
    return dist.ImproperUniform(constraints.real, (), (2,))


def exact(rows, share=1.0):
    """Mean and covariance of the coefficients given these rows and a share of the normal prior."""
    precision = rows["x"].T @ rows["x"] + share * np.diag(SPREAD**-2)
    weighted = rows["x"].T @ rows["y"] + share * MEAN / SPREAD**2
    return np.linalg.solve(precision, weighted), np.linalg.inv(precision)


def joined(*parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in ROWS}


def is_exact(posterior, rows, share=1.0):
    mean, covariance = exact(rows, share)
    np.testing.assert_allclose(posterior.mixture.mean(), mean, atol=1e-9)
    np.testing.assert_allclose(posterior.mixture.covariance(), covariance, rtol=1e-9)


@pytest.fixture(scope="module")
def model():
    return epvi.Model(regression(normal))


@pytest.fixture(scope="module")
def fits(model):
    return [epvi.fit_shard(model, part, f"{m}/3") for m, part in enumerate(PARTS, start=1)]


def test_shares_may_be_unequal(model):
    shares = ("1/2", "1/3", Fraction(1, 6))
    made = [epvi.fit_shard(model, p, f"{m}/3", prior=f) for m, (p, f) in enumerate(zip(PARTS, shares, strict=True), 1)]
    is_exact(epvi.combine(made), ROWS)


def test_a_present_site_can_carry_a_missing_share_and_the_late_shard_then_has_none(model, fits):
    carrier = epvi.fit_shard(model, PARTS[1], "2/3", prior="2/3")
    posterior = epvi.combine([fits[0], carrier])
    is_exact(posterior, joined(*PARTS[:2]))
    assert posterior.stands_for == "60 rows in 2 of 3 shards, without the rows of shard 3"
    refused(lambda: posterior.update(fits[2]), r"sum to 4/3, more than 1: shard 2 of 3 carries 2/3.*--prior 0")
    late = posterior.update(epvi.fit_shard(model, PARTS[2], "3/3", prior=0))
    is_exact(late, ROWS)
    assert late.stands_for == "90 rows in 3 shards"


def test_a_missing_share_is_refused_with_the_command_that_helps(model, fits):
    command = r"\(missing: 2\).*epvi shard \.\.\. --shard 1/3 --prior 2/3 .*--no-rows"
    refused(lambda: epvi.combine([fits[0], fits[2]]), r"sum to 2/3, not to 1 " + command)
    less = epvi.fit_shard(model, PARTS[2], "3/3", prior="1/5")
    refused(
        lambda: epvi.combine([*fits[:2], less]), r"sum to 13/15, not to 1: fit one again .*--shard 1/3 --prior 7/15\.$"
    )


def test_a_stand_in_gives_the_posterior_of_the_present_rows_and_leaves_when_the_late_shard_comes(model, fits, tmp_path):
    stand_in = epvi.load(epvi.stand_in(model, PARTS[0], "2/3").save(tmp_path / "2.epvi"))
    posterior = epvi.combine([fits[0], fits[2], stand_in])
    is_exact(posterior, joined(PARTS[0], PARTS[2]))
    assert posterior.stands_for == "60 rows in 2 of 3 shards, without the rows of shard 2"
    assert posterior.stands_for in repr(posterior)
    late, whole = posterior.update(fits[1]), epvi.combine(fits)
    np.testing.assert_array_equal(late.mixture.means, whole.mixture.means)
    np.testing.assert_array_equal(late.mixture.roots, whole.mixture.roots)
    assert late.stands_for == whole.stands_for == "90 rows in 3 shards"
    without = epvi.fit_shard(model, PARTS[1], "2/3", prior=0)
    refused(lambda: posterior.update(without), "sum to 2/3, not to 1")
    refused(lambda: whole.update(fits[1]), "shard 2 of 3 is there twice, and its rows would count twice")


@pytest.mark.parametrize("structure", [epvi.Spherical(), epvi.Diagonal()], ids=str)
def test_a_stand_in_multiplies_with_every_family(model, structure):
    made = [epvi.fit_shard(model, PARTS[m], f"{m + 1}/3", inference=epvi.NVI(1, structure)) for m in (0, 1)]
    posterior = epvi.combine([*made, epvi.stand_in(model, ROWS, "3/3")])
    precision = sum(np.linalg.inv(f.mixture.covariance()) for f in made) + np.diag(SPREAD**-2) / 3
    np.testing.assert_allclose(posterior.mixture.covariance(), np.linalg.inv(precision), rtol=1e-9)


GAUSSIAN = {
    "normal": (normal, MEAN, np.diag(SPREAD**2)),
    "multivariate normal": (lambda: dist.MultivariateNormal(MEAN, CORRELATED), MEAN, CORRELATED),
    "log-normal": (lambda: dist.LogNormal(MEAN, SPREAD).to_event(1), MEAN, np.diag(SPREAD**2)),
    "far and narrow": (lambda: dist.Normal(3000.0, jnp.full(2, 1e-4)).to_event(1), 3000.0, 1e-8 * np.eye(2)),
}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_the_share_of_a_gaussian_prior_is_exact(name):
    prior, mean, covariance = GAUSSIAN[name]
    fit = epvi.stand_in(regression(prior), ROWS, "5/8", prior="1/4")
    assert (fit.shard, fit.num_shards, fit.prior, fit.num_rows) == (5, 8, Fraction(1, 4), 0)
    assert fit.is_stand_in
    sd = np.sqrt(4 * np.diag(covariance))
    np.testing.assert_allclose((fit.mixture.mean() - mean) / sd, 0, atol=1e-6)
    np.testing.assert_allclose(
        fit.mixture.covariance() / np.outer(sd, sd), 4 * covariance / np.outer(sd, sd), atol=1e-9
    )


def test_the_share_of_the_prior_is_as_precise_for_rows_of_single_precision():
    narrow = np.array([[1.0, 0.9999999], [0.9999999, 1.0]])
    rows = {name: column.astype(np.float32) for name, column in ROWS.items()}
    fit = epvi.stand_in(regression(lambda: dist.MultivariateNormal(MEAN, narrow)), rows, "1/2")
    np.testing.assert_allclose(fit.mixture.covariance(), 2 * narrow, rtol=1e-7)


def hierarchy():
    centre = numpyro.sample("centre", dist.Normal(1.0, 2.0))
    return dist.Normal(jnp.stack([centre, 2 * centre]), 0.5).to_event(1)


def test_the_share_of_a_prior_that_is_gaussian_in_all_its_parameters_together_is_exact():
    fit = epvi.stand_in(regression(hierarchy), ROWS, "1/2")
    load = np.array([1.0, 1.0, 2.0])
    covariance = 4.0 * np.outer(load, load) + np.diag([0.0, 0.25, 0.25])
    np.testing.assert_allclose(fit.mixture.mean(), load, atol=1e-9)
    np.testing.assert_allclose(fit.mixture.covariance(), 2 * covariance, rtol=1e-9)


def two_far_modes():
    parts = dist.Normal(jnp.array([-40.0, 40.0]), 1.0)
    return dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.5)), parts).expand([2]).to_event(1)


def half_flat():
    tight = numpyro.sample("tight", dist.Normal(0.0, 1.0))
    return dist.ImproperUniform(constraints.real, (), (2,)) if tight is not None else None


NOT_GAUSSIAN = {
    "half-normal": (
        lambda: dist.HalfNormal(jnp.ones(2)).to_event(1),
        "differs from a Gaussian's by more than 100 nats",
    ),
    "gamma": (lambda: dist.Gamma(jnp.full(2, 100.0), 100.0).to_event(1), r"by 2\.\d nats"),
    "Student's t": (lambda: dist.StudentT(100.0, jnp.zeros(2)).to_event(1), r"by \d\.?\d* nats"),
    "kink": (lambda: dist.Laplace(jnp.zeros(2)).to_event(1), "it has no smooth peak"),
    "two far modes": (two_far_modes, "it takes more than one"),
    "partly flat": (half_flat, "flat in some direction"),
}


@pytest.mark.parametrize("name", quick_for(NOT_GAUSSIAN, ("kink", "partly flat", "two far modes")))
def test_a_prior_that_is_not_gaussian_cannot_be_stood_in_for(name):
    prior, why = NOT_GAUSSIAN[name]
    call = lambda: epvi.stand_in(regression(prior), ROWS, "8/8")  # noqa: E731
    refused(call, rf"shard 8 of 8 cannot be stood in for without rows: .*{why}.*carry 1/8 of the prior more")


@pytest.mark.slow
def test_a_funnel_cannot_be_stood_in_for():
    rows = {"x": X, "y": (ROWS["y"] > 0).astype(int)}
    refused(lambda: epvi.stand_in(logistic, rows, "8/8"), "not close to a Gaussian.*Let a site that has rows carry 1/8")


def test_nothing_stands_in_for_nothing(model):
    refused(lambda: epvi.stand_in(regression(flat), ROWS, "8/8"), "its share of the prior is flat: leave it out")
    refused(lambda: epvi.stand_in(model, ROWS, "8/8", prior=0), "its share of the prior is flat: leave it out")
    refused(lambda: epvi.stand_in(model, {"x": X}, "8/8"), "'y'")


def test_under_a_flat_prior_a_missing_shard_needs_nothing():
    model = epvi.Model(regression(flat))
    made = [epvi.fit_shard(model, PARTS[m], f"{m + 1}/3") for m in (0, 2)]
    posterior = epvi.combine(made)
    is_exact(posterior, joined(PARTS[0], PARTS[2]), share=0.0)
    assert posterior.stands_for == "60 rows in 2 of 3 shards, without the rows of shard 2"
    is_exact(posterior.update(epvi.fit_shard(model, PARTS[1], "2/3")), ROWS, share=0.0)


@pytest.mark.parametrize(
    "prior",
    [
        half_flat,
        lambda: dist.Normal(0.0, 1e8).expand([2]).to_event(1),
        lambda: dist.HalfCauchy(jnp.ones(2)).to_event(1),
    ],
    ids=["partly flat", "very wide", "scales"],
)
def test_a_prior_that_is_not_flat_everywhere_needs_all_its_shares(prior):
    made = epvi.fit_shard(regression(prior), PARTS[0] | {"y": np.abs(PARTS[0]["x"]).sum(axis=1)}, "1/2")
    refused(lambda: epvi.combine([made], accept_unconverged=True), "sum to 1/2, not to 1")


def scaled_coefficients(x, y=None):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_late_shard_without_a_share_leaves_to_others_what_its_rows_say_nothing_of():
    """The scale of a hierarchy is in the prior only: without a share of it, the shard's density is flat there."""
    model = epvi.Model(scaled_coefficients)
    late = epvi.fit_shard(model, PARTS[2], "3/3", prior=0)
    assert late.status.ok
    assert late.status.text == "converged: 1 component (these rows say nothing of scale)."
    assert late.gap < 1e-6
    mean, covariance = exact(PARTS[2], share=0.0)
    np.testing.assert_allclose(late.mixture.mean()[1:], mean, atol=1e-9)
    np.testing.assert_allclose(late.mixture.covariance()[1:, 1:], covariance, rtol=1e-9)
    assert float(late.mixture.sd()[0]) == pytest.approx(1e4)
    # Under a flat prior nobody bounds what the rows do not.
    idle = {"x": X * np.array([1.0, 0.0]), "y": ROWS["y"]}
    assert "flat direction" in epvi.fit_shard(regression(flat), idle, "1/1", prior=0).status.text


def test_fits_that_did_not_converge_are_taken_when_told_so(model, fits):
    bad = dataclasses.replace(fits[1], status=Status(StatusCode.RISING, "stopped early."))
    late = dataclasses.replace(fits[2], status=Status(StatusCode.RISING, "stopped late."))
    refused(lambda: epvi.combine([fits[0], bad, fits[2]]), r"shard 2 of 3 did not end well: .*--accept-unconverged")
    posterior = epvi.combine([fits[0], bad, epvi.stand_in(model, ROWS, "3/3")], accept_unconverged=True)
    # What was accepted once stays; what comes must be accepted itself.
    is_exact(posterior.update(fits[2]), ROWS)
    refused(lambda: posterior.update(late), "did not end well")
    is_exact(posterior.update(late, accept_unconverged=True), ROWS)


@pytest.mark.usefixtures("untyped")
def test_a_posterior_is_updated_with_a_fit(fits):
    refused(lambda: epvi.combine(fits).update(PARTS[0]), "fit is a dict: pass what epvi.fit_shard or epvi.load gives")


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["hierarchical", "gaussian"])
def test_seven_of_eight_shards_agree_with_nuts_as_well_as_eight(prior):
    found = missing.case(prior, missing.Plan(num_rows=4000, draws=4000), seed=0)
    assert found.as_good(), found
    assert found.stands_for == "3,500 rows in 7 of 8 shards, without the rows of shard 8"
    if prior == "gaussian":
        assert (found.late_mean, found.late_log_sd) == (0, 0)
    else:
        # Another split of the prior: each fit errs otherwise, but by less than NUTS finds wrong with eight shards.
        assert found.late_mean < 0.05
        assert found.late_log_sd < 0.02


@pytest.mark.slow
def test_a_gaussian_in_the_place_of_a_funnel_would_be_wrong():
    assert missing.forced(missing.QUICK, seed=0) > 1
