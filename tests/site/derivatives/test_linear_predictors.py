"""Derivatives through linear predictors, against JAX's own of the whole log density; and models that have none."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quick import quick_for

from epvi import Model
from epvi.ground.float64 import promotion_allowed
from epvi.models import logistic, multinomial, poisson, robust_linear, tlsa
from epvi.models.tlsa import grid_places
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.through_wide_predictor import Wide

RNG = np.random.default_rng(3)
N, V, BLOCK = 45, 4, 16
X = RNG.normal(size=(N, V))
LABELS, COUNTS, REAL = RNG.integers(0, 2, N), RNG.integers(0, 5, N), X @ RNG.normal(size=V) + RNG.normal(size=N)


def normal(name, *shape):
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(list(shape)).to_event(len(shape)))


def observed(y, distribution, x):
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", distribution, obs=y)


def intercept_and_scale(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    observed(y, dist.Normal(normal("a") + x @ normal("w", V), scale), x)


def non_centred(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    observed(y, dist.Bernoulli(logits=normal("a") + x @ (scale * normal("z", V))), x)


def two_predictors(x, y):
    w = normal("w", 2, V)
    observed(y, dist.Normal(jnp.dot(w[0], x.T), jnp.exp(0.3 * (x[:, :2] @ w[1, :2]))), x)


@jax.jit
def of_a_compiled_function(x, w):
    return jnp.tanh(x) @ w


def inside_a_call(x, y):
    observed(y, dist.Bernoulli(logits=of_a_compiled_function(x, normal("w", V))), x)


def tied(x, y):
    w = normal("w", V)
    observed(y, dist.Normal(x @ w, jnp.exp(0.2 * (x**2 @ w))), x)


def squared_weights(x, y):
    observed(y, dist.Normal(x @ normal("w", V) ** 3, 1.0), x)


def polynomial(x, y):
    design = jnp.concatenate([jnp.ones((x.shape[0], 1)), x, x**2], axis=1)
    observed(y, dist.StudentT(5.0, design @ normal("w", 2 * V + 1), 0.7), x)


def factored(x, y):
    """(X W) B is one predictor."""
    observed(y, dist.Normal((x @ normal("w", V, 2)) @ normal("b", 2), 1.0), x)


def many_numbers(x, y):
    """Twelve numbers a row, each with a column of its own."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    mean = normal("a") + x @ (normal("w", V, 12) ** 3)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, mean, scale).to_event(1), obs=y)


def many_classes(x, y):
    """Twelve columns that have to do with each other."""
    observed(y, dist.Categorical(logits=x @ normal("w", V, 12)), x)


def coupled_numbers(x, y):
    """Columns that meet only where both are positive."""
    odds = x @ normal("w", V, 12)
    gate = jnp.maximum(odds[:, :1], 0.0) * jnp.maximum(odds[:, 1:2], 0.0)
    observed(y, dist.Normal(odds + 0.1 * gate, 1.0).to_event(1), x)


def whole_weights(x, y):
    """Weights without their fractions have no derivative."""
    whole = normal("w", V).astype(int).astype(float)
    observed(y, dist.Normal(normal("a") + x @ whole, 1.0), x)


LINKED = {
    "logistic": (logistic, LABELS, [1], True),
    "poisson": (poisson, COUNTS, [1], True),
    "robust linear": (robust_linear, REAL, [1], True),
    "multinomial": (Model(multinomial, num_classes=3), LABELS + (X[:, 0] > 0), [2], True),
    "intercept and scale": (intercept_and_scale, REAL, [1], True),
    "non-centred": (non_centred, LABELS, [1], False),
    "two predictors": (two_predictors, REAL, [1, 1], True),
    "inside a call": (inside_a_call, LABELS, [1], True),
    "tied weights": (tied, REAL, [1, 1], True),
    "weights to the third": (squared_weights, REAL, [1], False),
    "polynomial": (polynomial, REAL, [1], True),
    "factored": (factored, REAL, [1], False),
    "whole weights": (whole_weights, REAL, [1], False),
}


def network(x, y):
    hidden = jnp.tanh(x @ normal("w", V, 6))
    observed(y, dist.Normal(hidden @ normal("v", 6), 1.0), x)


def no_product(x, y):
    observed(y, dist.Normal(jnp.sum(x * normal("w", V)[None], axis=1), 1.0), x)


