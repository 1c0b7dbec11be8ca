"""Hierarchical Bayesian logistic regression (section 5.1 of Neiswanger, Wang & Xing 2015).

α ~ Gamma(a, b),  w ~ N(0, α⁻¹ I),  y_n ~ Bernoulli(logit⁻¹(wᵀx_n))
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from epvi.ground.float64 import AnyArray
from epvi.models.columns import check_columns, check_positive, draw_columns


def logistic(x: AnyArray, y: AnyArray | None = None, *, a: float | int = 1.0, b: float | int = 0.01) -> None:
    """Labels y (n,) in {0, 1} from the design matrix x (n, C); parameters alpha and w (C,).

    Gamma(a, b) has shape a and rate b; the defaults are those of Gershman, Hoffman & Blei (2012). There is no implicit
    intercept: give x a column of ones.
    """
    check_columns(x, y=y)
    check_positive(a=a, b=b)
    alpha = numpyro.sample("alpha", dist.Gamma(a, b))
    w = numpyro.sample("w", dist.Normal(0.0, alpha**-0.5).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", SmoothBernoulli(x @ w), obs=y)


class SmoothBernoulli(dist.BernoulliLogits):
    """A Bernoulli with logits whose gradient is right at logit 0, a usual start, where that of NumPyro's own is wrong.

    A value other than 0 and 1 has density zero, so that labels coded as −1 and 1 do not go unnoticed.
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
    """Rows x, y and the true alpha, w: w ~ N(0, α⁻¹ I), x from `draw_columns`."""
    check_positive(alpha=alpha)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(scale=alpha**-0.5, size=num_columns)
    y = (rng.logistic(size=num_rows) < x @ w).astype(np.int64)
    return {"x": x, "y": y}, {"alpha": float(alpha), "w": w}
