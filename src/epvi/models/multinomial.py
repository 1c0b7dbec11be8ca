"""Multinomial logistic (softmax) regression with class 0 as the reference class, which identifies the coefficients.

w_k ~ N(0, σ_w² I) for k = 1..K−1,  w_0 = 0,  P(y_n = k) ∝ exp(w_kᵀx_n)
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from epvi.ground import validation
from epvi.ground.float64 import AnyArray
from epvi.models.columns import check_columns, check_positive, draw_columns


def multinomial(x: AnyArray, y: AnyArray | None = None, *, num_classes: int, sigma_w2: float | int = 10.0) -> None:
    """Classes y (n,) in 0..num_classes−1 from the design matrix x (n, C).

    The parameter is w (num_classes − 1, C), row k−1 for class k. Its prior variance 10 is weakly informative for
    standardised columns: judgement. There is no implicit intercept: give x a column of ones. A label outside the
    classes has density NaN.
    """
    check_columns(x, y=y)
    check_positive(sigma_w2=sigma_w2)
    shape = [validation.at_least("num_classes", num_classes, 2) - 1, x.shape[1]]
    w = numpyro.sample("w", dist.Normal(0.0, sigma_w2**0.5).expand(shape).to_event(2))
    logits = jnp.pad(x @ jnp.transpose(w), ((0, 0), (1, 0)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.CategoricalLogits(logits), obs=_labels(y, num_classes))


def _labels(y: AnyArray | None, num_classes: int) -> AnyArray | None:
    """Labels as integers (files often hold them as floats); invalid labels become `num_classes`.

    As an index, that is out of bounds and gives NaN, which nobody overlooks; a negative one would count from the end.
    """
    if y is None:
        return None
    return jnp.where((y >= 0) & (y < num_classes) & (y % 1 == 0), y, num_classes).astype(int)


def simulate_multinomial(
    num_rows: int,
    num_columns: int,
    *,
    num_classes: int,
    condition: float | int = 1.0,
    intercept: bool = False,
    sigma_w2: float | int = 1.0,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rows x, y and the true w: w_k ~ N(0, σ_w² I), x from `draw_columns`."""
    validation.at_least("num_classes", num_classes, 2)
    check_positive(sigma_w2=sigma_w2)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(scale=sigma_w2**0.5, size=(num_classes - 1, num_columns))
    logits = np.pad(x @ w.T, ((0, 0), (1, 0)))
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return {"x": x, "y": y}, {"w": w}
