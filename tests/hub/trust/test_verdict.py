"""What is trusted and what is not, in the cases that are easily got wrong."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sentences import refused

import epvi
from epvi.gaussian.mixture import Estimate
from epvi.hub.trust.reasons import Verdict
from epvi.run import worker
from epvi.run.rounds import _better
from epvi.run.shards import RunningShards


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def shell(y):
    t = numpyro.sample("t", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(t**2), 3.0), obs=y)


def rate(y, age):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p + 0 * age), obs=y)


LINE = epvi.Model(line)


def rows_of(n=200, correlation=0.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)) @ np.linalg.cholesky([[1.0, correlation], [correlation, 1.0]]).T
    return {"x": x, "y": x @ np.array([1.0, -0.5]) + rng.normal(size=n)}


def certified(rows, num_draws=2048, change=lambda mixture: mixture):
    """One shard's exact fit, changed, and its certificate."""
    fit = epvi.fit_shard(LINE, rows, "1/1", inference=epvi.NVI(1))
    posterior = epvi.combine([dataclasses.replace(fit, mixture=change(fit.mixture))])
    return posterior, epvi.certify(posterior, [epvi.score(LINE, rows, posterior.ask(num_draws), "1/1")])


def without_correlations(mixture):
    variances = np.diagonal(mixture.covariances(), axis1=1, axis2=2)
    return epvi.GaussianMixture.from_covariances(mixture.means, variances)


def test_a_posterior_without_its_correlations_is_not_trusted_as_it_is():
    # Means and sds are right: only the weights, which are uneven, tell that the shape is not.
    rows = rows_of(correlation=0.9)
    posterior, certificate = certified(rows, change=without_correlations)
    assert certificate.mean_shift < 0.05
    assert max(certificate.sd_ratios) < 1.05
    assert certificate.verdict != Verdict.TRUST
    corrected = posterior.with_certificate(certificate)
    exact, _ = certified(rows)
    sums = [p.sample(4000, seed=0)["w"].sum(axis=1).std() for p in (corrected, exact)]
    # Of about a third of 2,048 draws the sd is known to three per cent.
    assert sums[0] == pytest.approx(sums[1], rel=0.12)


@pytest.mark.parametrize("num_draws", [64, 128])
def test_an_exact_posterior_is_trusted_by_few_draws_too(num_draws):
    assert certified(rows_of(), num_draws)[1].verdict == Verdict.TRUST


@pytest.mark.slow
def test_a_posterior_on_a_shell_keeps_its_fits_and_is_not_trusted():
    y = 3.0 + 3.0 * np.random.default_rng(1).normal(size=6)
    with ThreadPoolExecutor(1) as executor:
        posterior = epvi.fit(shell, {"y": y - y.mean() + 3.0}, 1, executor=executor, refine=2)
    assert posterior.certificate.verdict == Verdict.NOT


@pytest.mark.slow
def test_sites_with_the_same_counts_of_other_rows_are_two_sites():
    rng = np.random.default_rng(3)
    parts = [{"y": rng.permutation(np.arange(100) < 40).astype(int), "age": rng.normal(size=100)} for _ in range(2)]
    model = epvi.Model(rate)
    posterior = epvi.combine([epvi.fit_shard(model, rows, f"{m}/2") for m, rows in enumerate(parts, start=1)])
    draws = posterior.ask()
    scores = [epvi.score(model, rows, draws, f"{m}/2") for m, rows in enumerate(parts, start=1)]
    assert "same rows" not in epvi.certify(posterior, scores).text
    unknown = [dataclasses.replace(one, made_of=dataclasses.replace(one.made_of, rows="")) for one in scores]
    assert "scored the same rows" in epvi.certify(posterior, unknown).text


def test_a_posterior_with_impossible_draws_is_never_the_better_one():
    def made(value, error):
        elbo = Estimate(np.asarray(value), np.asarray(error))
        posterior, certificate = certified(rows_of())
        return posterior.with_certificate(dataclasses.replace(certificate, elbo=elbo))

    first = made(-10.0, 0.01)
    assert _better(made(-np.inf, np.inf), first).certificate is first.certificate


def test_a_step_that_waits_says_so_and_can_not_be_used_yet():
    def bent(mixture):
        return epvi.GaussianMixture.from_covariances(mixture.means + 0.3, mixture.covariances())

    rows = rows_of()
    posterior, _ = certified(rows, change=bent)
    waiting = epvi.refine(posterior, [epvi.score(LINE, rows, posterior.ask(), "1/1")])
    assert not waiting.status.ok
    assert "not confirmed yet" in waiting.status.text
    settled = epvi.refine(waiting, [epvi.score(LINE, rows, waiting.ask(), "1/1")])
    assert settled.step.before is None
    assert settled.certificate.verdict == Verdict.TRUST
    refused(lambda: epvi.refine(waiting, [epvi.score(LINE, rows, waiting.ask(seed=5), "1/1")]), "draws of another seed")


def test_rows_that_were_sent_are_kept_for_one_call_only(untyped):
    held = worker.HeldRows({"y": np.zeros(3)})
    worker._keep("first", 1, held)
    worker._keep("second", 1, held)
    assert list(worker._KEPT) == [("second", 1)]
    with ThreadPoolExecutor(1) as executor:
        job = SimpleNamespace(token="second")
        RunningShards(executor, job, [1], {1: held}, {}, None, None, np.array([3])).forget()
    assert not worker._KEPT


def test_scores_can_be_asked_for_exactly_and_by_their_number(untyped):
    with ThreadPoolExecutor(2) as executor:
        made = epvi.fit(
            LINE, rows_of(), 2, executor=executor, certify=epvi.Scoring(num_draws=256, exact=True), refine=0
        )
    assert made.certificate.num_draws == 256
    assert made.certificate.verdict == Verdict.TRUST
    assert made.certificate.doubt == 0.0
    refused(lambda: epvi.fit(LINE, rows_of(), 2, certify="yes"), "certify is 'yes'")
    refused(lambda: epvi.fit(LINE, rows_of(), 2, refine=-1), "refine is -1")
    refused(lambda: epvi.Scoring(num_draws=3), "num_draws is 3")


def test_other_quantities_are_summarised_with_the_same_weights(untyped):
    rows = rows_of(correlation=0.9)
    posterior, certificate = certified(rows, change=without_correlations)
    posterior = posterior.with_certificate(certificate)
    exact = certified(rows)[0].summary(of=lambda draws: {"sum": draws["w"].sum(axis=1)})
    found = posterior.summary(of=lambda draws: {"sum": draws["w"].sum(axis=1)})
    assert found.names == ("sum",)
    assert found.sd[0] == pytest.approx(exact.sd[0], rel=0.1)
    refused(lambda: posterior.summary(of=lambda draws: draws["w"]), "of gives a ndarray")
    refused(lambda: posterior.summary(of=lambda draws: {"all": draws["w"].sum()}), "one entry for each of")
