"""Write and read the group effects of a posterior, which are optional: most posteriors have none."""

import dataclasses
from typing import Any

import numpy as np

from epvi.hub.posterior.effects import Effects
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space
from epvi.wire.answer import read_array
from epvi.wire.codec import describe_space, read_space
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, as_number, as_text

_ARRAYS = ("supports", "weights", "mean", "root", "shape", "mean_slope", "root_slope")
# Parameters that may be group effects, and levels of a factor, in a file. Judgement.
_MOST_NAMES, _MOST_LEVELS = 16, 10**8
# Largest logarithm of an sd: variances are then between 1e-150 and 1e150, and their squares finite in float64.
_MOST_LOG_SD = 172.0


def pack_effects(space: Space, effects: Effects | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The space of all parameters and the effects: their part of the JSON record, and their arrays."""
    if effects is None:
        return {}, {}
    below, arrays = pack_effects(effects.which.shared_space(space), effects.given)
    which = effects.which
    described = {"names": list(which.names), "axes": list(which.axes), "num_levels": which.num_levels}
    arrays = {f"given/{name}": array for name, array in arrays.items()}
    arrays |= {f"effects/{name}": getattr(effects, name) for name in _ARRAYS}
    return {"effects": {"space": describe_space(space), **described, "given": below}}, arrays


def read_effects(record: Record, content: Envelope, shared: Space) -> tuple[Space, Effects | None]:
    """The space of all parameters, and the effects if there are any; `shared` are the other parameters."""
    if not _has_effects(record):
        return shared, None
    table = record.table("effects")
    if "given" not in set(table) or not _has_effects(table.table("given")):
        return _read(table, content, shared, "")
    below = table.table("given").table("effects")
    # Of larger groups' effects there is one level below, no more.
    between, given = _read(below, content, shared, "given/")
    space, effects = _read(table, content, between, "")
    if len(given.supports) != len(effects.supports):
        raise Malformed("its effects of groups and larger groups have different supports")
    return space, dataclasses.replace(effects, given=given)


def _has_effects(record: Record) -> bool:
    return "effects" in set(record) and record.any("effects") is not None


def _read(table: Record, content: Envelope, shared: Space, under: str) -> tuple[Space, Effects]:
    """The space with the effects of one factor, and these."""
    p, mean = shared.dim, read_array(content, f"{under}effects/mean", (None, None, None))
    supports, levels, s = mean.shape
    # The shape of an array without entries can claim any number of levels.
    if not supports:
        raise Malformed("its effects have no supports")
    space = read_space(table, p + levels * s)
    which = GroupEffects(
        table.list("names", as_text, _MOST_NAMES),
        table.list("axes", lambda axis, what: int(as_number(axis, what)), _MOST_NAMES),
        table.whole("num_levels", 1, _MOST_LEVELS),
    )
    _check(which, space, shared, levels, s)
    t = s * (s + 1) // 2
    effects = Effects(
        which,
        read_array(content, f"{under}effects/supports", (supports, p)),
        read_array(content, f"{under}effects/weights", (supports,)),
        mean,
        read_array(content, f"{under}effects/root", (supports, levels, t)),
        read_array(content, f"{under}effects/shape", (supports, levels, s, 2)),
        read_array(content, f"{under}effects/mean_slope", (levels, s, p)),
        read_array(content, f"{under}effects/root_slope", (levels, t, p)),
    )
    if np.any(effects.weights < 0) or not np.isclose(np.sum(effects.weights), 1):
        raise Malformed("its effects have weights that do not sum to 1")
    if np.any(np.abs(effects.root[..., np.cumsum(np.arange(1, s + 1)) - 1]) > _MOST_LOG_SD):
        raise Malformed("its effects have variances outside 1e-150 to 1e150")
    return space, effects


def _check(which: GroupEffects, space: Space, shared: Space, levels: int, s: int) -> None:
    if len(which.names) != len(which.axes) or len(set(which.names)) < len(which.names) or which.num_levels != levels:
        raise Malformed("its effects are not named with one axis each")
    size = 0
    for name, axis in zip(which.names, which.axes, strict=True):
        shape = space.by_name[name].flat_shape if name in space.by_name else ()
        if not 0 <= axis < len(shape) or shape[axis] != levels:
            raise Malformed(f"its effects name {name!r}, which has no such axis of levels")
        size += space.by_name[name].size
    if size != levels * s or which.shared_space(space).signature() != shared.signature():
        raise Malformed("its effects and its other parameters are not all of its parameters")
