"""Levels: the categories of a column, in order, and what makes two of them the same.

Takes what a user declares, what a column's own type says, or what a fit has told; gives the levels' keys, by which
values are found, and their names.
"""

import dataclasses
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.numerals import EXACT, MISSING, is_plain

Keys: TypeAlias = tuple[str | float, ...]

# Of truth values the indicator of the second level is the number itself.
TRUTH_LEVELS: Keys = (0.0, 1.0)


def level_key(value: Any) -> float | str | None:
    """What makes two levels the same: the number, or the text without spaces around it; None of anything else."""
    if isinstance(value, str):
        return value.strip()
    is_number = isinstance(value, bool | int | float | decimal.Decimal | np.number | np.bool_)
    # Of a whole number that float64 would round, no level is the same.
    return float(value) if is_number and (value != value or float(value) == value or abs(value) < EXACT) else None


def as_levels(name: str, value: Any, what: str = "levels") -> Keys:
    """Levels that were declared, checked."""
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
    """The categories of a column's own type as levels, in their order."""
    said = f"column {name!r}"
    if any(level_key(value) is None for value in categories):
        raise EpviError(
            f"{said} has categories that are neither text nor plain numbers: make them text first, as in"
            f" frame[{name!r}].cat.rename_categories(str)."
        )
    if len(categories) < 2:
        raise EpviError(f"{said} has fewer than two categories: leave it out, or give its levels.")
    return as_levels(name, list(categories), "categories")


def named_levels(names: Sequence[str]) -> Keys:
    """Levels by their names, as a fit tells them: numbers where all names are those of numbers."""
    numbers = [float(name) if is_plain(name) else math.nan for name in names]
    if all(map(math.isfinite, numbers)) and [said_level(number) for number in numbers] == list(names):
        return tuple(numbers)
    return tuple(names)


def numbered(keys: Keys) -> dict[str | float, int]:
    """The codes of levels."""
    return {key: i for i, key in enumerate(keys)}


def said_level(level: str | float) -> str:
    """A level as a name: 2 for 2.0."""
    if isinstance(level, str):
        return level
    return str(int(level)) if level == int(level) else repr(level)


@dataclasses.dataclass(frozen=True)
class Undeclared:
    """What categories become whose levels nobody declared: refused, their own levels, or those of a fit.

    Shards must have the same levels: a site alone cannot take its `own`, all rows in one place can. `fitted` are the
    levels' names by column; None where there is no fit.
    """

    own: bool = False
    fitted: Mapping[str, tuple[str, ...]] | None = None


REFUSED = Undeclared()
OWN = Undeclared(own=True)
