"""Integrate group effects out of a fit: find them in the model, and deal whole groups to shards.

Takes a model and its rows; gives the model of bundles of groups (`site/derivatives/integrated.py`), the bundles and
their split into shards, or None if the model is fitted as it is. After the fit the effects are put back.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from fractions import Fraction

import jax
import numpy as np
from jaxtyping import Int

from epvi.ground.errors import EpviError
from epvi.ground.seeds import SeedStream
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.posterior.supports import resampled, supports_of
from epvi.hub.trust.certify import with_integrals
from epvi.hub.trust.effects import EffectErrors, effect_errors
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space
from epvi.run.shards import RunningShards
from epvi.site.derivatives.expansion import TALL
from epvi.site.derivatives.group_effects import FoundEffects, find_effects, find_nested_effects
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.nested import NestedModel
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.model.model import Model
from epvi.site.rows.bundles import INNER_LEVELS, LEVELS, LOCAL, Bundles, bundle, bundle_nested, size_of_bundles
from epvi.site.rows.columns import Columns, generator
from epvi.site.rows.split import Split
from epvi.site.rows.table import Table
from epvi.site.tasks.integral_error import integral_error
from epvi.site.tasks.prepared import integrated_model
from epvi.wire.effect_answer import LevelMoments
from epvi.wire.request import NUM_DRAWS

# With many rows, draws are scored on subsamples of bundles: effects are integrated out if there are at least so many
# groups, or so few rows that all can be used. Judgement.
_ENOUGH_GROUPS = 128
# Moments of effects are computed at supports while densities of rows and numbers are at most so many; with more rows at
# the centre of the other parameters only, and extended linearly. Judgement: a second, and 32 MB. Where there are so
# many rows the posterior of the scales is so narrow that moments are nearly linear there.
_TO_EVALUATE, _NUMBERS = 2**27, 2**21
# Places for rows and supports of nested factors, the most to compute moments at. Judgement: some seconds.
_TO_EVALUATE_NESTED = 2**21
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
    # The effects of the larger groups in which the groups lie, if these are integrated out as well.
    outer: GroupEffects | None = None

    @property
    def said(self) -> str:
        """What is integrated out, for the log."""
        there = len(np.unique(self.columns[LEVELS][self.columns[LEVELS] >= 0]))
        if self.outer is None:
            return f"{there} groups are integrated out: {', '.join(self.effects.names)}"
        names = ", ".join((*self.outer.names, *self.effects.names))
        return f"{there} groups and those in them are integrated out: {names}"

    def put_back(self, posterior: Posterior, sites: RunningShards, key: jax.Array) -> Posterior:
        """The posterior of all parameters, from that of all but the group effects."""
        if self.outer is not None:
            return self._nested_put_back(posterior, sites, self.outer, key)
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
        order, moments = _in_order(parts)
        if len(supports) > 1:
            made = Effects.regressed(which, supports, weights, *moments)
            return posterior.with_effects(self.space, made, errors)
        slopes = [part.slopes for part in parts if part.slopes is not None]
        mean_slope, root_slope = (np.concatenate(one)[order] for one in zip(*slopes, strict=True))
        made = Effects(which, supports, weights, *moments, mean_slope, root_slope)
        return posterior.with_effects(self.space, made, errors)

    def _nested_put_back(
        self, posterior: Posterior, sites: RunningShards, outer: GroupEffects, key: jax.Array
    ) -> Posterior:
        """The same for nested factors: the larger groups' effects first, then, given these, those of the groups."""
        key = jax.random.fold_in(key, SeedStream.SUPPORTS)
        words, seed = (np.asarray(jax.random.key_data(one)).tolist() for one in jax.random.split(key))
        most = min(max(_TO_EVALUATE_NESTED // self.columns[LOCAL].size, _FEWEST_SUPPORTS), NUM_DRAWS)
        most = min(most, _NUMBERS // (self.space.dim - posterior.space.dim))
        phi, weights = supports_of(posterior, most, tuple(words))
        empty = np.setdiff1d(np.arange(outer.num_levels), self.columns[LEVELS])
        above = sites.effects(phi, empty, _draws_to_audit(posterior, phi, weights))
        given = Effects.regressed(outer, phi, weights, *_in_order(above)[1])
        shared = self.effects.shared_space(self.space)
        rng = np.random.default_rng(seed)
        supports = given.theta(shared, phi, rng)
        empty = np.setdiff1d(np.arange(self.effects.num_levels), self.columns[INNER_LEVELS])
        among = supports[resampled(weights, _DRAWS_TO_AUDIT, rng)]
        below = sites.effects(supports, empty, among, inner=True)
        made = Effects.regressed(self.effects, supports, weights, *_in_order(below)[1])
        found = [
            effect_errors([part.audited for part in parts], which.num_levels)
            for parts, which in ((above, outer), (below, self.effects))
        ]
        shift, change, doubt = (max(one[i] for one in found) for i in range(3))
        errors = EffectErrors(shift, change, doubt, sum(one.levels for one in found))
        return posterior.with_effects(self.space, dataclasses.replace(made, given=given), errors)


def _in_order(parts: Sequence[LevelMoments]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The order of the levels of all parts, and mean, root and shape of the effects in this order."""
    order = np.argsort(np.concatenate([part.levels for part in parts]))
    # Contiguous, as they are read from a file: sums over other layouts differ in their last digits.
    mean, root, shape = (
        np.ascontiguousarray(np.concatenate([getattr(part, name) for part in parts], axis=1)[:, order])
        for name in ("mean", "root", "shape")
    )
    return order, (mean, root, shape)


def _draws_to_audit(posterior: Posterior, supports: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Draws of the other parameters at which effects are audited: supports, if these are draws."""
    rng = np.random.default_rng(0)
    if len(supports) == 1:
        return np.asarray(posterior.mixture.sample(_DRAWS_TO_AUDIT, seed=0))
    return supports[resampled(weights, _DRAWS_TO_AUDIT, rng)]


def grouped(
    model: Model, programs: Programs, columns: Columns, split: Split, deal: bool, key: jax.Array
) -> list[Grouped]:
    """The ways to fit with group effects integrated out, if the model has any that can be; the one to try comes first.

    Of two nested factors the one with more levels is integrated out and, if the posterior cannot be trusted then, both.
    With `deal` whole groups are dealt to shards; otherwise the split stays as it is, and no group may be divided by it.
    """
    found = find_effects(model, programs.target, columns)
    pair = find_nested_effects(model, programs.target, columns) if len(next(iter(columns.values()))) < TALL else None
    if found is None and pair is None:
        return []
    try:
        Subposterior.of(programs, columns, Fraction(1), _ROWS_AT_ONCE).refuse_outside()
    except EpviError:
        # The fit of the shard that has such rows says so.
        return []
    single = None if found is None else _single(model, programs, columns, split, found, deal, key)
    both = None if pair is None else _nested(model, programs, columns, split, pair, deal, key)
    return [way for way in (single, both) if way is not None]


def _single(
    model: Model, programs: Programs, columns: Columns, split: Split, found: FoundEffects, deal: bool, key: jax.Array
) -> Grouped | None:
    """With one factor integrated out."""
    effects, codes, space = found.effects, found.codes, programs.target.space
    levels, counts = np.unique(codes, return_counts=True)
    if len(levels) < split.num_shards or (len(levels) < _ENOUGH_GROUPS and len(codes) >= TALL):
        return None
    owner = _dealt(counts, split.num_shards, key) if deal else _owners(codes, levels, split)
    if owner is None:
        return None
    whole, bundled = _arranged(codes, levels, counts, owner, split)
    return Grouped(IntegratedModel(model, effects), whole.columns(columns), bundled, effects, space)


def _nested(
    model: Model,
    programs: Programs,
    columns: Columns,
    split: Split,
    pair: tuple[FoundEffects, FoundEffects],
    deal: bool,
    key: jax.Array,
) -> Grouped | None:
    """With two nested factors integrated out."""
    inner, outer = pair
    levels, counts = np.unique(outer.codes, return_counts=True)
    owner = _dealt(counts, split.num_shards, key) if deal else _owners(outer.codes, levels, split)
    if len(levels) < split.num_shards or owner is None:
        return None
    whole, bundled = _arranged(outer.codes, levels, counts, owner, split, inner.codes)
    made = NestedModel(model, inner.effects, outer.effects)
    return Grouped(made, whole.columns(columns), bundled, inner.effects, programs.target.space, outer.effects)


@dataclasses.dataclass(frozen=True, eq=False)
class Declared:
    """A fit with the effects of declared groups integrated out, which stay where their rows are."""

    # The column of groups.
    groups: str
    model: IntegratedModel
    columns: Columns
    split: Split

    @property
    def said(self) -> str:
        """What is integrated out, for the log."""
        there = int(np.sum(self.columns[LEVELS] >= 0))
        return f"{there} groups of {self.groups} are integrated out: {', '.join(self.model.effects.names)}"

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
    codes: np.ndarray,
    levels: np.ndarray,
    counts: np.ndarray,
    owner: np.ndarray,
    split: Split,
    inner: np.ndarray | None = None,
) -> tuple[Bundles, Split]:
    """The bundles of all shards, one shard after the other, for groups that belong to these shards.

    `inner` are the groups that lie in them, if these are nested.
    """
    of_level = np.zeros(int(np.max(levels)) + 1, np.int64)
    of_level[levels] = owner
    size = size_of_bundles(counts)
    parts = []
    for m in range(split.num_shards):
        rows = np.flatnonzero(of_level[codes] == m)
        parts.append(bundle(codes[rows], rows, size) if inner is None else bundle_nested(inner, codes, rows, size))
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
