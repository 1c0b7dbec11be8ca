"""Linear regression with Student-t errors, which is robust against outliers.

w ~ N(0, σ_w² I),  σ ~ HalfCauchy(s),  ν ~ Gamma(2, 0.1),  y_n ~ StudentT(ν, wᵀx_n, σ)
"""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from epvi.ground.float64 import AnyArray
from epvi.models.columns import check_columns, check_positive, draw_columns


def robust_linear(
    x: AnyArray,
    y: AnyArray | None = None,
    *,
    sigma_w2: float | int = 100.0,
    s: float | int = 2.5,
    nu: float | int | None = None,
) -> None:
    """Numbers y (n,) from the design matrix x (n, C); parameters w (C,), sigma and, unless `nu` is given, nu.

    The default priors are weakly informative if y and the columns of x are roughly standardised: σ_w² = 100 and s = 2.5
    are judgement, ν ~ Gamma(2, 0.1) is from Juárez & Steel (2010). There is no implicit intercept: give x a column of
    ones.
    """
    check_columns(x, y=y)
    check_positive(sigma_w2=sigma_w2, s=s, nu=1 if nu is None else nu)
    w = numpyro.sample("w", dist.Normal(0.0, sigma_w2**0.5).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(s))
    df = numpyro.sample("nu", dist.Gamma(2.0, 0.1)) if nu is None else nu
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(df, x @ w, sigma), obs=y)


def simulate_robust_linear(
    num_rows: int,
    num_columns: int,
    *,
    condition: float | int = 1.0,
    intercept: bool = False,
    sigma: float | int = 1.0,
    nu: float | int = 4.0,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rows x, y and the true w, sigma, nu: w ~ N(0, I), x from `draw_columns`.

    The default ν = 4 gives heavy tails with a finite variance: judgement.
    """
    check_positive(sigma=sigma, nu=nu)
    rng = np.random.default_rng(seed)
    x = draw_columns(rng, num_rows, num_columns, condition, intercept)
    w = rng.normal(size=num_columns)
    y = x @ w + sigma * rng.standard_t(nu, size=num_rows)
    return {"x": x, "y": y}, {"w": w, "sigma": float(sigma), "nu": float(nu)}
