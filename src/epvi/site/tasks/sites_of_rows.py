"""The NumPyro sites of a model with rows that may lack what it observes, and whether they are those of a posterior.

Takes a model and a table of rows; gives the roles of its sites in prediction, or refuses rows that lack something else.
"""

import numpy as np

from epvi.ground.errors import EpviError
from epvi.parameters.space import Space
from epvi.site.model.model import Model
from epvi.site.rows.table import Table
from epvi.site.tasks.predictive import RowSites, row_sites


def sites_of(model: Model, table: Table) -> RowSites:
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


def check_parameters(space: Space, sites: RowSites) -> None:
    """Refuse a model that lacks parameters of the posterior, or has them in another shape."""
    strange = [name for name in space.by_name if name not in sites.latent]
    if strange:
        raise EpviError(
            f"the posterior has a parameter {strange[0]!r}, which the model does not have:"
            " pass the model that the posterior was fitted with."
        )
    for name, parameter in space.by_name.items():
        if sites.latent[name] != parameter.shape:
            raise EpviError(
                f"the parameter {name!r} has the shape {parameter.shape} in the posterior and {sites.latent[name]} in"
                " the model with these rows: pass the columns, and the model, that the posterior was fitted with."
            )
