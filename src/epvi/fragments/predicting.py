"""Held-out log likelihoods and predictive draws of fragments, computed where the fragments are.

Takes a model, draws of its parameters, and fragments that are coded like the rows of a fit; gives the mean log density,
or draws for all rows in their order.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.engines.engine import Engine
from epvi.fragments.each_fragment import each_fragment
from epvi.fragments.pieces import fragments_of
from epvi.fragments.reading import Unread, read_piece
from epvi.ground.errors import EpviError
from epvi.ground.verb import at_work
from epvi.parameters.space import Space
from epvi.site.derivatives.passes import programs_of
from epvi.site.rows.complete_rows import ZeroRowsError
from epvi.site.rows.table import Table
from epvi.site.tasks.predictive import drawn, log_mean_densities, num_rows, same_coding, same_space
from epvi.site.tasks.sent_model import model_of
from epvi.site.tasks.sites_of_rows import check_parameters, sites_of
from epvi.wire.shard_fit import Provenance


@dataclasses.dataclass(frozen=True, eq=False)
class DrawsOfFit:
    """Draws of a posterior, and what rows have to be like.

    Attributes:
        model: the model, packed.
        space: its parameters.
        made_of: how the rows of the fit were coded.
        theta: the draws.
    """

    model: bytes
    space: Space
    made_of: Provenance
    theta: Float[np.ndarray, "S d"]


class RowDraws(NamedTuple):
    """Predictive draws for the rows of a fragment, with the row axis of the sites that have one."""

    values: dict[str, np.ndarray]
    axes: dict[str, int]


def log_densities_placed(engine: Engine, rows: Any, draws: DrawsOfFit) -> float:
    """The mean over rows of the log of the mean density over draws."""
    fragments = fragments_of(rows, engine, fitted=draws.made_of.levels)
    parts = each_fragment(engine, fragments, _log_densities, draws, "predict")
    count = sum(n for _, n in parts)
    if not count:
        raise EpviError(f"none of the {len(fragments):,} fragments has rows: check where they come from.")
    return sum(total for total, _ in parts) / count


def draws_placed(engine: Engine, rows: Any, draws: DrawsOfFit, key: jax.Array) -> dict[str, np.ndarray]:
    """Predictive draws of all rows, fragment after fragment."""
    optional = model_of(draws.model).optional
    fragments = fragments_of(rows, engine, optional=optional, fitted=draws.made_of.levels)
    words = np.asarray(jax.random.key_data(key))
    found = each_fragment(engine, fragments, _row_draws, (draws, words), "predict")
    there: list[RowDraws] = [made for made in found if made is not None]
    if not there:
        raise EpviError(f"none of the {len(fragments):,} fragments has rows: check where they come from.")
    return {name: _joined(name, there) for name in there[0].values}


def _log_densities(draws: DrawsOfFit, rows: Unread, number: int) -> tuple[float, int]:
    """On a worker: the sum over the rows of a fragment, and how many there are."""
    table = _table(draws, rows)
    if table is None:
        return 0.0, 0
    with at_work("the predictive density"):
        programs = programs_of(model_of(draws.model), table.columns)
        same_space(draws.space, programs.target.space)
        return log_mean_densities(programs, table.columns, draws.theta), num_rows(table.columns)


def _row_draws(asked: tuple[DrawsOfFit, np.ndarray], rows: Unread, number: int) -> RowDraws | None:
    """On a worker: draws for the rows of a fragment; None if it has none."""
    draws, words = asked
    table = _table(draws, rows)
    if table is None:
        return None
    with at_work("the predicted draws"):
        model = model_of(draws.model)
        model.columns(list(table.columns))
        sites = sites_of(model, table)
        check_parameters(draws.space, sites)
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(words)), number)
        values = draws.space.constrain(draws.theta)
        made = drawn(model.function, model.fixed, table.columns, values, sites.observed, key)
        return RowDraws(made, {name: axis for name, axis in sites.axes.items() if name in made})


def _table(draws: DrawsOfFit, rows: Unread) -> Table | None:
    """The rows of a fragment, coded like those that were fitted; None if there are none."""
    try:
        table = read_piece(rows.fragment, 0, rows.partitions)
    except ZeroRowsError:
        return None
    same_coding(draws.made_of, table)
    return table


def _joined(name: str, parts: Sequence[RowDraws]) -> np.ndarray:
    """The draws of all fragments along the axis of their rows; a value without rows is the same in all."""
    axis = parts[0].axes.get(name)
    return parts[0].values[name] if axis is None else np.concatenate([one.values[name] for one in parts], axis + 1)
