"""Integrate group effects out of a fit: find them in the model, and deal whole groups to shards.

Takes a model and its rows; gives the model of bundles of groups (`site/derivatives/integrated.py`), the bundles and
their split into shards, or None if the model is fitted as it is. After the fit the effects are put back.
"""

import dataclasses
import heapq
from fractions import Fraction

import jax
import numpy as np
from jaxtyping import Int

from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import SeedStream
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.posterior.supports import resampled, supports_of
from epvi.hub.trust.certify import with_integrals
from epvi.hub.trust.effects import effect_errors
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space
from epvi.run.shards import RunningShards
from epvi.site.derivatives.expansion import TALL
from epvi.site.derivatives.group_effects import find_effects
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.model.model import Model
from epvi.site.rows.bundles import LEVELS, LOCAL, Bundles, bundle, size_of_bundles
from epvi.site.rows.columns import Columns, generator
from epvi.site.rows.split import Split
from epvi.site.rows.table import Table
from epvi.site.tasks.integral_error import integral_error
from epvi.site.tasks.prepared import integrated_model
from epvi.wire.request import NUM_DRAWS

# With many rows, draws are scored on subsamples of bundles: effects are integrated out if there are at least so many
# groups, or so few rows that all can be used. Judgement.
_ENOUGH_GROUPS = 128
# Moments of effects are computed at supports while densities of rows and numbers are at most so many; with more rows at
# the centre of the other parameters only, and extended linearly. Judgement: a second, and 32 MB. Where there are so
# many rows the posterior of the scales is so narrow that moments are nearly linear there.
_TO_EVALUATE, _NUMBERS = 2**27, 2**21
# Densities of a row for each support, by the number of effects of a level: about the number of nodes.
_EFFORT = {1: 32, 2: 150, 3: 640}
# Fewest supports, and for each of the other parameters. Judgement.
_FEWEST_SUPPORTS, _SUPPORTS_PER_PARAMETER = 128, 4
# Draws at which the error of declared groups' integrals is measured. Judgement.
_POINTS = 16
# Draws of the other parameters at which effects are compared with what many nodes say. Judgement: errors hardly change
# with them.
_DRAWS_TO_AUDIT = 8
# Rows that are checked at a time. Judgement.
_ROWS_AT_ONCE = 2**14


