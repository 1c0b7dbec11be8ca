"""Subsamples of rows represent all of them, and lack none that matters."""

import dataclasses
from fractions import Fraction

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.gaussian.structures import DIAGONALS, WHOLE
from epvi.site.derivatives.expansion import PARTS, expand, near_by_influence, taylors
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subsamples import _chances, _systematic, by_influence, uniform

N, D = 20_000, 4
# Rows of the category that only the last column shows.
RARE = 12


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def shard():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, D))
    x[:, -1] = np.arange(N) % (N // RARE) == 7
    rows = {"x": x, "y": (rng.random(N) < 0.5).astype(float)}
    return Subposterior.of(programs_of(epvi.Model(logistic), rows), rows, Fraction(1, 2), 2**12)


@pytest.fixture(scope="module")
def centre(shard):
    return np.array([0.02, -0.01, 0.0, 0.1])


@pytest.fixture(scope="module")
def near(shard, centre):
    """Draws from the Laplace approximation, in which the last coefficient has an sd of about 0.6."""
    hessian = shard.full(centre[None]).hessian[0]
    return np.random.default_rng(1).multivariate_normal(centre, np.linalg.inv(-hessian), 40)


def test_influence_is_each_rows_curvature_and_remainder(shard, centre, near):
    x, y = shard.rows["x"], shard.rows["y"]

    def log_likelihood(eta):
        return y * eta - np.logaddexp(0, eta)

    eta, p = x @ centre, 1 / (1 + np.exp(-x @ centre))
    second, rest = np.zeros(N), np.zeros(N)
    for theta in near[:3]:
        t = x @ (theta - centre)
        second += p * (1 - p) * t**2 / 3
        rest += np.abs(log_likelihood(eta + t) - log_likelihood(eta) - (y - p) * t + 0.5 * p * (1 - p) * t**2) / 3
    expected = 0.5 * (second / np.mean(second) + rest / np.mean(rest))
    np.testing.assert_allclose(shard.influence(centre, near[:3]), expected, rtol=1e-6, atol=1e-9)


def test_a_systematic_sample_has_the_probabilities_it_says():
    rng = np.random.default_rng(2)
    influence = np.exp(2 * rng.standard_normal(200))
    chances, sure = _chances(influence / np.mean(influence), 40)
    assert np.any(sure)
    assert np.all(chances[~sure] < 1)
    np.testing.assert_allclose(np.sum(chances[~sure]), 40)
    seen, tries = np.zeros(200), 4000
    for _ in range(tries):
        picked = _systematic(np.where(sure, 0.0, chances), 40, rng)
        assert len(np.unique(picked)) == 40
        seen[picked] += 1
    error = np.sqrt(chances * (1 - chances) / tries)
    # Of 200 normal deviates the largest is below 5 but once in 10,000 times.
    assert np.all(np.abs(seen / tries - chances)[~sure] < 5 * error[~sure])


def test_more_sure_rows_than_asked_for_leave_a_sample():
    influence = np.where(np.arange(100) < 60, 1.0, 0.0) / 0.6
    chances, sure = _chances(influence, 80)
    assert np.count_nonzero(~sure) >= 80
    assert np.all(chances <= 1)


@pytest.mark.parametrize("way", ["uniform", "influence"])
def test_estimates_are_unbiased_and_their_errors_honest(shard, centre, near, way):
    exact = shard.value(near, 40)
    influence = shard.influence(centre, near[:4])
    whole = taylors(shard.full(centre[None]))
    ratios = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        samples = uniform(shard, 64, PARTS, rng) if way == "uniform" else by_influence(shard, influence, 64, PARTS, rng)
        (around,) = expand(centre[None], whole, samples)
        found = around.near(near, 40)
        if way == "influence":
            assert around.is_alike
            # Standard errors of a t distribution with 7 degrees of freedom; 40 draws share the rows.
            ratios.append((found.value - exact) / found.error)
        else:
            # 512 of 20,000 rows have none of the 12 in three of four cases: the check must show it.
            assert not around.is_alike or np.any(samples.together.rows["x"][:, -1])
    if way == "influence":
        # Averages of 20 subsamples: t deviates with 7 degrees of freedom have a variance of 7/5.
        assert np.all(np.abs(np.mean(ratios, axis=0)) < 5 * np.sqrt(1.4 / 20))
        assert 0.5 < np.sqrt(np.mean(np.square(ratios))) < 1.8


def test_rows_by_influence_need_far_fewer_than_uniform_ones(shard, centre, near):
    influence, whole = shard.influence(centre, near[:4]), taylors(shard.full(centre[None]))
    rng = np.random.default_rng(3)
    (by,) = expand(centre[None], whole, by_influence(shard, influence, 64, PARTS, rng))
    (plain,) = expand(centre[None], whole, uniform(shard, 512, PARTS, rng))
    assert np.median(by.near(near, 40).error) < 0.5 * np.median(plain.near(near, 40).error)


def test_all_of_the_subsamples_together_have_the_derivatives_of_all_rows(shard, centre, near):
    samples = by_influence(shard, shard.influence(centre, near[:4]), 512, PARTS, np.random.default_rng(4))
    found, exact = samples.together.full(centre[None]), shard.full(centre[None])
    scale = np.sqrt(np.abs(np.diag(exact.hessian[0])))
    # 4,096 rows and more: the Hessian is known to a few per cent.
    np.testing.assert_allclose(
        found.hessian[0] / np.outer(scale, scale), exact.hessian[0] / np.outer(scale, scale), atol=0.15
    )
    np.testing.assert_allclose(samples.together.by_row.sum(), N, rtol=0.15)


@pytest.mark.parametrize("way", ["uniform", "influence"])
@pytest.mark.parametrize("form", [WHOLE, DIAGONALS])
def test_each_subsample_is_expanded_as_its_own_rows_and_those_of_all(shard, centre, near, way, form):
    rng, influence = np.random.default_rng(5), shard.influence(centre, near[:4])
    samples = uniform(shard, 64, PARTS, rng) if way == "uniform" else by_influence(shard, influence, 64, PARTS, rng)
    whole, own = samples.together, PARTS * 64
    assert (way == "influence") == (whole.num_rows > own)
    for g, (value, gradient, hessian) in enumerate(samples.expanded(centre, form)):
        weights = np.zeros(whole.num_rows)
        weights[64 * g : 64 * (g + 1)] = PARTS
        weights[own:] = 1.0
        by_row = weights if whole.by_row is None else weights * whole.by_row
        naive = dataclasses.replace(whole, by_row=by_row).curve(centre[None], form)
        np.testing.assert_allclose(value, naive.value[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, naive.gradient[0], atol=1e-8)
        np.testing.assert_allclose(hessian, naive.hessian[0], atol=1e-8)


def test_values_by_influential_rows_are_those_of_all_rows(shard, centre, near):
    (whole,) = taylors(shard.full(centre[None]))
    found = near_by_influence(shard, centre, whole, near, 512, np.random.default_rng(6))
    assert found is not None
    assert np.all(np.abs(found.value - shard.value(near, 40)) < 6 * found.error)
    # Parts without the 12 rows that matter are refused.
    influence = np.where(shard.rows["x"][:, -1] != 0, 0.0, 1.0)
    without = dataclasses.replace(shard, rows={name: x[influence > 0] for name, x in shard.rows.items()})
    assert near_by_influence(without, centre, whole, near, 512, np.random.default_rng(6)) is None


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_many_values_in_float32_are_those_in_float64_or_are_not_taken(shard, centre, near, scale, monkeypatch):
    """Rows far from the origin lose their digits in float32: then no value is computed in it."""
    rng = np.random.default_rng(7)
    far = dict(shard.rows) | {"x": shard.rows["x"] + (scale - 1) * np.array([1.0, -1.0, 0.0, 0.0])}
    theta = np.resize(near, (2100, D)).copy()
    theta[:, 1] = theta[:, 0]
    samples = uniform(dataclasses.replace(shard, rows=far), 256, PARTS, rng)
    kinds, program = [], samples.together.programs.by_part(PARTS, 256)

    def watched(points, rows, weights):
        kinds.append(rows["x"].dtype.name)
        return program(points, rows, weights)

    monkeypatch.setattr(type(shard.programs), "by_part", lambda *_: watched)
    found = samples.values(theta, 64)
    monkeypatch.undo()
    apart = [samples.values(theta[i : i + 64], 64) for i in range(0, len(theta), 64)]
    assert set(kinds[2:]) == {"float32" if scale == 1 else "float64"}
    np.testing.assert_allclose(np.mean(found, axis=0), np.mean(np.concatenate(apart, axis=1), axis=0), atol=3e-3)
