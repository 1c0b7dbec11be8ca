"""Four ways to multiply mixtures, against enumeration of the paper's formulas in plain NumPy."""

import itertools
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import jax
import numpy as np
import pytest
from naive import STRUCTURES, dense, enumerate_product, product_moments, random_mixture
from scipy.stats import chi2

from epvi import Anchored, Chain, Diagonal, Exact, Full, GaussianMixture, Spherical, Subset, multiply

SIZES = [((2,), 3), ((3, 1), 2), ((2, 3, 4), 2), ((1, 1, 1), 4), ((2, 1, 5, 1, 3), 3), ((8,) * 4, 1)]
# One setting of each way where a few draws will do: every other one is compiled anew.
FEW = [Exact(), Chain(num_samples=200), Subset(num_samples=50), Anchored(num_samples=200)]
SLOW = pytest.mark.slow
# Every size in the widest structure, and the smaller ones in all.
ENUMERATED = [
    *(
        (structure, counts, d)
        for structure in STRUCTURES
        for counts, d in SIZES
        if structure == "full" or len(counts) < 4
    ),
    *(
        pytest.param(structure, counts, d, marks=SLOW)
        for structure in STRUCTURES
        for counts, d in (*SIZES, ((4,) * 6, 2))
        if len(counts) > (5 if structure == "full" else 3)
    ),
]


