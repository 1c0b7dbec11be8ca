"""Reference posteriors of scaling.py: importance sampling on all rows, in float64, without any code of epvi.

Regressions: draws from Laplace's approximation. Group intercepts: every group is integrated by adaptive quadrature, and
only the shared parameters are drawn, from Laplace's approximation of their marginal posterior. Draws come in pairs
θ̂ ± δ; moments are those of the Gaussian plus the correction by the weights, whose Monte Carlo error is small where the
weights are even.
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from made import cache_folder, write_arrays
from newton import BLOCK, logistic_derivatives
from posteriors import Moments
from scaling_data import DEMO, GROUP_SD, GROUPS, INTERCEPT_SD, PRIOR_SD, SUSY, Work
from scipy.special import expit

# Draws of a reference; at least this many must count (ESS) for it to be one.
NUM_DRAWS, LEAST_ESS = 1500, 1000
# Newton's method stops when no step is larger than this, in sds.
_SMALL_STEP = 1e-5
# Steps of Newton's method at most. Judgement: it has converged long before.
_MOST_STEPS = 50
# Nodes of the quadrature over a group's effect: exact to about 1e-4 nats with ten rows per group.
_NODES = 7
# Steps of finite differences, in sds: large beside rounding; their error is corrected by the weights.
_DIFFERENCE = 0.2
# The first steps of finite differences, before sds are known.
_FIRST_SD = 0.05


class Reference(NamedTuple):
    """Moments of all scalars, and how they were found."""

    moments: Moments
    text: str


class Weighted(NamedTuple):
    """Draws θ̂ + δ with normalised importance weights."""

    delta: np.ndarray  # (S, d)
    weights: np.ndarray  # (S,)

    @property
    def ess(self) -> float:
        return float(1 / np.sum(self.weights**2))


def cached(work: Work) -> Reference:
    """The reference, from the cache if it has it; what is in the cache belongs to the code that made it."""
    digest = hashlib.sha256(repr(work).encode())
    for source in (__file__, inspect.getfile(Work)):
        digest.update(Path(source).read_bytes())
    file = cache_folder() / f"scaling-{work.kind}-{digest.hexdigest()[:16]}.npz"
    if not file.exists():
        moments, text = reference(work)
        arrays = {name: np.asarray(value) for name, value in moments._asdict().items()}
        write_arrays(file, text=np.asarray(text), **arrays)
    with np.load(file) as kept:
        names = tuple(str(name) for name in kept["names"])
        return Reference(Moments(names, *(kept[name] for name in Moments._fields[1:])), str(kept["text"]))


def reference(work: Work) -> Reference:
    if work.kind in (SUSY, DEMO):
        return _of_hierarchical(work)
    return _of_groups(work) if work.kind == GROUPS else _of_regression(work)


def _of_hierarchical(work: Work) -> Reference:
    """Coefficients of `epvi.models.logistic`; its scale is not compared."""
    import peers  # needs scikit-learn

    found = peers.newton(work.rows()).found
    zero = np.zeros(len(found.mean))
    names = tuple(f"w[{i}]" for i in range(len(zero)))
    return Reference(Moments(names, found.mean, found.sd, zero, zero), "Laplace, not corrected")


def _of_regression(work: Work) -> Reference:
    x, y = work.rows()["x"], work.rows()["y"]
    prior, names = np.full(x.shape[1], PRIOR_SD**-2), tuple(f"w[{i}]" for i in range(x.shape[1]))
    if work.has_intercept:
        x, prior = np.column_stack([np.ones(len(x)), x]), np.concatenate([[INTERCEPT_SD**-2], prior])
        names = ("intercept", *names)
    w, step, curvature = np.zeros(len(prior)), np.full(len(prior), np.inf), np.eye(len(prior))
    for _ in range(_MOST_STEPS):
        gradient, curvature = logistic_derivatives(x, y, w)
        curvature += np.diag(prior)
        step = np.linalg.solve(curvature, gradient - prior * w)
        w = w + step
        if np.max(np.abs(step) * np.sqrt(np.diag(curvature))) < _SMALL_STEP:
            break
    covariance = np.linalg.inv(curvature)
    drawn = _weighted(covariance, work.seed, lambda delta: _log_joint(x, y, prior, w + delta))
    mean, sd, mean_error, sd_error = _moments(drawn, drawn.delta, np.zeros(len(w)), np.sqrt(np.diag(covariance)))
    return Reference(Moments(names, w + mean, sd, mean_error, sd_error), _said(drawn, "importance-corrected Laplace"))


def _log_joint(x: np.ndarray, y: np.ndarray, prior: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """At draws (S, d), of all rows: Σ y η − log(1 + exp η) − ½ Σ prior θ²."""
    with jax.enable_x64(True):
        total = theta @ (y.astype(np.float64) @ x) - 0.5 * theta**2 @ prior
        for start in range(0, len(y), BLOCK):
            total -= np.asarray(_softplus_sums(x[start : start + BLOCK].astype(np.float64), theta.T))
        return total


@jax.jit
def _softplus_sums(x: Any, theta: Any) -> jax.Array:
    return jnp.sum(jax.nn.softplus(x @ theta), axis=0)


def _weighted(covariance: np.ndarray, seed: int, log_joint: Callable[[np.ndarray], np.ndarray]) -> Weighted:
    """Draws of N(0, covariance) in pairs ± δ, weighted by exp(log_joint) over its density."""
    z = np.random.default_rng(seed).normal(size=(NUM_DRAWS // 2, len(covariance)))
    z = np.concatenate([z, -z])
    delta = z @ np.linalg.cholesky(covariance).T
    log_weights = log_joint(delta) + 0.5 * np.sum(z**2, axis=1)
    weights = np.exp(log_weights - np.max(log_weights))
    return Weighted(delta, weights / np.sum(weights))


def _moments(
    drawn: Weighted, values: np.ndarray, mean: np.ndarray, sd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Means and sds of values (S, k) whose moments without weights are known, and their Monte Carlo errors."""
    signed, away = drawn.weights - 1 / len(values), values - mean
    shift = signed @ away
    corrected = np.sqrt(sd**2 + signed @ away**2 - shift**2)
    error = np.sqrt(signed**2 @ away**2)
    square_error = np.sqrt(signed**2 @ (away**2 - sd**2) ** 2)
    return mean + shift, corrected, error, square_error / (2 * corrected)


