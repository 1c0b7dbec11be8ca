"""Log densities that are concave everywhere are known from others, whatever their link."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.fit.concavity import is_concave


def regression(likelihood, prior=None):
    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 5))
        own = dist.Normal(0, 2) if prior is None else prior
        w = numpyro.sample("w", own.expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", likelihood(a + x @ w), obs=y)

    return model


def softmax(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1], 3]).to_event(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def of_products(x, y=None):
    """Concave in x(uv), which is not linear in u and v."""
    u = numpyro.sample("u", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    v = numpyro.sample("v", dist.Normal(0, 2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ (u * v)), obs=y)


def with_scale(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def two_humps(mu):
    ways = dist.Categorical(probs=jnp.array([0.5, 0.5]))
    return dist.MixtureSameFamily(ways, dist.Normal(mu[..., None] + jnp.array([-1.5, 1.5]), 0.5))


def rows_of(kind, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(dtype)
    eta = x @ np.array([0.5, -0.3, 0.2], dtype)
    y = {
        "binary": (rng.logistic(size=300) < eta).astype(np.int64),
        "count": rng.poisson(np.exp(eta)),
        "real": (eta + rng.normal(size=300)).astype(dtype),
        "far": (1e4 + 50 * rng.normal(size=300)).astype(dtype),
        "three": rng.integers(3, size=300),
    }[kind]
    return {"x": x, "y": y}


def judged(model, rows):
    with jax.enable_x64(True):
        programs = programs_of(epvi.Model(model), rows)
        windows = Windows.of(np.array([300]), 256, 300)
        sub = Subposteriors(programs, rows, windows, np.array([0.5]), np.ones(1))
        mode = np.full(sub.dim, 0.1)
        if np.max(np.abs(rows["y"])) > 1e3:
            mode[0] = 1e4
        return is_concave(sub, mode, np.random.default_rng(1).normal(size=(4, sub.dim)))


CONCAVE = [
    pytest.param(regression(lambda eta: dist.Bernoulli(logits=eta)), "binary", id="logistic"),
    pytest.param(regression(lambda eta: dist.Poisson(jnp.exp(eta))), "count", id="poisson"),
    pytest.param(regression(lambda eta: dist.Normal(eta, 1.0)), "real", id="normal"),
    pytest.param(regression(lambda eta: dist.Bernoulli(logits=eta), dist.Laplace(0, 1)), "binary", id="laplace prior"),
    pytest.param(softmax, "three", id="softmax"),
]
OTHERS = [
    pytest.param(regression(lambda eta: dist.StudentT(4.0, eta, 1.0)), "real", id="student"),
    pytest.param(regression(two_humps), "real", id="two humps"),
    pytest.param(regression(lambda eta: dist.StudentT(4.0, eta, 50.0)), "far", id="student, far from zero"),
    pytest.param(regression(lambda eta: dist.Normal(eta, 1.0), dist.StudentT(3.0, 0, 1)), "real", id="student prior"),
    pytest.param(regression(lambda eta: dist.Normal(eta**2, 1.0)), "real", id="square"),
    pytest.param(with_scale, "real", id="scale"),
    pytest.param(of_products, "binary", id="product of parameters"),
]


@pytest.mark.parametrize(("model", "kind"), CONCAVE)
def test_concave_densities_are_found(model, kind):
    assert judged(model, rows_of(kind))


@pytest.mark.parametrize(("model", "kind"), OTHERS)
def test_others_are_not_taken_for_them(model, kind):
    assert not judged(model, rows_of(kind))


def test_rounding_in_float32_is_not_taken_for_convexity():
    assert judged(regression(lambda eta: dist.Bernoulli(logits=eta)), rows_of("binary", np.float32))
