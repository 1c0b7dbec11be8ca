"""Finds the parameters, prior and likelihood terms of a NumPyro model, from traces and a jaxpr of it on a few rows.

Takes the function and the first rows; gives an `Inspection`: the parameter space, which NumPyro sites are prior and
which are likelihood terms (with their row axis), and which are marginalised. Models that cannot be sharded are refused.
"Sites" in this module are NumPyro's.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import ImproperUniform

from epvi.ground.errors import EpviError
from epvi.ground.float64 import is_traced, promotion_allowed
from epvi.parameters.space import Parameter, Space
from epvi.site.model.enumeration import combinations, summed_out
from epvi.site.model.example_runs import FEW, MANY, run_abstract, run_plain, take
from epvi.site.model.target import Block
from epvi.site.model.tracing import (
    ModelTrace,
    Site,
    depends,
    given,
    is_discrete,
    is_factor,
    is_latent,
    log_prob,
    run,
    trace_program,
)


class Discrete(NamedTuple):
    """A discrete latent NumPyro site with one entry per row."""

    # One value in its support.
    value: np.ndarray
    # Shape of the site on the example rows: batch and event axes.
    shape: tuple[int, ...]
    # Which axis of `shape` is the row axis.
    axis: int

    def filled(self, n: int) -> np.ndarray:
        """The value, repeated for n rows."""
        shape = (*self.shape[: self.axis], n, *self.shape[self.axis + 1 :])
        return np.broadcast_to(self.value, shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """The structure of a NumPyro model: its parameters and the roles of its NumPyro sites."""

    # The continuous parameters.
    space: Space
    # Keyword arguments of the model that are not columns.
    fixed: Mapping[str, Any]
    # The first MANY rows, on which the prior is evaluated.
    example: Mapping[str, np.ndarray]
    # Names of the NumPyro sites whose log densities form the prior.
    prior_sites: tuple[str, ...]
    # Names of the NumPyro sites that form the likelihood, with the row axis of their log density.
    row_axes: Mapping[str, int]
    # Discrete latent sites to marginalise.
    discrete: Mapping[str, Discrete]
    # All combinations of their values in one row; None without discrete sites.
    table: Mapping[str, Any] | None
    # Names of the subsampled plates whose subsample is the rows.
    of_rows: tuple[str, ...]
    # Observed sites whose support does not depend on θ: their name in error messages, and their row axis.
    supported: Mapping[str, tuple[str, int]]
    # How many numbers the likelihood observes in one row.
    terms: int
    # Whether the prior is proper: no latent site has an improper distribution.
    proper: bool

    def sites(self, function: Callable, values: Mapping[str, Any], block: Block) -> ModelTrace:
        """Trace the model on a block; discrete sites not in `values` take the first value of their support."""
        n = len(next(iter(block.values())))
        first = {name: one.filled(n) for name, one in self.discrete.items()}
        columns = {name: jnp.asarray(column) for name, column in block.items()}
        return run(function, given({**first, **values}), {**self.fixed, **columns}, n, self.of_rows)

    def per_row(self, function: Callable, values: Mapping[str, Any], block: Block) -> Any:
        """The log likelihood of each row: the sum over likelihood sites and over all axes but the row axis."""
        sites = self.sites(function, values, block)
        total = None
        for name, axis in self.row_axes.items():
            log = log_prob(sites.by_name[name], sites)
            log = jnp.sum(log, axis=tuple(i for i in range(log.ndim) if i != axis))
            with promotion_allowed():
                total = log if total is None else total + log
        return total

    def joint(self, function: Callable, values: Mapping[str, Any], block: Block, which: Any) -> Any:
        """The joint log density of each row i and its combination `which[i]` of discrete values, all in one run."""
        assert self.table is not None
        z = {}
        for name, one in self.discrete.items():
            chosen = jnp.squeeze(jnp.asarray(self.table[name])[which], axis=one.axis + 1)
            z[name] = jnp.moveaxis(chosen, 0, one.axis)
        axes = {**self.row_axes, **{name: one.axis for name, one in self.discrete.items()}}
        return dataclasses.replace(self, row_axes=axes).per_row(function, {**values, **z}, block)

    def summed_out(self, function: Callable, values: Mapping[str, Any], block: Block) -> Any:
        """The log likelihood of each row with its discrete values marginalised; runs the model row by row."""

        def log_joint(z: dict[str, Any], row: Any) -> Any:
            sites = self.sites(function, {**values, **z}, row)
            with promotion_allowed():
                return sum(jnp.sum(log_prob(sites.by_name[n], sites)) for n in (*self.discrete, *self.row_axes))

        assert self.table is not None
        with promotion_allowed():
            return summed_out(log_joint, dict(self.table), block)


class _Traced(NamedTuple):
    """Shapes and dependences of all sample statements' log densities, from the jaxpr for one number of rows."""

    # Shape of the log density.
    shapes: dict[str, tuple[int, ...]]
    # Whether the log density depends on the rows.
    from_rows: dict[str, bool]
    # Whether the log density depends on θ.
    from_theta: dict[str, bool]
    # Whether the support depends on θ or on the rows.
    support_moves: dict[str, bool]


