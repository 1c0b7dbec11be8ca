"""Numerical safety: extreme scales, distances, offsets and dimensions; long chains."""

import numpy as np
import pytest
from naive import STRUCTURES, random_mixture

from epvi import Anchored, Chain, Exact, Full, GaussianMixture, Spherical, Subset, multiply

SLOW = pytest.mark.slow
WAYS = [Exact(), Chain(num_samples=100), Subset(num_samples=40), Anchored(num_samples=100)]
# Every way is compiled anew for every structure; the widest is the hardest.
FULL_FIRST = ["full", *(pytest.param(structure, marks=SLOW) for structure in STRUCTURES if structure != "full")]


def finite(product):
    mixture = product.mixture
    assert np.all(np.isfinite(mixture.means))
    assert np.all(np.isfinite(mixture.roots))
    assert not np.any(np.isnan(mixture.log_weights))
    np.testing.assert_allclose(mixture.weights.sum(), 1, rtol=1e-9)
    if product.log_normaliser is not None:
        assert np.isfinite(product.log_normaliser.value)


@pytest.mark.parametrize("way", [pytest.param(w, marks=SLOW if isinstance(w, Chain | Anchored) else ()) for w in WAYS])
@pytest.mark.parametrize("structure", [pytest.param("spherical", marks=SLOW), "diagonal"])
def test_two_thousand_dimensions(way, structure):
    rng = np.random.default_rng(0)
    mixtures = [random_mixture(rng, structure, 2, 2000) for _ in range(5)]
    product = multiply(mixtures, way)
    finite(product)
    if isinstance(way, Exact):
        theta = rng.normal(size=(3, 2000))
        expected = sum(mixture.log_density(theta) for mixture in mixtures) - product.log_normaliser.value
        np.testing.assert_allclose(product.mixture.log_density(theta), expected, rtol=1e-12)


@pytest.mark.parametrize("d", [200, *(pytest.param(d, marks=SLOW) for d in (500, 2000))])
def test_hundreds_and_thousands_of_dimensions_full(d):
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2, d, 5))
    covariances = factors @ np.swapaxes(factors, 1, 2) + np.eye(d)
    mixtures = [GaussianMixture.from_covariances(rng.normal(size=(2, d)), covariances)] * 2
    product = multiply(mixtures, Exact())
    finite(product)
    theta = rng.normal(size=d)
    expected = 2 * mixtures[0].log_density(theta) - product.log_normaliser.value
    np.testing.assert_allclose(product.mixture.log_density(theta), expected, rtol=1e-11)


def exact_in_many_digits(means, variances, weights):
    """The product of one-dimensional mixtures with 60 digits: log weights, means, variances."""
    import itertools

    import mpmath

    with mpmath.workdps(60):
        rows = []
        for index in itertools.product(*(range(len(m)) for m in means)):
            lam = [1 / mpmath.mpf(float(v[k])) for v, k in zip(variances, index, strict=True)]
            mu = [mpmath.mpf(float(m[k])) for m, k in zip(means, index, strict=True)]
            total = mpmath.fsum(lam)
            mean = mpmath.fsum(a * b for a, b in zip(lam, mu, strict=True)) / total
            log_w = mpmath.fsum(mpmath.log(float(w[k])) for w, k in zip(weights, index, strict=True))
            log_w += mpmath.fsum((mpmath.log(a) - a * (b - mean) ** 2) / 2 for a, b in zip(lam, mu, strict=True))
            rows.append((log_w - mpmath.log(total) / 2, mean, 1 / total))
        top = max(row[0] for row in rows)
        return np.array([[float(w - top), float(m), float(v)] for w, m, v in rows])


def wild_shards(rng, m, k, spread):
    means = [spread * rng.normal(size=k) for _ in range(m)]
    variances = [10.0 ** rng.uniform(-12, 12, k) for _ in range(m)]
    weights = [rng.dirichlet(np.full(k, 3.0)) for _ in range(m)]
    mixtures = [
        GaussianMixture.from_covariances(mu[:, None], var, w)
        for mu, var, w in zip(means, variances, weights, strict=True)
    ]
    return mixtures, exact_in_many_digits(means, variances, weights)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in range(1, 6))])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_variances_over_24_orders_of_magnitude(seed, spread):
    mixtures, expected = wild_shards(np.random.default_rng(seed), 4, 3, spread)
    product = multiply(mixtures, Exact())
    finite(product)
    got = product.mixture.log_weights - product.mixture.log_weights.max()
    np.testing.assert_allclose(got, expected[:, 0], rtol=1e-9, atol=1e-9)
    sd = np.sqrt(expected[:, 2])
    assert np.all(
        np.abs(product.mixture.means[:, 0] - expected[:, 1]) <= 1e-9 * sd + 1e-15 * np.abs(expected[:, 1]) * 8
    )
    np.testing.assert_allclose(product.mixture.roots[:, 0] ** -2, expected[:, 2], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in range(1, 6))])