@dataclasses.dataclass(frozen=True, eq=False)
class Grouped:
    """A fit with group effects integrated out."""

    model: IntegratedModel
    columns: Columns
    split: Split
    effects: GroupEffects
    # The space of all parameters.
    space: Space

    def put_back(self, posterior: Posterior, sites: RunningShards, key: jax.Array) -> Posterior:
        """The posterior of all parameters, from that of all but the group effects."""
        which, p = self.effects, posterior.space.dim
        effort = self.columns[LOCAL].size * _EFFORT[which.places(self.space).shape[1]]
        most = min(_TO_EVALUATE // effort, _NUMBERS // which.places(self.space).size, NUM_DRAWS)
        if most >= max(_FEWEST_SUPPORTS, _SUPPORTS_PER_PARAMETER * p):
            words = tuple(int(word) for word in jax.random.key_data(jax.random.fold_in(key, SeedStream.SUPPORTS)))
            supports, weights = supports_of(posterior, most, words)
        else:
            supports, weights = np.asarray(posterior.mixture.mean())[None], np.ones(1)
        empty = np.setdiff1d(np.arange(which.num_levels), self.columns[LEVELS])
        parts = sites.effects(supports, empty, _draws_to_audit(posterior, supports, weights))
        errors = effect_errors([part.audited for part in parts], which.num_levels)
        levels = np.concatenate([part.levels for part in parts])
        order = np.argsort(levels)
        # Contiguous, as they are read from a file: sums over other layouts differ in their last digits.
        mean = np.ascontiguousarray(np.concatenate([part.mean for part in parts], axis=1)[:, order])
        root = np.ascontiguousarray(np.concatenate([part.root for part in parts], axis=1)[:, order])
        shape = np.ascontiguousarray(np.concatenate([part.shape for part in parts], axis=1)[:, order])
        if len(supports) > 1:
            made = Effects.regressed(which, supports, weights, mean, root, shape)
            return posterior.with_effects(self.space, made, errors)
        slopes = [part.slopes for part in parts if part.slopes is not None]
        sloped = [np.concatenate(one)[order] for one in zip(*slopes, strict=True)]
        made = Effects(which, supports, weights, mean, root, shape, *sloped)
        return posterior.with_effects(self.space, made, errors)


def _draws_to_audit(posterior: Posterior, supports: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Draws of the other parameters at which effects are audited: supports, if these are draws."""
    rng = np.random.default_rng(0)
    if len(supports) == 1:
        return np.asarray(posterior.mixture.sample(_DRAWS_TO_AUDIT, seed=0))
    return supports[resampled(weights, _DRAWS_TO_AUDIT, rng)]


def grouped(
    model: Model, programs: Programs, columns: Columns, split: Split, deal: bool, key: jax.Array
) -> Grouped | None:
    """The fit with group effects integrated out, if the model has any that can be.

    With `deal` whole groups are dealt to shards; otherwise the split stays as it is, and no group may be divided by it.
    """
    found = find_effects(model, programs.target, columns)
    if found is None:
        return None
    try:
        Subposterior.of(programs, columns, Fraction(1), _ROWS_AT_ONCE).refuse_outside()
    except EpviError:
        # The fit of the shard that has such rows says so.
        return None
    effects, codes = found.effects, found.codes
    levels, counts = np.unique(codes, return_counts=True)
    if len(levels) < split.num_shards or (len(levels) < _ENOUGH_GROUPS and len(codes) >= TALL):
        return None
    owner = _dealt(counts, split.num_shards, key) if deal else _owners(codes, levels, split)
    if owner is None:
        return None
    whole, bundled = _arranged(codes, levels, counts, owner, split)
    logger.info("%d groups are integrated out: %s", len(levels), ", ".join(effects.names))
    made = IntegratedModel(model, effects)
    return Grouped(made, whole.columns(columns), bundled, effects, programs.target.space)


@dataclasses.dataclass(frozen=True, eq=False)
class Declared:
    """A fit with the effects of declared groups integrated out, which stay where their rows are."""

    # The column of groups.
    groups: str
    model: IntegratedModel
    columns: Columns
    split: Split

    def put_back(self, posterior: Posterior, sites: RunningShards, key: jax.Array) -> Posterior:
        """The posterior of the shared parameters, whose certificate says how well the effects were integrated out."""
        if posterior.certificate is None:
            return posterior
        target = programs_of(self.model, self.columns).target
        words = jax.random.fold_in(key, SeedStream.SUPPORTS)
        error = integral_error(target, self.columns, posterior.theta(_POINTS, seed=words))
        return posterior.with_certificate(with_integrals(posterior.certificate, self.groups, error))


def declared(
    model: Model, programs: Programs, groups: str, table: Table, split: Split, deal: bool, key: jax.Array
) -> Declared:
    """The fit of a settled model (`site/tasks/prepared.py`) with the effects of its groups integrated out.

    With `deal` whole groups are dealt to shards; otherwise a split that divides a group is refused.
    """
    assert table.groups is not None
    codes = table.columns[groups]
    levels, counts = np.unique(codes, return_counts=True)
    if len(levels) < split.num_shards:
        raise EpviError(
            f"there are {split.num_shards:,} shards for {len(levels):,} groups of {groups}, which no shard may divide:"
            " take at most one shard per group."
        )
    owner = _dealt(counts, split.num_shards, key) if deal else _owners(codes, levels, split)
    if owner is None:
        raise EpviError(_divided(codes, groups, table.groups, split))
    made = integrated_model(model, programs, groups, table)
    whole, bundled = _arranged(codes, levels, counts, owner, split)
    logger.info("%d groups of %s are integrated out: %s", len(levels), groups, ", ".join(made.effects.names))
    return Declared(groups, made, whole.unnumbered(table.columns), bundled)


def _divided(codes: np.ndarray, groups: str, labels: np.ndarray, split: Split) -> str:
    """The refusal of a split that divides a group, of which the first is named."""
    shard = _shard_of_rows(len(codes), split)
    first = next(g for g in range(len(labels)) if len(np.unique(shard[codes == g])) > 1)
    one, other = (split.labels[m] for m in np.unique(shard[codes == first])[:2])
    return (
        f"group {labels[first]} of {groups} has rows in shards {one} and {other}, and no shard may hold a part of a"
        f" group: split by {groups} or by what contains it (by=...), let epvi deal whole groups (shards=..., without"
        f" shuffle=False), give different groups different labels, or make the effects of {groups} global parameters"
        f" (num_{groups} fixed, without groups=)."
    )


def _arranged(
    codes: np.ndarray, levels: np.ndarray, counts: np.ndarray, owner: np.ndarray, split: Split
) -> tuple[Bundles, Split]:
    """The bundles of all shards, one shard after the other, for groups that belong to these shards."""
    of_level = np.zeros(int(np.max(levels)) + 1, np.int64)
    of_level[levels] = owner
    size = size_of_bundles(counts)
    parts = []
    for m in range(split.num_shards):
        rows = np.flatnonzero(of_level[codes] == m)
        parts.append(bundle(codes[rows], rows, size))
    ends = np.cumsum([len(part.rows) for part in parts])
    sizes = np.diff([0, *ends])
    slices = tuple(slice(int(b - n), int(b)) for b, n in zip(ends, sizes, strict=True))
    return Bundles.joined(parts), Split(slices, sizes, split.labels)


def _dealt(counts: Int[np.ndarray, " g"], num_shards: int, key: jax.Array) -> Int[np.ndarray, " g"]:
    """The shard of each group: groups by size, in random order among equals, each to the shard with fewest rows."""
    rng = generator(key)
    mixed = rng.permutation(len(counts))
    order = mixed[np.argsort(-counts[mixed], kind="stable")]
    # The second entry is the number of groups: shards without rows yet come first.
    loads = [(0, m) for m in range(num_shards)]
    owner = np.zeros(len(counts), np.int64)
    for g in order:
        rows, m = heapq.heappop(loads)
        owner[g] = m
        heapq.heappush(loads, (rows + int(counts[g]), m))
    return owner


def _owners(codes: np.ndarray, levels: np.ndarray, split: Split) -> Int[np.ndarray, " g"] | None:
    """The shard of each group under a given split; None if the split divides a group."""
    shard = _shard_of_rows(len(codes), split)
    first = shard[np.unique(codes, return_index=True)[1]]
    of_level = np.zeros(int(np.max(levels)) + 1, np.int64)
    of_level[levels] = first
    return first if np.array_equal(of_level[codes], shard) else None


def _shard_of_rows(num_rows: int, split: Split) -> Int[np.ndarray, " n"]:
    shard = np.zeros(num_rows, np.int64)
    for m, rows in enumerate(split.shards):
        shard[rows] = m
    return shard
