"""A model of two plain functions: it is the NumPyro model that says the same, and bad functions get one sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from sentences import refused

from epvi import Model

rng = np.random.default_rng(0)
ROWS = {"x": rng.normal(size=(20, 2)), "y": rng.normal(size=20)}
SHAPES = {"w": (2,), "sigma": (), "shares": 3}
SUPPORTS = {"sigma": constraints.positive, "shares": constraints.simplex}


def numpyro_model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Gamma(2.0, 1.0))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + shares[0], sigma), obs=y)


def log_prior(values):
    prior = dist.Normal(0.0, 2.0).log_prob(values["w"]).sum() + dist.Gamma(2.0, 1.0).log_prob(values["sigma"])
    return prior + dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])).log_prob(values["shares"])


def log_likelihood(values, block):
    mean = block["x"] @ values["w"] + values["shares"][0]
    return dist.Normal(mean, values["sigma"]).log_prob(block["y"])


def model(prior=log_prior, likelihood=log_likelihood, shapes=SHAPES, supports=SUPPORTS, **rest):
    return Model.from_log_density(prior, likelihood, shapes, supports=supports, **rest)


def plain(likelihood):
    """A model of one real vector w with this likelihood."""
    return Model.from_log_density(lambda values: -jnp.sum(values["w"] ** 2), likelihood, {"w": 2})


def test_it_is_the_numpyro_model_that_says_the_same():
    target, other = model().on(ROWS), Model(numpyro_model).on(ROWS)
    target.check(ROWS)
    assert target.space.describe() == other.space.describe()
    assert target.space.slices == other.space.slices
    with jax.enable_x64(True):
        for theta in np.random.default_rng(1).normal(size=(3, target.space.dim)):
            at = jnp.asarray(theta)
            np.testing.assert_allclose(target.log_prior(at), other.log_prior(at), rtol=1e-12)
            logs = target.log_likelihood(at, ROWS)
            assert logs.shape == (20,)
            np.testing.assert_allclose(logs, other.log_likelihood(at, ROWS), rtol=1e-12)
    assert target.outside(ROWS) == {}


def test_it_takes_any_columns_and_keeps_its_groups():
    shapes = {"a": 3, "b": (3, 2)}
    groups = Model.from_log_density(lambda v: 0.0, lambda v, b: b["y"], shapes, exchangeable=[["a", "b"]])
    assert groups.takes("anything")
    assert groups.on(ROWS).space.exchangeable == (("a", "b"),)
    assert repr(model()) == "Model(log_likelihood)"


@pytest.mark.usefixtures("untyped")
def test_shapes_may_be_numbers_of_numpy():
    shapes = {"w": np.int64(2), "sigma": np.array([1, 2])}
    with_numpy = Model.from_log_density(lambda v: 0.0, lambda v, b: b["x"] @ v["w"], shapes)
    assert with_numpy.on(ROWS).space.describe() == "w (2,), sigma (1, 2)"


BAD = {
    "prior of several numbers": (lambda: model(lambda v: v["w"]).on(ROWS), r"log_prior gives shape \(2,\)"),
    "likelihood of one number": (
        lambda: plain(lambda v, b: jnp.sum(b["y"])).on(ROWS),
        r"log_likelihood gives shape \(\) for 8 rows: .* \(8,\)",
    ),
    "likelihood of a column": (
        lambda: plain(lambda v, b: b["x"] * v["w"]).on(ROWS),
        r"log_likelihood gives shape \(8, 2\) for 8 rows",
    ),
    "likelihood of always eight rows": (
        lambda: plain(lambda v, b: jnp.zeros(8) + v["w"][0]).on(ROWS).check(ROWS),
        "log_likelihood|does not factor over rows",
    ),
    "likelihood that looks at all rows": (
        lambda: plain(lambda v, b: v["w"][0] * (b["y"] - b["y"].mean())).on(ROWS).check(ROWS),
        "does not factor over rows",
    ),
    "Python's if": (
        lambda: plain(lambda v, b: b["y"] if v["w"][0] > 0 else -b["y"]).on(ROWS),
        r"JAX cannot trace the model .*: use jnp.where",
    ),
    "column that is not there": (lambda: plain(lambda v, b: b["z"]).on(ROWS), "the model raised KeyError: 'z'"),
    "parameter that is not there": (lambda: model(lambda v: v["v"]).on(ROWS), "the model raised KeyError: 'v'"),
    "nothing": (lambda: model(lambda v: None).on(ROWS), "the model raised .*None"),
    "no parameters": (lambda: model(shapes={}, supports={}), "parameters is empty: name at least one"),
    "support of nothing": (lambda: model(supports={"v": constraints.real}), "supports names 'v'"),
    "unknown group": (lambda: model(exchangeable=[["v"]]), "exchangeable names 'v'"),
    "support without a bijection": (lambda: model(supports={"w": constraints.sphere}).on(ROWS), "'?w'? .*bijection"),
    "support of other axes": (lambda: model(supports={"w": constraints.corr_matrix}).on(ROWS), r"'?w'? .*\(2,\)"),
    "bounds of other axes": (
        lambda: model(supports={"sigma": constraints.interval(np.zeros(2), np.ones(2))}).on(ROWS),
        "sigma",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_functions_get_one_sentence(name):
    refused(*BAD[name])


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("shape", [-1, (2, -1), (2.5,), "ab", None])
def test_bad_shapes_get_one_sentence(shape):
    refused(lambda: model(shapes=SHAPES | {"w": shape}).on(ROWS), "'?w'? .*shape|shape of '?w'?")


@pytest.mark.usefixtures("untyped")
def test_what_is_no_function_gets_one_sentence():
    for functions in ((3, log_likelihood), (log_prior, "log_likelihood")):
        refused(lambda functions=functions: model(*functions), "log_prior and log_likelihood must be functions")


@pytest.mark.usefixtures("untyped")
def test_parameters_are_a_mapping():
    refused(lambda: model(shapes=["w"], supports={}), "parameters is a list: pass a mapping")
