"""What draws can hide, and what healthy ones must not be accused of: every doubt of `combine_draws`, and its remedy."""

import re

import numpy as np
import polars
import pyarrow
import pytest
import xarray
from sentences import refused

import epvi
from epvi.hub.samples.arrival import arrived
from epvi.hub.samples.layout import Layout
from epvi.hub.samples.shape import _kurtosis_by_chance, _skewness_by_chance, correlated, departure, standardised
from epvi.hub.samples.weierstrass import _KernelGroup


def healthy(seed, shards=4, n=400, d=2):
    """Standard normal draws (shards, n, d): their product is N(0, I / shards)."""
    return np.random.default_rng(seed).normal(size=(shards, n, d))


@pytest.mark.parametrize(
    ("method", "d"),
    [(epvi.Nonparametric(), 1), (epvi.Parametric(epvi.Diagonal()), 5), (epvi.Weierstrass(epvi.Diagonal()), 5)],
    ids=repr,
)
def test_computed_parameters_are_no_trouble_to_diagonal_covariances(method, d):
    draws = [np.concatenate([x, -x.sum(axis=1, keepdims=True)], axis=1) for x in healthy(0, shards=2, n=800, d=d)]
    assert epvi.combine_draws(draws, method).status.ok


def labelled(x, dims=("feature", "group"), feature=("age", "dose")):
    return xarray.Dataset(
        {"w": (("chain", "draw", *dims), x.reshape(4, -1, 2, 2))}, coords={"feature": list(feature), "group": [0, 1]}
    )


def test_axes_are_the_same_at_every_shard():
    one, other = healthy(0, shards=2, d=4)
    assert epvi.combine_draws([labelled(one), labelled(other)], epvi.Parametric()).theta.shape == (400, 4)
    for feature in (("dose", "age"), ("age", "mass")):
        moved = [labelled(one), labelled(other, feature=feature)]
        refused(lambda moved=moved: epvi.combine_draws(moved, epvi.Parametric()), "shard 1's w has .* along feature")
    swapped = [labelled(one), labelled(other, dims=("group", "feature"))]
    refused(
        lambda: epvi.combine_draws(swapped, epvi.Parametric()), r"shard 1's w has dimensions \['group', 'feature'\]"
    )


def test_chains_that_were_stacked_are_not_taken_for_parameters():
    stacked = [labelled(x).stack(sample=("chain", "draw")) for x in healthy(0, shards=2, d=4)]
    assert stacked[0]["w"].dims[-1] == "sample"
    for data in (stacked, [one["w"] for one in stacked]):
        refused(lambda data=data: epvi.combine_draws(data, epvi.Parametric()), "shard 0's w has no dimensions chain")
    arrays = [labelled(x)["w"] for x in healthy(0, shards=2, d=4)]
    assert epvi.combine_draws(arrays, epvi.Parametric()).draws["w"].shape == (400, 2, 2)


@pytest.mark.parametrize(("shards", "n", "d"), [(20, 40, 5), (50, 60, 5), (30, 30, 1)])
def test_few_independent_draws_do_not_seem_to_share_a_seed(shards, n, d):
    for seed in range(3):
        status = epvi.combine_draws(list(healthy(seed, shards, n, d)), epvi.Consensus()).status
        assert "move together" not in status.text
        assert "too few draws to compare" not in status.text


def autoregressive(seed, shards, n, memory):
    chains = healthy(seed, shards, n, 1)
    for t in range(1, n):
        chains[:, t] = memory * chains[:, t - 1] + np.sqrt(1 - memory**2) * chains[:, t]
    return chains


def test_slow_chains_do_not_seem_to_share_a_seed_unless_they_do():
    for seed in range(3):
        chains = autoregressive(seed, 10, 1000, 0.98)
        assert "move together" not in epvi.combine_draws(list(chains), epvi.Consensus()).status.text
    shared = chains + 0.1 * healthy(0, 10, 1000, 1)
    shared[3] = chains[7]
    assert "shards 3 and 7 move together" in epvi.combine_draws(list(shared), epvi.Consensus()).status.text


@pytest.mark.slow
def test_precisions_are_unbiased_before_the_prior_is_taken_from_them():
    """Of 105 priors' worth of precision 99 go: what is 2% too much would be a third of the rest."""
    draws = [x / np.sqrt(1.05) for x in healthy(0, shards=100, n=1000, d=20)]
    found = epvi.combine_draws(draws, epvi.ExponentialFamily(0.0, 1.0))
    assert np.sqrt(np.mean(np.var(found.theta, axis=0))) == pytest.approx((1 + 100 * 0.05) ** -0.5, rel=0.05)
    assert found.status.ok
    few = epvi.combine_draws([x[:450] for x in draws], epvi.ExponentialFamily(0.0, 1.0)).status
    assert "the shards add little to the prior" in few.text


