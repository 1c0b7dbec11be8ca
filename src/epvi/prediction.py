"""Posterior prediction for new rows: held-out log likelihood and posterior predictive draws."""

from collections.abc import Callable, Container
from typing import Any

import jax
import numpy as np

from epvi.engines.engine import Engine
from epvi.fragments.pieces import engine_for
from epvi.fragments.predicting import DrawsOfFit, draws_placed, log_densities_placed
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
from epvi.site.tasks.predictive import drawn, log_mean_densities, num_rows, same_coding, same_space
from epvi.site.tasks.sent_model import packed
from epvi.site.tasks.site_effects import DrawsForRows, declared_groups, draws_for, site_rows
from epvi.site.tasks.sites_of_rows import check_parameters, sites_of

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
    engine: Engine | None = None,
) -> float:
    """The held-out log likelihood per row: the mean over rows of log (1/S) Σ_s p(row | θ_s), with S posterior draws.

    `given` are rows of known groups, as in `predict`. With an `engine` rows are in files or partitions, as in
    `epvi.fit`, and their log likelihoods are computed where they are.
    """
    _check_posterior(posterior)
    model, where = as_model(model), engine_for(rows, engine)
    if where is not None:
        _refuse_groups(model, given)
        theta = posterior.theta(num_samples, seed=seed)
        drawn_here = DrawsOfFit(packed(model), posterior.space, posterior.fits[0].made_of, theta)
        return log_densities_placed(where, with_constants(rows, _OF_THE_FIT), drawn_here)
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
    return log_mean_densities(programs, columns, theta) / num_rows(columns)


@verb("the predicted draws")
def predict(
    model: Model | Callable,
    posterior: Posterior,
    rows: Any,
    *,
    given: Any = None,
    num_samples: int = 1000,
    seed: Seed = 0,
    engine: Engine | None = None,
) -> dict[str, np.ndarray]:
    """Posterior predictive draws of the observed variables, and of `numpyro.deterministic` ones, for given rows.

    The rows may lack the observed columns. Every array has shape (num_samples, ...), as from NumPyro's `Predictive`;
    the default is that of `log_predictive`. For a model with `groups=`, `given` are the site's rows of groups that are
    known: their effects are drawn from their posterior, those of all other groups from their distribution given the
    shared parameters. With an `engine` rows are in files or partitions, as in `epvi.fit`, and are predicted where they
    are; all draws come back, in the order of the rows.
    """
    _check_posterior(posterior)
    model, where = as_model(model), engine_for(rows, engine)
    if isinstance(model, DensityModel):
        raise EpviError("a model made of log densities cannot draw rows: write it as a NumPyro function to predict.")
    at_least("num_samples", num_samples, 1)
    key = as_key(seed)
    draws_key, rows_key = (jax.random.fold_in(key, one) for one in (PredictionStream.DRAWS, PredictionStream.ROWS))
    if where is not None:
        _refuse_groups(model, given)
        theta = posterior.theta(num_samples, seed=draws_key)
        drawn_here = DrawsOfFit(packed(model), posterior.space, posterior.fits[0].made_of, theta)
        return draws_placed(where, with_constants(rows, _OF_THE_FIT), drawn_here, rows_key)
    table = _table(model, posterior, rows, given, optional=model.optional)
    columns = table.columns
    model.columns(list(columns))
    full = model.with_groups(1 if table.groups is None else len(table.groups))
    sites = sites_of(full, table)
    check_parameters(posterior.space, sites)
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


def _refuse_groups(model: Model, given: Any) -> None:
    if model.groups is not None or given is not None:
        raise EpviError(
            "groups that stay with their rows are predicted where all rows of a group are: leave engine out, or"
            " leave out groups= and given=."
        )


def _check_posterior(posterior: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")
