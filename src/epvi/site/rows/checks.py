"""Validates one source column of one file, chunk by chunk, and reports its faults when all chunks have been seen.

Takes cells without missing values; gives numbers or level codes. Every error names the column and the file.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows import cells
from epvi.site.rows.cells import Cells
from epvi.site.rows.chunks import TablePart
from epvi.site.rows.levels import level_key
from epvi.site.rows.locate import few
from epvi.site.rows.numerals import MOST_LEVELS, TOO_LARGE, TextProfile

# How many of the levels found an error message lists. Judgement: enough to recognise the column, and still one line.
_SHOWN = 6


@dataclasses.dataclass
class Check:
    """The faults found so far in a column that should hold finite numbers within limits, or declared levels."""

    # Column name.
    name: str
    # The file, or the data in memory, that the column is from.
    part: TablePart
    # Lowest and highest value allowed; None for no limits.
    limits: tuple[float, float] | None = None
    # Names of the declared levels; empty for a column of numbers.
    names: tuple[str, ...] = ()
    # What the column holds instead of numbers; empty while it holds numbers.
    kind: str = ""
    # The values of a text or categorical column that should have been numbers.
    profile: TextProfile = dataclasses.field(default_factory=TextProfile)
    # Number of infinite values.
    infinite: int = 0
    # Number of values outside the limits.
    outside: int = 0
    # The first number that float64 cannot hold exactly.
    inexact: Any = None
    # The first value that is not a declared level, and whether the levels are text.
    unknown_level: Any = None

    @property
    def is_fine(self) -> bool:
        """Whether no fault was found so far."""
        faults = (self.kind, self.infinite, self.outside, self.inexact is not None, self.unknown_level is not None)
        return not any(faults)

    def numbers(self, piece: Cells) -> np.ndarray:
        """Check the next chunk and give its numbers; an empty array when it does not hold numbers."""
        if not len(piece):
            return np.zeros(0)
        kind = cells.kind_of(piece)
        if kind not in (cells.NUMBERS, cells.BOOLEANS):
            self.kind = kind
            if kind in (cells.TEXT, cells.CATEGORIES):
                cells.profile_text(piece, self.profile)
            return np.zeros(0)
        values = cells.numbers(piece)
        self.inexact = cells.first_inexact(piece) if self.inexact is None else self.inexact
        self.infinite += _infinite(values)
        if self.limits is not None:
            low, high = self.limits
            self.outside += int(np.count_nonzero(values < low)) + int(np.count_nonzero(values > high))
        return values

    def codes(self, piece: Cells, levels: Mapping[Any, int]) -> np.ndarray:
        """Check the next chunk and give its level codes; remembers the first value that is not a level."""
        codes, unknown = cells.codes(piece, levels)
        if self.unknown_level is None and unknown is not None:
            self.unknown_level = (unknown, any(isinstance(level, str) for level in levels))
        return codes

    def refuse(self) -> None:
        """Raise an error for the first kind of fault, if any was found."""
        said = f"column {self.name!r}" + (f" of {self.part.said}" if self.part.where else "")
        if self.kind:
            raise self._no_numbers(said)
        if self.inexact is not None:
            raise EpviError(f"{said} has the number {self.inexact}, {TOO_LARGE}.")
        if self.infinite:
            raise EpviError(f"{said} has {self.infinite:,} infinite values: remove those rows or fill them in.")
        if self.outside and self.limits is not None:
            low, high = self.limits
            words = f"below {low:g}" if high == math.inf else f"above {high:g}" if low == -math.inf else ""
            many = f"{self.outside:,} value{'s' if self.outside > 1 else ''}"
            raise EpviError(
                f"{said} has {many} {words or f'outside {low:g} to {high:g}'}, its limits: mend them, widen the limits,"
                " or mark them as missing (NA) and leave those rows out (drop_missing)."
            )
        if self.unknown_level is not None:
            value, is_text = self.unknown_level
            if level_key(value) is None:
                raise _nameless(said, value)
            value = repr(value.strip()[:40] if isinstance(value, str) else value)
            listed = few([repr(level) if is_text else level for level in self.names])
            raise EpviError(
                f"column {self.name!r} of {self.part.said} has the value {value}, which is not among its levels"
                f" ({listed}): mend the value or add the level."
            )

    def _no_numbers(self, said: str) -> EpviError:
        if self.kind == cells.DATES:
            return EpviError(f"{said} holds dates or times: turn it into numbers first, in a unit you choose.")
        if self.kind not in (cells.TEXT, cells.CATEGORIES):
            return EpviError(f"{said} holds {self.kind}: pass real numbers, or text with levels.")
        if self.profile.nameless is not None:
            return _nameless(said, self.profile.nameless)
        why, name = self.profile.why() if self.kind == cells.TEXT else "", self.name[:40]
        levels = f'levels={{"{name}": [...]}}, --levels {name}=..., or in the study'
        remedy = f"{why + '; or ' if why else ''}give its levels, as in {levels}"
        return EpviError(f"{said} holds {self.kind}: {remedy} ({self._found()}).")

    def _found(self) -> str:
        """The levels found, for a message: categories in their own order, text sorted."""
        found = [level for level, is_there in self.profile.levels.items() if is_there]
        listed = few(sorted(found) if self.kind == cells.TEXT else found, _SHOWN)
        many = f"more than {MOST_LEVELS:,}" if len(self.profile.levels) > MOST_LEVELS else f"{len(found):,}"
        return f"{many} found: {listed}"


def _nameless(said: str, value: Any) -> EpviError:
    return EpviError(
        f"{said} has values that are neither text nor plain numbers, such as {str(value)[:40]}: convert them to text"
        " first, so that levels can name them."
    )


def _infinite(values: np.ndarray) -> int:
    if values.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.sum(values))
    return 0 if finite else values.size - int(np.count_nonzero(np.isfinite(values)))