def shards(structure, counts, d, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    return [random_mixture(rng, structure, k, d, spread) for k in counts]


@pytest.mark.parametrize(("structure", "counts", "d"), ENUMERATED)
def test_exact_is_the_papers_enumeration(structure, counts, d):
    mixtures = shards(structure, counts, d)
    log_ws, means, covariances = enumerate_product(mixtures)
    product = multiply(mixtures, Exact())
    log_weights = log_ws - np.logaddexp.reduce(log_ws)
    got_weights, got_means, got_covariances = dense(product.mixture)
    np.testing.assert_allclose(product.mixture.log_weights, log_weights, atol=1e-9)
    np.testing.assert_allclose(got_weights.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(got_means, means, atol=1e-9)
    np.testing.assert_allclose(got_covariances, covariances, atol=1e-9)
    np.testing.assert_allclose(product.log_normaliser.value, np.logaddexp.reduce(log_ws), atol=1e-9)
    assert product.log_normaliser.standard_error == 0
    assert product.status.ok


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_product_is_the_product_of_densities(structure):
    mixtures = shards(structure, (2, 3, 2), 3)
    product = multiply(mixtures)
    theta = np.random.default_rng(1).normal(size=(20, 3))
    expected = sum(mixture.log_density(theta) for mixture in mixtures) - product.log_normaliser.value
    np.testing.assert_allclose(product.mixture.log_density(theta), expected, atol=1e-10)


MANY = Chain(num_samples=20_000, num_chains=40, thin=24), Anchored(num_samples=4000)
QUICK_SAMPLED = ((MANY[0], "diagonal"), (MANY[1], "full"))


@pytest.mark.parametrize(
    ("way", "structure"),
    [pytest.param(*case, marks=() if case in QUICK_SAMPLED else SLOW) for case in itertools.product(MANY, STRUCTURES)],
)
@pytest.mark.parametrize("counts", [(4, 2, 3, 4, 1, 3), pytest.param((8, 8, 8, 8), marks=SLOW)])
def test_sampled_means_and_spreads_are_right_within_four_standard_errors(structure, counts, way):
    mixtures = shards(structure, counts, 2, seed=3)
    _, mean, covariance = product_moments(*enumerate_product(mixtures))
    products = [multiply(mixtures, way, seed=s) for s in range(8)]
    product = products[7]
    assert product.status.ok, product.status
    error = product.diagnostics.mean_standard_error
    assert np.all(error > 0)
    assert np.all(np.abs(product.mixture.mean() - mean) < 4 * error)
    # The spread's own standard error, from independent runs.
    runs = np.array([np.diag(product.mixture.covariance()) for product in products])
    standard_error = runs.std(0, ddof=1) / np.sqrt(8)
    # With 8 runs the ratio is Student's t_7, whose 4-sigma-equivalent quantile is 7.8.
    assert np.all(np.abs(runs.mean(0) - np.diag(covariance)) < 7.8 * standard_error)


@pytest.mark.parametrize("structure", [*(pytest.param(s, marks=SLOW) for s in ("spherical", "diagonal")), "full"])
@pytest.mark.parametrize(
    "way", [pytest.param(Subset(num_samples=100), marks=SLOW), Subset(group_size=3, num_samples=40)]
)
def test_subset_is_right_within_the_error_of_its_runs(structure, way):
    mixtures = shards(structure, (4, 3, 4, 4, 4, 3), 2, seed=4)
    _, mean, covariance = product_moments(*enumerate_product(mixtures))
    products = [multiply(mixtures, way, seed=s) for s in range(20)]
    for got, expected in [
        (np.array([p.mixture.mean() for p in products]), mean),
        (np.array([np.diag(p.mixture.covariance()) for p in products]), np.diag(covariance)),
        (np.array([np.exp(p.log_normaliser.value) for p in products])[:, None], None),
    ]:
        target = np.exp(multiply(mixtures, Exact()).log_normaliser.value) if expected is None else expected
        standard_error = got.std(0, ddof=1) / np.sqrt(len(got))
        assert np.all(standard_error > 0)
        assert np.all(np.abs(got.mean(0) - target) < 5.2 * standard_error)  # Student's t_19 at 4 sigma


@SLOW
def test_subset_samples_large_groups_with_the_chain():
    mixtures = shards("diagonal", (4,) * 6, 2, seed=4)
    _, mean, _ = product_moments(*enumerate_product(mixtures))
    way = Subset(group_size=3, num_samples=2000, max_components=10, chain=Chain(num_chains=20, thin=10))
    products = [multiply(mixtures, way, seed=s) for s in range(10)]
    assert products[1].diagnostics.groups == (2, 1)
    assert products[1].diagnostics.enumerated == (0, 0)
    assert products[1].log_normaliser is None
    runs = np.array([product.mixture.mean() for product in products])
    assert np.all(np.abs(runs.mean(0) - mean) < 6.6 * runs.std(0, ddof=1) / np.sqrt(10))  # t_9 at 4 sigma


def test_subset_that_cuts_nothing_is_exact():
    mixtures = shards("full", (2, 3, 2, 2, 1), 2)
    exact, subset = multiply(mixtures, Exact()), multiply(mixtures, Subset())
    assert subset.diagnostics.groups == (2, 1, 1)
    np.testing.assert_allclose(subset.log_normaliser.value, exact.log_normaliser.value, atol=1e-11)
    assert subset.log_normaliser.standard_error == 0
    np.testing.assert_allclose(np.sort(subset.mixture.log_weights), np.sort(exact.mixture.log_weights), atol=1e-10)


def spawned():
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("pool", [lambda: ThreadPoolExecutor(3), pytest.param(spawned, marks=SLOW)])
def test_subset_gives_the_same_on_any_executor(pool):
    mixtures = shards("full", (4,) * 9, 2)
    alone = multiply(mixtures, Subset(num_samples=50), seed=3)
    with pool() as executor:
        together = multiply(mixtures, Subset(num_samples=50), seed=3, executor=executor)
    assert np.array_equal(alone.mixture.means, together.mixture.means)
    assert np.array_equal(alone.log_normaliser.value, together.log_normaliser.value)


def test_the_chain_visits_indices_in_proportion_to_their_weights():
    """Theorem 3.1 of the paper: the stationary distribution is that of the product's components."""
    counts = (2, 3, 2, 3)
    mixtures = shards("spherical", counts, 2, seed=9, spread=0.7)
    weights, _, _ = product_moments(*enumerate_product(mixtures))
    # Kept 60 steps apart, draws are independent for the test's purpose; shown by the lag-one correlation below.
    product = multiply(mixtures, Chain(num_samples=20_000, num_chains=50, thin=60, keep_index=True), seed=5)
    index = product.diagnostics.index
    assert index.shape == (20_000, 4)
    codes = np.ravel_multi_index(tuple(index.T), counts)
    per_chain = product.mixture.means[:, 0].reshape(50, -1)
    centred = per_chain - per_chain.mean()
    lag_one = np.mean(centred[:, 1:] * centred[:, :-1]) / np.mean(centred**2)
    assert abs(lag_one) < 4 / np.sqrt(20_000)
    observed = np.bincount(codes, minlength=len(weights))
    expected = 20_000 * weights
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    statistic = np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep])
    assert statistic < chi2.isf(6e-5, df=keep.sum() - 1)
    # The components it returns are those of the indices it visited.
    exact = multiply(mixtures, Exact())
    np.testing.assert_allclose(product.mixture.means, exact.mixture.means[codes], atol=1e-12)
    np.testing.assert_allclose(product.mixture.roots, exact.mixture.roots[codes], rtol=1e-12)


