"""Posterior prediction for new rows: held-out log likelihood and posterior predictive draws."""

from collections.abc import Callable, Container
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from epvi.ground.errors import EpviError
from epvi.ground.seeds import PredictionStream, Seed, as_key
from epvi.ground.validation import at_least
from epvi.ground.verb import verb
from epvi.hub.posterior.posterior import Posterior
from epvi.site.derivatives.passes import programs_of
from epvi.site.model.model import DensityModel, Model
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.rows import with_constants
from epvi.site.rows.table import Table
from epvi.site.tasks.fit_shard import as_model
from epvi.site.tasks.predictive import RowSites, drawn, log_likelihoods, num_rows, row_sites, same_coding, same_space
from epvi.site.tasks.site_effects import DrawsForRows, declared_groups, draws_for, site_rows

# How to standardise new rows: the remedy when they would use their own mean and sd.
_OF_THE_FIT = "pass those that the model was fitted with, standardise={column: (centre, scale)}."


# `num_samples` defaults to 1,000 posterior draws, here and in `predict`: a Monte Carlo error of 1/√1000, 3 % of a
# posterior sd, in means over draws. Judgement.
@verb("the predictive density")
def log_predictive(
    model: Model | Callable,
    posterior: Posterior,
    rows: Any,
    *,
    given: Any = None,
    num_samples: int = 1000,
    seed: Seed = 0,
) -> float:
    """The held-out log likelihood per row: the mean over rows of log (1/S) Σ_s p(row | θ_s), with S posterior draws.

    `given` are rows of known groups, as in `predict`.
    """
    _check_posterior(posterior)
    model = as_model(model)
    table = _table(model, posterior, rows, given)
    if model.groups is None:
        columns = table.columns
        programs = programs_of(model, columns)
        same_space(posterior.space, programs.target.space)
        theta = posterior.theta(num_samples, seed=seed)
    else:
        made, columns = _of_groups(model, posterior, table, given, num_samples, as_key(seed)), table.columns
        programs = programs_of(made.model, columns)
        theta = programs.target.space.unconstrain(made.values)
    total = 0.0
    for logs in log_likelihoods(programs, columns, theta):
        total += float(np.sum(np.asarray(logsumexp(logs, axis=0)))) - logs.shape[1] * np.log(num_samples)
    return total / num_rows(columns)


@verb("the predicted draws")
def predict(
    model: Model | Callable,
    posterior: Posterior,
    rows: Any,
    *,
    given: Any = None,
    num_samples: int = 1000,
    seed: Seed = 0,
) -> dict[str, np.ndarray]:
    """Posterior predictive draws of the observed variables, and of `numpyro.deterministic` ones, for given rows.

    The rows may lack the observed columns. Every array has shape (num_samples, ...), as from NumPyro's `Predictive`;
    the default is that of `log_predictive`. For a model with `groups=`, `given` are the site's rows of groups that are
    known: their effects are drawn from their posterior, those of all other groups from their distribution given the
    shared parameters.
    """
    _check_posterior(posterior)
    model = as_model(model)
    if isinstance(model, DensityModel):
        raise EpviError("a model made of log densities cannot draw rows: write it as a NumPyro function to predict.")
    table = _table(model, posterior, rows, given, optional=model.optional)
    columns = table.columns
    model.columns(list(columns))
    full = model.with_groups(1 if table.groups is None else len(table.groups))
    sites = _sites(full, table)
    _check_parameters(posterior, sites)
    key = as_key(seed)
    draws_key, rows_key = (jax.random.fold_in(key, one) for one in (PredictionStream.DRAWS, PredictionStream.ROWS))
    at_least("num_samples", num_samples, 1)
    if model.groups is None:
        draws = posterior.sample(num_samples, seed=draws_key)
    else:
        draws = _of_groups(model, posterior, table, given, num_samples, draws_key).values
    return drawn(full.function, full.fixed, columns, draws, sites.observed, rows_key)


def _table(model: Model, posterior: Posterior, rows: Any, given: Any, optional: Container[str] = ()) -> Table:
    """The rows, coded like those that were fitted."""
    made_of = posterior.fits[0].made_of
    if given is not None and model.groups is None:
        raise EpviError(
            "given are rows of known groups, and the model has no groups: leave it out, or pass an"
            " epvi.Model(..., groups=...)."
        )
    described, undeclared = with_constants(rows, _OF_THE_FIT), Undeclared(fitted=made_of.levels)
    table = read_grouped(described, model.groups, optional=optional, undeclared=undeclared)
    same_coding(made_of, table)
    return table


def _of_groups(
    model: Model, posterior: Posterior, table: Table, given: Any, num_samples: int, key: jax.Array
) -> DrawsForRows:
    """Draws of all parameters of a model with groups."""
    made_of = posterior.fits[0].made_of
    declared_groups(model, made_of)
    known = None if given is None else site_rows(model, given, posterior.space, made_of)
    shared, effects = jax.random.split(key)
    phi = posterior.theta(num_samples, seed=shared)
    return draws_for(model, table, known, posterior.space, phi, effects)


def _check_parameters(posterior: Posterior, sites: RowSites) -> None:
    """Refuse a model that lacks parameters of the posterior, or has them in another shape."""
    strange = [name for name in posterior.space.by_name if name not in sites.latent]
    if strange:
        raise EpviError(
            f"the posterior has a parameter {strange[0]!r}, which the model does not have:"
            " pass the model that the posterior was fitted with."
        )
    for name, parameter in posterior.space.by_name.items():
        if sites.latent[name] != parameter.shape:
            raise EpviError(
                f"the parameter {name!r} has the shape {parameter.shape} in the posterior and {sites.latent[name]} in"
                " the model with these rows: pass the columns, and the model, that the posterior was fitted with."
            )


def _sites(model: Model, table: Table) -> RowSites:
    """The NumPyro sites of the model with all its arguments; an error if a missing one is not an observed column."""
    given = {**table.columns, **_in_their_place(table)}
    sites = row_sites(model.function, model.fixed, given)
    for argument in table.left_out:
        without = {name: column for name, column in given.items() if name != argument.name}
        if set(row_sites(model.function, model.fixed, without).observed) == set(sites.observed):
            raise EpviError(
                f"the rows have no column {argument.sources[0]!r}, of which {argument.name} is made: only what the"
                " model observes can be left out."
            )
    return sites


def _in_their_place(table: Table) -> dict[str, np.ndarray]:
    """Zeros in place of the arguments that the rows lack, to find out whether the model observes them."""
    return {
        argument.name: np.zeros((table.num_rows, len(argument.sources)) if argument.is_matrix else table.num_rows)
        for argument in table.left_out
    }


def _check_posterior(posterior: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")
