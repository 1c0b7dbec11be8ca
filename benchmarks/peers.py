"""Peers of epvi in tall.py: Newton's method (the reference), scikit-learn's point estimate, and NumPyro's SVI.

All fit the model of `epvi.models.logistic` to columns x (n, V) and labels y (n,); scikit-learn uses its default penalty
instead of the prior.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import sklearn  # pyright: ignore[reportMissingImports] (only the extra `bench` has it)
from newton import BLOCK, logistic_derivatives
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoContinuous, AutoGuide, AutoMultivariateNormal, AutoNormal
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

Rows = dict[str, np.ndarray]

# The prior of `epvi.models.logistic`: alpha ~ Gamma(a, b), w ~ N(0, I/alpha).
_A, _B = 1.0, 0.01
# SVI has converged when its held-out NLL is within this many nats of the reference's, and all sds within this fraction.
NATS, SD_ERROR = 1e-4, 0.1
# Most held-out rows for checking this.
_MOST_CHECKED = 100_000


class Gaussian(NamedTuple):
    """The posterior of the coefficients; the covariance of a point estimate is zero."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))


class Fitted(NamedTuple):
    """The result of a peer, and its number of iterations or steps."""

    found: Gaussian
    iterations: int


def newton(rows: Rows) -> Fitted:
    """The mode of (w, log alpha) and Laplace's covariance of w, in float64, with all rows at every iteration."""
    x, y = rows["x"], rows["y"]
    w, step, curvature = np.zeros(x.shape[1]), np.inf, np.eye(x.shape[1])
    alpha, shape, iterations = 1.0, _A + len(w) / 2, 0
    while np.max(np.abs(step) * np.sqrt(np.diag(curvature))) > 1e-6:
        gradient, curvature = logistic_derivatives(x, y, w)
        gradient, curvature = gradient - alpha * w, curvature + alpha * np.eye(len(w))
        step = np.linalg.solve(curvature, gradient)
        w, iterations = w + step, iterations + 1
        alpha = shape / (_B + w @ w / 2)  # the maximum over alpha, given w
    # Minus the second derivative by log alpha is alpha (b + w'w/2) = a + V/2, and by log alpha and w it is alpha w.
    return Fitted(Gaussian(w, np.linalg.inv(curvature - np.outer(alpha * w, alpha * w) / shape)), iterations)


def scikit_learn(rows: Rows) -> Fitted:
    """A point estimate with scikit-learn's defaults, but without an intercept, which x does not need."""
    made = LogisticRegression(fit_intercept=False).fit(rows["x"], rows["y"])
    w = np.asarray(made.coef_[0], np.float64)
    return Fitted(Gaussian(w, np.zeros((len(w), len(w)))), int(made.n_iter_[0]))


def scikit_learn_said() -> str:
    settings = LogisticRegression().get_params()
    return (
        f"scikit-learn {sklearn.__version__}: {settings['solver']}, C = {settings['C']:g}, until no derivative of the"
        f" mean loss is above {settings['tol']:g} or after {settings['max_iter']} iterations"
    )


