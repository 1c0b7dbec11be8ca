"""Averages of derivatives over many points, against derivatives at one point after the other."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.gaussian.structures import DIAGONALS, WHOLE
from epvi.site.derivatives.averages import average_curve, averages
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.prior_part import PriorShare
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows

SIZES = np.array([3, 700, 64, 1])
LEVELS = 5


def plain(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def two_predictors(x, y=None):
    """Mean and log scale are linear in the rows, and a coordinate of θ enters the link beside them."""
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    v = numpyro.sample("v", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4, x @ w, s * jnp.exp(0.3 * (x @ v))), obs=y)


def groups(x, g, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([LEVELS]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([LEVELS]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[g] + b[g] * x[:, 0] + x @ w), obs=y)


def products(x, y=None):
    """The coefficients are not coordinates of θ."""
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ (s * w)), obs=y)


def curved(x, y=None):
    """No linear predictor."""
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x[:, 0] * w[0]) + w[1] * x[:, 1], 1.0), obs=y)


AVERAGED, OTHERS = [plain, two_predictors, groups], [products, curved]


def some_rows(model, dtype=np.float64):
    rng = np.random.default_rng(1)
    n = int(SIZES.sum())
    rows = {"x": rng.standard_normal((n, 3)).astype(dtype), "y": (rng.random(n) < 0.5).astype(dtype)}
    if model is groups:
        rows["g"] = rng.integers(LEVELS, size=n)
    return programs_of(epvi.Model(model), rows), rows, rng


def points_of(programs, rng, count=12):
    return 0.3 * rng.standard_normal((count, programs.target.space.dim))


@pytest.mark.parametrize("model", AVERAGED)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-4)])
def test_averages_of_many_shards_are_those_of_their_derivatives(model, dtype, tolerance):
    programs, rows, rng = some_rows(model, dtype)
    by_row = rng.random(SIZES.sum()) * (rng.random(SIZES.sum()) < 0.8)
    windows = Windows.of(SIZES, 256, int(SIZES.max()))
    each = Subposteriors(programs, rows, windows, np.zeros(4), np.array([1.0, 2.0, 0.5, 3.0]), by_row)
    points = points_of(programs, rng)
    found = averages(each, points, Order.FULL)
    assert found is not None
    for m in range(4):
        value, gradient, hessian = each.second_order(points, np.full(len(points), m))
        scale = np.max(np.abs(hessian))
        np.testing.assert_allclose(found.value[m], value, rtol=tolerance, atol=tolerance * scale)
        np.testing.assert_allclose(found.gradient[m], np.mean(gradient, axis=0), atol=tolerance * scale)
        np.testing.assert_allclose(found.hessian[m], np.mean(hessian, axis=0), atol=tolerance * scale)


@pytest.mark.parametrize("model", OTHERS)
def test_models_whose_derivatives_cannot_be_averaged_in_each_row_are_told_apart(model):
    programs, rows, rng = some_rows(model)
    each = Subposteriors(programs, rows, Windows.of(SIZES, 256, 700), np.zeros(4), np.ones(4))
    assert averages(each, points_of(programs, rng), Order.FULL) is None


@pytest.mark.parametrize("model", AVERAGED + OTHERS)
@pytest.mark.parametrize("form", [WHOLE, pytest.param(DIAGONALS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [pytest.param(12, marks=pytest.mark.slow), 7])
def test_the_average_curve_of_a_shard_is_the_average_of_its_curves(model, form, count):
    programs, rows, rng = some_rows(model)
    by_row = rng.random(SIZES.sum())
    sub = Subposterior(programs, rows, PriorShare(0.25), 128, weight=2.0, by_row=by_row)
    points = points_of(programs, rng, count)
    found, plainly = average_curve(sub, points, form, 4), sub.curve(points, form)
    np.testing.assert_allclose(found.value, plainly.value, rtol=1e-11)
    np.testing.assert_allclose(found.gradient, np.mean(plainly.gradient, axis=0), atol=1e-9)
    np.testing.assert_allclose(found.hessian, np.mean(plainly.hessian, axis=0), atol=1e-9)