@jax.custom_vjp
def only_backwards(odds):
    return jnp.tanh(odds)


only_backwards.defvjp(lambda odds: (jnp.tanh(odds), odds), lambda odds, slope: (slope * (1 - jnp.tanh(odds) ** 2),))


def derivative_of_its_own(x, y):
    """A function that can be differentiated backwards alone."""
    observed(y, dist.Normal(only_backwards(x @ normal("w", V)), 1.0), x)


GENERAL = {
    "network": network,
    "no product": no_product,
    "derivative of its own": derivative_of_its_own,
}


def subposterior(model, rows):
    programs = Programs((model if isinstance(model, Model) else Model(model)).on(rows))
    return Subposterior.of(programs, rows, Fraction(1, 3), BLOCK)


def some_points(sub, number):
    return 0.4 * np.random.default_rng(4).normal(size=(number, sub.dim))


def expected(sub, points):
    """Value, gradient and Hessian of a third of the prior and all rows at once."""
    target = sub.programs.target

    def whole(theta):
        return target.log_prior(theta) / 3 + jnp.sum(target.log_likelihood(theta, sub.rows))

    with jax.enable_x64(True), promotion_allowed():
        derived = jax.jit(jax.vmap(lambda theta: (whole(theta), jax.grad(whole)(theta), jax.hessian(whole)(theta))))
        return [np.asarray(part) for part in derived(points)]


def check(sub, points, tolerance):
    value, gradient, hessian = expected(sub, points)
    scale = np.max(np.abs(hessian))
    full, slope, diagonal = sub.full(points), sub.gradient(points), sub.diagonal(points)
    for made in (full, slope, diagonal):
        np.testing.assert_allclose(made.value, value, rtol=tolerance)
        np.testing.assert_allclose(made.gradient, gradient, atol=tolerance * scale)
    np.testing.assert_allclose(full.hessian, hessian, atol=tolerance * scale)
    np.testing.assert_allclose(diagonal.hessian, np.diagonal(hessian, axis1=1, axis2=2), atol=tolerance * scale)


@pytest.mark.parametrize("name", LINKED)
def test_linear_predictors_are_found_in_their_widths(name):
    model, y, widths, moves = LINKED[name]
    linked = subposterior(model, {"x": X, "y": y}).programs.linked({"x": X[:BLOCK], "y": y[:BLOCK]})
    assert linked is not None
    assert linked.found.widths == widths
    assert (linked.places is not None) == moves


@pytest.mark.parametrize("name", quick_for(LINKED, ("logistic", "tied weights")))
def test_derivatives_through_predictors_are_those_of_the_whole(name):
    model, y, *_ = LINKED[name]
    sub = subposterior(model, {"x": X, "y": y})
    check(sub, some_points(sub, 3), 1e-11)


def general(name):
    rows = {"x": X, "y": REAL}
    return rows, subposterior(GENERAL[name], rows)


@pytest.mark.parametrize("name", GENERAL)
def test_models_without_that_form_have_no_linear_predictors(name):
    rows, sub = general(name)
    assert sub.programs.linked({n: c[:BLOCK] for n, c in rows.items()}) is None


@pytest.mark.parametrize("name", quick_for(GENERAL, ("no product",)))
def test_models_without_that_form_are_differentiated_in_general(name):
    _, sub = general(name)
    check(sub, some_points(sub, 2), 1e-11)


def test_one_point_alone_has_the_derivatives_that_it_has_among_others():
    sub = subposterior(logistic, {"x": X, "y": LABELS})
    points = some_points(sub, 2)
    alone, among = sub.full(points[:1]), sub.full(points)
    np.testing.assert_allclose(alone.hessian, among.hessian[:1], rtol=1e-11)


def test_float32_rows_lose_no_more_than_their_digits():
    rows = {"x": X.astype(np.float32), "y": LABELS}
    sub = subposterior(logistic, rows)
    assert sub.programs.linked({n: c[:BLOCK] for n, c in rows.items()}) is not None
    points = some_points(sub, 2)
    double = subposterior(logistic, {"x": rows["x"].astype(np.float64), "y": LABELS})
    value, gradient, hessian = expected(double, points)
    made = sub.full(points)
    np.testing.assert_allclose(made.value, value, rtol=1e-6)
    np.testing.assert_allclose(made.gradient, gradient, atol=1e-5)
    np.testing.assert_allclose(made.hessian, hessian, atol=1e-5)