def _said(drawn: Weighted, how: str) -> str:
    said = f"{how}, ESS {drawn.ess:,.0f} of {len(drawn.weights):,}"
    return said if drawn.ess >= LEAST_ESS else f"{said}: too few for a reference"


class _Padded(NamedTuple):
    """Rows by group, padded to the length of the longest, and sums of the rows with label 1."""

    x: np.ndarray  # (G, L, C)
    here: np.ndarray  # (G, L): 1 for a row, 0 for padding
    ones: np.ndarray  # (G,)
    ones_x: np.ndarray  # (G, C)


class _Nodes(NamedTuple):
    """Each group's conditional mode at θ₀, its derivative by θ = (loc, log s, w), and its sd."""

    theta: np.ndarray
    mode: np.ndarray  # (G,)
    slope: np.ndarray  # (G, d)
    sd: np.ndarray  # (G,)


def _of_groups(work: Work) -> Reference:
    padded = _padded(work)
    theta = np.zeros(2 + padded.x.shape[-1])
    theta[1] = -1.0
    scale = np.full(len(theta), _FIRST_SD)
    covariance = np.diag(scale**2)
    with jax.enable_x64(True):
        for _ in range(_MOST_STEPS):
            nodes = _nodes(padded, theta)

            def value(at: np.ndarray, nodes: _Nodes = nodes) -> float:
                return float(_marginal(padded, nodes, at)[0])

            step, covariance = _newton_step(value, theta, scale)
            theta, scale = theta + np.clip(step, -1, 1), np.sqrt(np.diag(covariance))
            if np.max(np.abs(step) / scale) < _DIFFERENCE**2:
                break
        nodes, found = _nodes(padded, theta), []

        def log_joint(delta: np.ndarray) -> np.ndarray:
            found.extend([np.asarray(part) for part in _marginal(padded, nodes, theta + one)] for one in delta)
            return np.array([part[0] for part in found])

        drawn = _weighted(covariance, work.seed, log_joint)
    means, squares = (np.stack([part[i] for part in found]) for i in (1, 2))
    return Reference(
        _group_moments(drawn, theta, scale, means, squares),
        _said(drawn, "importance-corrected Laplace of the marginal posterior, groups by quadrature"),
    )


def _group_moments(
    drawn: Weighted, theta: np.ndarray, scale: np.ndarray, means: np.ndarray, squares: np.ndarray
) -> Moments:
    """Of loc, s, w and all groups; the groups' from their conditional moments (S, G)."""
    known_mean, known_sd, values = theta.copy(), scale.copy(), theta + drawn.delta
    # s is log-normal under the Gaussian.
    known_mean[1] = np.exp(theta[1] + scale[1] ** 2 / 2)
    known_sd[1] = known_mean[1] * np.sqrt(np.expm1(scale[1] ** 2))
    values[:, 1] = np.exp(values[:, 1])
    shared = _moments(drawn, values, known_mean, known_sd)
    mean = drawn.weights @ means
    between = np.sqrt(drawn.weights @ (means - mean) ** 2)
    sd = np.sqrt(drawn.weights @ squares - mean**2)
    mean_error = between / np.sqrt(drawn.ess)
    groups = mean, sd, mean_error, between**2 / sd / np.sqrt(2 * drawn.ess)
    names = "loc", "s", *(f"w[{i}]" for i in range(len(theta) - 2)), *(f"a[{g}]" for g in range(len(mean)))
    return Moments(names, *(np.concatenate(pair) for pair in zip(shared, groups, strict=True)))


