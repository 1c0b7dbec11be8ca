"""Categorical levels: the ordered categories of a column, their names, and when two values are the same level.

Takes levels that a user declares, the categories of a column's dtype, or the level names of a fit; gives the levels'
keys (the values that are looked up) and names.
"""

import dataclasses
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.numerals import EXACT, MISSING, is_plain

# Levels in order, all text or all numbers; a level's code is its position.
Keys: TypeAlias = tuple[str | float, ...]

# Levels of a boolean column. The indicator of the second level equals the value, so booleans need no coding.
BOOLEAN_LEVELS: Keys = (0.0, 1.0)


def level_key(value: Any) -> float | str | None:
    """The level that a value stands for: a number, or text without surrounding whitespace; None for anything else."""
    if isinstance(value, str):
        return value.strip()
    is_number = isinstance(value, bool | int | float | decimal.Decimal | np.number | np.bool_)
    # An integer that float64 would round has no key: it could equal the key of another level.
    return float(value) if is_number and (value != value or float(value) == value or abs(value) < EXACT) else None


def as_levels(name: str, value: Any, what: str = "levels") -> Keys:
    """Check declared levels: at least two, all text or all finite numbers, distinct, none a word for missing."""
    levels = list(value) if isinstance(value, list | tuple) or hasattr(value, "tolist") else []
    keys = [level_key(level) for level in levels]
    kinds = {type(key) for key in keys}
    if len(levels) < 2 or len(kinds) > 1 or not kinds <= {str, float} or "" in keys:
        raise EpviError(f"{what} of column {name!r}: pass a list of at least two, all of them text or all numbers.")
    if any(isinstance(key, float) and not math.isfinite(key) for key in keys):
        raise EpviError(f"{what} of column {name!r} have one that is not finite: leave it out.")
    if any(key in MISSING for key in keys):
        words = ", ".join(MISSING[1:])
        raise EpviError(f"{what} of column {name!r} have one of {words}, which mean missing: rename it.")
    if len(set(keys)) < len(keys):
        raise EpviError(f"{what} of column {name!r} name one level twice (spaces around it do not count): once each.")
    return tuple(key for key in keys if key is not None)


def own_levels(name: str, categories: Sequence[Any]) -> Keys:
    """The categories of a column's categorical dtype as levels, in their order."""
    said = f"column {name!r}"
    if any(level_key(value) is None for value in categories):
        raise EpviError(
            f"{said} has categories that are neither text nor plain numbers: convert them to text first, as in"
            f" frame[{name!r}].cat.rename_categories(str)."
        )
    if len(categories) < 2:
        raise EpviError(f"{said} has fewer than two categories: leave it out, or give its levels.")
    return as_levels(name, list(categories), "categories")


def levels_from_names(names: Sequence[str]) -> Keys:
    """Levels from the names stored in a fit: numbers if every name is the name of a number, otherwise text."""
    numbers = [float(name) if is_plain(name) else math.nan for name in names]
    if all(map(math.isfinite, numbers)) and [level_name(number) for number in numbers] == list(names):
        return tuple(numbers)
    return tuple(names)


def level_codes(keys: Keys) -> dict[str | float, int]:
    """Level -> code: 0, 1, 2, ... in the order of the levels."""
    return {key: i for i, key in enumerate(keys)}


def level_name(level: str | float) -> str:
    """The name of a level; that of the number 2.0 is "2"."""
    if isinstance(level, str):
        return level
    return str(int(level)) if level == int(level) else repr(level)


@dataclasses.dataclass(frozen=True)
class Undeclared:
    """How to treat categorical columns without declared levels: refuse them, or use the dtype's levels or a fit's.

    All shards must have the same levels, so the categories of one site's dtype will not do; those of a table that is
    then split into shards will.
    """

    # Whether to use the categories of the column's dtype.
    own: bool = False
    # Level names of a fit by column; None when there is no fit.
    fitted: Mapping[str, tuple[str, ...]] | None = None


REFUSED = Undeclared()
OWN = Undeclared(own=True)
