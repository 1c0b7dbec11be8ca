"""NUTS on all rows, where the certificate says no: right on posteriors with known answers, and the same everywhere."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from sentences import refused

import epvi
from epvi.hub.trust.chains import Chains
from epvi.run.chains import _in_one_order, checked, helps
from epvi.site.derivatives.passes import programs_of
from epvi.site.tasks.chain import NUTS, Start, gradient_seconds, run_chain


def funnel(y):
    """v is known from rows; z has no rows, and is wide where v is large."""
    v = numpyro.sample("v", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Normal(0.0, jax.numpy.exp(v)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(v, 2.0), obs=y)


def test_a_gradient_of_all_rows_is_timed():
    y = np.zeros(40_000)
    target = programs_of(epvi.Model(funnel), {"y": y[:10]}).target
    assert 0 < gradient_seconds(target, {"y": y}) < 10


@pytest.mark.slow
def test_a_chain_is_right_on_a_funnel_and_the_same_again():
    y = np.random.default_rng(0).normal(1.0, 2.0, 4)
    target = programs_of(epvi.Model(funnel), {"y": y}).target
    candidates = np.random.default_rng(1).normal(size=(8, 2))
    start = Start(np.array([0.5, 0.0]), np.array([[0.7, 0.0], [0.3, 2.0]]), candidates, (1, 2))
    np.testing.assert_allclose(start.theta(start.z(candidates)), candidates)
    steps: list[int] = []
    made = run_chain(target, {"y": y}, start, NUTS(2, 500, 3000), steps.append)
    assert steps[-1] == 3500
    v = made.theta[:, target.space.slices["v"]][:, 0]
    z = made.theta[:, target.space.slices["z"]][:, 0]
    precision = 1 + len(y) / 4
    mean, sd = np.sum(y) / 4 / precision, 1 / np.sqrt(precision)
    chains = Chains(np.stack([made.theta[:1500], made.theta[1500:]]), made.divergences, 500, 1.0)
    error = sd / np.sqrt(np.min(chains.ess))
    assert abs(np.mean(v) - mean) < 4 * error
    assert abs(np.std(v) - sd) < 4 * error
    # z exp(−v) is standard normal, whatever v is.
    assert abs(np.std(z * np.exp(-v)) - 1) < 4 / np.sqrt(np.min(chains.ess))


def test_draws_of_exchangeable_units_are_in_one_order():
    space = epvi.Space((epvi.Parameter("mu", (3,), dist.constraints.real),), (("mu",),))
    rng = np.random.default_rng(0)
    ordered = np.array([-4.0, 0.0, 4.0]) + 0.3 * rng.normal(size=(2, 50, 3))
    mixed = rng.permuted(ordered, axis=2)
    found = _in_one_order(space, mixed)
    np.testing.assert_array_equal(np.sort(found, axis=2), np.sort(mixed, axis=2))
    assert np.all(np.ptp(found, axis=(0, 1)) < 3)


def test_the_fallback_is_named_by_an_object_and_needs_a_certificate():
    refused(lambda: checked("nuts", True), "fallback is 'nuts': pass epvi.NUTS()")
    rows = {"y": np.zeros(10)}
    refused(lambda: epvi.fit(funnel, rows, 2, fallback=epvi.NUTS(), certify=False), "leave certify as it is")
    refused(lambda: epvi.NUTS(num_chains=1), "num_chains is 1")
    assert not helps(None)


SCALES = np.linspace(0.9, 1.1, 9)


def shell(y):
    """Only the distance from the origin is known, in coordinates of unequal scales."""
    t = numpyro.sample("t", dist.Normal(0.0, 3.0 * SCALES).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(jax.numpy.sqrt(jax.numpy.sum((t / SCALES) ** 2)), 1.0), obs=y)


@pytest.mark.slow
def test_a_shell_that_no_gaussian_holds_is_right_by_the_fallback(tmp_path):
    y = np.random.default_rng(0).normal(4.0, 1.0, 200)
    plain = epvi.fit(shell, {"y": y}, 2, executor=2)
    assert plain.certificate.verdict == "do not trust"
    assert "fallback=epvi.NUTS()) would take about" in plain.certificate.text
    made = epvi.fit(shell, {"y": y}, 2, executor=2, fallback=epvi.NUTS(num_samples=2000))
    assert made.certificate.verdict == "trust draws of NUTS"
    # t / scale is uniform on a sphere whose radius has this density.
    r = np.linspace(1e-3, 12, 20_000)
    log_p = 8 * np.log(r) - r**2 / 18 - 0.5 * np.sum((y[:, None] - r) ** 2, axis=0)
    weights = np.exp(log_p - logsumexp(log_p))
    sd = np.sqrt(weights @ r**2 / 9) * SCALES
    found = made.summary()
    error = 4 / np.sqrt(np.min(made.chains.ess))
    assert np.max(np.abs(found.mean / sd)) < error
    np.testing.assert_allclose(found.sd / sd, 1, atol=error)
    radius = np.sqrt(np.sum((made.sample(4000, seed=0)["t"] / SCALES) ** 2, axis=1))
    assert np.mean(radius) == pytest.approx(weights @ r, abs=5 * np.sqrt(weights @ (r - weights @ r) ** 2 / 400))
    again = epvi.load(made.save(tmp_path / "posterior.epvi"))
    np.testing.assert_array_equal(again.chains.theta, made.chains.theta)
    np.testing.assert_array_equal(again.theta(100, seed=3), made.theta(100, seed=3))
    assert str(again.certificate) == str(made.certificate)
    assert epvi.predict(shell, again, {"y": y[:5]}, num_samples=20)["y"].shape == (20, 5)
    alone = epvi.fit(shell, {"y": y}, 2, executor=1, fallback=epvi.NUTS(num_samples=2000))
    np.testing.assert_array_equal(alone.chains.theta, made.chains.theta)
