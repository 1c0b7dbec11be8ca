"""Small models with exact posteriors for the six limitations that the paper names in its section on scope.

Each case has a NumPyro model, a simulator and the exact posterior: conjugate, on a grid, or by importance sampling.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from scipy import special, stats


class Exact(NamedTuple):
    """Exact means and sds of the quantities of a case."""

    mean: np.ndarray
    sd: np.ndarray


# Discrete: each row is signal or background, unobserved.


def signal(y):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    shift = numpyro.sample("shift", dist.Normal(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("y", dist.Normal(shift * z, 1.0), obs=y)


def signal_by_hand(y):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    shift = numpyro.sample("shift", dist.Normal(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        on = jnp.log(share) + dist.Normal(shift, 1.0).log_prob(y)
        off = jnp.log1p(-jnp.asarray(share)) + dist.Normal(0.0, 1.0).log_prob(y)
        numpyro.factor("y", jnp.logaddexp(on, off))


def simulate_signal(num_rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"y": rng.normal(size=num_rows) + 2.0 * (rng.random(num_rows) < 0.35)}


def exact_signal(rows: dict[str, np.ndarray], size: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray, Exact]:
    """Both axes of a grid of shares and shifts, the posterior masses on it, and the moments."""
    share, shift = np.linspace(0.05, 0.7, size), np.linspace(1.0, 3.2, size)
    y = rows["y"]
    log_joint = np.empty((size, size))
    for j, centre in enumerate(shift):
        on, off = stats.norm.pdf(y, centre), stats.norm.pdf(y)
        log_joint[:, j] = np.sum(np.log(share[:, None] * on + (1 - share[:, None]) * off), axis=1)
        log_joint[:, j] += stats.norm.logpdf(centre, 2.0, 1.0)
    mass = special.softmax(log_joint)
    sides = [(share, np.sum(mass, axis=1)), (shift, np.sum(mass, axis=0))]
    mean = np.array([axis @ weights for axis, weights in sides])
    square = np.array([axis**2 @ weights for axis, weights in sides])
    return share, shift, mass, Exact(mean, np.sqrt(square - mean**2))


# The simplex: proportions of categories, with a conjugate Dirichlet posterior.


def proportions(y, num_categories):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(num_categories)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.CategoricalProbs(p), obs=y)


def sticks(y, num_categories):
    """The same model by stick breaking: each Beta(1, b) break is a function of a normal, with lighter tails."""
    u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([num_categories - 1]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.CategoricalLogits(_log_proportions(u, jnp, log_ndtr)), obs=y)


def proportions_of_sticks(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"p": np.exp(_log_proportions(draws["u"], np, special.log_ndtr))}


def _log_proportions(u: Any, xp: Any, log_cdf: Callable) -> Any:
    rest = log_cdf(-u) / xp.arange(u.shape[-1], 0, -1)
    none = xp.zeros_like(rest[..., :1])
    broken = xp.concatenate([xp.log(-xp.expm1(rest)), none], axis=-1)
    return broken + xp.concatenate([none, xp.cumsum(rest, axis=-1)], axis=-1)


def simulate_proportions(num_rows: int, p: list[float], seed: int) -> dict[str, np.ndarray]:
    return {"y": np.random.default_rng(seed).choice(len(p), size=num_rows, p=p)}


def exact_proportions(rows: dict[str, np.ndarray], num_categories: int) -> Exact:
    a = 1.0 + np.bincount(rows["y"], minlength=num_categories)
    mean = a / np.sum(a)
    return Exact(mean, np.sqrt(mean * (1 - mean) / (np.sum(a) + 1)))


# Infinite dimensions: a function with a Gaussian process prior, by its first basis functions on [-REACH, REACH].
NOISE, REACH = 0.3, 2.0


def features(x: Any, length: float, size: int, xp: Any = jnp) -> Any:
    """Sine basis functions, each scaled by the prior sd of its weight (Solin and Särkkä 2020)."""
    omega = 0.5 * np.pi / REACH * np.arange(1, size + 1)
    density = np.sqrt(2 * np.pi) * length * np.exp(-0.5 * (length * omega) ** 2)
    return xp.sin(omega * (x[:, None] + REACH)) * np.sqrt(density / REACH)


def smooth(x, y, length, size):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(features(x, length, size) @ beta, NOISE), obs=y)


def simulate_smooth(num_rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows on [-1, 1], with a gap without rows."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, num_rows)
    x = np.where((x > 0.1) & (x < 0.5), -x, x)
    return {"x": x, "y": np.sin(5 * x) * np.exp(-x) / 1.5 + NOISE * rng.normal(size=num_rows)}


def exact_smooth(rows: dict[str, np.ndarray], length: float, at: np.ndarray) -> tuple[Exact, float]:
    """The Gaussian process posterior given all rows: the function at some points, and the log evidence."""
    x, y = rows["x"], rows["y"]

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * ((a[:, None] - b) / length) ** 2)

    root = np.linalg.cholesky(kernel(x, x) + NOISE**2 * np.eye(len(x)))
    white, across = np.linalg.solve(root, y), np.linalg.solve(root, kernel(x, at))
    evidence = -0.5 * white @ white - np.sum(np.log(np.diag(root))) - 0.5 * len(x) * np.log(2 * np.pi)
    return Exact(across.T @ white, np.sqrt(1 - np.sum(across**2, axis=0))), float(evidence)


# Correlations and scales: linear regression with known noise, whose posterior is Gaussian.
WIDTH = 10.0


def linear(x, y, used=1.0):
    """`used` switches columns on and off."""
    w = numpyro.sample("w", dist.Normal(0.0, WIDTH).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((x * used) @ w, 1.0), obs=y)


def simulate_linear(num_rows: int, correlation: float, scales: list[float], seed: int) -> dict[str, np.ndarray]:
    """Columns with these scales and the same correlation between any two of them."""
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(size=(num_rows, 1)), rng.normal(size=(num_rows, len(scales)))
    x = (np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own) * np.array(scales)
    return {"x": x, "y": x @ (rng.normal(size=len(scales)) / np.array(scales)) + rng.normal(size=num_rows)}


def exact_linear(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance."""
    x, y = rows["x"], rows["y"]
    covariance = np.linalg.inv(x.T @ x + np.eye(x.shape[1]) / WIDTH**2)
    return covariance @ (x.T @ y), covariance


