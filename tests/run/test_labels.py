"""Mixture models of which the user declares nothing: labels are aligned, and no switched posterior is trusted."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import logsumexp
from scipy.stats import norm
from sentences import refused

import epvi
from epvi.hub.trust.reasons import Reason, Verdict
from epvi.parameters.alignment import Relabelling, relabelled

RNG = np.random.default_rng(0)
# Components that overlap, so that the labels of some draws are not those of the posterior.
ROWS = {"y": np.where(RNG.random(150) < 0.5, -1.4, 1.4) + RNG.normal(size=150)}
PARTS = [{"y": ROWS["y"][m::3]} for m in range(3)]


def two_means(y):
    mu = numpyro.sample("mu", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(mu, 1.0)), obs=y)


def fits_of(model):
    return [epvi.fit_shard(model, part, f"{m}/3") for m, part in enumerate(PARTS, start=1)]


@pytest.fixture(scope="module")
def fits():
    return fits_of(two_means)


def scores_of(model, posterior):
    draws = posterior.ask(seed=0)
    return [epvi.score(model, part, draws, f"{m}/3") for m, part in enumerate(PARTS, start=1)]


def certified(model, fits, rounds):
    posterior = epvi.combine(fits)
    for _ in range(rounds):
        posterior = epvi.refine(posterior, scores_of(model, posterior))
    return posterior.with_certificate(epvi.certify(posterior, scores_of(model, posterior)))


def exact():
    """Mean and sd of the lower and the upper component, and the log evidence, from a grid."""
    axis = np.linspace(-4, 4, 401)
    low, high = np.meshgrid(axis, axis, indexing="ij")
    density = norm.logpdf(ROWS["y"][:, None], axis)
    rows = np.zeros(low.shape)
    for one in density:
        rows += np.logaddexp(one[:, None], one[None]) - math.log(2)
    log_p = rows + norm.logpdf(low, 0, 3) + norm.logpdf(high, 0, 3)
    evidence = logsumexp(log_p) + 2 * math.log(axis[1] - axis[0])
    weights = np.where(low < high, np.exp(log_p - np.max(log_p)), 0.0)
    weights /= weights.sum()
    values = np.stack([low, high])
    mean = np.sum(weights * values, axis=(1, 2))
    return mean, np.sqrt(np.sum(weights * (values - mean[:, None, None]) ** 2, axis=(1, 2))), evidence


def test_labels_that_nobody_declared_are_aligned_and_the_evidence_is_that_of_all_orders(fits):
    assert {fit.space.exchangeable for fit in fits} == {(("mu",),)}
    turn = Relabelling(fits[1].space, (np.array([1, 0]),))
    turned = relabelled(fits[1].mixture, [turn] * fits[1].mixture.num_components)
    posterior = certified(two_means, [fits[0], dataclasses.replace(fits[1], mixture=turned), fits[2]], 2)
    certificate, (mean, sd, evidence) = posterior.certificate, exact()
    assert certificate.verdict in (Verdict.TRUST, Verdict.CORRECTED)
    assert "exchangeable parameters (mu) are in one order" in certificate.text
    summary = posterior.summary()
    order = np.argsort(summary.mean)
    np.testing.assert_allclose(np.asarray(summary.mean)[order], mean, atol=0.05 * np.min(sd))
    np.testing.assert_allclose(np.asarray(summary.sd)[order], sd, rtol=0.05)
    found = certificate.log_evidence
    assert abs(float(found.value) - evidence) < 5 * float(found.standard_error) + 0.01
    # Any order predicts the same, and the model as the user wrote it still fits the posterior.
    assert np.isfinite(epvi.log_predictive(two_means, posterior, ROWS, num_samples=50))


def test_labels_that_are_left_as_they_are_are_never_trusted(tmp_path):
    model = epvi.Model(two_means, exchangeable=[])
    fits = [epvi.load(fit.save(tmp_path / f"{fit.shard}.epvi")) for fit in fits_of(model)]
    assert {fit.made_of.unaligned for fit in fits} == {("mu",)}
    certificate = certified(model, fits, 0).certificate
    assert certificate.verdict == Verdict.NOT
    assert Reason.LABELS in certificate.reasons
    assert "labels can be exchanged without changing the model, and are not aligned (mu)" in certificate.text


def test_sites_that_align_other_labels_are_refused(fits):
    other = epvi.fit_shard(epvi.Model(two_means, exchangeable=[]), PARTS[0], "1/3")
    refused(lambda: epvi.combine([other, *fits[1:]]), r"2 of 3 has mu as exchangeable and shard 1 of 3 has nothing")


def four_components(y, ordered):
    """Weights on a simplex, means and sds; with `ordered`, the same restricted to means in one order."""
    weights = numpyro.sample("weights", dist.Dirichlet(2 * jnp.ones(4)))
    sd = numpyro.sample("sd", dist.LogNormal(0, 0.5).expand([4]).to_event(1))
    prior = dist.Normal(0, 5).expand([4]).to_event(1)
    if ordered:
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (4,)))
        numpyro.factor("prior of mu", prior.log_prob(mu))
    else:
        mu = numpyro.sample("mu", prior)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mu, sd)), obs=y)


@pytest.mark.slow
def test_four_components_with_weights_are_those_of_the_model_with_an_order():
    rng = np.random.default_rng(1)
    rows = {"y": np.array([-6.0, -2.0, 2.0, 6.0])[rng.choice(4, 800, p=[0.4, 0.3, 0.2, 0.1])] + rng.normal(size=800)}
    found, known = (epvi.fit(epvi.Model(four_components, ordered=ordered), rows, shards=5) for ordered in (False, True))
    assert found.space.exchangeable == (("weights", "sd", "mu"),)
    assert known.space.exchangeable == ()
    for one in (found, known):
        assert one.certificate.verdict in (Verdict.TRUST, Verdict.CORRECTED)
    ours, theirs = found.sample(4000, seed=0), known.sample(4000, seed=0)
    order = np.argsort(ours["mu"].mean(axis=0))
    for name in ("weights", "mu", "sd"):
        mean, sd = theirs[name].mean(axis=0), theirs[name].std(axis=0)
        # Two means of 4,000 draws each, of which about 1,500 are different ones: a standard error of 0.04 sds.
        assert np.max(np.abs(ours[name].mean(axis=0)[order] - mean) / sd) < 0.2
        np.testing.assert_allclose(ours[name].std(axis=0)[order], sd, rtol=0.15)
