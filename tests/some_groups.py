"""Models with group effects, and rows of them."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def normal_groups(num_levels, *, noise=0.7):
    """Normal rows with centred effects: given mu and log tau, all integrals are known in closed form."""

    def model(g, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("levels", num_levels):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Normal(a[g], noise), obs=y)

    return model


def logistic_groups(num_levels, *, centred=True):
    """Logistic rows with two columns and an intercept for each level."""

    def model(g, x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        if centred:
            with numpyro.plate("levels", num_levels):
                a = numpyro.sample("a", dist.Normal(mu, tau))
        else:
            a = mu + tau * numpyro.sample("a", dist.Normal(0.0, 1.0).expand([num_levels]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ b + a[g]), obs=y)

    return model


def slopes(num_levels, *, together=False):
    """An intercept and a slope for each level: two parameters, or one with correlated columns."""

    def model(g, x, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
        if together:
            corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
            with numpyro.plate("levels", num_levels):
                ab = numpyro.sample("ab", dist.MultivariateNormal(jnp.zeros(2), scale_tril=tau[:, None] * corr))
            a, b = ab[g, 0], ab[g, 1]
        else:
            with numpyro.plate("levels", num_levels):
                a = numpyro.sample("a", dist.Normal(0.3, tau[0]))[g]
                b = numpyro.sample("slope", dist.Normal(-0.2, tau[1]))[g]
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Normal(a + b * x[:, 0], 0.5), obs=y)

    return model


def rows_of_groups(num_rows, num_levels, *, seed=0, binary=True, columns=2):
    """Codes, columns and observed values; the effects they were made with."""
    rng = np.random.default_rng(seed)
    g, x = rng.integers(0, num_levels, num_rows), rng.normal(size=(num_rows, columns))
    a = rng.normal(0.4, 0.8, num_levels)
    eta = a[g] + 0.5 * x[:, 0]
    y = (
        (rng.random(num_rows) < 1 / (1 + np.exp(-eta))).astype(float)
        if binary
        else eta + 0.7 * rng.normal(size=num_rows)
    )
    return {"g": g, "x": x, "y": y}, a
