"""Marginalises discrete latent variables that each row has of its own.

log p(y_i | θ) = log Σ_z p(y_i, z | θ) over all values z of the row's discrete variables. The model is run on one row
at a time (vectorised over rows), once for every combination of values.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from epvi.ground.errors import EpviError
from epvi.site.model.tracing import Site, choices

# Most combinations of one row's discrete values. Each is an evaluation of the row's likelihood, so a pass over the rows
# costs that many times as much. Judgement; docs/scope.md tells users this number.
_MOST_COMBINATIONS = 256


def combinations(sites: Sequence[Site], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """All combinations of values of one row's discrete NumPyro sites, stacked along a new leading axis.

    `shapes` are the sites' batch shapes in a model run on one row.
    """
    values = [choices(site) for site in sites]
    shaped = [(*shapes[site["name"]], *site["fn"].event_shape) for site in sites]
    counts = [math.prod(shape) // math.prod(v.shape[1:]) for shape, v in zip(shaped, values, strict=True)]
    total = math.prod(len(v) ** n for v, n in zip(values, counts, strict=True))
    if total > _MOST_COMBINATIONS:
        names = ", ".join(site["name"] for site in sites)
        raise EpviError(
            f"the discrete parameters {names} have {total:,} combinations of values in one row, more than"
            f" {_MOST_COMBINATIONS}: sum them out by hand and put the result into numpyro.factor."
        )
    ranges = [range(len(v)) for v, n in zip(values, counts, strict=True) for _ in range(n)]
    table = jnp.asarray(list(itertools.product(*ranges)), int).reshape(total, -1)
    stacked, column = {}, 0
    for site, value, shape, count in zip(sites, values, shaped, counts, strict=True):
        index = table[:, column : column + count]
        stacked[site["name"]] = value[index].reshape(total, *shape)
        column += count
    return stacked


def summed_out(log_joint: Callable[[dict[str, Any], Any], Any], table: dict[str, Any], block: Any) -> jax.Array:
    """Log Σ_z p(y_i, z) for every row i of the block, over the combinations z in `table`.

    `log_joint(z, rows)` is the log density of a block of one row.
    """

    def one_row(row: Any) -> jax.Array:
        single = jax.tree.map(lambda column: column[None], row)
        return logsumexp(jax.vmap(lambda z: log_joint(z, single))(table))

    return jax.vmap(one_row)(dict(block))