def _padded(work: Work) -> _Padded:
    rows, num_groups = work.rows(), work.size
    order = np.argsort(rows["g"], kind="stable")
    g, x, y = rows["g"][order], rows["x"][order], rows["y"][order].astype(np.float64)
    sizes = np.bincount(g, minlength=num_groups)
    place = np.arange(len(g)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wide, here = np.zeros((num_groups, np.max(sizes), x.shape[1])), np.zeros((num_groups, np.max(sizes)))
    wide[g, place], here[g, place] = x, 1.0
    ones_x = np.stack([np.bincount(g, y * column, num_groups) for column in x.T], axis=1)
    return _Padded(wide, here, np.bincount(g, y, num_groups), ones_x)


def _nodes(padded: _Padded, theta: np.ndarray) -> _Nodes:
    """Conditional modes by Newton's method."""
    loc, precision, w = theta[0], np.exp(-2 * theta[1]), theta[2:]
    offsets, a = padded.x @ w, np.full(len(padded.ones), loc)
    weights, curvature = np.zeros_like(offsets), np.ones(len(a))
    for _ in range(_MOST_STEPS):
        p = expit(offsets + a[:, None]) * padded.here
        weights = p * (1 - p)
        curvature = np.sum(weights, axis=1) + precision
        step = (padded.ones - np.sum(p, axis=1) - precision * (a - loc)) / curvature
        # Steps of at most one logit, so that it cannot run away from a group with equal labels.
        a = a + np.clip(step, -1, 1)
        if np.max(np.abs(step)) < _SMALL_STEP:
            break
    by_w = -np.einsum("gl,glc->gc", weights, padded.x)
    slope = np.column_stack([np.full(len(a), precision), 2 * precision * (a - loc), by_w]) / curvature[:, None]
    return _Nodes(theta, a, slope, 1 / np.sqrt(curvature))


@jax.jit
def _marginal(padded: _Padded, nodes: _Nodes, theta: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log p(θ) + Σ_g log ∫ p(y_g | a, w) N(a | loc, s) da, with E[a_g | θ] and E[a_g² | θ] (G,)."""
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    loc, log_s, w = theta[0], theta[1], theta[2:]
    centre = nodes.mode + nodes.slope @ (theta - nodes.theta)
    a = centre[:, None] + nodes.sd[:, None] * points
    offsets = padded.x @ w
    losses = [jnp.sum(padded.here * jax.nn.softplus(offsets + a[:, q, None]), axis=1) for q in range(_NODES)]
    rows = (padded.ones_x @ w)[:, None] + padded.ones[:, None] * a - jnp.stack(losses, axis=1)
    prior = -0.5 * ((a - loc) * jnp.exp(-log_s)) ** 2 - log_s
    terms = rows + prior + jnp.log(nodes.sd)[:, None] + points**2 / 2 + np.log(weights)
    totals = jax.nn.logsumexp(terms, axis=1)
    share = jnp.exp(terms - totals[:, None])
    # The half-normal prior of s, with the Jacobian of its logarithm.
    of_s = log_s - 0.5 * (jnp.exp(log_s) / GROUP_SD) ** 2
    log_prior = of_s - 0.5 * (loc / INTERCEPT_SD) ** 2 - 0.5 * jnp.sum((w / PRIOR_SD) ** 2)
    return log_prior + jnp.sum(totals), jnp.sum(share * a, axis=1), jnp.sum(share * a**2, axis=1)


def _newton_step(
    value: Callable[[np.ndarray], float], theta: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A step of Newton's method and the inverse of the negative Hessian, by central differences."""
    steps, d = _DIFFERENCE * np.diag(scale), len(theta)
    middle = value(theta)
    up, down = (np.array([value(theta + sign * step) for step in steps]) for sign in (1, -1))
    gradient, hessian = (up - down) / 2, np.diag(up + down - 2 * middle)
    for i in range(d):
        for j in range(i):
            both = value(theta + steps[i] + steps[j]) + value(theta - steps[i] - steps[j])
            hessian[i, j] = hessian[j, i] = 0.5 * (both - up[i] - down[i] - up[j] - down[j] + 2 * middle)
    values, vectors = np.linalg.eigh(-hessian)
    # Negative curvature, far from the mode, is taken for positive.
    inverse = vectors / np.maximum(np.abs(values), np.max(np.abs(values)) * 1e-9) @ vectors.T
    unit = np.diag(steps)
    return unit * (inverse @ gradient), inverse * np.outer(unit, unit)
