"""Many parameters: modes from gradients and few Hessians, full covariances by default, and the right posterior."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import epvi
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.fit.few_hessians import OneShard, only_mode
from epvi.site.fit.newton import Tolerances, climb


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def squared(x, y=None):
    """Only w² is known: two modes."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(w**2) + x @ w * 0, 0.1), obs=y)


def made(num_rows, d, seed=0):
    """Correlated columns of different scales."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, d)) + 0.7 * rng.normal(size=(num_rows, 1))
    x *= np.geomspace(0.3, 3, d)
    w = rng.normal(size=d) / np.linalg.norm(x, axis=1).mean()
    return {"x": x, "y": (rng.logistic(size=num_rows) < x @ w).astype(np.int64)}


def shard_of(model, rows):
    count = len(rows["y"])
    windows = Windows.of(np.array([count]), 256, count)
    return Subposteriors(programs_of(epvi.Model(model), rows), rows, windows, np.ones(1), np.ones(1))


def test_a_mode_is_found_by_gradients_from_all_starts():
    sub = shard_of(logistic, made(2000, 5))
    few = sub.thinned(np.array([0]), [np.arange(0, 2000, 8)])
    starts = np.random.default_rng(1).normal(size=(4, 5)) * np.array([1.0, 1.0, 0.1, 3.0])[:, None]
    found = only_mode([OneShard(few, 0), OneShard(sub, 0)], starts)
    # Few passes over all rows: gradients, and one Hessian or two.
    assert sub.passes[0] < 20
    newton = climb(
        lambda theta, active: sub.second_order(theta, np.zeros(1, int)), np.zeros((1, 5)), Tolerances(1e-9, 1e-12)
    )
    assert found is not None
    assert found.decrement < 0.01
    away = found.point - newton.points[0]
    assert -away @ newton.hessian[0] @ away < 4 * 0.01
    np.testing.assert_allclose(found.hessian, newton.hessian[0], rtol=0.02, atol=1e-3 * np.abs(newton.hessian).max())


def test_two_modes_are_not_taken_for_one():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(300, 2)), "y": 1 + 0.1 * rng.normal(size=300)}
    sub = shard_of(squared, rows)
    assert only_mode([OneShard(sub, 0)], rng.normal(size=(4, 2))) is None


def double_well(x, y=None):
    """Each row has two modes of w in its first coordinate, and one in the others."""
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((x @ w) ** 2, 1.0), obs=y)


def test_two_modes_that_a_linear_predictor_has_are_not_taken_for_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    sub = shard_of(double_well, {"x": x, "y": (x @ np.array([1.0, 0.5, -1.0])) ** 2 + rng.normal(size=300)})
    assert only_mode([OneShard(sub, 0)], rng.normal(size=(4, 3))) is None


def test_far_starts_cost_a_few_passes_where_the_density_is_concave():
    """With as many rows as parameters, climbs from random starts took hundreds of passes."""
    sub = shard_of(logistic, made(60, 60))
    starts = 3 * np.random.default_rng(1).normal(size=(4, 60))
    found = only_mode([OneShard(sub, 0)], starts)
    assert found is not None
    assert found.decrement < 0.01
    assert sub.passes[0] < 100


@pytest.mark.parametrize(("d", "num_shards"), [(100, 100_000), (5000, 4), (7905, 4), (500, 1000)])
def test_covariances_are_full_while_they_are_affordable(d, num_shards):
    assert epvi.NVI().settled(d, num_shards).covariance == epvi.Full()


@pytest.mark.parametrize(
    ("d", "num_shards", "remedy"),
    [(501, 1000, "take at most 996 shards, or pass"), (8000, 4, "over the budget of 8 and 4 GB: pass inference=")],
)
def test_covariances_that_are_not_affordable_are_refused_with_a_remedy(d, num_shards, remedy):
    with pytest.raises(epvi.EpviError, match=remedy):
        epvi.NVI().settled(d, num_shards)
    for structure in (epvi.Spherical(), epvi.Diagonal(), epvi.Full()):
        chosen = epvi.NVI(covariance=structure)
        assert chosen.settled(d, num_shards) is chosen


@functools.cache
def reference(num_rows, d):
    """Mean and sds by importance sampling from the Laplace approximation of all rows, in NumPy."""
    rows = made(num_rows, d)
    x, y, w = rows["x"], rows["y"], np.zeros(d)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ w))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(d)
        w = w + np.linalg.solve(precision, x.T @ (y - p) - w)
    root = np.linalg.inv(np.linalg.cholesky(precision))
    z = np.random.default_rng(3).normal(size=(20_000, d))
    z = np.concatenate([z, -z])
    theta = w + z @ root
    eta = theta @ x.T
    log_p = eta @ y - np.sum(np.logaddexp(0, eta), axis=1) - 0.5 * np.sum(theta**2, axis=1)
    log_w = log_p + 0.5 * np.sum(z**2, axis=1)
    weights = np.exp(log_w - logsumexp(log_w))
    mean = weights @ theta
    return mean, np.sqrt(weights @ (theta - mean) ** 2), 1 / np.sum(weights**2)


@pytest.mark.slow
def test_many_parameters_have_the_right_posterior():
    num_rows, d = 6000, 140
    mean, sd, ess = reference(num_rows, d)
    assert ess > 1000
    posterior = epvi.fit(logistic, made(num_rows, d), shards=2, executor=1, progress=False)
    assert posterior.mixture.structure == epvi.Full()
    assert posterior.certificate.verdict in ("trust", "trust with corrected weights")
    assert posterior.certificate.num_draws == 2048
    summary = posterior.summary()
    # Standard errors of the reference: 1/√ESS in means, and 1/√(2 ESS) in sds.
    assert np.max(np.abs(summary.mean - mean) / sd) < 0.05 + 4 / np.sqrt(ess)
    assert np.max(np.abs(summary.sd / sd - 1)) < 0.03 + 4 / np.sqrt(2 * ess)
