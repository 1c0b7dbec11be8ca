"""The effects of the groups of one site, given draws of the parameters φ that sites share: moments and draws.

Takes a model with groups, the site's rows and φ; gives the effects of groups with rows, and for prediction also those
of groups without, drawn from p(z | φ). Nothing of this is sent anywhere.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.space import Space
from epvi.site.derivatives.conditional import blocks
from epvi.site.derivatives.declared_groups import LOOKED_AT
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.passes import programs_of
from epvi.site.model.example_runs import MANY, take
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.table import Table
from epvi.site.tasks.predictive import drawn, row_sites, same_coding, same_space
from epvi.site.tasks.prepared import bundled, integrated_model, settled
from epvi.wire.shard_fit import Provenance

# Rows, counted once for each φ, at which effects are drawn, and fewest different φ. Judgement: half a minute; where
# there are so many rows, the effects hardly depend on φ.
_MOST_ROWS, _LEAST_POINTS = 2**27, 100
# Points φ for which a compiled program draws effects at a time. Judgement.
_POINTS_AT_ONCE = 64


class EffectDraws(NamedTuple):
    """Draws of the effects of the groups of some rows."""

    labels: np.ndarray
    # By name, with the groups first, (S, G, ...).
    values: dict[str, np.ndarray]
    # Means and variances of the same, where the effects are real numbers.
    mean: dict[str, np.ndarray]
    variance: dict[str, np.ndarray]


class SiteRows(NamedTuple):
    """A model with groups, checked on rows, and these."""

    table: Table
    model: Model
    integrated: IntegratedModel
    # Bundles of whole groups, with their groups.
    columns: Columns
    levels: np.ndarray


def site_rows(model: Model, rows: Any, space: Space, made_of: Provenance) -> SiteRows:
    """The rows of a site, which belong to the model of a posterior over `space`."""
    groups = declared_groups(model, made_of)
    table = read_grouped(rows, groups, undeclared=Undeclared(fitted=made_of.levels))
    same_coding(made_of, table)
    few, programs, _, _ = settled(model, table, labels=False)
    integrated = integrated_model(few, programs, groups, table)
    same_space(space, integrated.effects.shared_space(programs.target.space))
    made = bundled(table.columns, groups)
    return SiteRows(table, model, integrated, made.unnumbered(table.columns), made.levels)


def declared_groups(model: Model, made_of: Provenance) -> str:
    """The groups of the model, which are those of the fits."""
    if model.groups is None or model.groups != made_of.groups:
        raise EpviError(
            f"the posterior was fitted with groups={made_of.groups or None!r}, and the model has"
            f" groups={model.groups!r}: pass an epvi.Model with the same."
        )
    return model.groups


def affordable(num_draws: int, rows: int) -> int:
    """For how many different φ effects are drawn, given the number of rows."""
    return min(num_draws, max(_LEAST_POINTS, _MOST_ROWS // rows))


def effects_at(site: SiteRows, phi: Float[np.ndarray, "S p"], key: jax.Array) -> EffectDraws:
    """One draw of the effects of all groups of a site at each φ, and their moments there."""
    target = programs_of(site.integrated, site.columns).target
    assert target.draw_effects is not None
    assert site.table.groups is not None
    # The last points are repeated, so that all calls have the same shape.
    padded = np.concatenate([phi, np.repeat(phi[-1:], -len(phi) % _POINTS_AT_ONCE, axis=0)])
    pieces = []
    with jax.enable_x64(True), promotion_allowed():
        for b, (block, own) in enumerate(blocks(site.columns)):
            found = [
                target.draw_effects(jnp.asarray(some), jax.random.fold_in(jax.random.fold_in(key, b), c), block)
                for c, some in enumerate(padded.reshape(-1, _POINTS_AT_ONCE, phi.shape[1]))
            ]
            parts = [np.concatenate([np.asarray(x) for x in part])[: len(phi)] for part in zip(*found, strict=True)]
            pieces.append([part[:, own] for part in parts])
    levels, there = site.levels.ravel(), site.levels.ravel() >= 0
    order = np.argsort(levels[there])
    mean, root, z = (np.concatenate(part, axis=1)[:, there][:, order] for part in zip(*pieces, strict=True))
    return _named(site, mean, root, z)


def _named(site: SiteRows, mean: np.ndarray, root: np.ndarray, z: np.ndarray) -> EffectDraws:
    """Draws and moments by the parameters' names."""
    labels, which = site.table.groups, site.integrated.effects
    assert labels is not None
    base = site.integrated.base.on(dict(site.table.columns)).space
    s = z.shape[2]
    entries = [(i, j) for i in range(s) for j in range(i + 1)]
    variance = np.zeros_like(mean)
    for t, (i, j) in enumerate(entries):
        variance[..., i] += (np.exp(root[..., t]) if i == j else root[..., t]) ** 2
    values, means, variances, start = {}, {}, {}, 0
    for name, axis in zip(which.names, which.axes, strict=True):
        parameter = base.by_name[name]
        rest = tuple(np.delete(parameter.flat_shape, axis))
        stop = start + int(np.prod(rest, dtype=int))
        flat, own_mean, own_variance = (x[..., start:stop].reshape(*x.shape[:2], *rest) for x in (z, mean, variance))
        start = stop
        if parameter.is_real:
            values[name], means[name], variances[name] = flat, own_mean, own_variance
            continue
        with jax.enable_x64(True), promotion_allowed():
            made = jax.vmap(parameter.transform)(jnp.moveaxis(jnp.asarray(flat), 1, axis + 1))
        values[name] = np.moveaxis(np.asarray(made), axis + 1, 1)
    return EffectDraws(labels, values, means, variances)


