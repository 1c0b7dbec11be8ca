"""A posterior and a model meet rows again: held-out likelihood and predictive draws."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from epvi.errors import EpviError
from epvi.hub.posterior import Posterior
from epvi.seeds import Seed, as_key
from epvi.site.model import DensityModel, Model
from epvi.site.replies import drawn, log_likelihoods, num_rows, row_sites, same_space
from epvi.site.rows import as_columns
from epvi.site.shard import as_model
from epvi.validation import at_least


def log_predictive(
    model: Model | Callable, posterior: Posterior, rows: Any, *, num_samples: int = 1000, seed: Seed = 0
) -> float:
    """The mean over rows of log (1/S) Σ_s p(row | θ_s), with S draws of the posterior: the held-out log likelihood."""
    _check_posterior(posterior)
    model, columns = as_model(model), as_columns(rows)
    programs = model.programs(columns)
    same_space(posterior.space, programs.target.space)
    theta = np.asarray(posterior.mixture.sample(at_least("num_samples", num_samples, 1), seed=seed))
    total = 0.0
    for logs in log_likelihoods(programs, columns, theta):
        total += float(np.sum(np.asarray(logsumexp(logs, axis=0)))) - logs.shape[1] * np.log(num_samples)
    return total / num_rows(columns)


def predict(
    model: Model | Callable, posterior: Posterior, rows: Any, *, num_samples: int = 1000, seed: Seed = 0
) -> dict[str, np.ndarray]:
    """Draws of what the model observes, and of its deterministic sites, for rows with or without observed columns.

    Every array has shape (num_samples, ...), as from NumPyro's `Predictive`.
    """
    _check_posterior(posterior)
    model, columns = as_model(model), as_columns(rows)
    if isinstance(model, DensityModel):
        raise EpviError("a model made of log densities cannot draw rows: write it as a NumPyro function to predict.")
    model.columns(list(columns))
    sites = row_sites(model.function, model.fixed, columns)
    strange = [name for name in posterior.space.by_name if name not in sites.latent]
    if strange:
        raise EpviError(
            f"the posterior has a parameter {strange[0]!r}, which the model does not have:"
            " pass the model that the posterior was fitted with."
        )
    key = as_key(seed)
    draws = posterior.sample(at_least("num_samples", num_samples, 1), seed=jax.random.fold_in(key, 0))
    return drawn(model.function, model.fixed, columns, draws, sites.observed, jax.random.fold_in(key, 1))


def _check_posterior(posterior: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")
