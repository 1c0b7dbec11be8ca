"""Models whose shards would not multiply to their posterior: each is refused in one sentence that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from sentences import refused

from epvi import Model

rng = np.random.default_rng(0)
ROWS = {"x": rng.normal(size=(20, 2)), "y": rng.normal(size=20)}


def normal(*shape):
    return dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))


def linear(x, y=None, scale=1.0):
    w = numpyro.sample("w", normal(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def observing(mean):
    """A model of one parameter b and rows with this mean."""

    def model(x, y):
        numpyro.sample("y", dist.Normal(mean(numpyro.sample("b", normal()), x, y), 1.0), obs=y)

    return model


def with_prior(prior):
    """A model whose parameter b has a prior that looks at the rows."""

    def model(x, y):
        numpyro.sample("y", dist.Normal(numpyro.sample("b", prior(x, y)), 1.0), obs=y)

    return model


def ignores_its_rows(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.sample("anchor", dist.Normal(w, 1.0), obs=jnp.zeros(2))


def one_parameter_per_row(x, y):
    noise = numpyro.sample("noise", normal(x.shape[0]))
    numpyro.sample("y", dist.Normal(noise, 1.0), obs=y)


def summed_factor(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.factor("fit", -jnp.sum((y - x @ w) ** 2))


def rows_in_the_event(x, y):
    numpyro.sample("all of y", dist.Normal(x @ numpyro.sample("w", normal(2)), 1.0).to_event(1), obs=y)


def observed_mean(x, y):
    linear(x, y)
    numpyro.sample("mean", dist.Normal(0.0, 1.0), obs=jnp.mean(y))


def lagged(x, y):
    numpyro.sample("next", dist.Normal(numpyro.sample("b", normal()) * y[:-1], 1.0), obs=y[1:])


def moving_support(x, y):
    low = numpyro.sample("low", normal())
    numpyro.sample("y", dist.Normal(numpyro.sample("high", dist.Uniform(low, low + 1.0)), 1.0), obs=y)


def prior_factor_of_the_number(x, y):
    b = numpyro.sample("b", normal())
    numpyro.factor("ridge", -x.shape[0] * b**2)
    numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def with_param(x, y):
    linear(x, y, scale=numpyro.param("scale", 1.0, constraint=constraints.positive))


def hierarchy(x, y):
    centre = numpyro.sample("centre", normal())
    w = numpyro.sample("w", dist.Normal(jnp.full(2, centre), 1.0))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def python_if_on_parameters(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.sample("y", dist.Normal(x @ w if w[0] > 0 else -(x @ w), 1.0), obs=y)


def python_if_on_rows(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.sample("y", dist.Normal(x @ w if x[0, 0] > 0 else -(x @ w), 1.0), obs=y)


def numpy_on_parameters(x, y):
    numpyro.sample("y", dist.Normal(x @ np.sort(numpyro.sample("w", normal(2))), 1.0), obs=y)


def indexing_by_rows(x, y):
    numpyro.sample("y", dist.Normal(numpyro.sample("w", normal(2))[y > 0], 1.0), obs=y)


def raises(x, y):
    raise KeyError("no such level")


def raises_without_words(x, y):
    raise ZeroDivisionError


def raises_many_lines(x, y):
    raise ValueError("the first line.\nthe second line")


def wrong_shape(x, y):
    linear(x @ jnp.ones((2, 3)), y)


def without_parameters(x, y):
    numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)


def likelihood_without_parameters(x, y):
    numpyro.sample("w", normal(2))
    without_parameters(x, y)


def on_the_sphere(x, y):
    numpyro.sample("y", dist.Normal(x @ numpyro.sample("w", dist.ProjectedNormal(jnp.zeros(2))), 1.0), obs=y)


def same_name_twice(x, y):
    numpyro.sample("w", normal(2))
    linear(x, y)


TRACE = "JAX cannot trace the model .*: use jnp.where"
REFUSED = {
    "ignores its rows": (ignores_its_rows, "the model ignores its data"),
    "one parameter per row": (one_parameter_per_row, "shape of parameter 'noise' depends on the number of rows"),
    "summed factor": (summed_factor, "factor 'fit' depends on the rows but has no axis of rows"),
    "rows in the event": (rows_in_the_event, r"observed NumPyro site 'all of y' .* has no axis of rows.*to_event"),
    "observed mean": (observed_mean, "observed NumPyro site 'mean' depends on the rows but has no axis of rows"),
    "lagged": (lagged, "observed NumPyro site 'next' depends on the rows but has no axis of rows"),
    "moving support": (moving_support, "support of parameter 'high' depends on other parameters"),
    "support from rows": (
        with_prior(lambda x, y: dist.Uniform(jnp.min(y), jnp.max(y))),
        "support of parameter 'b' depends on other parameters or on rows",
    ),
    "prior from rows": (
        with_prior(lambda x, y: dist.Normal(jnp.mean(y), 1.0)),
        r"prior of parameter 'b' depends on the rows.* fixed argument",
    ),
    "prior from the number of rows": (
        with_prior(lambda x, y: dist.Normal(0.0, 1 / x.shape[0])),
        "prior depends on the number of rows",
    ),
    "prior factor of the number of rows": (prior_factor_of_the_number, "prior depends on the number of rows"),
    "centred": (observing(lambda b, x, y: b * (x[:, 0] - jnp.mean(x[:, 0]))), "does not factor over rows"),
    "scaled": (observing(lambda b, x, y: b * x[:, 0] / jnp.std(x[:, 0])), "does not factor over rows"),
    "neighbours": (observing(lambda b, x, y: b * jnp.roll(y, 1)), "does not factor over rows"),
    "number of rows": (observing(lambda b, x, y: b * x.shape[0]), "does not factor over rows"),
    "param": (with_param, r"a NumPyro param site 'scale', which has no prior.*ImproperUniform"),
    "learned reparametrisation": (
        numpyro.handlers.reparam(hierarchy, config={"w": LocScaleReparam(None)}),
        "a NumPyro param site 'w_centered'",
    ),
    "Python's if on parameters": (python_if_on_parameters, TRACE),
    "Python's if on rows": (python_if_on_rows, TRACE),
    "NumPy on parameters": (numpy_on_parameters, TRACE),
    "indexing by rows": (indexing_by_rows, TRACE),
    "raises": (raises, "the model raised KeyError: 'no such level'"),
    "raises without words": (raises_without_words, "the model raised ZeroDivisionError: no message"),
    "raises many lines": (raises_many_lines, "the model raised ValueError: the first line$"),
    "wrong shape": (wrong_shape, r"the model raised \w+: .*\(3,\)"),
    "without parameters": (without_parameters, "no continuous parameter"),
    "likelihood without parameters": (likelihood_without_parameters, "the likelihood depends on no parameter"),
    "on the sphere": (on_the_sphere, r"'w' has the support Sphere\(\), for which NumPyro has no bijection"),
    "same name twice": (same_name_twice, "the model raised AssertionError: .*unique names"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_sharded_is_refused(name):
    model, sentence = REFUSED[name]
    refused(lambda: Model(model).on(ROWS).check(ROWS), sentence)


COLUMN = ROWS | {"y": ROWS["y"][:, None]}
ARGUMENTS = {
    "a column of shape (n, 1)": (lambda: Model(linear).on(COLUMN), "'y' has more than one axis of rows.*Reshape"),
    "unknown column": (lambda: Model(linear).on(ROWS | {"z": ROWS["y"]}), "column 'z' is not an argument of linear: "),
    "missing column": (lambda: Model(linear).on({"y": ROWS["y"]}), r"linear needs a column 'x'.*\(they have y\)"),
    "no observed column": (lambda: Model(linear).on({"x": ROWS["x"]}), "parameter 'y' .* is observed, pass obs="),
    "unknown fixed argument": (
        lambda: Model(linear, sigma=2.0),
        "linear has no argument 'sigma': it takes x, y, scale",
    ),
    "column also fixed": (lambda: Model(linear, y=ROWS["y"]).on(ROWS), "column 'y' .* which is fixed: .* are x, scale"),
    "group of nothing known": (lambda: Model(linear, exchangeable=[["v"]]).on(ROWS), "exchangeable names 'v'"),
    "positional argument": (lambda: Model(lambda x, /, y: None).on(ROWS), "the model raised TypeError: .*positional"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_checked(name):
    refused(*ARGUMENTS[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_that_can_be_sharded_is_not_refused(dtype):
    """Also when its numbers are large, rows are few or equal, and a mask hides some."""

    def model(x, y, size):
        w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
        with numpyro.plate("rows", size, subsample_size=x.shape[0]), numpyro.handlers.mask(mask=y > 0):
            numpyro.sample("y", dist.StudentT(3.0, 1e4 * (x @ w), 1e-2), obs=y)

    for rows in (ROWS, {n: c[:1] for n, c in ROWS.items()}, {n: c[:3] for n, c in ROWS.items()}):
        rows = {name: column.astype(dtype) for name, column in rows.items()}
        Model(model, size=10**6).on(rows).check(rows)
    equal = {"x": np.ones((70, 2), dtype), "y": np.ones(70, dtype)}
    Model(model, size=70).on(equal).check(equal)


def test_models_say_their_name_and_columns():
    assert repr(Model(linear)) == "Model(linear)"
    assert Model(linear).takes("scale")
    assert not Model(linear, scale=2.0).takes("scale")
    assert not Model(linear).takes("z")
    target = Model(linear).on(ROWS | {"scale": np.full(20, 2.0)})
    with jax.enable_x64(True):
        logs = target.log_likelihood(jnp.zeros(2), ROWS | {"scale": np.full(20, 2.0)})
        np.testing.assert_allclose(logs, dist.Normal(0.0, 2.0).log_prob(ROWS["y"]), rtol=1e-12)


@pytest.mark.usefixtures("untyped")
def test_a_model_is_a_function():
    refused(lambda: Model(3), "the model is a int: pass a NumPyro model function")
