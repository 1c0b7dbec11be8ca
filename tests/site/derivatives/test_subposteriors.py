"""Passes over several shards together, against one shard at a time."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epvi
from epvi.site.derivatives.expansions import Taylors, expand_together
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=9),
    st.sampled_from([128, 256, 1024]),
    st.sampled_from([1, 2, 4, 64]),
    st.integers(0, 2**32 - 1),
)
def test_each_row_of_a_shard_is_counted_once_for_each_of_its_points(sizes, window, most, seed):
    rng = np.random.default_rng(seed)
    windows = Windows.of(np.array(sizes), window, max(sizes))
    owner = np.sort(rng.choice(len(sizes), rng.integers(1, 3 * len(sizes) + 1)))
    seen = [[] for _ in owner]
    for call in windows.calls(owner, most):
        items = call.items
        assert len(call.points) <= most
        assert items.used <= len(items.point)
        for point, start, low, high in list(zip(*items[:4], strict=True))[: items.used]:
            assert 0 <= start <= window - windows.block
            assert 0 <= low < high <= windows.block
            seen[call.points[point]] += range(call.first + start + low, call.first + start + high)
    for rows, m in zip(seen, owner, strict=True):
        assert sorted(rows) == list(range(windows.bounds[m], windows.bounds[m + 1]))


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def curved(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4, jnp.tanh(x[:, 0] * w[0]) + w[1] * x[:, 1], s), obs=y)


SIZES = np.array([3, 700, 64, 65, 1, 300])


def made(model, dtype):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((SIZES.sum(), 3)).astype(dtype)
    rows = {"x": x, "y": (rng.random(len(x)) < 0.5).astype(dtype)}
    programs = programs_of(epvi.Model(model), rows)
    windows = Windows.of(SIZES, 512, int(SIZES.max()))
    return Subposteriors(programs, rows, windows, np.arange(1, 7) / 21, np.ones(6)), rng


def alone(together, m):
    bounds = together.windows.bounds
    rows = {name: column[bounds[m] : bounds[m + 1]] for name, column in together.rows.items()}
    return Subposterior.of(together.programs, rows, Fraction(int(m) + 1, 21), 128)


@pytest.mark.parametrize("model", [logistic, curved])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 3e-4)])
def test_all_shards_at_once_are_each_shard_alone(model, dtype, tolerance):
    together, rng = made(model, dtype)
    owner = np.sort(rng.choice(6, 11))
    theta = 0.5 * rng.standard_normal((11, together.dim))
    value, gradient, hessian = together.second_order(theta, owner)
    values = together.value(np.stack([theta, theta + 0.1], axis=1), owner)
    spread = together.spread(theta[0])
    for i, m in enumerate(owner):
        one = alone(together, m)
        expected = one.full(theta[i][None])
        np.testing.assert_allclose(value[i], expected.value[0], rtol=tolerance)
        np.testing.assert_allclose(gradient[i], expected.gradient[0], rtol=tolerance, atol=10 * tolerance)
        np.testing.assert_allclose(hessian[i], expected.hessian[0], rtol=tolerance, atol=10 * tolerance)
        np.testing.assert_allclose(values[i], one.value(np.stack([theta[i], theta[i] + 0.1]), 2), rtol=tolerance)
        np.testing.assert_allclose(spread[m], one.spread(theta[0]), rtol=tolerance, atol=10 * tolerance)
    assert np.array_equal(together.passes, [2 * (m in owner) for m in range(6)])


def test_the_order_of_columns_does_not_matter():
    rows = dict(reversed(made(logistic, np.float64)[0].rows.items()))
    assert list(rows) == ["y", "x"]
    windows = Windows.of(SIZES, 512, int(SIZES.max()))
    other = Subposteriors(programs_of(epvi.Model(logistic), rows), rows, windows, np.arange(1, 7) / 21, np.ones(6))
    point, owner = np.full((1, 3), 0.1), np.array([1])
    for ours, theirs in zip(
        other.second_order(point, owner), made(logistic, np.float64)[0].second_order(point, owner), strict=True
    ):
        np.testing.assert_allclose(ours, theirs)
    np.testing.assert_allclose(other.gradient(point, owner)[1], other.second_order(point, owner)[1])


def test_values_near_a_point_come_with_honest_errors():
    together, rng = made(logistic, np.float64)
    shards, centre = np.array([1, 5]), 0.1 * rng.standard_normal((2, together.dim))
    whole = Taylors(centre, *together.second_order(centre, shards))
    near = expand_together(together, shards, whole, np.array([60, 30]), [np.random.default_rng(m) for m in range(6)])
    theta = centre[:, None] + 0.5 * rng.standard_normal((2, 40, together.dim))
    found, errors = near.near(theta, 16)
    exact = together.value(theta, shards)
    # Eight parts give a t statistic of seven degrees of freedom, whose 0.9999 quantile is 7.1; draws share the rows.
    assert np.all(np.abs(found - exact) < 7.1 * errors + 1e-9)
    assert np.max(np.abs(whole.at(theta) - exact)) > np.max(np.abs(found - exact))


def test_blocks_of_a_symmetric_product_make_the_whole_hessian():
    """Enough columns for several blocks, of a number that they do not divide."""
    rng = np.random.default_rng(7)
    rows = {"x": rng.normal(size=(400, 203)), "y": rng.integers(0, 2, 400)}
    sub = Subposteriors(
        programs_of(epvi.Model(logistic), rows), rows, Windows.of(np.array([400]), 256, 400), np.zeros(1), np.ones(1)
    )
    theta = 0.1 * rng.normal(size=(1, 203))
    _, gradient, hessian = sub.second_order(theta, np.zeros(1, int))
    p = 1 / (1 + np.exp(-rows["x"] @ theta[0]))
    np.testing.assert_allclose(gradient[0], rows["x"].T @ (rows["y"] - p), atol=1e-9)
    np.testing.assert_allclose(hessian[0], -(rows["x"] * (p * (1 - p))[:, None]).T @ rows["x"], atol=1e-9)
    residual = rows["y"] - p
    np.testing.assert_allclose(sub.spread(theta[0])[0], (rows["x"] * residual[:, None] ** 2).T @ rows["x"], atol=1e-9)
