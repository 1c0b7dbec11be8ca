"""Bad input: each kind gets one clear sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from epvi import Anchored, Chain, EpviError, Exact, Full, GaussianMixture, Subset, multiply

sizes = st.integers(1, 5)


def one_sentence(error):
    text = str(error.value)
    assert len(text) < 350
    assert "\n" not in text
    return text


@given(array_shapes(min_dims=1, max_dims=4, max_side=4), array_shapes(min_dims=0, max_dims=4, max_side=4))
@settings(deadline=None, max_examples=200)
def test_shapes_that_do_not_fit_are_refused_and_others_work(means_shape, covariance_shape):
    means, covariances = np.zeros(means_shape), np.ones(covariance_shape)
    k, d = (*means_shape, 0, 0)[:2]
    if len(means_shape) == 2 and covariance_shape in ((k,), (k, d)):
        assert GaussianMixture.from_covariances(means, covariances).num_components == k
        return
    if len(means_shape) == 2 and covariance_shape == (k, d, d):
        covariances = covariances + np.eye(d)
        assert GaussianMixture.from_covariances(means, covariances).dim == d
        return
    with pytest.raises(EpviError) as error:
        GaussianMixture.from_covariances(means, covariances)
    assert "shape" in one_sentence(error)


@given(sizes, sizes, st.data())
@settings(deadline=None, max_examples=60)
def test_a_nan_or_infinity_anywhere_is_refused(k, d, data):
    broken = {"means": np.zeros((k, d)), "covariances": np.ones((k, d)), "weights": np.full(k, 1 / k)}
    name = data.draw(st.sampled_from(sorted(broken)))
    where = data.draw(st.tuples(*(st.integers(0, n - 1) for n in broken[name].shape)))
    broken[name][where] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    with pytest.raises(EpviError, match=f"{name} has 1 NaN or infinite"):
        GaussianMixture.from_covariances(**broken)


@given(arrays(float, st.integers(1, 5), elements=st.floats(-2, 2)))
@settings(deadline=None, max_examples=100)
def test_weights_must_be_a_distribution(weights):
    k = len(weights)
    good = np.all(weights >= 0) and abs(weights.sum() - 1) <= 1e-6
    if good:
        mixture = GaussianMixture.from_covariances(np.zeros((k, 2)), np.ones(k), weights)
        np.testing.assert_allclose(mixture.weights.sum(), 1, rtol=1e-12)
        return
    with pytest.raises(EpviError, match="weight") as error:
        GaussianMixture.from_covariances(np.zeros((k, 2)), np.ones(k), weights)
    one_sentence(error)


@given(st.integers(1, 4), st.integers(2, 4), st.data())
@settings(deadline=None, max_examples=50)
def test_a_covariance_that_is_not_positive_definite_is_named(k, d, data):
    which = data.draw(st.integers(0, k - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    covariances = np.tile(np.eye(d), (k, 1, 1))
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    covariances[which] = axes @ np.diag([-0.5, *np.ones(d - 1)]) @ axes.T
    covariances[which] = (covariances[which] + covariances[which].T) / 2
    with pytest.raises(EpviError, match=rf"component {which}'s covariance is not positive-definite .*-0\.5"):
        GaussianMixture.from_covariances(np.zeros((k, d)), covariances)
    covariances[which] = np.eye(d)
    covariances[which, 0, 1] = 0.5
    with pytest.raises(EpviError, match=f"component {which}'s covariance is not symmetric"):
        GaussianMixture.from_covariances(np.zeros((k, d)), covariances)


@given(st.integers(1, 4), st.integers(1, 4), st.floats(max_value=0, allow_infinity=False, allow_nan=False))
@settings(deadline=None, max_examples=50)
def test_a_variance_that_is_not_positive_is_named(k, d, bad):
    for shape in ((k,), (k, d)):
        variances = np.ones(shape)
        variances.reshape(k, -1)[-1, -1] = bad
        with pytest.raises(EpviError, match=f"component {k - 1} has a variance that is not positive"):
            GaussianMixture.from_covariances(np.zeros((k, d)), variances)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
@settings(deadline=None, max_examples=50)
def test_mixtures_of_other_dimensions_are_named(dims):
    mixtures = [GaussianMixture.from_covariances(np.zeros((1, d)), np.ones(1)) for d in dims]
    wrong = next((m for m, d in enumerate(dims) if d != dims[0]), None)
    if wrong is None:
        assert multiply(mixtures).mixture.dim == dims[0]
        return
    with pytest.raises(EpviError, match=f"mixture {wrong} has {dims[wrong]} dimensions, mixture 0 has {dims[0]}"):
        multiply(mixtures)


def test_an_empty_list_is_refused():
    with pytest.raises(EpviError, match="no mixtures"):
        multiply([])


def test_a_mixture_broken_by_hand_is_named():
    good = GaussianMixture.from_covariances(np.zeros((2, 2)), np.ones(2))
    broken = GaussianMixture(good.log_weights, np.full((2, 2), np.nan), good.roots, good.structure)
    with pytest.raises(EpviError, match="mixture 1 has NaN"):
        multiply([good, broken])
    heavy = GaussianMixture(good.log_weights + 1, good.means, good.roots, good.structure)
    with pytest.raises(EpviError, match=r"mixture 0's weights sum to 2\.7"):
        multiply([heavy, good])


def test_text_and_ragged_arrays_are_refused():
    for means in ("abc", [[1.0], [1.0, 2.0]], [["a", "b"]]):
        with pytest.raises(EpviError, match="means"):
            GaussianMixture.from_covariances(means, np.ones(1))


def test_an_empty_mixture_is_refused():
    with pytest.raises(EpviError, match="at least one component"):
        GaussianMixture.from_covariances(np.zeros((0, 2)), np.zeros(0))


@pytest.mark.usefixtures("untyped")
def test_points_and_coordinates_are_checked():
    mixture = GaussianMixture.from_covariances(np.zeros((2, 3)), np.ones(2))
    with pytest.raises(EpviError, match="theta has shape"):
        mixture.log_density(np.zeros(2))
    with pytest.raises(EpviError, match="theta cannot be read"):
        mixture.log_density("abc")
    for coordinates in ([], [0, 0], [3], [-1], [0.7], 0):
        with pytest.raises(EpviError, match="coordinates are"):
            mixture.marginal(coordinates)
    with pytest.raises(EpviError, match="all coordinates are given"):
        mixture.condition([0, 1, 2], np.zeros(3))
    with pytest.raises(EpviError, match="shape"):
        mixture.condition([0], np.zeros(2))


def test_draw_bandwidths_are_checked():
    for bandwidth in (0.0, -1.0, [1.0, 0.0], np.ones(3)):
        with pytest.raises(EpviError, match="bandwidth"):
            GaussianMixture.from_draws(np.zeros((4, 2)), bandwidth)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chain(num_samples=0),
        lambda: Chain(thin=0),
        lambda: Chain(burn_in=-1),
        lambda: Subset(group_size=1),
        lambda: Anchored(num_anchors=0),
        lambda: Anchored(num_samples=1),
        lambda: Exact(max_components=0),
    ],
)
def test_settings_are_checked(make):
    with pytest.raises(EpviError, match="whole number of at least"):
        make()


@pytest.mark.usefixtures("untyped")
def test_multiply_says_what_it_wants():
    good = [GaussianMixture.from_covariances(np.zeros((2, 2)), np.ones(2))] * 2
    for product in ("exact", Exact, 3):
        with pytest.raises(EpviError, match="with its brackets"):
            multiply(good, product)
        with pytest.raises(EpviError, match="with its brackets"):
            multiply(good[:1], product)
    for mixtures in (good[0], None, 3):
        with pytest.raises(EpviError, match="pass a list"):
            multiply(mixtures)
    for mixtures in ([np.zeros(2)], {"a": good[0]}, "ab"):
        with pytest.raises(EpviError, match="mixture 0 is a"):
            multiply(mixtures)
    assert multiply(mixture for mixture in good).mixture.num_components == 4
    with pytest.raises(EpviError, match="with its brackets"):
        good[0].to(Full)
    with pytest.raises(EpviError, match="with its brackets"):
        Subset(chain=Chain)
    for budget in ("4", np.nan, 0):
        with pytest.raises(EpviError, match="max_gigabytes"):
            Exact(max_gigabytes=budget)


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_numpy_integers_are_counts_too():
    good = [GaussianMixture.from_covariances(np.arange(6.0).reshape(3, 2), np.ones(3))] * 3
    ways = [
        Anchored(num_samples=np.int64(100), num_anchors=np.int32(16), rounds=np.int8(2)),
        Chain(num_samples=np.int16(40), num_chains=np.int32(4), thin=np.int8(3)),
        Subset(num_samples=np.int32(10)),
    ]
    for way in ways:
        assert np.all(np.isfinite(multiply(good, way).mixture.means))
    assert good[0].sample(np.int64(3), seed=0).shape == (3, 2)
    assert good[0].reduce(np.int64(2)).num_components == 2
    assert np.isfinite(good[0].entropy(np.int32(30), seed=0).value)


def test_scales_that_leave_float64_are_refused():
    for variance in (1e-310, 1e-200, 1e200):
        for shape in ((2,), (2, 3), (2, 3, 3)):
            covariances = variance * (np.tile(np.eye(3), (2, 1, 1)) if len(shape) == 3 else np.ones(shape))
            with pytest.raises(EpviError, match="rescale"):
                GaussianMixture.from_covariances(np.zeros((2, 3)), covariances)
    far = [GaussianMixture.from_covariances([[m * 1e200]], [1e-150]) for m in range(2)]
    with pytest.raises(EpviError, match="range of float64"):
        multiply(far)
    with pytest.raises(EpviError, match="no density at these values"):
        GaussianMixture.from_covariances(np.zeros((2, 2)), np.ones(2)).condition([0], [1e200])


def test_complex_numbers_are_refused():
    with pytest.raises(EpviError, match="means cannot be read"):
        GaussianMixture.from_covariances(np.zeros((1, 2)) + 1j, np.ones(1))


@pytest.mark.usefixtures("untyped")
def test_seeds_are_checked():
    mixture = GaussianMixture.from_covariances(np.zeros((2, 3)), np.ones(2))
    for seed in (-1, 2**40, np.zeros(3), np.zeros(2), None, "a", 1.0):
        with pytest.raises(EpviError, match="seed"):
            mixture.sample(2, seed=seed)


def test_past_its_budget_exact_says_what_to_use_instead():
    mixtures = [GaussianMixture.from_covariances(np.zeros((4, 2)), np.ones(4))] * 30
    with pytest.raises(EpviError) as error:
        multiply(mixtures, Exact(max_components=1000))
    text = one_sentence(error)
    for word in ("K = 4", "M = 30", "10^18", "1,000", "Anchored()", "max_components"):
        assert word in text
    with pytest.raises(EpviError, match=r"10\^4335"):
        multiply(mixtures * 240, Exact())
    with pytest.raises(EpviError, match="GB"):
        multiply(mixtures[:10], Exact(max_gigabytes=0.01))


def test_padding_many_small_mixtures_to_a_huge_one_is_refused():
    huge = GaussianMixture.from_draws(np.zeros((50_000, 2)), 1.0)
    small = [GaussianMixture.from_covariances(np.zeros((2, 2)), np.ones(2))] * 3000
    for way in (Anchored(), Chain()):
        with pytest.raises(EpviError, match=r"mixture 3000\) down with reduce"):
            multiply([*small, huge], way)


def test_results_too_large_for_memory_are_refused_before_they_are_made():
    mixtures = [GaussianMixture.from_covariances(np.zeros((4, 300)), np.tile(np.eye(300), (4, 1, 1)))] * 8
    with pytest.raises(EpviError, match="GB"):
        multiply(mixtures, Anchored(num_samples=10_000))
    with pytest.raises(EpviError, match="GB"):
        multiply(mixtures, Chain(num_samples=10_000))