def nll(gaussian: Gaussian, rows: Rows) -> float:
    """Minus the mean over rows of log ∫ p(y | x, w) N(w) dw, by quadrature over the logit, which is normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    total = 0.0
    for start in range(0, len(rows["y"]), BLOCK):
        block = rows["x"][start : start + BLOCK].astype(np.float64)
        sign = 2.0 * rows["y"][start : start + BLOCK] - 1
        sd = np.sqrt(np.einsum("ni,ij,nj->n", block, gaussian.covariance, block, optimize=True))
        logits = (block @ gaussian.mean)[:, None] + sd[:, None] * nodes
        average = np.exp(log_expit(sign[:, None] * logits)) @ (weights / np.sum(weights))
        total -= float(np.sum(np.log(average)))
    return total / len(rows["y"])


def accuracy(mean: np.ndarray, rows: Rows) -> float:
    return float(np.mean((rows["x"] @ mean.astype(np.float32) > 0) == rows["y"]))


def model(x: Any, y: Any, scale: float) -> None:
    """As `epvi.models.logistic`; `scale` is the number of rows that each of these stands for."""
    alpha = numpyro.sample("alpha", dist.Gamma(_A, _B))
    w = numpyro.sample("w", dist.Normal(0.0, alpha**-0.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)), numpyro.handlers.scale(scale=scale):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


class Kind(NamedTuple):
    """Settings of SVI with Adam, whose step size is `step` / (1 + i / `half`) after i steps."""

    name: str
    guide: Callable[..., AutoGuide]
    batch: int | None  # rows per step; None for all
    step: float
    half: int
    between: int  # steps between two checks of the stopping rule


KINDS = (
    Kind("AutoNormal, all rows", AutoNormal, None, 0.05, 3000, 10),
    Kind("AutoNormal, batches", AutoNormal, 10_000, 0.02, 5000, 500),
    Kind("AutoMultivariateNormal, all rows", AutoMultivariateNormal, None, 0.05, 3000, 10),
    Kind("AutoMultivariateNormal, batches", AutoMultivariateNormal, 10_000, 0.02, 5000, 500),
)


class Run(NamedTuple):
    """The result of an SVI run."""

    seconds: float  # without compilation and checks
    steps: int
    reached: bool  # whether it converged
    nll: float  # minus the reference's
    ratios: np.ndarray  # of sds to the reference's


def svi(kind: Kind, rows: Rows, held_out: Rows, reference: Gaussian, seconds: float) -> Run:
    """Run until it has converged, or for this many seconds."""
    checked = {name: column[:_MOST_CHECKED] for name, column in held_out.items()}
    best = nll(reference, checked)
    x, y = jnp.asarray(rows["x"]), jnp.asarray(rows["y"], jnp.float32)
    zero = {"alpha": jnp.ones(()), "w": jnp.zeros(x.shape[1])}
    guide = kind.guide(model, init_loc_fn=init_to_value(values=zero), init_scale=0.01)
    adam = numpyro.optim.Adam(lambda i: kind.step / (1 + i / kind.half))
    engine = SVI(model, guide, adam, Trace_ELBO())
    batch = min(kind.batch or len(y), len(y))
    state = engine.init(jax.random.key(0), x[:batch], y[:batch], 1.0)

    def one(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        start = jax.random.randint(key, (), 0, len(y) - batch + 1)  # rows are i.i.d., so any consecutive ones will do
        part = (jax.lax.dynamic_slice_in_dim(column, start, batch) for column in (x, y)) if kind.batch else (x, y)
        return engine.update(carry, *part, len(y) / batch)

    many = jax.jit(lambda state, key: jax.lax.scan(one, state, jax.random.split(key, kind.between))[0])
    many = many.lower(state, jax.random.key(0)).compile()
    spent, steps = 0.0, 0
    while True:
        start = time.perf_counter()
        state = jax.block_until_ready(many(state, jax.random.key(steps)))
        spent, steps = spent + time.perf_counter() - start, steps + kind.between
        found = _coefficients(guide, engine.get_params(state))
        above, ratios = nll(found, checked) - best, found.sd / reference.sd
        reached = bool(above <= NATS and np.max(np.abs(ratios - 1)) <= SD_ERROR)
        if reached or spent > seconds:
            return Run(spent, steps, reached, above, ratios)


def _coefficients(guide: AutoGuide, parameters: Any) -> Gaussian:
    if isinstance(guide, AutoContinuous):
        joint: Any = guide.get_posterior(parameters)  # of (log alpha, w)
        return Gaussian(*(np.asarray(part, np.float64) for part in (joint.loc[1:], joint.covariance_matrix[1:, 1:])))
    sd = np.asarray(parameters["w_auto_scale"], np.float64)
    return Gaussian(np.asarray(parameters["w_auto_loc"], np.float64), np.diag(sd**2))