def test_what_does_not_matter_for_the_likelihood_is_no_predictor():
    """A product that only a deterministic site uses, and coordinates that rows say nothing of."""

    def model(x, y):
        numpyro.sample("unused", dist.Normal(0.0, 1.0))
        w = normal("w", V)
        numpyro.deterministic("other", x @ w**2)
        observed(y, dist.Normal(x @ w, 1.0), x)

    sub = subposterior(model, {"x": X, "y": REAL})
    linked = sub.programs.linked({"x": X[:BLOCK], "y": REAL[:BLOCK]})
    assert linked is not None
    assert linked.found.widths == [1]
    assert linked.found.coordinates.size == 0
    check(sub, some_points(sub, 2), 1e-11)


NUMBERS = RNG.normal(size=(N, 12))
PLACES = grid_places(12)
WIDE = {
    "many numbers": Model(many_numbers),
    "tlsa": Model(tlsa, places=PLACES, num_sources=2),
}


@pytest.mark.parametrize("name", quick_for(WIDE, ("many numbers",)))
def test_many_numbers_a_row_go_through_one_wide_predictor(name):
    rows = {"x": X, "y": NUMBERS}
    sub = subposterior(WIDE[name], rows)
    wide = sub.programs.linked({n: c[:BLOCK] for n, c in rows.items()})
    assert isinstance(wide, Wide)
    assert wide.found.widths == [12]
    check(sub, some_points(sub, 3), 1e-11)


COUPLED = {"classes": (many_classes, RNG.integers(0, 12, N)), "numbers": (coupled_numbers, NUMBERS)}


@pytest.mark.parametrize("name", quick_for(COUPLED, ("classes",)))
def test_columns_that_have_to_do_with_each_other_are_no_wide_predictor(name):
    model, y = COUPLED[name]
    sub = subposterior(model, {"x": X, "y": y})
    assert sub.programs.linked({"x": X[:BLOCK], "y": y[:BLOCK]}) is None
    check(sub, some_points(sub, 2), 1e-11)


def coupled_in_some_rows(x, y, late):
    """Columns that meet in rows which come later."""
    odds = x @ normal("w", V, 12)
    observed(y, dist.Normal(odds + 0.5 * late[:, None] * odds * odds[:, ::-1], 1.0).to_event(1), x)


def coupled_far_away(x, y):
    """Columns that meet only where one is large."""
    odds = x @ (40.0 * normal("w", V, 12))
    observed(y, dist.Normal(odds + 0.1 * jnp.maximum(odds[:, :1] - 25.0, 0.0) * odds, 1.0).to_event(1), x)


@pytest.mark.parametrize("model", [coupled_far_away, pytest.param(coupled_in_some_rows, marks=pytest.mark.slow)])
def test_columns_that_rarely_have_to_do_with_each_other_are_no_wide_predictor(model):
    """Derivatives of the first rows, at values near zero, do not tell; the steps of the program do."""
    rows = {"x": X, "y": NUMBERS}
    if model is coupled_in_some_rows:
        rows["late"] = (np.arange(N) > 20).astype(float)
    sub = subposterior(model, rows)
    assert sub.programs.linked({n: c[:BLOCK] for n, c in rows.items()}) is None
    check(sub, some_points(sub, 2), 1e-11)


def counts(x):
    return dist.Poisson(jnp.exp(0.1 * (x @ normal("w", V, 12)))).to_event(1)


def labels(x):
    return dist.Bernoulli(logits=normal("a") + x @ normal("w", V, 12)).to_event(1).mask(x[:, 0] > -1.5)


SUMS = {
    "counts": (counts, RNG.integers(0, 5, (N, 12))),
    "labels": (labels, RNG.integers(0, 2, (N, 12))),
}


@pytest.mark.parametrize("name", quick_for(SUMS, ("counts",)))
def test_likelihoods_that_are_sums_over_columns_are_known_by_their_steps(name):
    distribution, y = SUMS[name]
    rows = {"x": X, "y": y}
    sub = subposterior(lambda x, y: observed(y, distribution(x), x), rows)
    assert isinstance(sub.programs.linked({n: c[:BLOCK] for n, c in rows.items()}), Wide)
    check(sub, some_points(sub, 2), 1e-11)