def shards_with_zero_weights():
    """Six shards with a component of weight 0, and the exact product of the same shards without it."""
    rng = np.random.default_rng(4)
    whole, without = [], []
    for _ in range(6):
        means, variances, weights = rng.normal(size=(4, 2)), rng.uniform(0.5, 2, 4), np.array([0.5, 0.0, 0.2, 0.3])
        keep = weights > 0
        whole.append(GaussianMixture.from_covariances(means, variances, weights))
        without.append(GaussianMixture.from_covariances(means[keep], variances[keep], weights[keep]))
    return whole, multiply(without, Exact())


def test_zero_weights_are_never_chosen_and_do_not_blind_the_diagnostics():
    whole, exact = shards_with_zero_weights()
    np.testing.assert_allclose(multiply(whole, Exact()).log_normaliser.value, exact.log_normaliser.value, atol=1e-10)
    chain = multiply(whole, Chain(num_samples=4000, keep_index=True), seed=1)
    assert not np.any(chain.diagnostics.index == 1)
    assert chain.diagnostics.ess_log_weight < 4000
    assert 1 < chain.diagnostics.r_hat_log_weight < 1.5


@pytest.mark.slow
def test_zero_weights_do_not_harm_the_normaliser_of_anchored():
    whole, exact = shards_with_zero_weights()
    anchored = multiply(whole, Anchored(), seed=1)
    assert abs(anchored.log_normaliser.value - exact.log_normaliser.value) < 5 * anchored.log_normaliser.standard_error


def test_the_acceptance_rate_is_that_of_the_visited_states():
    """In equilibrium a proposal is accepted with probability Σ_k π_k Σ_m Σ_c min(1, π_c/π_k) / (M K)."""
    counts = (2, 3)
    mixtures = shards("spherical", counts, 2, seed=9)
    weights, _, _ = product_moments(*enumerate_product(mixtures))
    pi = weights.reshape(counts)
    expected = 0.0
    for i, j in np.ndindex(*counts):
        expected += 0.5 * pi[i, j] * np.mean(np.minimum(1, pi[:, j] / pi[i, j]))
        expected += 0.5 * pi[i, j] * np.mean(np.minimum(1, pi[i, :] / pi[i, j]))
    rates = [
        multiply(mixtures, Chain(num_samples=4000, thin=10), seed=s).diagnostics.acceptance_rate for s in range(10)
    ]
    assert abs(np.mean(rates) - expected) < 6.6 * np.std(rates, ddof=1) / np.sqrt(10)  # t_9 at 4 sigma


def test_shards_with_one_component_are_folded_without_a_trace():
    counts = (1, 3, 1, 1, 2, 1, 4)
    mixtures = shards("full", counts, 2, seed=6)
    log_ws, means, _ = enumerate_product(mixtures)
    exact = multiply(mixtures, Exact())
    np.testing.assert_allclose(exact.mixture.log_weights, log_ws - np.logaddexp.reduce(log_ws), atol=1e-9)
    np.testing.assert_allclose(exact.mixture.means, means, atol=1e-9)
    np.testing.assert_allclose(exact.log_normaliser.value, np.logaddexp.reduce(log_ws), atol=1e-9)
    anchored = multiply(mixtures, Anchored(), seed=3).log_normaliser
    assert abs(anchored.value - exact.log_normaliser.value) < 5 * anchored.standard_error
    subset = multiply(mixtures, Subset())
    np.testing.assert_allclose(subset.log_normaliser.value, exact.log_normaliser.value, atol=1e-9)


