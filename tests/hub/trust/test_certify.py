"""The second and further rounds: evidence, weights, agreement and steps beside their formulas on paper."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import naive
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base.array import array_stats
from scipy.linalg import eigh
from scipy.special import logsumexp, softmax
from scipy.stats import binom, f, multivariate_normal

import epvi
from epvi import Diagonal, Full, GaussianMixture, Space, Spherical
from epvi.gaussian.quasi_random import base_draws
from epvi.hub.refine.natural_gradient import JointMoments, stepped
from epvi.hub.refine.refine import settle
from epvi.hub.trust.agreement import agreement_of
from epvi.hub.trust.collect import collect
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.propose import propose
from epvi.hub.trust.score_test import Curvature, score_test
from epvi.run.rounds import Rounds, run_rounds
from epvi.wire.answer import Expected
from epvi.wire.request import mapped

PRIOR_SD = 1.5


def line(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def counts(x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ theta)), obs=y)


LINE, COUNTS = epvi.Model(line), epvi.Model(counts)


def columns(n, seed=0):
    """Correlated ones, so that a diagonal covariance is wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) @ np.array([[1.0, 0.3, 0.1], [0.0, 1.0, 0.2], [0.0, 0.0, 0.9]])
    return rng, x


def line_rows(n=320):
    rng, x = columns(n)
    return {"x": x, "y": x @ np.array([1.0, -0.5, 0.2]) + rng.normal(size=n)}


def count_rows(n=24):
    rng, x = columns(n)
    return {"x": x, "y": rng.poisson(np.exp(x @ np.array([-1.0, 0.3, 0.2])))}


class Study(NamedTuple):
    """A model, its rows in parts, and the product of the parts' fits."""

    model: epvi.Model
    parts: list
    posterior: epvi.Posterior

    def ask(self, draws, scoring=None):
        num = len(self.parts)
        return [epvi.score(self.model, rows, draws, f"{m}/{num}") for m, rows in enumerate(self.parts, start=1)]

    def certificate(self):
        return epvi.certify(self.posterior, self.ask(self.posterior.ask(moments=False, seed=0)))

    def from_gaussian(self, mean, covariance):
        """The same study with another posterior to begin with."""
        mixture = GaussianMixture.from_covariances(np.asarray(mean)[None], np.asarray(covariance)[None])
        product = dataclasses.replace(self.posterior.product, mixture=mixture)
        return self._replace(posterior=dataclasses.replace(self.posterior, product=product))


