"""Heart disease at four hospitals: hierarchical logistic regressions, ordinary NumPyro models.

`x` has the columns of NAMES in that order (cholesterol is last, so that a study can leave it out), `site` is the index
of the hospital in SITES, and `num` the diagnosis from 0 to 4, of which only "not 0" means the same at all hospitals:

    τ ~ LogNormal(0, ½),  w_j ~ N(0, τ²),  baseline ~ N(0, 1.5²),  [num > 0] ~ Bernoulli(logit⁻¹(baseline + wᵀx))

The parametrisation is centred, and the prior of τ is Gaussian in log τ and avoids 0. A hundred rows determine most w_j
better than τ does, so the posterior has no funnel. In the non-centred parametrisation w_j = τ z_j the subposteriors are
banana-shaped, and Gaussians approximate them poorly.
"""

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

NAMES = ("age", "sex", "cp_2", "cp_3", "cp_4", "trestbps", "thalach", "exang", "oldpeak", "chol")
SITES = ("cleveland", "hungarian", "switzerland", "va")


def one_baseline(x: Any, num: Any = None) -> None:
    """One baseline for all hospitals."""
    _diagnoses(numpyro.sample("baseline", _BASELINE), x, num)


def baseline_per_site(x: Any, site: Any, num: Any = None) -> None:
    """A baseline for each hospital. Every shard has all four as parameters; its rows are informative about one."""
    baselines = jnp.stack([numpyro.sample(f"baseline_{name}", _BASELINE) for name in SITES])
    _diagnoses(baselines[site], x, num)


_BASELINE = dist.Normal(0.0, 1.5)


def _diagnoses(baseline: Any, x: Any, num: Any) -> None:
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    w = jnp.stack([numpyro.sample(f"w_{name}", dist.Normal(0.0, tau)) for name in NAMES[: x.shape[1]]])
    with numpyro.plate("rows", x.shape[0]):
        ill = None if num is None else num > 0
        numpyro.sample("ill", dist.Bernoulli(logits=baseline + x @ w), obs=ill)
