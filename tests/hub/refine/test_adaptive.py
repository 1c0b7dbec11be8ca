"""Adaptive rounds: mixtures fitted to weighted draws, and posteriors that no Gaussian can hold."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import linalg, stats
from scipy.special import logsumexp

import epvi
from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.powers import Powers
from epvi.gaussian.quasi_random import draw, log_density, uniform_points
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.scale_mixture import _AT_FIRST, _SCALES, _Fitted, _fitted, _step, scale_mixture
from epvi.hub.trust.propose import Source, _lengthened


def mixture(means, sds, weights=None):
    means = np.asarray(means, float).reshape(len(means), -1)
    return GaussianMixture.from_covariances(means, np.asarray(sds, float)[:, None, None] ** 2, weights)


def test_one_step_is_that_of_expectation_maximisation():
    rng = np.random.default_rng(0)
    theta, weights = rng.normal(size=(40, 2)), rng.dirichlet(np.ones(40))
    covariances = np.stack([np.eye(2), [[0.5, 0.2], [0.2, 0.7]]])
    found = _Fitted(rng.normal(size=(2, 2)), covariances, rng.dirichlet(np.ones(6)).reshape(2, 3), -np.inf)
    made = _step(Powers.of(theta), weights, 0.3, found)
    shares = np.zeros((40, 2, 3))
    for n in range(40):
        for k in range(2):
            for c, scale in enumerate(_SCALES):
                law = stats.multivariate_normal(found.means[k], scale**2 * covariances[k])
                shares[n, k, c] = found.weights[k, c] * law.pdf(theta[n])
    density = shares.sum((1, 2))
    assert made.log_likelihood == pytest.approx(float(weights @ np.log(density)))
    shares *= (weights / density)[:, None, None]
    np.testing.assert_allclose(made.weights, shares.sum(0))
    for k in range(2):
        near = shares[:, k] @ _SCALES**-2.0
        mean = near @ theta / near.sum()
        np.testing.assert_allclose(made.means[k], mean)
        inside = sum(near[n] * np.outer(theta[n] - mean, theta[n] - mean) for n in range(40))
        # Two components in two dimensions share the space: each has half of the unit variance.
        expected = (inside + 0.3 * np.eye(2) / 2) / (shares[:, k].sum() + 0.3)
        np.testing.assert_allclose(made.covariances[k], expected)


def test_steps_never_lower_the_likelihood():
    rng = np.random.default_rng(1)
    theta = np.concatenate([rng.normal(size=(200, 2)), rng.standard_t(2, size=(200, 2)) + 4])
    weights = np.full(400, 1 / 400)
    found = _Fitted(theta[[0, 300]], np.tile(np.eye(2), (2, 1, 1)), np.tile(_AT_FIRST / 2, (2, 1)), -np.inf)
    values = []
    for _ in range(15):
        found = _step(Powers.of(theta), weights, 0.0, found)
        values.append(found.log_likelihood)
    assert np.all(np.diff(values) > -1e-12)
    assert _fitted(theta, weights, 2, 400.0, rng).log_likelihood > values[1]


def test_heavy_tails_are_fitted_and_gaussian_ones_stay_gaussian():
    points = uniform_points(4096, 2, (1,))
    even = np.full(4096, 1 / 4096)
    for law, heavy in ((stats.norm, False), (stats.t(3), True)):
        theta = law.ppf(points)
        made = scale_mixture(theta, even, np.random.default_rng(0))
        far = np.array([[6.0, 0.0]])
        excess = float(log_density(made, far)[0]) - float(np.sum(law.logpdf(far)))
        assert (excess < 8) if not heavy else (abs(excess) < 2.5)
        # The Kullback-Leibler divergence of the fit, in nats.
        assert np.mean(law.logpdf(theta).sum(1) - log_density(made, theta)) < 0.02


def test_a_pool_weighs_draws_by_the_mixture_of_their_proposals():
    near, far = mixture([[0.0]], [1.0]), mixture([[2.0]], [1.5])
    sources = (Source(((600, near), (100, far))), Source(((300, far),)))
    u = uniform_points(1000, 2, (2,))
    theta = np.concatenate([draw(near, u[:600]), draw(far, u[600:])])
    pool = ScoredDraws(theta, stats.norm(1.0, 0.7).logpdf(theta[:, 0]), sources)
    density = 0.6 * stats.norm.pdf(theta[:, 0]) + 0.4 * stats.norm(2.0, 1.5).pdf(theta[:, 0])
    log_w = pool.log_weights()
    expected = pool.log_p - np.log(density)
    np.testing.assert_allclose(log_w - log_w[0], expected - expected[0], atol=1e-10)
    weights = np.exp(log_w - logsumexp(log_w))
    assert weights @ theta[:, 0] == pytest.approx(1.0, abs=0.02)


def test_few_of_many_draws_keep_the_weighted_mean():
    q = mixture([[0.0]], [3.0])
    theta = draw(q, uniform_points(2**15, 2, (3,)))
    pool = ScoredDraws(theta, stats.norm.logpdf(theta[:, 0]), (Source(((2**15, q),)),))
    some, weights = pool.telling(np.random.default_rng(0))
    assert 7500 < len(some) < 8900  # 8,192 on average, with a standard deviation below 91
    assert np.sum(weights) == pytest.approx(1.0)
    assert weights @ some[:, 0] == pytest.approx(0.0, abs=4 / np.sqrt(8192))
    assert weights @ some[:, 0] ** 2 == pytest.approx(1.0, abs=4 * np.sqrt(2 / 8192))


def test_components_are_longer_along_their_largest_axis_relative_to_the_whole():
    rng = np.random.default_rng(4)
    means, shape = rng.normal(size=(3, 2)) * [1.0, 50.0], rng.normal(size=(3, 2, 2)) * [1.0, 50.0]
    q = GaussianMixture.from_covariances(means, np.einsum("kij,kil->kjl", shape, shape), rng.dirichlet(np.ones(3)))
    longer, whole = _lengthened(q), np.asarray(q.covariance())
    np.testing.assert_allclose(np.asarray(longer.means), np.asarray(q.means))
    for before, after in zip(np.asarray(q.covariances()), np.asarray(longer.covariances()), strict=True):
        # In the directions that diagonalise both the component's and the whole covariance, one variance is nine times
        # as large, that which is largest relative to the whole.
        relative, axes = linalg.eigh(before, whole)
        dual = whole @ axes
        expected = (dual * (relative * [1.0, 9.0])) @ dual.T
        np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-9)


def nothing_seen(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def banana(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b**2, 1.0), obs=y)


def exact_banana(y):
    """Means and sds of a and b on a grid."""
    a, b = np.meshgrid(np.linspace(-6, 4, 801), np.linspace(-4, 4, 641), indexing="ij")
    log_p = -0.5 * (a**2 + b**2) - 0.5 * len(y) * (np.mean(y) - a - b**2) ** 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = np.array([np.sum(p * a), np.sum(p * b)])
    return means, np.sqrt([np.sum(p * (a - means[0]) ** 2), np.sum(p * (b - means[1]) ** 2)])


def fitted(model, rows, shards, **settings):
    with ThreadPoolExecutor(1) as executor:
        return epvi.fit(epvi.Model(model), rows, shards, executor=executor, progress=False, **settings)


def test_a_posterior_at_the_edge_is_trusted_and_right():
    found = fitted(nothing_seen, {"y": np.zeros(30, np.int32)}, 2)
    assert found.certificate.verdict == "trust"
    assert found.step.adapted > 0
    assert not found.step.waits
    exact = stats.beta(1, 31)
    summary = found.summary()
    error = 4 / np.sqrt(found.certificate.ess)
    assert summary.mean[0] == pytest.approx(exact.mean(), abs=error * exact.std())
    assert summary.sd[0] == pytest.approx(exact.std(), rel=2 * error)
    drawn = found.sample(20_000, seed=1)["p"]
    assert np.std(drawn) == pytest.approx(exact.std(), rel=2 * error)


@pytest.mark.slow
def test_a_banana_is_right_or_not_trusted():
    y = np.random.default_rng(3).normal(1.0, 1.0, 40)
    found = fitted(banana, {"y": y}, 2)
    mean, sd = exact_banana(y)
    summary = found.summary()
    off = np.max(np.abs(summary.mean - mean) / sd)
    assert found.certificate.verdict == "do not trust" or off < 0.2
    assert found.certificate.verdict == "do not trust" or np.all(np.abs(summary.sd / sd - 1) < 0.15)


@pytest.mark.slow
def test_rounds_by_hand_end_where_those_of_fit_do(tmp_path):
    """Asked and refined by hand, with every posterior written and read between rounds."""
    model = epvi.Model(nothing_seen)
    # Of different sizes: equal rows would be taken for the same ones.
    parts = [({"y": np.zeros(size, np.int32)}, f"{m + 1}/2") for m, size in enumerate((14, 16))]
    fits = [epvi.fit_shard(model, *part) for part in parts]
    posterior, count = epvi.combine(fits), 0
    while count < 30:
        adapts = posterior.step is not None and posterior.step.adapts
        asked = posterior.ask(2048, moments=not adapts, seed=5)
        scores = [epvi.score(model, some, asked, shard) for some, shard in parts]
        made = epvi.refine(posterior, scores)
        posterior = epvi.load(made.save(tmp_path / f"{count}.epvi"))
        count += 1
        if posterior.step is None or not posterior.step.waits:
            break
    assert posterior.certificate.verdict == "trust"
    assert posterior.step.adapted > 0
    assert not posterior.step.adapts
    exact = stats.beta(1, 31)
    error = 4 / np.sqrt(posterior.certificate.ess)
    assert posterior.summary().mean[0] == pytest.approx(exact.mean(), abs=error * exact.std())


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("verdict", "reasons", "efficiency", "num_draws", "dim", "longer"),
    [
        ("NOT", ("UNEVEN_WEIGHTS",), 0.6, 2048, 10, True),
        ("NOT", ("UNEVEN_WEIGHTS",), 0.95, 2048, 10, False),
        ("NOT", ("UNEVEN_WEIGHTS", "LOST_MODE"), 0.6, 2048, 10, False),
        ("NOT", ("UNEVEN_WEIGHTS",), 0.6, 256, 10, False),
        ("NOT", ("UNEVEN_WEIGHTS",), 0.6, 2048, 90, False),
        ("CORRECTED", (), 0.6, 2048, 10, False),
    ],
)
def test_short_steps_are_left_to_adaptive_rounds_only_where_these_can_mend(
    verdict, reasons, efficiency, num_draws, dim, longer
):
    from epvi.hub.refine.adaptive import least_step
    from epvi.hub.trust.reasons import Reason, Verdict

    found = tuple(Reason[name] for name in reasons)
    certificate = SimpleNamespace(verdict=Verdict[verdict], reasons=found, num_draws=num_draws, efficiency=efficiency)
    posterior = SimpleNamespace(certificate=certificate, mixture=SimpleNamespace(dim=dim))
    assert (least_step(posterior, 5e-4) > 5e-4) == longer
    assert least_step(SimpleNamespace(certificate=None, mixture=posterior.mixture), 5e-4) == 5e-4


@pytest.mark.usefixtures("untyped")
def test_the_best_round_counts():
    from epvi.hub.refine.adaptive import _best
    from epvi.hub.refine.step import Step
    from epvi.hub.trust.reasons import Verdict

    good = SimpleNamespace(verdict=Verdict.CORRECTED, efficiency=0.8)
    bad = SimpleNamespace(verdict=Verdict.NOT, efficiency=0.9)

    @dataclasses.dataclass(frozen=True)
    class Some:
        product: object
        step: object

    kept = mixture([[0.0]], [1.0])
    some = Some(SimpleNamespace(status=None), Step(3, 1.0, 0.0, None, kept, good, adapted=2, mixture_adapted=1))
    found, certificate, better = _best(some, bad)
    assert not better
    assert certificate is good
    assert found.product.mixture is kept
    assert found.step.adapted == 1
    assert _best(some, SimpleNamespace(verdict=Verdict.TRUST, efficiency=0.1))[2]
