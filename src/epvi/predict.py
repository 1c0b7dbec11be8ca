"""A posterior and a model meet rows again: held-out likelihood and predictive draws."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Predictive
from scipy.special import logsumexp

from epvi.errors import EpviError
from epvi.float64 import promotion_allowed
from epvi.hub.posterior import Posterior
from epvi.seeds import Seed, as_key
from epvi.site.assembly import Table
from epvi.site.inspection import what_is_observed
from epvi.site.model import DensityModel, Model
from epvi.site.recipe import read_rows, with_constants
from epvi.site.shard import as_model
from epvi.site.tracing import failed, one_trace
from epvi.space import Space
from epvi.validation import at_least

# Log likelihoods of rows by draws that are held at once.
_BLOCK = 2**20

_OF_THE_FIT = "pass those that the model was fitted with, standardise={column: (centre, scale)}."


def log_predictive(
    model: Model | Callable, posterior: Posterior, rows: Any, *, num_samples: int = 1000, seed: Seed = 0
) -> float:
    """The mean over rows of log (1/S) Σ_s p(row | θ_s), with S draws of the posterior: the held-out log likelihood."""
    _check_posterior(posterior)
    model, columns = as_model(model), read_rows(with_constants(rows, _OF_THE_FIT)).columns
    programs = model.programs(columns)
    _same_space(posterior, programs.target.space)
    draws = posterior.mixture.sample(at_least("num_samples", num_samples, 1), seed=seed)
    n = len(next(iter(columns.values())))
    size = min(n, max(1, _BLOCK // num_samples))
    total = 0.0
    with jax.enable_x64(True):
        theta = jnp.asarray(draws)
        for start in range(0, n, size):
            # The last block takes rows from the end again, so that all blocks have one shape.
            first = min(start, n - size)
            block = {name: column[first : first + size] for name, column in columns.items()}
            logs = np.asarray(programs.rows()(theta, block))[:, start - first :]
            total += float(np.sum(logsumexp(logs, axis=0))) - logs.shape[1] * np.log(num_samples)
    return total / n


def predict(
    model: Model | Callable, posterior: Posterior, rows: Any, *, num_samples: int = 1000, seed: Seed = 0
) -> dict[str, np.ndarray]:
    """Draws of what the model observes, and of its deterministic sites, for rows without the observed columns.

    Every array has shape (num_samples, ...), as from NumPyro's `Predictive`.
    """
    _check_posterior(posterior)
    model = as_model(model)
    if isinstance(model, DensityModel):
        raise EpviError("a model made of log densities cannot draw rows: write it as a NumPyro function to predict.")
    table = read_rows(with_constants(rows, _OF_THE_FIT), optional=model.optional)
    columns = table.columns
    model.columns(list(columns))
    observed, latent = what_is_observed(model.function, model.fixed, {**columns, **_stand_ins(table)})
    for argument in table.left_out:
        if argument.name not in observed:
            raise EpviError(
                f"the rows have no column {argument.sources[0]!r}, of which {argument.name} is made: only what the"
                " model observes can be left out."
            )
    strange = [name for name in posterior.space.by_name if name not in latent]
    if strange:
        raise EpviError(
            f"the posterior has a parameter {strange[0]!r}, which the model does not have:"
            " pass the model that the posterior was fitted with."
        )
    given = {name: column for name, column in columns.items() if name not in observed}
    if not given:
        raise EpviError("all columns of the rows are observed ones: pass at least one that the model takes as given.")
    key = as_key(seed)
    draws = posterior.sample(at_least("num_samples", num_samples, 1), seed=jax.random.fold_in(key, 0))
    with one_trace, jax.enable_x64(True), promotion_allowed():
        drawing = Predictive(model.function, posterior_samples={n: jnp.asarray(v) for n, v in draws.items()})
        arguments = {name: jnp.asarray(column) for name, column in given.items()}
        try:
            made = drawing(jax.random.fold_in(key, 1), **model.fixed, **arguments)
        except Exception as error:
            raise failed(error) from error
    # Factors are observed but have nothing to show.
    return {name: np.asarray(value) for name, value in made.items() if value.size}


def _stand_ins(table: Table) -> dict[str, np.ndarray]:
    """Columns of the right shape for arguments that were left out, to see whether they are what the model observes."""
    return {
        argument.name: np.zeros((table.num_rows, len(argument.sources)) if argument.is_matrix else table.num_rows)
        for argument in table.left_out
    }


def _check_posterior(posterior: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")


def _same_space(posterior: Posterior, space: Space) -> None:
    if posterior.space.signature() != space.signature():
        raise EpviError(
            f"the posterior has the parameters ({posterior.space.describe()}) and the model ({space.describe()}):"
            " pass the model that the posterior was fitted with."
        )
