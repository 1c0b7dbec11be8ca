"""The models of `hierarchies.py`, as their users would write them."""

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def effects(name: str, loc, scale, size: int, centred: bool) -> Any:
    """Effects of one factor, z_g ~ Normal(loc, scale), in either parametrisation."""
    if centred:
        return numpyro.sample(name, dist.Normal(loc, scale).expand([size]).to_event(1))
    raw = numpyro.sample(f"{name}_raw", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
    return numpyro.deterministic(name, loc + scale * raw)


def observed(family: str, predictor, y):
    """The rows: Bernoulli, Poisson or normal."""
    if family == "normal":
        law = dist.Normal(predictor, numpyro.sample("sigma", dist.HalfNormal(2.0)))
    elif family == "poisson":
        law = dist.Poisson(jnp.exp(predictor))
    else:
        law = dist.Bernoulli(logits=predictor)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", law, obs=y)


def intercepts(family: str, size: int, centred: bool):
    """Coefficients of x, and an intercept per group."""

    def model(x, g, y):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        a = effects("a", mu, tau, size, centred)
        observed(family, x @ w + a[g], y)

    return model


def slopes(family: str, size: int, centred: bool):
    """An intercept and a slope of the first column per group."""

    def model(x, g, y):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        rho = numpyro.sample("rho", dist.HalfNormal(1.0))
        a = effects("a", mu, tau, size, centred)
        b = effects("b", 0.0, rho, size, centred)
        observed(family, x @ w + a[g] + b[g] * x[:, 0], y)

    return model


def crossed(family: str, sizes: tuple[int, int], centred: bool):
    """Two factors; nested ones are crossed factors whose codes are nested."""

    def model(x, g, h, y):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        rho = numpyro.sample("rho", dist.HalfNormal(1.0))
        a = effects("a", mu, tau, sizes[0], centred)
        b = effects("b", 0.0, rho, sizes[1], centred)
        observed(family, x @ w + a[g] + b[h], y)

    return model


def radon(size: int, centred: bool, slopes: bool):
    """Radon in houses of Minnesota: an intercept, or also a slope of the floor, per county (Gelman & Hill 2006)."""

    def model(uranium, floor, county, y):
        beta: Any = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        slope = beta[1]
        if slopes:
            rho = numpyro.sample("rho", dist.HalfNormal(1.0))
            slope = effects("b", beta[1], rho, size, centred)[county]
        a = effects("a", mu, tau, size, centred)
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[county] + beta[0] * uranium + slope * floor, sigma), obs=y)

    return model


def schools(centred: bool):
    """Eight schools (Rubin 1981): one row per school."""

    def model(j, error, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        theta = effects("theta", mu, tau, 8, centred)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(theta[j], error), obs=y)

    return model


def funnel(g, y):
    """Neal's funnel with rows: nine groups whose common sd is exp(v/2)."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    z: Any = numpyro.sample("z", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(z[g], 1.0), obs=y)


def banana(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b**2, 1.0), obs=y)


def ridge(y):
    """Only the product of both parameters is in the likelihood."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = numpyro.sample("b", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a * b, 1.0), obs=y)


def rare(n, k):
    """Counts of rare events with a rate that varies: beta-binomial."""
    rate: Any = numpyro.sample("rate", dist.Beta(0.5, 20.0))
    size: Any = numpyro.sample("size", dist.LogNormal(3.0, 1.0))
    with numpyro.plate("rows", n.shape[0]):
        numpyro.sample("k", dist.BetaBinomial(rate * size, (1 - rate) * size, total_count=n), obs=k)


def none_of(y):
    """No event among the rows."""
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def simplex(size: int):
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(size)))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.CategoricalProbs(p), obs=y)

    return model


def mixture(size: int):
    """Normals with equal weights, whose labels nobody has declared exchangeable."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([size]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
        with numpyro.plate("rows", y.shape[0]):
            law = dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(size) / size), dist.Normal(mu, sigma))
            numpyro.sample("y", law, obs=y)

    return model


def flat_linear(x, y):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), event_shape=(x.shape[1],)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), event_shape=()))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def wide_logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def flat_poisson(x, y):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), event_shape=(x.shape[1],)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)