def linear_evidence(rows: dict[str, np.ndarray], used: np.ndarray) -> float:
    x, y = rows["x"] * used, rows["y"]
    root = np.linalg.cholesky(np.eye(len(y)) + WIDTH**2 * x @ x.T)
    white = np.linalg.solve(root, y)
    return float(-0.5 * white @ white - np.sum(np.log(np.diag(root))) - 0.5 * len(y) * np.log(2 * np.pi))


# Label switching: a mixture of normals with equal weights, whose labels are exchangeable.
SPREAD = 5.0


def mixture(y, num_parts):
    mu = numpyro.sample("mu", dist.Normal(0.0, SPREAD).expand([num_parts]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        parts = dist.Categorical(probs=jnp.full(num_parts, 1 / num_parts))
        numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(mu, 1.0)), obs=y)


def simulate_mixture(num_rows: int, centres: list[float], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"y": np.array(centres)[rng.integers(len(centres), size=num_rows)] + rng.normal(size=num_rows)}


def exact_mixture(rows: dict[str, np.ndarray], centres: list[float], seed: int) -> Exact:
    """The mode with ordered means, by importance sampling around the result of expectation-maximisation."""
    y, mu, precision = rows["y"], np.array(centres), np.ones(len(centres))
    for _ in range(200):
        belongs = special.softmax(-0.5 * (y[:, None] - mu) ** 2, axis=1)
        precision = np.sum(belongs, axis=0) + SPREAD**-2
        mu = belongs.T @ y / precision
    # These precisions assume known allocations; the wider t proposal covers the additional uncertainty.
    place = {"df": 10, "loc": mu, "scale": 1.3 / np.sqrt(precision)}
    draws = np.asarray(stats.t.rvs(**place, size=(4000, len(mu)), random_state=seed))
    log_joint = np.array([np.sum(np.asarray(special.logsumexp(-0.5 * (y[:, None] - m) ** 2, axis=1))) for m in draws])
    log_joint -= np.sum(draws**2, axis=1) / (2 * SPREAD**2)
    weights = special.softmax(log_joint - np.sum(stats.t.logpdf(draws, **place), axis=1))
    mean = weights @ draws
    return Exact(mean, np.sqrt(weights @ draws**2 - mean**2))


def in_any_order(ordered: Exact) -> Exact:
    """Moments of every label if all permutations of the labels are equally probable."""
    mean = np.mean(ordered.mean)
    sd = np.sqrt(np.mean(ordered.sd**2 + ordered.mean**2) - mean**2)
    return Exact(np.full_like(ordered.mean, mean), np.full_like(ordered.sd, sd))
