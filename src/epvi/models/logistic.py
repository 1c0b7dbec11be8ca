"""Hierarchical Bayesian logistic regression (the paper, section 5.1), and the covariates that all regressions share.

α ~ Gamma(a, b),  w ~ N(0, α⁻¹ I),  y_n ~ Bernoulli(logit⁻¹(wᵀx_n))
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from epvi import validation
from epvi.errors import EpviError
from epvi.float64 import AnyArray, is_traced


def logistic(x: AnyArray, y: AnyArray | None = None, *, a: float | int = 1.0, b: float | int = 0.01) -> None:
    """Labels y (n,) in {0, 1} from columns x (n, C); parameters alpha and w (C,).

    Gamma(a, b) has shape a and rate b. The model has no intercept of its own: give x a column of ones.
    """
    check_columns(x, y=y)
    check_positive(a=a, b=b)
    alpha = numpyro.sample("alpha", dist.Gamma(a, b))
    w = numpyro.sample("w", dist.Normal(0.0, alpha**-0.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", SmoothBernoulli(x @ w), obs=y)


class SmoothBernoulli(dist.BernoulliLogits):
    """A Bernoulli by its logits that is smooth at 0, where NumPyro's own has a wrong gradient: w = 0 is a usual start.

    A value other than 0 and 1 has density zero, so that labels coded −1 and 1 do not pass unnoticed.
    """

    def log_prob(self, value: Any) -> jax.Array:
        """y·logit − log(1 + exp(logit))."""
        logits = jnp.asarray(self.logits)
        return jnp.where((value == 0) | (value == 1), value * logits - jax.nn.softplus(logits), -jnp.inf)


def simulate_logistic(
    num_rows: int,
    num_columns: int,
    *,
    condition: float | int = 1.0,
    intercept: bool = False,
    alpha: float | int = 1.0,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rows x, y and the truth alpha, w: w ~ N(0, α⁻¹ I), columns as `draw_columns` makes them."""
    check_positive(alpha=alpha)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(scale=alpha**-0.5, size=num_columns)
    y = (rng.logistic(size=num_rows) < x @ w).astype(np.int64)
    return {"x": x, "y": y}, {"alpha": float(alpha), "w": w}


def draw_columns(
    rng: np.random.Generator, num_rows: int, num_columns: int, condition: float | int, intercept: bool
) -> np.ndarray:
    """Gaussian columns (n, C) whose covariance has variances from 1 down to 1/condition along random directions.

    With `intercept` the first column is 1 and the others are so correlated.
    """
    validation.at_least("num_rows", num_rows, 1)
    validation.at_least("num_columns", num_columns, 1)
    if not 1 <= condition < np.inf:
        raise EpviError(f"condition is {condition!r}: pass a number of at least 1 (1 makes the columns independent).")
    drawn = num_columns - int(intercept)
    directions, _ = np.linalg.qr(rng.normal(size=(drawn, drawn)))
    sd = np.geomspace(1.0, condition**-0.5, drawn)
    columns = (sd * rng.normal(size=(num_rows, drawn))) @ directions.T
    return np.hstack([np.ones((num_rows, int(intercept))), columns])


def check_columns(x: AnyArray, **others: AnyArray | None) -> None:
    """Refuse x that is not (n, C), and other columns that are not (n,): (n, 1) would broadcast to n × n densities."""
    if jnp.ndim(x) != 2:
        raise EpviError(f"x has shape {jnp.shape(x)}: pass rows by columns, for example x[:, None] for one column.")
    for name, column in others.items():
        if column is not None and jnp.shape(column) != (x.shape[0],):
            raise EpviError(f"{name} has shape {jnp.shape(column)}: pass one value for each of the {x.shape[0]} rows.")


def check_positive(**settings: Any) -> None:
    """Refuse settings that are not positive numbers."""
    for name, value in settings.items():
        if not is_traced(value) and not 0 < value < np.inf:
            raise EpviError(f"{name} is {value!r}: pass a positive number.")