@pytest.mark.slow
def test_folding_many_narrow_shards_does_not_overflow():
    """The folded Gaussian carries a mass of about exp(5,000) as its weight."""
    rng = np.random.default_rng(0)
    single = [GaussianMixture.from_covariances(1e-4 * rng.normal(size=(1, 19)), [1e-8]) for _ in range(40)]
    several = [GaussianMixture.from_covariances(1e-4 * rng.normal(size=(3, 19)), [1e-8] * 3) for _ in range(6)]
    exact = multiply([*single, *several], Exact()).log_normaliser.value
    found = multiply([*single, *several], Anchored()).log_normaliser
    assert exact > 1000
    assert abs(found.value - exact) < 5 * found.standard_error


@pytest.mark.slow
def test_one_huge_shard_among_single_ones_is_exact_and_small():
    rng = np.random.default_rng(0)
    single = [random_mixture(rng, "diagonal", 1, 19) for _ in range(999)]
    huge = random_mixture(rng, "diagonal", 3000, 19)
    product = multiply([*single, huge])
    assert product.mixture.num_components == 3000
    theta = product.mixture.mean()
    expected = sum(q.log_density(theta) for q in (*single, huge)) - product.log_normaliser.value
    np.testing.assert_allclose(product.mixture.log_density(theta), expected, atol=1e-6)


def test_the_papers_chain_keeps_every_step():
    mixtures = shards("diagonal", (3, 4, 2), 2)
    product = multiply(mixtures, Chain(num_samples=60, burn_in=0, num_chains=2, thin=1, keep_index=True), seed=1)
    index = product.diagnostics.index.reshape(2, 30, 3)
    changed = np.sum(index[:, 1:] != index[:, :-1], axis=2)
    assert set(np.unique(changed)) <= {0, 1}
    assert product.mixture.num_components == 60
    np.testing.assert_allclose(product.mixture.weights, 1 / 60, rtol=1e-12)


@pytest.mark.slow
def test_anchored_estimates_the_normaliser_without_bias():
    mixtures = shards("full", (4,) * 6, 2, seed=4)
    exact = multiply(mixtures, Exact()).log_normaliser.value
    found = [multiply(mixtures, Anchored(num_samples=200, num_anchors=32), seed=s).log_normaliser for s in range(40)]
    ratios = np.exp([one.value - exact for one in found])
    standard_error = ratios.std(ddof=1) / np.sqrt(40)
    assert abs(ratios.mean() - 1) < 4.6 * standard_error  # t_39 at 4 sigma
    claimed = np.sqrt(np.mean([one.standard_error**2 for one in found]))
    assert 0.6 < claimed / ratios.std(ddof=1) < 1.6
    z = [(one.value - exact) / one.standard_error for one in found]
    assert np.max(np.abs(z)) < 4.5


@pytest.mark.parametrize("way", FEW)
def test_one_mixture_is_its_own_product(way):
    mixture = shards("full", (3,), 2)[0]
    product = multiply([mixture], way)
    np.testing.assert_allclose(product.mixture.means, mixture.means)
    assert product.log_normaliser.value == 0


@pytest.mark.slow
def test_default_is_exact_while_small_and_anchored_above():
    assert multiply(shards("spherical", (10,) * 4, 1)).status.text.startswith("exact: all 10,000")
    above = multiply(shards("spherical", (10, 10, 10, 11), 1))
    assert above.mixture.num_components == 2000
    assert above.diagnostics.ess > 1000
    # However many shards, one component each is one component.
    many = multiply(shards("diagonal", (1,) * 500, 2))
    assert many.mixture.num_components == 1


