"""Poisson regression with a log link.

w ~ N(0, σ_w² I),  y_n ~ Poisson(e_n exp(wᵀx_n)),  e_n the exposure of row n (1 without that column)
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from epvi.ground.float64 import AnyArray
from epvi.models.columns import check_columns, check_positive, draw_columns


def poisson(
    x: AnyArray,
    y: AnyArray | None = None,
    exposure: AnyArray | None = None,
    *,
    sigma_w2: float | int = 10.0,
) -> None:
    """Counts y (n,) from the design matrix x (n, C) and positive exposures (n,); parameter w (C,).

    The prior variance 10 of w is weakly informative for standardised columns: judgement. There is no implicit
    intercept: give x a column of ones.
    """
    check_columns(x, y=y, exposure=exposure)
    check_positive(sigma_w2=sigma_w2)
    w = numpyro.sample("w", dist.Normal(0.0, sigma_w2**0.5).expand([x.shape[1]]).to_event(1))
    log_rate = x @ w if exposure is None else x @ w + jnp.log(exposure)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", PoissonLogRate(log_rate), obs=y)


class PoissonLogRate(dist.Poisson):
    """A Poisson distribution given the log of its rate, whose Hessian stays finite where the rate underflows.

    A value that is not a count has density zero.
    """

    arg_constraints = {"log_rate": constraints.real}  # noqa: RUF012
    pytree_data_fields = ("rate",)

    def __init__(self, log_rate: Any, *, validate_args: bool | None = None) -> None:
        self.log_rate = log_rate
        super().__init__(jnp.exp(log_rate), validate_args=validate_args)

    def log_prob(self, value: Any) -> jax.Array:
        """y·log rate − rate − log y!."""
        is_count = (value >= 0) & (value % 1 == 0)
        count = jnp.where(is_count, value, 0) * 1.0
        return jnp.where(is_count, count * self.log_rate - self.rate - gammaln(count + 1.0), -jnp.inf)


def simulate_poisson(
    num_rows: int,
    num_columns: int,
    *,
    condition: float | int = 1.0,
    intercept: bool = False,
    with_exposure: bool = False,
    sigma_w2: float | int = 0.1,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rows x, y (and exposure) and the true w: w ~ N(0, σ_w² I), x from `draw_columns`, exposure ~ Uniform(0.5, 2).

    The default σ_w² = 0.1 keeps the counts of ten or so columns small: judgement.
    """
    check_positive(sigma_w2=sigma_w2)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(scale=sigma_w2**0.5, size=num_columns)
    exposure = rng.uniform(0.5, 2.0, size=num_rows) if with_exposure else np.ones(num_rows)
    rows = {"x": x, "y": rng.poisson(exposure * np.exp(x @ w))}
    return (rows | {"exposure": exposure} if with_exposure else rows), {"w": w}