class DrawsForRows(NamedTuple):
    """What is drawn for rows of known and new groups."""

    # The model for the number of groups of the rows.
    model: Model
    # Draws of all its parameters, (S, ...) by name.
    values: dict[str, np.ndarray]


def draws_for(
    model: Model, table: Table, known: SiteRows | None, shared: Space, phi: Float[np.ndarray, "S p"], key: jax.Array
) -> DrawsForRows:
    """Draws of shared parameters and effects: of known groups given their rows, of new ones from p(z | φ)."""
    assert table.groups is not None
    full = model.with_groups(len(table.groups))
    new, given = jax.random.split(key)
    most = len(phi) if known is None else affordable(len(phi), known.table.num_rows)
    phi = phi[np.arange(len(phi)) % most]
    values = shared.constrain(phi)
    axes = _axes_of_groups(model, table)
    few = take(table.columns, MANY)
    made = drawn(full.function, full.fixed, few, values, (), new)
    effects = {name: np.array(made[name]) for name in axes}
    if known is not None:
        found = effects_at(known, phi[:most], given)
        at = {label: g for g, label in enumerate(found.labels.tolist())}
        there = [(g, at[label]) for g, label in enumerate(table.groups.tolist()) if label in at]
        for name, axis in axes.items():
            if there:
                mine, theirs = map(list, zip(*there, strict=True))
                whole = np.moveaxis(effects[name], axis + 1, 1)
                whole[:, mine] = found.values[name][np.arange(len(phi)) % most][:, theirs]
    return DrawsForRows(full, {**values, **effects})


def _axes_of_groups(model: Model, table: Table) -> dict[str, int]:
    """The effects of the model, with their axis of groups; the rows may lack what is observed."""
    few, more = (
        row_sites(one.function, one.fixed, table.columns).latent
        for one in (model.with_groups(LOOKED_AT), model.with_groups(LOOKED_AT + 1))
    )
    axes = {}
    for name, shape in few.items():
        differs = [i for i, (a, b) in enumerate(zip(shape, more[name], strict=True)) if a != b]
        axes |= {name: differs[0]} if differs else {}
    return axes
