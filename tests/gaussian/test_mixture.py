"""Gaussian mixtures: every formula against its plain NumPy form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive import STRUCTURES, dense, log_density, moments, random_covariances, random_mixture
from scipy.stats import multivariate_normal

from epvi import Diagonal, EpviError, Full, GaussianMixture, NaturalParameters, Spherical

K, D = 3, 4


@pytest.fixture(params=STRUCTURES)
def mixture(request):
    return random_mixture(np.random.default_rng(5), request.param, K, D)


def test_log_density_is_the_sum_of_component_densities(mixture):
    theta = np.random.default_rng(1).normal(size=(2, 3, D))
    expected = [[log_density(mixture, point) for point in row] for row in theta]
    np.testing.assert_allclose(mixture.log_density(theta), expected, rtol=1e-11)
    np.testing.assert_allclose(mixture.density(theta[0, 0]), np.exp(expected[0][0]), rtol=1e-11)


def test_log_density_stays_finite_where_the_density_underflows(mixture):
    assert mixture.density(np.full(D, 1e3)) == 0
    weights, means, covariances = dense(mixture)
    logs = [multivariate_normal.logpdf(np.full(D, 1e3), m, c) for m, c in zip(means, covariances, strict=True)]
    expected = np.logaddexp.reduce(np.log(weights) + logs)
    np.testing.assert_allclose(mixture.log_density(np.full(D, 1e3)), expected, rtol=1e-12)


def test_many_points_in_blocks_give_the_same_as_one_by_one(mixture, monkeypatch):
    # A number of points that no other test has, so that it is compiled here, with small blocks.
    theta = np.random.default_rng(2).normal(size=(53, D))
    expected = [float(mixture.log_density(point)) for point in theta]
    monkeypatch.setattr("epvi.gaussian.in_blocks._BLOCK", 7 * K * D)
    np.testing.assert_allclose(mixture.log_density(theta), expected, rtol=1e-13)


def test_moments(mixture):
    mean, covariance = moments(mixture)
    np.testing.assert_allclose(mixture.mean(), mean, atol=1e-13)
    np.testing.assert_allclose(mixture.covariance(), covariance, atol=1e-12)
    np.testing.assert_allclose(mixture.sd(), np.sqrt(np.diag(covariance)), rtol=1e-12)


def test_draws_have_the_moments_within_four_standard_errors(mixture):
    n = 40_000
    draws = mixture.sample(n, seed=3)
    mean, covariance = moments(mixture)
    assert np.all(np.abs(draws.mean(0) - mean) < 4 * np.sqrt(np.diag(covariance) / n))
    products = (draws - mean)[:, :, None] * (draws - mean)[:, None, :]
    assert np.all(np.abs(products.mean(0) - covariance) < 4 * products.std(0) / np.sqrt(n))


def test_draws_depend_on_the_seed_alone(mixture):
    key = jax.random.key(8)
    assert np.array_equal(mixture.sample(5, seed=8), mixture.sample(5, seed=key))
    assert np.array_equal(mixture.sample(5, seed=8), mixture.sample(5, seed=jax.random.PRNGKey(8)))
    assert not np.array_equal(mixture.sample(5, seed=8), mixture.sample(5, seed=9))


def test_marginal_is_the_submatrix(mixture):
    chosen = [2, 0]
    weights, means, covariances = dense(mixture)
    got = dense(mixture.marginal(chosen))
    np.testing.assert_allclose(got[0], weights, rtol=1e-13)
    np.testing.assert_allclose(got[1], means[:, chosen], rtol=1e-13)
    np.testing.assert_allclose(got[2], covariances[:, chosen][:, :, chosen], rtol=1e-11)


def test_conditional_is_joint_over_marginal(mixture):
    values = np.array([0.3, -0.2])
    conditional = mixture.condition([3, 1], values)
    rest = np.random.default_rng(6).normal(size=(5, 2))
    for point in rest:
        joint = np.empty(D)
        joint[[0, 2]], joint[[3, 1]] = point, values
        expected = mixture.log_density(joint) - mixture.marginal([3, 1]).log_density(values)
        np.testing.assert_allclose(conditional.log_density(point), expected, rtol=1e-10)


def test_entropy_bound_is_jensens(mixture):
    weights, means, covariances = dense(mixture)
    expected = 0.0
    for k in range(K):
        overlap = sum(
            weights[j] * multivariate_normal.pdf(means[k], means[j], covariances[k] + covariances[j]) for j in range(K)
        )
        expected -= weights[k] * np.log(overlap)
    np.testing.assert_allclose(mixture.entropy_bound(), expected, rtol=1e-12)
    estimate = mixture.entropy(20_000, seed=0)
    assert estimate.value > expected


def test_monte_carlo_entropy_of_one_gaussian_is_right_within_its_standard_error():
    covariance = random_covariances(np.random.default_rng(0), "full", 1, D)
    gaussian = GaussianMixture.from_covariances(np.ones((1, D)), covariance)
    estimate = gaussian.entropy(20_000, seed=4)
    exact = multivariate_normal(np.ones(D), covariance[0]).entropy()
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    # Of one Gaussian −log q is χ²_d / 2 + const, whose sd is √(d/2).
    np.testing.assert_allclose(estimate.standard_error, np.sqrt(D / 2 / 20_000), rtol=0.1)


def test_natural_parameters_there_and_back(mixture):
    natural = mixture.to_natural()
    _, means, covariances = dense(mixture)
    expected = [np.linalg.solve(c, m) for m, c in zip(means, covariances, strict=True)]
    np.testing.assert_allclose(natural.eta, expected, rtol=1e-9)
    back = GaussianMixture.from_natural(natural, mixture.structure)
    np.testing.assert_allclose(back.means, mixture.means, rtol=1e-11)
    np.testing.assert_allclose(back.roots, mixture.roots, rtol=1e-11, atol=1e-13)


def test_natural_parameters_are_checked():
    mixture = random_mixture(np.random.default_rng(5), "full", K, D)
    natural = mixture.to_natural()
    with pytest.raises(EpviError, match="weights sum to 3"):
        GaussianMixture.from_natural(natural._replace(log_weights=np.zeros(K)), Full())
    with pytest.raises(EpviError, match="precisions has shape"):
        GaussianMixture.from_natural(natural, Diagonal())
    broken = np.array(natural.eta)
    broken[0, 0] = np.nan
    with pytest.raises(EpviError, match="eta has 1 NaN"):
        GaussianMixture.from_natural(natural._replace(eta=broken), Full())


def test_natural_parameters_without_a_density_are_refused():
    natural = NaturalParameters(np.zeros(1), np.ones((1, 2)), np.diag([1.0, -1.0])[None])
    with pytest.raises(EpviError, match=r"component 0 .* positive-definite"):
        GaussianMixture.from_natural(natural, Full())


@pytest.mark.parametrize("num_components", [1, 2])
def test_reduction_keeps_the_moments(mixture, num_components):
    reduced = mixture.reduce(num_components)
    assert reduced.num_components == num_components
    mean, covariance = moments(mixture)
    got_mean, got_covariance = moments(reduced)
    np.testing.assert_allclose(got_mean, mean, atol=1e-12)
    if isinstance(mixture.structure, Full):
        np.testing.assert_allclose(got_covariance, covariance, atol=1e-11)
    elif num_components == 1 and isinstance(mixture.structure, Diagonal):
        np.testing.assert_allclose(np.diag(got_covariance), np.diag(covariance), atol=1e-11)
    np.testing.assert_allclose(np.trace(got_covariance), np.trace(covariance), rtol=1e-11)


def test_reduction_merges_the_closest_pair_first():
    means = np.array([[0.0, 0.0], [9.0, 9.0], [0.1, 0.0], [-9.0, 5.0]])
    mixture = GaussianMixture.from_covariances(means, np.ones(4), [0.4, 0.2, 0.2, 0.2])
    reduced = mixture.reduce(3)
    np.testing.assert_allclose(reduced.weights, [0.6, 0.2, 0.2], rtol=1e-12)
    np.testing.assert_allclose(reduced.means[0], [0.1 / 3, 0.0], atol=1e-12)
    np.testing.assert_allclose(reduced.means[1:], means[[1, 3]], rtol=1e-12)
    assert mixture.reduce(7) is mixture


def test_reduction_follows_the_least_divergence_bound():
    # The greedy choice, transliterated: B(i, j) of Runnalls for every pair.
    mixture = random_mixture(np.random.default_rng(11), "full", 6, 3)
    weights, means, covariances = dense(mixture)
    best, chosen = np.inf, None
    for i in range(6):
        for j in range(i + 1, 6):
            w = weights[i] + weights[j]
            mean = (weights[i] * means[i] + weights[j] * means[j]) / w
            joint = sum(weights[k] / w * (covariances[k] + np.outer(means[k] - mean, means[k] - mean)) for k in (i, j))
            cost = 0.5 * (
                w * np.linalg.slogdet(joint)[1]
                - weights[i] * np.linalg.slogdet(covariances[i])[1]
                - weights[j] * np.linalg.slogdet(covariances[j])[1]
            )
            if cost < best:
                best, chosen = cost, (i, mean, joint)
    reduced = mixture.reduce(5)
    _, got_means, got_covariances = dense(reduced)
    np.testing.assert_allclose(got_means[chosen[0]], chosen[1], rtol=1e-9)
    np.testing.assert_allclose(got_covariances[chosen[0]], chosen[2], rtol=1e-8)


def test_kernel_density_from_draws():
    draws = np.random.default_rng(0).normal(size=(30, 2))
    point = np.array([0.2, -0.1])
    for bandwidth, covariance in [(0.3, 0.09 * np.eye(2)), ([0.3, 0.5], np.diag([0.09, 0.25]))]:
        kde = GaussianMixture.from_draws(draws, bandwidth)
        expected = np.mean([multivariate_normal.pdf(point, draw, covariance) for draw in draws])
        np.testing.assert_allclose(kde.density(point), expected, rtol=1e-12)
    matrix = np.array([[0.09, 0.02], [0.02, 0.25]])
    expected = np.mean([multivariate_normal.pdf(point, draw, matrix) for draw in draws])
    np.testing.assert_allclose(GaussianMixture.from_draws(draws, matrix).density(point), expected, rtol=1e-12)


def test_a_wider_structure_holds_the_same_mixture():
    mixture = random_mixture(np.random.default_rng(0), "spherical", 2, 3)
    theta = np.random.default_rng(1).normal(size=(4, 3))
    for structure in (Spherical(), Diagonal(), Full()):
        wider = mixture.to(structure)
        assert wider.structure == structure
        np.testing.assert_allclose(wider.log_density(theta), mixture.log_density(theta), rtol=1e-12)
    with pytest.raises(EpviError, match="does not fit"):
        mixture.to(Full()).to(Spherical())


@pytest.mark.parametrize(
    "mixture", ["spherical", *(pytest.param(s, marks=pytest.mark.slow) for s in ("diagonal", "full"))], indirect=True
)
def test_works_under_jit_vmap_and_grad(mixture):
    theta = np.random.default_rng(1).normal(size=(5, D))
    with jax.enable_x64(True):
        compiled = jax.jit(lambda q, points: q.log_density(points))(mixture, theta)
        mapped = jax.vmap(mixture.log_density)(jnp.asarray(theta))
        gradient = jax.grad(lambda point: mixture.log_density(point))(jnp.asarray(theta[0]))
        stacked = jax.tree.map(lambda x: jnp.stack([x, x]), mixture)
        means = jax.vmap(lambda q: q.mean())(stacked)
        drawn = jax.jit(lambda q, key: q.sample(4, seed=key))(mixture, jax.random.key(0))
        entropy = jax.jit(lambda q: q.entropy_bound())(mixture)
        small = jax.jit(lambda q: q.reduce(1).marginal([0]).mean())(mixture)
        given = jax.jit(lambda q, value: q.condition([1], value).mean())(mixture, np.ones(1))
    np.testing.assert_allclose(compiled, mixture.log_density(theta), rtol=1e-12)
    np.testing.assert_allclose(mapped, mixture.log_density(theta), rtol=1e-12)
    np.testing.assert_allclose(means[1], mixture.mean(), rtol=1e-12)
    np.testing.assert_allclose(drawn, mixture.sample(4, seed=0), rtol=1e-12)
    np.testing.assert_allclose(entropy, mixture.entropy_bound(), rtol=1e-12)
    np.testing.assert_allclose(small, mixture.mean()[:1], rtol=1e-9)
    np.testing.assert_allclose(given, mixture.condition([1], np.ones(1)).mean(), rtol=1e-10)
    step = 1e-6 * np.eye(D)
    numeric = (mixture.log_density(theta[0] + step) - mixture.log_density(theta[0] - step)) / 2e-6
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-7)


def test_inside_a_users_trace_without_x64_it_works_in_float32(mixture):
    theta = np.random.default_rng(1).normal(size=(5, D))
    compiled = jax.jit(lambda q, points: q.log_density(points))(mixture, theta)
    assert compiled.dtype == np.float32
    np.testing.assert_allclose(compiled, mixture.log_density(theta), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(lambda q: q.mean())(mixture), mixture.mean(), rtol=1e-4)


def test_immutable(mixture):
    with pytest.raises(AttributeError):
        mixture.means = np.zeros((K, D))
    assert repr(mixture).startswith("GaussianMixture(K=3, d=4, ")


def test_a_mixture_of_very_many_components_is_sampled_without_an_array_of_draws_by_components():
    num, draws = 2**18, 2**15
    weights = np.linspace(1.0, 3.0, num)
    weights[: num // 2 : 2] = 0.0
    weights /= weights.sum()
    mixture = GaussianMixture.from_covariances(np.arange(num)[:, None], np.full(num, 1e-6), weights)
    which = np.rint(mixture.sample(draws, seed=0)[:, 0]).astype(int)
    assert np.all(weights[which] > 0)
    parts = weights.reshape(8, -1).sum(axis=1)
    counts = np.bincount(which // (num // 8), minlength=8)
    np.testing.assert_array_less(np.abs(counts - draws * parts), 4 * np.sqrt(draws * parts * (1 - parts)))
