"""Models with groups in larger groups, such as classes in schools, their rows, and exact answers."""

import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import multivariate_normal

# Groups, three in each of the larger ones; the last larger group has none with rows.
G, H = 12, 5
PARENT = np.arange(G) // 3


def classes(binary):
    def model(x, g, h, y):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0))
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        rho = numpyro.sample("rho", dist.HalfNormal(1.0))
        a = numpyro.sample("a", dist.Normal(mu, tau).expand([G]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, rho).expand([H]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            eta = x * w + a[g] + b[h]
            numpyro.sample("y", dist.Bernoulli(logits=eta) if binary else dist.Normal(eta, 0.7), obs=y)

    return model


def rows_of_classes(binary, seed=0):
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.repeat(np.arange(G), rng.integers(2, 8, G)))
    x = rng.normal(size=len(g))
    eta = 0.5 * x + rng.normal(0.3, 0.8, G)[g] + rng.normal(0.0, 0.6, H)[PARENT[g]]
    y = (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(np.int32) if binary else rng.normal(eta, 0.7)
    return {"x": x, "g": g, "h": PARENT[g], "y": y}


def exact_normal(rows, phi):
    """The same for normal rows, which are jointly normal."""
    tau, rho = np.exp(phi[2:])
    of_g, of_h = rows["g"][:, None] == np.arange(G), rows["h"][:, None] == np.arange(H)
    cov = 0.49 * np.eye(len(rows["y"])) + tau**2 * of_g @ of_g.T + rho**2 * of_h @ of_h.T
    mean = phi[0] * rows["x"] + phi[1]
    cross = rho**2 * of_h
    solved = np.linalg.solve(cov, np.c_[rows["y"] - mean, cross])
    variance = rho**2 - np.sum(cross * solved[:, 1:], axis=0)
    return multivariate_normal(mean, cov).logpdf(rows["y"]), cross.T @ solved[:, 0], variance