@pytest.mark.parametrize("spread", [1e-6, *(pytest.param(spread, marks=SLOW) for spread in (1.0, 1e6))])
@pytest.mark.parametrize("structure", [Full(), pytest.param(Spherical(), marks=SLOW)], ids=str)
def test_sampled_products_are_finite_over_24_orders_of_magnitude(structure, spread, seed):
    mixtures, _ = wild_shards(np.random.default_rng(seed), 4, 3, spread)
    for way in WAYS[1:]:
        finite(multiply([mixture.to(structure) for mixture in mixtures], way))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2))])
def test_the_chain_sees_a_wide_rest_behind_a_narrow_component(seed):
    """Two narrow components far apart in one shard, all others wide: taking the narrow one out of a plain float64 sum
    would leave nothing of the rest."""
    rng = np.random.default_rng(seed)
    wide = [
        GaussianMixture.from_covariances(1e3 * rng.normal(size=(3, 1)), rng.uniform(1, 3, 3) * 1e6) for _ in range(4)
    ]
    narrow = GaussianMixture.from_covariances([[-1e3], [1e3], [0.0]], [1e-12, 2e-12, 1e-10], [0.3, 0.3, 0.4])
    mixtures = [narrow, *wide]
    exact = multiply(mixtures, Exact()).mixture
    masses = exact.weights.reshape(3, -1).sum(1)
    product = multiply(mixtures, Chain(num_samples=8000, num_chains=40, thin=40, keep_index=True), seed=seed)
    observed = np.bincount(product.diagnostics.index[:, 0], minlength=3) / 8000
    assert np.all(np.abs(observed - masses) < 4 * np.sqrt(masses * (1 - masses) / 8000))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("structure", FULL_FIRST)
def test_shards_ten_thousand_sds_apart(way, structure):
    rng = np.random.default_rng(1)
    mixtures = [random_mixture(rng, structure, 2, 3) for _ in range(6)]
    shifts = 1e4 * rng.normal(size=(6, 3))
    mixtures = [
        GaussianMixture(mixture.log_weights, mixture.means + shift, mixture.roots, mixture.structure)
        for mixture, shift in zip(mixtures, shifts, strict=True)
    ]
    product = multiply(mixtures, way)
    finite(product)
    # Where the product has its mass, one component decides: the best of all.
    best = multiply(mixtures, Exact())
    if not isinstance(way, Chain):
        top = product.mixture.means[np.argmax(product.mixture.log_weights)]
        np.testing.assert_allclose(top, best.mixture.means[np.argmax(best.mixture.log_weights)], rtol=1e-9)
    theta = best.mixture.means[np.argmax(best.mixture.log_weights)]
    expected = sum(mixture.log_density(theta) for mixture in mixtures) - best.log_normaliser.value
    np.testing.assert_allclose(best.mixture.log_density(theta), expected, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("structure", FULL_FIRST)
def test_an_offset_of_a_million_sds_changes_nothing(way, structure):
    rng = np.random.default_rng(2)
    near = [random_mixture(rng, structure, 2, 3) for _ in range(6)]
    # A power of two, so that moving the means itself rounds as little as it can.
    offset = 2.0**20
    exactly_there = [GaussianMixture(q.log_weights, (q.means + offset) - offset, q.roots, q.structure) for q in near]
    far = [GaussianMixture(q.log_weights, q.means + offset, q.roots, q.structure) for q in near]
    one, other = multiply(exactly_there, way, seed=3), multiply(far, way, seed=3)
    np.testing.assert_allclose(other.mixture.means - offset, one.mixture.means, atol=1e-8)
    np.testing.assert_allclose(other.mixture.log_weights, one.mixture.log_weights, atol=1e-8)
    np.testing.assert_allclose(other.mixture.roots, one.mixture.roots, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.mixture.sd(), one.mixture.sd(), rtol=1e-8)


@pytest.mark.parametrize("thin", [1000, pytest.param(10_000, marks=SLOW)])
@pytest.mark.parametrize("structure", FULL_FIRST)
def test_a_hundred_thousand_and_a_million_steps_do_not_drift(structure, thin):
    rng = np.random.default_rng(3)
    # One component a shard is a million times narrower: it comes and goes.
    mixtures = []
    for _ in range(20):
        mixture = random_mixture(rng, structure, 3, 2, spread=0.01)
        roots = np.array(mixture.roots)
        roots[0] *= 1e3
        mixtures.append(GaussianMixture(mixture.log_weights, mixture.means, roots, mixture.structure))
    way = Chain(num_samples=100, burn_in=0, num_chains=1, thin=thin, keep_index=True)
    product = multiply(mixtures, way, seed=0)
    index = product.diagnostics.index[-1]
    chosen = [
        GaussianMixture(np.zeros(1), q.means[k : k + 1], q.roots[k : k + 1], q.structure)
        for q, k in zip(mixtures, index, strict=True)
    ]
    fresh = multiply(chosen, Exact()).mixture
    np.testing.assert_allclose(product.mixture.means[-1], fresh.means[0], rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(product.mixture.roots[-1], fresh.roots[0], rtol=1e-11)
