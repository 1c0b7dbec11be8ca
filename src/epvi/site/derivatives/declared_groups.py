"""The effects of groups that a model declares (`epvi.Model(f, groups="hospital")`), as parameters to integrate out.

Takes the model and rows whose column of groups has the groups' numbers; gives which parameters are effects, found by
tracing the model for two numbers of groups, or refuses models whose groups are not independent given the other
parameters, by the parameter's name. All is done for a fixed number of groups, since programs by level do not depend on
how many there are: neither do compiled programs and fingerprints, then.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from epvi.ground.compiled import Held, kept
from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Parameter, Space
from epvi.site.derivatives.by_level import Places, trace_by_level
from epvi.site.derivatives.group_effects import agrees_by_level, levels_read
from epvi.site.model.model import Model
from epvi.site.model.target import Target
from epvi.site.rows.columns import Columns

# The number of groups for which models are looked at, and another. Fingerprints of models are computed for the first
# and stored in files, so it cannot change without making older files incompatible; it is above the codes 0 to 3 of
# their made-up rows, and rarely the length of another axis.
LOOKED_AT, _OTHER = 23, 29
# Most effects of one group: importance sampling about the mode works in so many dimensions. Judgement.
_MOST_PER_GROUP = 8
# Rows on which densities are compared, and largest relative difference: as in `group_effects.py`.
_ROWS_TO_TRY, _SAME = 64, 1e-9


def with_few_groups(groups: str, columns: Columns) -> Columns:
    """The columns with numbers of groups below `LOOKED_AT`."""
    return {**columns, groups: columns[groups] % LOOKED_AT}


class _Declared(Held):
    """The effects of one model; no programs are held."""

    def __init__(self, effects: GroupEffects) -> None:
        self.effects = effects

    @property
    def num_programs(self) -> int:
        return 0


def declared_effects(model: Model, groups: str, columns: Columns) -> GroupEffects:
    """The parameters of a model with `LOOKED_AT` groups that are effects of these, checked on these rows.

    `model` is the model with that number of groups fixed, and `columns` are those of `with_few_groups`.
    """
    target = model.on(columns)
    signature = tuple((name, column.shape[1:], column.dtype.str) for name, column in columns.items())
    key = (model.shared_key(), signature, "declared groups")
    effects = kept(key, lambda: _Declared(_checked(model, target, groups, columns))).effects
    _check_codes(model, target, groups, columns, effects)
    return effects


def _checked(model: Model, target: Target, groups: str, columns: Columns) -> GroupEffects:
    other = model.with_fixed({f"num_{groups}": _OTHER}).on(columns)
    effects = _found(target.space, other.space, groups)
    listed = ", ".join(effects.names)
    _check_codes(model, target, groups, columns, effects)
    if target.log_joint is not None:
        raise EpviError(
            f"the model has discrete latent variables beside the effects of {groups} ({listed}), which epvi cannot"
            " integrate out together: sum the discrete ones out by hand, as in numpyro.factor or a mixture."
        )
    entangled = [name for group in target.space.exchangeable for name in group if name.split("@")[0] in effects.names]
    if entangled:
        raise EpviError(
            f"{entangled[0]!r} is exchangeable and an effect of {groups}, which stays at its site: fix an order of its"
            " labels by an ordered prior."
        )
    places = Places(effects.places(target.space), target.space.dim)
    if places.per_level > _MOST_PER_GROUP:
        raise EpviError(
            f"each group of {groups} has {places.per_level} effects ({listed}), and at most {_MOST_PER_GROUP} can be"
            " integrated out: make some of them global parameters."
        )
    some = {name: column[:_ROWS_TO_TRY] for name, column in columns.items()}
    with jax.enable_x64(True):
        _check_by_level(target, places, some, groups, listed)
        _check_numbers(target, places, some, groups)
    return effects


def _found(space: Space, other: Space, groups: str) -> GroupEffects:
    """The parameters with an axis of groups, which differs between the spaces for two numbers of groups."""
    names, axes = [], []
    for parameter in space.parameters:
        axis = _axis(parameter, other.by_name.get(parameter.name), groups)
        if axis is not None:
            names.append(parameter.name)
            axes.append(axis)
    if not names:
        raise EpviError(
            f"no parameter has an axis of length num_{groups}: sample the effects of {groups} inside"
            f' numpyro.plate("{groups}", num_{groups}), or leave out groups={groups!r}.'
        )
    if len(names) == len(space.parameters):
        raise EpviError(
            f"all parameters are effects of {groups}, so that sites have none to share: give their distribution"
            " parameters of its own, or fit each group by itself."
        )
    return GroupEffects(tuple(names), tuple(axes), LOOKED_AT)


def _axis(one: Parameter, other: Parameter | None, groups: str) -> int | None:
    """The axis of groups of a parameter; None if it has none."""
    a, b = one.flat_shape, () if other is None else other.flat_shape
    differs = [i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]]
    if len(a) == len(b) and not differs:
        return None
    if len(a) != len(b) or len(differs) != 1 or (a[differs[0]], b[differs[0]]) != (LOOKED_AT, _OTHER):
        raise EpviError(
            f"the shape of {one.name!r} depends on the number of groups of {groups} in another way than by one axis of"
            " that length: give each group its own entries, or make it a global parameter, of the same shape at every"
            " site."
        )
    return differs[0]


def _check_codes(model: Model, target: Target, groups: str, columns: Columns, effects: GroupEffects) -> None:
    """Refuse effects that rows read by something else than the numbers of their groups."""
    for gather, codes in levels_read(model, target, columns):
        names = sorted(gather.names & set(effects.names))
        if names and gather.levels == LOOKED_AT and not np.array_equal(codes, columns[groups]):
            raise EpviError(
                f"rows read {names[0]!r} by something else than {groups}: with groups={groups!r} that column has the"
                f" numbers 0 to num_{groups} - 1 of the rows' groups, so write {names[0]}[{groups}], group by the"
                f" column that it belongs to, or make {names[0]!r} a global parameter."
            )


def _check_by_level(target: Target, places: Places, some: Mapping[str, np.ndarray], groups: str, listed: str) -> None:
    """Refuse models in which groups cannot be integrated out one by one."""
    theta = jax.ShapeDtypeStruct((places.dim,), np.float64)
    prior = trace_by_level(lambda theta, _: target.log_prior(theta), theta, {}, places)
    if prior is None or not prior.sums:
        raise EpviError(
            f"the prior of {listed} does not give each group of {groups} effects of its own that are independent of"
            " the other groups' given the other parameters (as random walks and sums to zero do not): write it so, or"
            " make them global parameters."
        )
    likelihood = trace_by_level(target.log_likelihood, theta, some, places)
    if likelihood is None or not likelihood.gathered:
        raise EpviError(
            f"the likelihood of a row uses {listed} otherwise than by the entries of its own group: read them by"
            f" the column {groups}, as in {listed.split(', ')[0]}[{groups}], or make them global parameters."
        )
    if not agrees_by_level(target, places, some, some[groups]):
        raise EpviError(
            f"rows read {listed} by something else than {groups}, or several groups each: read them as"
            f" {listed.split(', ')[0]}[{groups}], group by the column that they belong to, or make them global"
            " parameters."
        )


def _check_numbers(target: Target, places: Places, some: Mapping[str, np.ndarray], groups: str) -> None:
    """Refuse models in which the number of a group means more than which group it is."""
    rng = np.random.default_rng(0)
    theta, order = 0.3 * rng.standard_normal(places.dim), rng.permutation(LOOKED_AT)
    moved = theta.copy()
    moved[places.effects[order]] = theta[places.effects]
    renumbered = {**some, groups: order[some[groups]].astype(some[groups].dtype)}

    def densities(theta: Any, rows: Mapping[str, Any]) -> tuple:
        return target.log_prior(theta), target.log_likelihood(theta, rows)

    with promotion_allowed():
        compute = jax.jit(densities)
        pairs = zip(compute(theta, some), compute(moved, renumbered), strict=True)
    if not all(np.allclose(a, b, rtol=_SAME, atol=_SAME) for a, b in pairs):
        raise EpviError(
            f"the model treats groups of {groups} differently by their numbers, which mean nothing: they are given at"
            " every site anew. Put what is known of a group into a column of its rows."
        )
