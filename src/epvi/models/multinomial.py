"""Softmax regression, with class 0 as the reference so that the coefficients are identified.

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
    """Classes y (n,) in 0..num_classes−1 from columns x (n, C); parameter w (num_classes − 1, C), row k−1 for class k.

    The model has no intercept of its own: give x a column of ones. A label outside the classes has density NaN.
    """
    check_columns(x, y=y)
    check_positive(sigma_w2=sigma_w2)
    shape = [validation.at_least("num_classes", num_classes, 2) - 1, x.shape[1]]
    w = numpyro.sample("w", dist.Normal(0.0, sigma_w2**0.5).expand(shape).to_event(2))
    logits = jnp.pad(x @ jnp.transpose(w), ((0, 0), (1, 0)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.CategoricalLogits(logits), obs=_labels(y, num_classes))


def _labels(y: AnyArray | None, num_classes: int) -> AnyArray | None:
    """Labels as integers (files often hold them as floats), with one past the end for what is no label.

    A negative index would count from the last class; one past the end gives NaN, which nobody overlooks.
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
    """Rows x, y and the truth w: w_k ~ N(0, σ_w² I), columns as `logistic.draw_columns` makes them."""
    validation.at_least("num_classes", num_classes, 2)
    check_positive(sigma_w2=sigma_w2)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(scale=sigma_w2**0.5, size=(num_classes - 1, num_columns))
    logits = np.pad(x @ w.T, ((0, 0), (1, 0)))
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return {"x": x, "y": y}, {"w": w}