def study_of(model, rows, num, covariance=None):
    n = len(rows["y"])
    parts = [{name: column[m * n // num : (m + 1) * n // num] for name, column in rows.items()} for m in range(num)]
    inference = epvi.NVI(1, covariance)
    fits = [epvi.fit_shard(model, part, f"{m}/{num}", inference=inference) for m, part in enumerate(parts, start=1)]
    return Study(model, parts, epvi.combine(fits))


def exact_line(rows):
    x, y = rows["x"], rows["y"]
    covariance = np.linalg.inv(x.T @ x + np.eye(3) / PRIOR_SD**2)
    return covariance @ x.T @ y, covariance


@pytest.fixture(scope="module")
def skewed():
    return study_of(COUNTS, count_rows(), 3)


@pytest.mark.parametrize(
    ("num", "covariance"),
    [
        (1, Full()),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((8, Diagonal()), (1, Diagonal()), (32, Full()))),
    ],
)
def test_the_log_evidence_is_the_exact_one(num, covariance):
    rows = line_rows()
    certificate = study_of(LINE, rows, num, covariance).certificate()
    spread = np.eye(len(rows["y"])) + PRIOR_SD**2 * rows["x"] @ rows["x"].T
    exact = multivariate_normal(np.zeros(len(spread)), spread).logpdf(rows["y"])
    value, error = (float(part) for part in certificate.log_evidence)
    assert error < 0.05
    assert abs(value - exact) < 3 * error + 1e-6
    # A fit that is exact has nothing to be uncertain about.
    assert (error < 1e-6) == isinstance(covariance, Full)
    assert float(certificate.elbo.value) < exact + 1e-6


def test_under_a_flat_prior_there_is_no_evidence():
    def flat(y):
        theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    study = study_of(epvi.Model(flat), {"y": np.random.default_rng(0).normal(size=20)}, 2)
    certificate = study.certificate()
    assert certificate.log_evidence is None
    assert certificate.verdict == "trust"
    assert "evidence" not in str(certificate)


def test_draws_have_the_density_that_they_are_said_to_come_from(skewed):
    rng = np.random.default_rng(0)
    q = naive.random_mixture(rng, "full", 2, 3)
    far = GaussianMixture.from_covariances(np.array([[0.0, 0.0, 0.0], [30.0, 0.0, 0.0]]), np.stack([np.eye(3)] * 2))
    fits = (dataclasses.replace(skewed.posterior.fits[0], mixture=far), *skewed.posterior.fits[1:])
    product = dataclasses.replace(skewed.posterior.product, mixture=q)
    posterior = dataclasses.replace(skewed.posterior, product=product, fits=fits)
    draws = posterior.ask(1024, moments=False, seed=0)
    proposal = propose(posterior, draws.asked)
    np.testing.assert_array_equal(proposal.theta, draws.theta)
    weights, means, covariances = naive.dense(q)
    # exp(3 nats / d) is wider than twice.
    wide = GaussianMixture.from_covariances(means, 2.0**2 * covariances, weights)
    for theta, log_g, log_q in zip(proposal.theta[::32], proposal.log_g[::32], proposal.log_q[::32], strict=True):
        own, inflated = (np.exp(naive.log_density(source, theta)) for source in (q, wide))
        lost = multivariate_normal([30.0, 0.0, 0.0], np.eye(3)).pdf(theta)
        assert log_q == pytest.approx(np.log(own))
        assert log_g == pytest.approx(np.log((13 * own + 2 * inflated + lost) / 16))


def naive_weights(proposal, log_p):
    """Sums as they stand on paper: w = p/g and v = q/g over all draws."""
    top = np.max(log_p)
    w = [np.exp(p - top - g) for p, g in zip(log_p, proposal.log_g, strict=True)]
    v = [np.exp(q - g) for q, g in zip(proposal.log_q, proposal.log_g, strict=True)]
    return np.array(w), np.array(v), top


def test_weights_are_what_the_formulas_say(skewed):
    q = skewed.posterior.mixture
    draws = skewed.posterior.ask(moments=False, seed=0)
    answered = collect(skewed.posterior, skewed.ask(draws))
    proposal, log_p = answered.proposal, answered.log_p
    found = weigh(proposal, log_p, q, Space(()))
    w, v, top = naive_weights(proposal, log_p)
    smooth, k_hat = array_stats.psislw(-np.log(w))
    corrected = np.exp(smooth) / np.sum(np.exp(smooth))
    np.testing.assert_allclose(found.corrected, corrected, rtol=1e-9)
    np.testing.assert_allclose(found.own, v / np.sum(v), rtol=1e-9)
    assert found.k_hat == pytest.approx(float(k_hat))
    assert found.ess == pytest.approx(np.sum(corrected) ** 2 / np.sum(corrected**2))
    assert found.efficiency == pytest.approx(found.ess / (np.sum(v) ** 2 / np.sum(v**2)))
    ratios = [log_p[s] - proposal.log_q[s] for s in range(proposal.num_own)]
    assert float(found.elbo.value) == pytest.approx(np.mean(ratios))
    assert float(found.elbo.standard_error) == pytest.approx(np.std(ratios, ddof=1) / np.sqrt(len(ratios)))
    assert float(found.log_evidence.value) == pytest.approx(top + np.log(np.mean(w) / np.mean(v)))
    # The smoothed weights are the plain ones but for the largest.
    bulk = np.argsort(w)[: -int(3 * np.sqrt(len(w))) - 1]
    np.testing.assert_allclose(corrected[bulk] / corrected[bulk[0]], w[bulk] / w[bulk[0]], rtol=1e-9)


def test_the_corrected_summary_is_that_of_plain_importance_sampling_with_many_draws(skewed):
    certificate = skewed.certificate()
    found = skewed.posterior.with_certificate(certificate).summary(num_samples=2**14)
    q, n = skewed.posterior.mixture, 200_000
    _, mean, covariance = (part[0] for part in naive.dense(q))
    # Wider than the posterior, so that weights are bounded.
    g = multivariate_normal(mean, 2 * covariance)
    theta = g.rvs(n, random_state=np.random.default_rng(0))
    rows = count_rows()
    logits = theta @ rows["x"].T
    log_p = np.sum(rows["y"] * logits - np.exp(logits), axis=1) - 0.5 * np.sum(theta**2, axis=1)
    weights = softmax(log_p - g.logpdf(theta))
    expected = weights @ theta
    sd = np.sqrt(weights @ (theta - expected) ** 2)
    plain = np.sqrt(weights**2 @ (theta - expected) ** 2)
    noise = np.sqrt((certificate.weights - certificate.own) ** 2 @ (certificate.theta - expected) ** 2)
    uncorrected = skewed.posterior.summary().mean
    assert np.max(np.abs(uncorrected - expected) / sd) > 0.1
    np.testing.assert_array_less(np.abs(found.mean - expected), 4 * np.hypot(plain, noise))
    # Of an sd the standard error is about that of a mean over the square root of two.
    np.testing.assert_allclose(found.sd, sd, atol=4 * float(np.max(np.hypot(plain, noise))))


def agreement(gradients, products, hessians, sizes):
    """The verdict on shards that are named by their positions."""
    labels = [str(m) for m in range(len(sizes))]
    return agreement_of(labels, score_test(gradients, products, hessians, np.asarray(sizes, float)))


def dealt(rng, sizes, d, heavy=False):
    """Rows' gradients of shards of one model: their sums, and the sums of their products."""
    mixing = rng.normal(size=(d, d))
    rows = [rng.standard_t(5, size=(n, d)) if heavy else rng.normal(size=(n, d)) for n in sizes]
    rows = [one @ mixing for one in rows]
    return np.stack([np.sum(one, axis=0) for one in rows]), np.stack([one.T @ one for one in rows])


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
@pytest.mark.parametrize("diagonal", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["matrices", "diagonals"])
def test_shards_of_one_model_are_seldom_flagged(diagonal, heavy):
    rng = np.random.default_rng(1)
    runs, sizes = 1000, np.array([40.0, 60.0, 60.0, 100.0])
    flagged, each = 0, []
    for _ in range(runs):
        gradients, products = dealt(rng, sizes.astype(int), 3, heavy)
        products = np.diagonal(products, axis1=1, axis2=2) if diagonal else products
        found = agreement(gradients, products, -products, sizes)
        flagged += bool(found.flagged)
        each.append(found.p)
    # Never more often than is said: in each direction the larger of two variances counts.
    assert flagged <= binom.ppf(1 - 1e-4, runs, 0.005)
    assert np.mean(np.min(each, axis=1) < 0.2) <= binom.ppf(1 - 1e-4, runs, 0.2) / runs


def test_sites_with_columns_of_their_own_are_seldom_flagged_at_the_mode():
    rng = np.random.default_rng(1)
    runs, d, sizes = 500, 3, np.array([40, 60, 100, 200])
    roots = [rng.normal(size=(d, d)) * rng.uniform(0.3, 3.0, size=d) for _ in sizes]
    flagged = 0
    for _ in range(runs):
        # Rows about a line, whose gradients at the mode are their columns times what is left of them.
        x = np.concatenate([rng.normal(size=(n, d)) @ root for n, root in zip(sizes, roots, strict=True)])
        y = rng.normal(size=len(x))
        rows = np.split(x * (y - x @ np.linalg.solve(x.T @ x, x.T @ y))[:, None], np.cumsum(sizes)[:-1])
        gradients, products = np.stack([np.sum(one, axis=0) for one in rows]), np.stack([one.T @ one for one in rows])
        flagged += bool(agreement(gradients, products, -products, sizes.astype(float)).flagged)
    assert flagged <= binom.ppf(1 - 1e-4, runs, 0.01)


def rare_rows(rng, num_shards, size, swapped=None):
    """Gradients of rows of a logistic regression at its parameters, with rare categories and rare events."""
    x = np.concatenate([np.ones((num_shards * size, 1)), rng.normal(size=(num_shards * size, 2))], axis=1)
    x = np.concatenate([x, rng.random((len(x), 3)) < [0.01, 0.003, 0.001]], axis=1)
    chance = 1 / (1 + np.exp(2.5 - x[:, 1:] @ [0.5, -0.5, 1.0, 1.0, -1.0]))
    y = (rng.random(len(x)) < chance).reshape(num_shards, size)
    if swapped is not None:
        y[swapped] = ~y[swapped]
    rows = (x * (y.ravel() - chance)[:, None]).reshape(num_shards, size, -1)
    return np.sum(rows, axis=1), np.einsum("mni,mnj->mij", rows, rows)


@pytest.mark.parametrize("size", [20, 50, 200])
def test_shards_with_a_few_rows_of_a_rare_category_are_not_flagged(size):
    rng = np.random.default_rng(size)
    sizes = np.full(10_000 // size, float(size))
    for _ in range(20):
        gradients, products = rare_rows(rng, len(sizes), size)
        assert not agreement(gradients, products, -products, sizes).flagged


def test_a_shard_with_swapped_labels_is_flagged_among_rare_categories():
    rng = np.random.default_rng(3)
    sizes = np.full(50, 200.0)
    gradients, products = rare_rows(rng, 50, 200, swapped=7)
    assert agreement(gradients, products, -products, sizes).flagged == ("7",)


def test_the_larger_variance_counts_in_each_direction():
    rng = np.random.default_rng(4)
    sizes = np.array([30, 50, 400])
    rows = [rng.standard_t(3, size=(n, 2)) * scale for n, scale in zip(sizes, (1.0, [0.3, 4.0], 1.0), strict=True)]
    # Far enough from the others to have a p-value below 1.
    rows[1] = rows[1] + [1.2, 2.0]
    gradients = np.stack([np.sum(one, axis=0) for one in rows])
    products = np.stack([one.T @ one for one in rows])
    hessians = -products * np.array([0.5, 1.0, 2.0])[:, None, None]
    found = agreement(gradients, products, hessians, sizes).p[1]
    # The same by its formulas.
    total, whole, moved = np.sum(products, axis=0), -np.sum(hessians, axis=0), np.eye(2)
    share = -hessians[1] @ np.linalg.inv(whole)
    away = gradients[1] - share @ np.sum(gradients, axis=0)
    others = total - products[1]
    by_all, by_own = (
        (moved - share) @ v @ (moved - share).T + share @ others @ share.T for v in (50 / 430 * others, products[1])
    )
    variances, vectors = eigh(by_own, by_all)
    square = sum((v @ away) ** 2 / max(s, 1.0) for s, v in zip(variances, vectors.T, strict=True))
    n = 50
    p = f.sf(square * (n - 2) / (2 * n), 2, n - 2)
    assert 1e-12 < found < 0.1
    np.testing.assert_allclose(found, 3 * p, rtol=1e-6)


def test_with_few_rows_for_the_parameters_each_is_tested_alone_and_with_fewer_none():
    rng = np.random.default_rng(5)
    d, sizes = 12, np.array([3, 20, 20, 20, 60, 60])
    rows = [rng.normal(size=(n, d)) for n in sizes]
    rows[2] = rows[2] + 4 * np.eye(d)[7]
    gradients, products = np.stack([np.sum(one, axis=0) for one in rows]), np.stack([one.T @ one for one in rows])
    hessians = -np.eye(d) * sizes[:, None, None]
    found = score_test(gradients, products, hessians, sizes.astype(float))
    assert found.judged == (False, True, True, True, True, True)
    assert found.p[0] == 1.0
    share = 20 / 183
    away = (gradients[2] - share * np.sum(gradients, axis=0))[7]
    others = np.sum(products, axis=0)[7, 7] - products[2][7, 7]
    own, by_all = ((1 - share) ** 2 * v + share**2 * others for v in (products[2][7, 7], 20 / 163 * others))
    assert found.p[2] == pytest.approx(5 * d * f.sf(away**2 / max(own, by_all) * 19 / 20, 1, 19), rel=1e-6)
    assert int(np.argmin(found.p)) == 2


@pytest.mark.parametrize("diagonal", [False, True])
def test_far_from_the_mode_of_all_rows_nothing_is_tested(diagonal):
    rng = np.random.default_rng(6)
    gradients, products = dealt(rng, [50] * 4, 3)
    hessian, total = -np.sum(products, axis=0), np.sum(products, axis=0)
    # A Newton step of so many sds in every direction.
    for size, near in ((0.5, True), (1.5, False)):
        whole = Curvature(size * np.linalg.cholesky(total) @ np.ones(3), hessian)
        if diagonal:
            whole = Curvature(size * np.sqrt(np.diagonal(total)), np.diagonal(hessian))
        found = score_test(gradients, products, -products, np.full(4, 50.0), whole)
        assert found.near_mode is near
        assert any(found.judged) is near
    # Not at a mode at all.
    assert not score_test(gradients, products, products, np.full(4, 50.0)).near_mode


def test_where_nothing_can_be_tested_the_verdict_says_why():
    rng = np.random.default_rng(7)
    for sizes, why in (([5] * 8, "too few rows"), ([50], "fewer than two")):
        gradients, products = dealt(rng, sizes, 2)
        found = agreement(gradients, products, -products, sizes)
        assert found.verdict == "not tested"
        assert why in found.text
        assert found.status.ok
        assert set(found.p) == {1.0}


def test_where_one_shard_is_off_it_is_flagged_first():
    rng = np.random.default_rng(2)
    sizes = np.full(8, 50.0)
    gradients, products = dealt(rng, sizes.astype(int), 2)
    for size in (1.0, 3.0):
        away = size * np.sqrt(np.diagonal(np.mean(products, axis=0)) / 50)
        moved, wider = gradients.copy(), products.copy()
        moved[5] += 50 * away
        wider[5] += 50 * np.outer(away, away) + np.outer(gradients[5], away) + np.outer(away, gradients[5])
        found = agreement(moved, wider, -products, sizes)
        assert found.flagged[0] == "5"
        assert found.p[5] == min(found.p)


def two_gaussians(structure):
    rng = np.random.default_rng(4)
    d = 2
    covariances = naive.random_covariances(rng, structure, 2, d)
    gaussians = GaussianMixture.from_covariances(np.array([[0.0, 0.0], [1.5, -1.0]]), covariances, [0.3, 0.7])
    base = base_draws(64, d, (0, 1))
    # log p of something smooth, that the answers are made of.
    bend = np.array([[1.3, 0.4], [0.4, 0.8]])

    def log_p(theta):
        return -0.5 * theta @ bend @ theta + 0.3 * jnp.sin(theta[0]) + 0.1 * theta[1]

    return gaussians, base, log_p


def naive_step(gaussians, base, log_p, rate, diagonal):
    """The formulas of a natural-gradient step, term by term."""
    weights, means, covariances = naive.dense(gaussians)

    def log_q(theta):
        terms = []
        for w, m, c in zip(weights, means, covariances, strict=True):
            precision = np.linalg.inv(c)
            log_det = np.linalg.slogdet(precision / (2 * np.pi))[1]
            terms.append(np.log(w) + 0.5 * log_det - 0.5 * (theta - m) @ precision @ (theta - m))
        return jax.scipy.special.logsumexp(jnp.stack(terms))

    def difference(theta):
        return log_p(theta) - log_q(theta)

    @jax.jit
    def averages(points):
        of_p = [jax.vmap(f)(points) for f in (log_p, jax.grad(log_p), jax.hessian(log_p))]
        both = [jax.vmap(f)(points).mean(axis=0) for f in (difference, jax.grad(difference), jax.hessian(difference))]
        return of_p, both

    new_means, new_precisions, logs, answers = [], [], [], []
    for c, points in enumerate(mapped(gaussians, base)):
        of_p, (gain, slope, bend) = jax.device_get(averages(points))
        precision = np.linalg.inv(covariances[c]) - rate * (np.diag(np.diagonal(bend)) if diagonal else bend)
        new_means.append(means[c] + rate * np.linalg.solve(precision, slope))
        new_precisions.append(precision)
        logs.append(np.log(weights[c]) + rate * gain)
        answers.append(of_p)
    return np.stack(new_means), np.stack(new_precisions), np.exp(np.array(logs) - logsumexp(logs)), answers


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_a_step_is_what_the_formulas_say(structure):
    gaussians, base, log_p = two_gaussians(structure)
    diagonal = structure == "diagonal"
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        means, precisions, weights, answers = naive_step(gaussians, base, log_p, 0.6, diagonal)
    values, gradients, hessians = (np.array([one[i] for one in answers]) for i in range(3))
    hessian = np.mean(hessians, axis=1)
    hessian = np.diagonal(hessian, axis1=1, axis2=2) if diagonal else hessian
    after = stepped(JointMoments(gaussians, base, Expected(values, np.mean(gradients, axis=1), hessian)), 0.6)
    found_weights, found_means, found_covariances = naive.dense(after)
    np.testing.assert_allclose(found_weights, weights, rtol=1e-8)
    np.testing.assert_allclose(found_means, means, rtol=1e-8)
    np.testing.assert_allclose(np.linalg.inv(found_covariances), precisions, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("rate", "least"), [(1.0, 0.2), (0.5, 0.5)])
@pytest.mark.parametrize("structure", [Diagonal(), Full()])
def test_where_log_p_bends_upwards_no_precision_falls_far(structure, rate, least):
    d = 3
    gaussians = GaussianMixture.from_covariances(np.zeros((1, d)), np.full((1, d), 4.0)).to(structure)
    bent = np.array([3.0, -1.0, -0.5])
    hessian = (np.diag(bent) if structure == Full() else bent)[None]
    expected = Expected(np.zeros((1, 8)), np.zeros((1, d)), hessian)
    after = stepped(JointMoments(gaussians, np.zeros((8, d)), expected), rate)
    # Λ = 1/4 becomes (1 − ρ)/4 − ρ H, and not less than its part.
    wanted = np.maximum((1 - rate) / 4 - rate * bent, least / 4)
    np.testing.assert_allclose(after.sd() ** -2, wanted, rtol=1e-12)


def test_one_step_on_a_gaussian_posterior_lands_on_it():
    rows = line_rows()
    study = study_of(LINE, rows, 4, Spherical())
    mean, covariance = exact_line(rows)
    assert np.max(np.abs(study.posterior.mixture.mean() - mean)) > 1e-3
    refined = epvi.refine(study.posterior, study.ask(study.posterior.ask(seed=0)))
    np.testing.assert_allclose(refined.mixture.mean(), mean, atol=1e-9)
    np.testing.assert_allclose(refined.mixture.covariance(), covariance, atol=1e-9)
    settled = epvi.refine(refined, study.ask(refined.ask(seed=0)))
    assert settled.step.before is None
    assert settled.certificate.verdict == "trust"
    np.testing.assert_allclose(settled.mixture.mean(), mean, atol=1e-9)


def misled(scores, factor):
    """Answers whose gradients are not those of their values."""
    return [
        dataclasses.replace(one, moments=one.moments._replace(gradient=factor * one.moments.gradient + factor))
        for one in scores
    ]


def test_a_step_that_makes_it_worse_is_undone(skewed):
    start = skewed.posterior
    scores = skewed.ask(start.ask(seed=0))
    before = epvi.certify(start, scores)
    wrong = epvi.refine(start, misled(scores, -3.0))
    assert wrong.step.before is not None
    answers = skewed.ask(wrong.ask(seed=0))
    assert float(epvi.certify(wrong, answers).elbo.value) < float(before.elbo.value) - 0.1
    undone = settle(wrong, answers)
    np.testing.assert_allclose(undone.mixture.mean(), start.mixture.mean(), rtol=1e-12)
    assert undone.step.rate == pytest.approx(1 / 3)
    assert undone.step.gained == 0.0
    assert float(undone.certificate.elbo.value) == float(before.elbo.value)


def first_and_last(study, ask):
    """The certificates without refinement and with it."""
    key = jax.random.key(0)
    made = [run_rounds(study.posterior, ask, Rounds(True, most), key).certificate for most in (0, 3)]
    assert float(made[1].elbo.value) >= float(made[0].elbo.value)
    return made


@pytest.mark.parametrize("start", ["far", pytest.param("narrow", marks=pytest.mark.slow)])
def test_refinement_goes_up(skewed, start):
    d = skewed.posterior.space.dim
    mean = skewed.posterior.mixture.mean() + (2.0 if start == "far" else 0.0)
    study = skewed.from_gaussian(mean, (0.1 if start == "far" else 1e-4) * np.eye(d))
    first, last = first_and_last(study, study.ask)
    assert float(last.elbo.value) > float(first.elbo.value) + 1


def test_steps_from_far_out_are_not_longer_than_what_is_known_there(skewed):
    # Most of the gradient comes from a few draws, where rates are astronomical.
    study = skewed.from_gaussian([4.0, -3.0, 2.0], np.eye(3))
    first, last = first_and_last(study, study.ask)
    assert float(last.elbo.value) > 0.5 * float(first.elbo.value)
    assert last.verdict == "do not trust"
    refined = epvi.refine(study.posterior, study.ask(study.posterior.ask(seed=0)))
    assert np.linalg.norm(refined.mixture.mean() - study.posterior.mixture.mean()) < 10 + 1e-9


def test_answers_that_mislead_leave_the_posterior_as_it_was(skewed):
    def ask(draws, scoring):
        return misled(skewed.ask(draws), -2.0) if draws.base.size else skewed.ask(draws)

    first, last = first_and_last(skewed, ask)
    assert float(last.elbo.value) == float(first.elbo.value)


def test_the_rounds_give_the_same_for_one_and_two_workers():
    rows = line_rows(120)
    one, two = (epvi.fit(LINE, rows, 3, executor=workers, seed=3) for workers in (1, 2))
    np.testing.assert_array_equal(one.mixture.means, two.mixture.means)
    np.testing.assert_array_equal(one.mixture.roots, two.mixture.roots)
    np.testing.assert_array_equal(one.certificate.weights, two.certificate.weights)
    assert one.certificate.to_json() == two.certificate.to_json()
    assert one.bytes_exchanged == two.bytes_exchanged
