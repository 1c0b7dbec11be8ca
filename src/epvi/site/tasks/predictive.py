"""Pointwise log likelihoods, posterior predictive draws and observed values of rows, at draws of θ.

Takes the model's function or compiled programs, checked columns and draws; returns arrays by ArviZ group and name of
the NumPyro site, with the draws as the first axis and the rows as the next.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.infer import Predictive
from numpyro.primitives import Messenger
from scipy.special import logsumexp

from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.space import Space
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.model.example_runs import FEW, MANY, run_abstract, take
from epvi.site.model.model import DensityModel, Model
from epvi.site.model.tracing import Site, failed, filled, given, is_factor, is_latent, one_trace, run
from epvi.site.rows.columns import Columns
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.rows import read_rows
from epvi.site.rows.table import Table
from epvi.wire.shard_fit import Provenance, plain_coding

# Most log likelihoods (rows x draws) that are computed at once: 8 MB in float64. Judgement.
_BLOCK = 2**20
# Most bytes of log likelihoods and predictive draws together. Judgement: a part of a laptop's memory.
_MAX_BYTES = 2 * 10**9
# Name of the log likelihood if the model does not have exactly one observed NumPyro site.
JOINT = "rows"

Groups = dict[str, dict[str, np.ndarray]]


class RowSites(NamedTuple):
    """The roles of a model's NumPyro sites in prediction."""

    # Latent sites, with their shapes.
    latent: Mapping[str, tuple[int, ...]]
    # Observed sites with one entry per row, with the row axis of their draws.
    observed: Mapping[str, int]
    # Names of the columns that are observed values as they are.
    columns: tuple[str, ...]
    # Deterministic sites without a row axis.
    shared: tuple[str, ...]
    # The row axis of every site that has one.
    axes: Mapping[str, int]


def row_sites(function: Callable, fixed: Mapping[str, Any], columns: Columns) -> RowSites:
    """Find the roles by tracing the model on two numbers of rows: an axis whose length differs is the row axis."""
    with jax.enable_x64(True):
        many, few = (run_abstract(function, fixed, take(columns, n), value_of=filled).by_name for n in (MANY, FEW))
    axes = {name: axis for name, site in many.items() if (axis := _row_axis(site, few.get(name))) is not None}
    data = [name for name, s in many.items() if s["type"] == "sample" and s["is_observed"] and not is_factor(s)]
    observed = {name: axes[name] for name in data if name in axes}
    return RowSites(
        {name: _drawn_shape(site) for name, site in many.items() if is_latent(site)},
        observed,
        tuple(column for name in observed for column in many[name]["columns"]),
        tuple(name for name, site in many.items() if site["type"] == "deterministic" and name not in axes),
        axes,
    )