def test_mixtures_of_different_structures_multiply_in_the_widest():
    rng = np.random.default_rng(2)
    mixtures = [random_mixture(rng, structure, 2, 3) for structure in STRUCTURES]
    for number, structure in ((1, Spherical()), (2, Diagonal()), (3, Full())):
        assert multiply(mixtures[:number]).mixture.structure == structure
    log_ws, means, _ = enumerate_product(mixtures)
    product = multiply(mixtures)
    np.testing.assert_allclose(product.log_normaliser.value, np.logaddexp.reduce(log_ws), atol=1e-10)
    np.testing.assert_allclose(product.mixture.means, means, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_order_of_shards_does_not_matter(structure):
    mixtures = shards(structure, (2, 3, 2), 2)
    theta = np.random.default_rng(0).normal(size=(10, 2))
    reference = multiply(mixtures).mixture.log_density(theta)
    for order in itertools.permutations(range(3)):
        again = multiply([mixtures[m] for m in order]).mixture.log_density(theta)
        np.testing.assert_allclose(again, reference, atol=1e-11)


def transformed(mixture, scale, shift):
    _, means, covariances = dense(mixture)
    return GaussianMixture.from_covariances(means * scale + shift, covariances * scale**2, mixture.weights)


@pytest.mark.parametrize("way", FEW)
def test_shift_and_scale_of_theta_go_through(way):
    mixtures = [mixture.to(Full()) for mixture in shards("full", (3,) * 5, 2)]
    scale, shift = 3.0, np.array([5.0, -2.0])
    moved = [transformed(mixture, scale, shift) for mixture in mixtures]
    one, other = multiply(mixtures, way, seed=2), multiply(moved, way, seed=2)
    np.testing.assert_allclose(other.mixture.means, one.mixture.means * scale + shift, atol=1e-9)
    np.testing.assert_allclose(other.mixture.covariance(), one.mixture.covariance() * scale**2, rtol=1e-8)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_splitting_a_gaussians_precision_over_two_shards_changes_nothing(structure):
    whole = shards(structure, (1, 3, 2), 2)
    gaussian = whole[0]
    half = GaussianMixture(gaussian.log_weights, gaussian.means, gaussian.roots / np.sqrt(2), gaussian.structure)
    theta = np.random.default_rng(0).normal(size=(10, 2))
    reference = multiply(whole).mixture.log_density(theta)
    np.testing.assert_allclose(multiply([half, half, *whole[1:]]).mixture.log_density(theta), reference, atol=1e-11)


@pytest.mark.parametrize("way", FEW)
def test_the_users_x64_setting_does_not_change_the_answer(way):
    mixtures = shards("full", (3,) * 5, 2)
    assert not jax.config.jax_enable_x64
    off = multiply(mixtures, way, seed=1)
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        on = multiply(shards("full", (3,) * 5, 2), way, seed=1)
    assert off.mixture.means.dtype == np.float64
    assert np.array_equal(off.mixture.means, on.mixture.means)
    assert np.array_equal(off.mixture.log_weights, on.mixture.log_weights)
    theta = np.ones((3, 2))
    with jax.enable_x64(True):
        density = on.mixture.log_density(theta)
    assert np.array_equal(off.mixture.log_density(theta), density)
    assert off.mixture.log_density(theta).dtype == np.float64


@pytest.mark.parametrize("way", FEW[1:])
def test_the_seed_decides(way):
    mixtures = shards("full", (3,) * 5, 2)
    one, same, other = (multiply(mixtures, way, seed=s).mixture.means for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_bad_mixing_is_said():
    far = [GaussianMixture.from_covariances([[-50.0], [50.0]], [1.0, 1.0])] * 8
    chain = multiply(far, Chain(num_samples=400))
    assert not chain.status.ok
    assert "Anchored()" in chain.status.text
    assert chain.diagnostics.r_hat_means > 1.1


@pytest.mark.slow
def test_a_small_effective_sample_size_is_said():
    few = multiply(shards("spherical", (8,) * 8, 30, spread=3.0), Anchored(num_samples=300, num_anchors=1, rounds=1))
    assert few.diagnostics.ess < 100
    assert not few.status.ok
    assert "num_anchors" in few.status.text


MANY_PRODUCTS = """
import numpy as np, epvi
rng = np.random.default_rng(0)
factors = rng.normal(size=(20, 4, 9, 18))
mixtures = [
    epvi.GaussianMixture.from_covariances(0.3 * rng.normal(size=(4, 9)), f @ np.swapaxes(f, 1, 2) / 18) for f in factors
]
for seed in range(NUMBER):
    product = epvi.multiply(mixtures, epvi.Subset(), seed=seed)
    print(np.isfinite(product.log_normaliser.value))
"""


@SLOW
@pytest.mark.parametrize("number", [2, 15])
def test_factorisations_of_full_covariances_do_not_wait_for_each_other(number):
    """A process of its own with a time limit, because a deadlock in XLA's threads cannot be interrupted."""
    command = [sys.executable, "-c", f"NUMBER = {number}\n{MANY_PRODUCTS}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert said == number * "True\n"
