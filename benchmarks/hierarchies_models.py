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


def horseshoe(x, y):
    """Sparse logistic regression: weights with scales of their own and a common one, as published for German credit."""
    raw = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    local = numpyro.sample("local", dist.Gamma(0.5, 0.5).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.Gamma(0.5, 0.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ (raw * local * scale)), obs=y)


def plain_logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def items(num_persons: int, num_items: int):
    """Item response with two parameters for each item."""

    def model(person, item, y):
        ability: Any = numpyro.sample("ability", dist.Normal(0.0, 1.0).expand([num_persons]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(2.0))
        easy: Any = numpyro.sample("easy", dist.Normal(mu, tau).expand([num_items]).to_event(1))
        slope: Any = numpyro.sample("slope", dist.LogNormal(0.0, 0.5).expand([num_items]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=slope[item] * ability[person] + easy[item]), obs=y)

    return model


def rats(size: int, centred: bool):
    """A line of weight against age for each animal (Gelfand et al. 1990)."""

    def model(animal, age, y):
        mu = numpyro.sample("mu", dist.Normal(250.0, 100.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 20.0))
        tau = numpyro.sample("tau", dist.HalfNormal(50.0))
        rho = numpyro.sample("rho", dist.HalfNormal(5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(20.0))
        a = effects("a", mu, tau, size, centred)
        b = effects("b", slope, rho, size, centred)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[animal] + b[animal] * age, sigma), obs=y)

    return model


def countries(size: int, centred: bool):
    """Logistic regression with an effect of each country."""

    def model(x, country, y):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        a = effects("a", 0.0, tau, size, centred)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w + a[country]), obs=y)

    return model


def by_country(x, country, y):
    del country
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def shrunk(x, y):
    """Regression on few rows whose weights have a common, unknown scale: a funnel with as many arms as columns."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    w = numpyro.sample("w", dist.Normal(0.0, jnp.exp(v / 2)).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def shrunk_raw(x, y):
    """The same, as NUTS samples it well."""
    v: Any = numpyro.sample("v", dist.Normal(0.0, 3.0))
    raw: Any = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    w = numpyro.deterministic("w", jnp.exp(v / 2) * raw)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def shell(size: int):
    """Only the length of a vector is known: its posterior is a shell."""

    def model(y):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([size]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.sqrt(jnp.sum((w * (1 + jnp.arange(size) / size)) ** 2)), 1.0), obs=y)

    return model


def change_point(t, y):
    """A level that changes smoothly at an unknown time."""
    level: Any = numpyro.sample("level", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    when = numpyro.sample("when", dist.Uniform(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    after = 1 / (1 + jnp.exp(-(t - when) / 0.02))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(level[0] + (level[1] - level[0]) * after, sigma), obs=y)


def counts(x, y):
    """Negative binomial regression."""
    w = numpyro.sample("w", dist.Normal(0.0, 5.0).expand([x.shape[1]]).to_event(1))
    size = numpyro.sample("size", dist.Gamma(2.0, 0.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ w), size), obs=y)