def log_likelihoods(
    programs: Programs, columns: Columns, theta: Float[np.ndarray, "S d"]
) -> Iterator[Float[np.ndarray, "S _"]]:
    """The log likelihoods of the rows at every draw, block by block."""
    n = num_rows(columns)
    size = min(n, max(1, _BLOCK // len(theta)))
    for start in range(0, n, size):
        # The last block overlaps with the one before, so that all blocks have the same shape.
        first = min(start, n - size)
        block = {name: column[first : first + size] for name, column in columns.items()}
        programs.refuse_indices(block, np.ones(size), first)
        with jax.enable_x64(True):
            yield np.asarray(programs.rows()(jnp.asarray(theta), block))[:, start - first :]


def log_mean_densities(programs: Programs, columns: Columns, theta: Float[np.ndarray, "S d"]) -> float:
    """The sum over rows of the log of the mean density over draws."""
    total = 0.0
    for logs in log_likelihoods(programs, columns, theta):
        total += float(np.sum(np.asarray(logsumexp(logs, axis=0)))) - logs.shape[1] * np.log(len(theta))
    return total


def drawn(
    function: Callable,
    fixed: Mapping[str, Any],
    columns: Columns,
    values: Mapping[str, np.ndarray],
    observed: Collection[str],
    key: jax.Array,
) -> dict[str, np.ndarray]:
    """Predictive draws of the observed sites, and values of deterministic sites, from NumPyro's `Predictive`.

    The model receives the observed columns too, since shapes may depend on them; the sites `observed` are drawn all the
    same.
    """
    anew = _Anew(function, observed)
    with one_trace, jax.enable_x64(True), promotion_allowed():
        predictive = Predictive(anew, posterior_samples={name: jnp.asarray(value) for name, value in values.items()})
        try:
            made = predictive(key, **fixed, **{name: jnp.asarray(column) for name, column in columns.items()})
        except Exception as error:
            raise failed(error) from error
    # Factors are observed sites of size zero.
    return {name: np.asarray(value) for name, value in made.items() if value.size}


def density_replies(programs: Programs, columns: Columns, theta: Float[np.ndarray, "S d"], terms: int = 0) -> Groups:
    """Log likelihoods (S, n) and columns; the memory check includes predictive draws of `terms` numbers per row."""
    n = num_rows(columns)
    _check_budget(len(theta), n, 8 * (1 + terms))
    logs = np.empty((len(theta), n))
    done = 0
    for block in log_likelihoods(programs, columns, theta):
        logs[:, done : done + block.shape[1]] = block
        done += block.shape[1]
    return {"log_likelihood": {JOINT: logs}, "constant_data": dict(columns)}


def function_replies(
    function: Callable,
    fixed: Mapping[str, Any],
    programs: Programs,
    columns: Columns,
    theta: Float[np.ndarray, "S d"],
    key: jax.Array,
) -> Groups:
    """Log likelihoods, predictive draws (S, n, ...), observed values (n, ...) and deterministic sites (S, ...)."""
    sites = row_sites(function, fixed, columns)
    groups = density_replies(programs, columns, theta, programs.target.terms)
    values = programs.target.space.constrain(theta)
    made = drawn(function, fixed, columns, values, sites.observed, key)
    if len(sites.observed) == 1:
        groups["log_likelihood"] = dict.fromkeys(sites.observed, groups["log_likelihood"][JOINT])
    if sites.observed:
        rows = {name: np.moveaxis(made[name], axis + 1, 1) for name, axis in sites.observed.items()}
        groups["posterior_predictive"] = rows
        groups["observed_data"] = _observed(function, fixed, columns, sites, {n: v[0] for n, v in values.items()})
    groups["posterior"] = {name: made[name] for name in sites.shared if name in made}
    told = (*sites.columns, *sites.observed)
    groups["constant_data"] = {name: column for name, column in columns.items() if name not in told}
    return groups


def replies(
    self: Model, rows: Any, space: Space, made_of: Provenance, theta: Float[np.ndarray, "S d"], key: jax.Array
) -> Groups:
    """Log likelihoods and predictive draws of rows, at draws of a posterior over `space`, by ArviZ group.

    A model given by log densities has log likelihoods only: it cannot draw rows, and does not say which columns are
    observed.
    """
    if self.groups is not None:
        raise EpviError(
            "a model with groups gives no log likelihoods and predictions by itself, which need the groups' effects:"
            " use epvi.predict and epvi.log_predictive with given=rows, and posterior.groups."
        )
    columns = _coded(rows, made_of)
    programs = programs_of(self, columns)
    same_space(space, programs.target.space)
    if isinstance(self, DensityModel):
        return density_replies(programs, columns, theta)
    return function_replies(self.function, self.fixed, programs, columns, theta, key)


# Attached as a method, because the hub calls it on the user's model and may not import the site.
Model.replies = replies


def _coded(rows: Any, made_of: Provenance) -> Columns:
    """Read rows, and check that they are coded like those that were fitted."""
    table = read_rows(rows, undeclared=Undeclared(fitted=made_of.levels))
    same_coding(made_of, table)
    return table.columns


def same_coding(made_of: Provenance, table: Table) -> None:
    """Refuse rows with other source columns, levels or standardisation than those that were fitted.

    Plain arrays have no such information and are accepted.
    """
    if not table.sources or not made_of.columns:
        return
    columns, levels = plain_coding(table.sources, table.levels)
    fitted_columns, fitted_levels = plain_coding(made_of.columns, made_of.levels)
    for name, sources in columns.items():
        if name in fitted_columns and fitted_columns[name] != sources:
            raise EpviError(
                f"{name} is made of {_few(sources)}, and where the posterior was fitted of"
                f" {_few(fitted_columns[name])}: take the same columns, in one order."
            )
    there = {source.partition("=")[0] for sources in columns.values() for source in sources}
    for what, told, fitted in (
        ("levels", levels, fitted_levels),
        ("constants", table.standardised, made_of.standardised),
    ):
        other = [name for name in {**told, **fitted} if name in there and told.get(name) != fitted.get(name)]
        if other:
            raise EpviError(
                f"column {other[0]!r} has the {what} {told.get(other[0], 'none')}, and where the posterior was fitted"
                f" {fitted.get(other[0], 'none')}: pass those, which are in posterior.fits[0].made_of."
            )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def same_space(posterior: Space, model: Space) -> None:
    """Refuse a model with other parameters than the posterior."""
    # Whether labels were aligned makes no difference to a model's densities and predictions.
    if posterior.signature()[0] != model.signature()[0]:
        raise EpviError(
            f"the posterior has the parameters ({posterior.describe()}) and the model ({model.describe()}):"
            " pass the model that the posterior was fitted with."
        )


def num_rows(columns: Columns) -> int:
    """The number of rows."""
    return len(next(iter(columns.values())))


class _Anew(Messenger):
    """Effect handler: sites with these names are sampled even if they are observed."""

    def __init__(self, function: Callable, names: Collection[str]) -> None:
        super().__init__(function)
        self.names = names

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["is_observed"], msg["value"] = False, None


def _row_axis(site: Site, other: Site | None) -> int | None:
    """The row axis of a site's draw or value: the axis whose length differs between two numbers of rows."""
    if other is None or site["type"] not in ("sample", "deterministic"):
        return None
    shape, smaller = _drawn_shape(site), _drawn_shape(other)
    changed = [axis for axis, (a, b) in enumerate(zip(shape, smaller, strict=False)) if a != b]
    return changed[0] if changed else None


def _drawn_shape(site: Site) -> tuple[int, ...]:
    return tuple(np.shape(site["value"]) if site["type"] == "deterministic" else site["fn"].shape())


def _observed(
    function: Callable, fixed: Mapping[str, Any], columns: Columns, sites: RowSites, values: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The observed values as the model receives them, in the shape of its predictive draws."""
    with jax.enable_x64(True):
        arguments = {**fixed, **{name: jnp.asarray(column) for name, column in columns.items()}}
        found = run(function, given(values), arguments, num_rows(columns), None).by_name
        shaped = {name: jnp.broadcast_to(found[name]["value"], found[name]["fn"].shape()) for name in sites.observed}
    return {name: np.moveaxis(np.asarray(value), sites.observed[name], 0) for name, value in shaped.items()}


def _check_budget(num_samples: int, n: int, bytes_per_row: int) -> None:
    need = num_samples * n * bytes_per_row
    if need > _MAX_BYTES:
        raise EpviError(
            f"{num_samples:,} draws of {n:,} rows take {need / 1e9:.1f} GB, more than {_MAX_BYTES / 1e9:.3g}:"
            f" pass num_samples of at most {max(1, _MAX_BYTES // (n * bytes_per_row)):,}, or at most"
            f" {max(1, _MAX_BYTES // (num_samples * bytes_per_row)):,} of the rows."
        )