def test_advice_fits_the_method_that_gives_it():
    full_prior = epvi.ExponentialFamily(0.0, 100.0)
    skewed = list(np.random.default_rng(0).gamma(1.0, size=(3, 400, 1)))
    assert "prior to the power 1/M and use Semiparametric()" in epvi.combine_draws(skewed, full_prior).status.text
    with pytest.raises(epvi.EpviError, match=r"draw at least 44\.$"):
        epvi.combine_draws(list(healthy(0, 3, 40, 20)), full_prior)
    drifting = healthy(0, 3, 400, 1) + np.linspace(-2, 2, 400)[:, None]
    for method in (full_prior, epvi.Parametric()):
        text = epvi.combine_draws(list(drifting), method).status.text
        assert "draw more at every shard." in text


def test_shards_with_the_full_prior_may_be_far_from_each_other():
    """A thousand rows at 10 against four single ones, which the prior keeps near 0."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(10.0, 1.0, size=n) for n in (1000, 1, 1, 1, 1)]
    draws = [rng.normal(x.sum() / (1 + len(x)), (1 + len(x)) ** -0.5, size=(2000, 1)) for x in rows]
    found = epvi.combine_draws(draws, epvi.ExponentialFamily(0.0, 1.0))
    assert found.status.ok
    assert abs(found.theta.mean() - np.concatenate(rows).sum() / 1005) < 0.2 / np.sqrt(1005)


@pytest.mark.parametrize("method", [epvi.Parametric(), epvi.Consensus()], ids=repr)
def test_a_little_skewness_at_many_shards_is_much_of_it(method):
    """A hundred Gamma(25, 1) multiply to Gamma(2401, 100): 24.01 with sd 0.49, two of which Gaussians are off."""
    found = epvi.combine_draws(list(np.random.default_rng(0).gamma(25.0, size=(100, 2000, 1))), method)
    assert abs(found.theta.mean() - 24.01) > 1.5 * 0.49
    assert not found.status.ok
    assert "skewness of all shards moves its mean, in sds, by 1.9" in found.status.text
    few = epvi.combine_draws(list(np.random.default_rng(0).gamma(25.0, size=(2, 2000, 1))), method)
    assert few.status.ok


def test_modes_along_no_axis_are_seen():
    rng = np.random.default_rng(0)
    draws = [rng.normal(size=(1000, 10)) + 1.2 * rng.choice([-1, 1], size=(1000, 1)) for _ in range(3)]
    status = epvi.combine_draws(draws, epvi.Parametric()).status
    assert not status.ok
    assert "a principal component of shard" in status.text


@pytest.mark.parametrize(("shards", "n", "d"), [(50, 100, 10), (60, 200, 5), (5, 50, 10), (2, 2000, 3)])
def test_gaussian_shards_are_taken_for_gaussian(shards, n, d):
    for seed in range(4):
        assert departure(arrived(list(healthy(seed, shards, n, d)))) is None


def test_many_independent_coordinates_are_taken_for_independent():
    assert correlated(arrived(list(healthy(0, 2, 50, 200)))) == ""
    assert "theta[3]" in correlated(arrived([x + 2 * x[:, 3:4] for x in healthy(0, 2, 100, 5)]))


def test_limits_by_chance_are_quantiles():
    """Against simulated Gaussian draws, within five standard errors of the share beyond."""
    z = standardised(np.random.default_rng(0).normal(size=(100, 40_000)))
    n, surely = np.full(1, 100.0), 2.5758
    limits = _skewness_by_chance(n, surely), _kurtosis_by_chance(n, np.full(1, surely))
    for value, limit in zip((np.mean(z**3, axis=0), np.mean(z**4, axis=0) - 3), limits, strict=True):
        assert abs(np.mean(value > limit) - 0.005) < 5 * np.sqrt(0.005 / 40_000)


@pytest.mark.parametrize(
    ("method", "d"), [(epvi.Semiparametric(stages=3), 5), (epvi.Weierstrass(), 8)], ids=lambda value: repr(value)[:10]
)
def test_kernels_too_wide_for_the_shape_of_the_shards_say_so(method, d):
    """Four Gamma(3, 1) multiply to Gamma(9, 4)."""
    found = epvi.combine_draws(list(np.random.default_rng(0).gamma(3.0, size=(4, 1000, d))), method)
    assert np.max(np.abs(found.theta.mean(axis=0) - 9 / 4)) > 0.3 * 3 / 4
    assert not found.status.ok
    assert "too wide to follow" in found.status.text


def test_kernels_along_the_axes_say_when_shards_are_narrow_across_them():
    """Ridges that cross: the sd of their product is 0.1."""
    rng = np.random.default_rng(0)
    draws = [rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=500) for rho in (0.99, -0.99)]
    wide = epvi.combine_draws(draws, epvi.Nonparametric(stages=2, thin=4))
    told = re.search(r"make sds about (\d+)% too wide", wide.status.text)
    assert told
    assert 1 + int(told[1]) / 100 == pytest.approx(np.mean(wide.theta.std(axis=0)) / 0.1, rel=0.15)
    diagonal = epvi.combine_draws(draws, epvi.Semiparametric(epvi.Diagonal(), stages=2, thin=4)).status
    assert re.search(r"ignores the dependence of shard \d's theta\[0\] and theta\[1\]", diagonal.text)


def test_weierstrass_counts_the_draws_that_its_draws_descend_from():
    """Every round keeps the descendants of about half of what it was given, and kernels no narrower than n allows."""
    found = epvi.combine_draws(list(healthy(0, 16, 1000, 1)), epvi.Weierstrass())
    first, last = found.diagnostics.effective[0], found.diagnostics.effective[-1]
    assert last < 0.4 * first
    assert min(found.diagnostics.bandwidths) >= 1000 ** (-1 / 5)
    assert found.status.ok


def test_weierstrass_follows_every_line_of_descent():
    """Two shards that met before: their places stay together."""
    draws = healthy(0, 3, 50, 1)
    places = np.random.default_rng(1).integers(50, size=(3, 80))
    group, (_, _, least) = epvi.Weierstrass(bandwidth=5.0)._meet(
        (
            _KernelGroup(0, draws[0][places[0]] + draws[1][places[1]], places[:2]),
            _KernelGroup(2, draws[2], np.arange(50)[None]),
        ),
        Layout({"theta": (1,)}, named=False),
        60,
        np.random.default_rng(2),
    )
    pairs = {(a, b) for a, b in places[:2].T}
    assert group.ancestors.shape == (3, 60)
    assert all((a, b) in pairs for a, b in group.ancestors[:2].T)
    assert least == pytest.approx(min(60**2 / np.sum(np.bincount(line) ** 2) for line in group.ancestors))
    assert str(group) == "shards 0 to 2"


def test_arrow_tables_and_lazy_frames_are_draws_by_name():
    columns = [{"a": x[:, 0], "b": x[:, 1]} for x in healthy(0)]
    expected = epvi.combine_draws(columns, epvi.Consensus()).theta
    for form in (pyarrow.table, polars.LazyFrame):
        np.testing.assert_array_equal(
            epvi.combine_draws([form(one) for one in columns], epvi.Consensus()).theta, expected
        )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x: {"w": x.reshape(4, 100, 2)}, "shard 0 has 4 draws.*first axis .*chains by name"),
        (lambda x: {"w": np.ma.masked_greater(x, 2)}, r"shard 0's w\[\d\] has \d+ NaN, infinite or masked draws"),
        (lambda x: {1: x[:, 0], "1": x[:, 1]}, "shard 0 has two parameters of one name"),
        (lambda x: x * [1, 1e160], r"shard 0's theta\[1\] has draws of size \de\+160.*rescale"),
        (lambda x: x * [1e-90, 1], r"shard 0's theta\[0\] has draws of size \de-90.*rescale"),
    ],
)
def test_draws_that_would_be_misread_are_refused(make, sentence):
    refused(lambda: epvi.combine_draws([make(x) for x in healthy(0)], epvi.Parametric()), sentence)


@pytest.mark.parametrize("count", [1, 2, 12])
def test_few_averages_are_no_trouble(count):
    assert epvi.combine_draws(list(healthy(0)), epvi.Consensus(), num_samples=count).status.ok
    slow = [x + 1e6 * np.linspace(0, 1, 400)[:, None] for x in healthy(0)]
    assert not epvi.combine_draws(slow, epvi.Consensus(epvi.Diagonal()), num_samples=count).status.ok
