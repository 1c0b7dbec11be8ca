"""Log densities and average gradients in float32 near a centre, against the same from all rows in float64."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.derivatives.average_gradient import average_gradient
from epvi.site.derivatives.near_centre import near_centre
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows

SIZES = (700, 500)


def bernoulli(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def counts(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x @ w)), obs=y)


def scaled(x, y=None):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ (s * z), s), obs=y)


def of_groups(x, g, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[g] + x @ w), obs=y)


def made(model, offset=0.0):
    """Two shards of a model, a centre and points near it."""
    rng, n = np.random.default_rng(1), sum(SIZES)
    x = offset + rng.normal(size=(n, 3))
    eta = (x - offset) @ np.array([0.3, -0.2, 0.1])
    rows = {"x": x, "y": (rng.random(n) < 0.5).astype(np.int8)}
    rows |= {"y": rng.poisson(np.exp(3 + eta))} if model is counts else {}
    rows |= {"y": eta + rng.normal(size=n)} if model is scaled else {}
    rows |= {"g": rng.integers(3, size=n)} if model is of_groups else {}
    programs = programs_of(epvi.Model(model), rows)
    windows = Windows.of(np.array(SIZES), 256, max(SIZES))
    each = Subposteriors(programs, rows, windows, np.array([0.25, 0.75]), np.ones(2))
    centre = 0.1 * rng.normal(size=each.dim)
    return each, centre, centre + 0.05 * rng.normal(size=(300, each.dim))


def naive(each, points):
    """Log densities and average gradients in float64."""
    shards = range(each.num_shards)
    values = each.value(np.broadcast_to(points, (len(shards), *points.shape)), np.array(shards))
    slopes = [
        np.mean(each.prior_gradients(points, np.full(len(points), b)), axis=0)
        + average_gradient(each.programs, each.rows, each.windows, b, points)
        for b in shards
    ]
    return values, np.stack(slopes)


@pytest.mark.parametrize("model", [bernoulli, counts, scaled, of_groups])
def test_values_are_those_of_float64_up_to_the_rounding_that_is_told(model):
    each, centre, points = made(model)
    near = near_centre(each)
    rounding = near.rounding(each, centre, points[:16], np.arange(256))
    values = near.values(each, centre, points)
    exact, _ = naive(each, points)
    error = np.sum(values - exact, axis=0)
    assert 0 < rounding < 1e-2
    assert np.std(error) < 3 * rounding
    # Besides, a constant that all points have in common.
    np.testing.assert_allclose(values, exact, rtol=1e-6, atol=6 * rounding)


@pytest.mark.parametrize("model", [bernoulli, counts, of_groups])
def test_average_gradients_are_those_of_float64(model):
    each, centre, points = made(model)
    near = near_centre(each)
    assert near.has_gradients
    values, slopes = near.with_average_gradients(each, centre, points)
    exact, expected = naive(each, points)
    np.testing.assert_allclose(values, exact, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-4 * np.max(np.abs(expected)))


def test_coefficients_that_are_no_coordinates_have_no_average_gradients_here():
    each, _, _ = made(scaled)
    assert not near_centre(each).has_gradients


def test_rounding_is_told_where_columns_are_far_from_zero():
    each, centre, points = made(counts, offset=1e4)
    centre, points = 1e-4 * centre, 1e-4 * points
    near = near_centre(each)
    rounding = near.rounding(each, centre, points[:16], np.arange(256))
    plain, _, _ = made(counts)
    assert rounding > near_centre(plain).rounding(plain, centre, points[:16], np.arange(256))
    error = np.sum(near.values(each, centre, points) - naive(each, points)[0], axis=0)
    assert np.std(error) < 3 * rounding


def test_integer_columns_have_no_float32():
    each, _, _ = made(bernoulli)
    rows = {"x": np.sign(each.rows["x"]).astype(np.int64), "y": each.rows["y"]}
    programs = programs_of(epvi.Model(bernoulli), rows)
    assert near_centre(Subposteriors(programs, rows, each.windows, each.shares, each.weights)) is None