def inspect_model(
    function: Callable, fixed: Mapping[str, Any], rows: Mapping[str, np.ndarray], exchangeable: tuple
) -> Inspection:
    """Find the structure of the model, or refuse it with an error that says why it cannot be sharded."""
    example = take(rows, MANY)
    with jax.enable_x64(True):
        many = run_abstract(function, fixed, example)
        few = run_abstract(function, fixed, take(rows, FEW))
        of_rows = tuple(name for name in many.asked if (many.asked[name], few.asked.get(name)) == (MANY, FEW))
        if MANY in many.asked.values() or FEW in few.asked.values():
            many = run_abstract(function, fixed, example, of_rows)
            few = run_abstract(function, fixed, take(rows, FEW), of_rows)
        _refuse_params(many)
        supported = _supported_names(many)
        if any(is_latent(site) and _needs_numbers(site) for site in many.by_name.values()):
            many = run_plain(function, fixed, example, of_rows)
        latent = [site for site in many.by_name.values() if is_latent(site)]
        discrete = {site["name"]: _discrete(site, few) for site in latent if is_discrete(site)}
        space = Space(tuple(_parameter(site, few) for site in latent if site["name"] not in discrete), exchangeable)
        if not space.parameters:
            raise EpviError("the model has no continuous parameter without an observed value: there is nothing to fit.")
        wide = _program(function, fixed, example, space, discrete, of_rows)
        narrow = _program(function, fixed, take(rows, FEW), space, discrete, of_rows)
        _refuse_latents(space, wide)
        prior, row_axes = _roles(many, wide, narrow, space, discrete)
        table = None
        if discrete:
            one = run_plain(function, fixed, take(rows, 1), of_rows)
            local = [one.by_name[name] for name in discrete]
            shapes = {site["name"]: tuple(site["fn"].batch_shape) for site in local}
            table = jax.tree.map(np.asarray, combinations(local, shapes))
    checked = {name: (supported[name], row_axes[name]) for name in row_axes if name in supported}
    checked = {name: found for name, found in checked.items() if not wide.support_moves[name]}
    terms = sum(max(1, math.prod((*wide.shapes[n], *many.by_name[n]["fn"].event_shape)) // MANY) for n in row_axes)
    proper = not any(_is_improper(site["fn"]) for site in latent)
    return Inspection(space, fixed, example, prior, row_axes, discrete, table, of_rows, checked, terms, proper)


def _is_improper(distribution: Any) -> bool:
    while distribution is not None and not isinstance(distribution, ImproperUniform):
        distribution = getattr(distribution, "base_dist", None)
    return distribution is not None


def _needs_numbers(site: Site) -> bool:
    return is_discrete(site) or is_traced(site["fn"].support)


def _supported_names(many: ModelTrace) -> dict[str, str]:
    """Observed sites whose distribution has a support, with their name in error messages."""
    names = {}
    for name, site in many.by_name.items():
        if site["type"] == "sample" and site["is_observed"] and not is_factor(site) and site["fn"].support is not None:
            columns = site["columns"]
            names[name] = f"column {columns[0]!r}" if columns else f"observed NumPyro site {name!r}"
    return names


def _refuse_params(sites: ModelTrace) -> None:
    for site in sites.by_name.values():
        if site["type"] in ("param", "mutable"):
            raise EpviError(
                f"the model has a NumPyro {site['type']} site {site['name']!r}, which has no prior:"
                " make it a sample statement (dist.ImproperUniform is a flat prior), or a fixed argument."
            )


def _parameter(site: Site, few: ModelTrace) -> Parameter:
    name, shape = site["name"], tuple(np.shape(site["value"]))
    if name not in few.by_name or tuple(np.shape(few.by_name[name]["value"])) != shape:
        raise EpviError(
            f"the shape of parameter {name!r} depends on the number of rows, so shards would have different parameters."
            f" If {name!r} is observed, pass obs= and give its column; otherwise sum the rows' own parameters out."
        )
    return Parameter(name, shape, site["fn"].support)


def _discrete(site: Site, few: ModelTrace) -> Discrete:
    shape, other = site["fn"].batch_shape, few.by_name[site["name"]]["fn"].batch_shape
    axes = [i for i, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b]
    if len(axes) != 1:
        raise EpviError(
            f"the discrete parameter {site['name']!r} is shared by all rows, and subposteriors of discrete parameters"
            " cannot be multiplied: give it one value per row inside the rows' plate, or fit the model for each of its"
            " values and weigh the fits by certificate.log_evidence; if only priors depend on it, sum it out by hand."
        )
    first = np.asarray(site["value"])[(0,) * len(shape)]
    return Discrete(first, (*shape, *site["fn"].event_shape), axes[0])


def _program(
    function: Callable,
    fixed: Mapping,
    block: Mapping,
    space: Space,
    discrete: Mapping[str, Discrete],
    of_rows: tuple[str, ...],
) -> _Traced:
    """Trace the log density and support of every sample statement as functions of θ and the block."""
    n = len(next(iter(block.values())))

    def logs(theta: Any, rows: Any) -> Any:
        values = {**space.values(theta), **{name: one.filled(n) for name, one in discrete.items()}}
        sites = run(function, given(values), {**fixed, **rows}, n, of_rows)
        sample = [site for site in sites.by_name.values() if site["type"] == "sample"]
        supports = {site["name"]: jax.tree.leaves(site["fn"].support) for site in sample}
        return {site["name"]: log_prob(site, sites) for site in sample}, supports

    theta = jax.ShapeDtypeStruct((space.dim,), np.float64)
    program, (shapes, supports) = trace_program(logs, theta, dict(block))
    num_logs, leaves = len(shapes), len(jax.tree.leaves(dict(block)))
    from_rows = depends(program, [False, *[True] * leaves])
    from_theta = depends(program, [True, *[False] * leaves])
    owners = [name for name in sorted(supports) for _ in supports[name]]
    moving = [a or b for a, b in zip(from_rows[num_logs:], from_theta[num_logs:], strict=True)]
    moves = {name: any(m for owner, m in zip(owners, moving, strict=True) if owner == name) for name in shapes}
    names = sorted(shapes)  # the order in which JAX flattens a dict
    return _Traced(
        {name: tuple(shapes[name].shape) for name in shapes},
        dict(zip(names, from_rows[:num_logs], strict=True)),
        dict(zip(names, from_theta[:num_logs], strict=True)),
        moves,
    )


def _refuse_latents(space: Space, wide: _Traced) -> None:
    for parameter in space.parameters:
        if wide.support_moves[parameter.name]:
            raise EpviError(
                f"the support of parameter {parameter.name!r} depends on other parameters or on rows: write it as a"
                " function of a parameter with a fixed support, for example low + (high - low) * u with u in (0, 1)."
            )
        if wide.from_rows[parameter.name]:
            raise EpviError(
                f"the prior of parameter {parameter.name!r} depends on the rows, so every shard would have another"
                " prior: compute what it needs beforehand and pass it as a fixed argument."
            )


def _roles(
    many: ModelTrace, wide: _Traced, narrow: _Traced, space: Space, discrete: Mapping
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names of the prior sites, and of the likelihood sites with their row axis."""
    prior, row_axes = [parameter.name for parameter in space.parameters], {}
    for name, shape in wide.shapes.items():
        if name in space.by_name or name in discrete:
            continue
        other = narrow.shapes[name]
        axes = [i for i, (a, b) in enumerate(zip(shape, other, strict=False)) if a != b]
        if not axes and not wide.from_rows[name]:
            prior.append(name)
        elif len(axes) == 1 and len(shape) == len(other) and shape[axes[0]] == MANY:
            row_axes[name] = axes[0]
        else:
            raise EpviError(_no_row_axis(many.by_name[name], len(axes)))
    if not row_axes:
        raise EpviError(
            "the model ignores its data: no observed sample statement and no factor depends on the rows. Pass the"
            " observed column with obs= inside the rows' plate."
        )
    if not any(wide.from_theta[name] for name in (*row_axes, *discrete)):
        raise EpviError("the likelihood depends on no parameter of the model: the rows carry no information about any.")
    return tuple(prior), row_axes


def _no_row_axis(site: Site, num_axes: int) -> str:
    name = site["name"]
    kind = "factor" if is_factor(site) else "observed NumPyro site"
    if num_axes > 1:
        return (
            f"the log density of {kind} {name!r} has more than one axis of rows: a column probably has shape (n, 1)"
            " where the model means (n,). Reshape it."
        )
    return (
        f"{kind} {name!r} depends on the rows but has no axis of rows, so it would count once in every shard: put it"
        ' into `with numpyro.plate("rows", x.shape[0])` with one value per row (to_event must leave the rows\' axis'
        " alone)."
    )
