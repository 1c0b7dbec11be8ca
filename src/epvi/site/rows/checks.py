"""What is wrong with one source column of one part: counted chunk by chunk, said when all have been seen.

Takes cells without missing values; gives numbers, or codes of levels. Every refusal names the column and the file.
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
from epvi.site.rows.numerals import MOST_LEVELS, TOO_LARGE, Look

# So many of the levels that were found are said.
_SHOWN = 6


@dataclasses.dataclass
class Check:
    """A column of finite numbers within limits; or of levels, of which `names` are the names."""

    name: str
    part: TablePart
    limits: tuple[float, float] | None = None
    names: tuple[str, ...] = ()
    kind: str = ""
    look: Look = dataclasses.field(default_factory=Look)
    infinite: int = 0
    outside: int = 0
    inexact: Any = None
    strange: Any = None

    @property
    def is_fine(self) -> bool:
        """Whether nothing was wrong so far."""
        faults = (self.kind, self.infinite, self.outside, self.inexact is not None, self.strange is not None)
        return not any(faults)

    def numbers(self, piece: Cells) -> np.ndarray:
        """The next rows as numbers; none when they are something else."""
        if not len(piece):
            return np.zeros(0)
        kind = cells.kind_of(piece)
        if kind not in (cells.NUMBERS, cells.TRUTHS):
            self.kind = kind
            if kind in (cells.TEXT, cells.CATEGORIES):
                cells.look(piece, self.look)
            return np.zeros(0)
        values = cells.numbers(piece)
        self.inexact = cells.first_inexact(piece) if self.inexact is None else self.inexact
        self.infinite += _infinite(values)
        if self.limits is not None:
            low, high = self.limits
            self.outside += int(np.count_nonzero(values < low)) + int(np.count_nonzero(values > high))
        return values

    def codes(self, piece: Cells, levels: Mapping[Any, int]) -> np.ndarray:
        """The next rows as their levels' numbers; the first value that is none of them is remembered."""
        numbered, strange = cells.codes(piece, levels)
        if self.strange is None and strange is not None:
            self.strange = (strange, any(isinstance(level, str) for level in levels))
        return numbered

    def refuse(self) -> None:
        """Say what was wrong, if anything was."""
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
        if self.strange is not None:
            value, is_text = self.strange
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
        if self.look.nameless is not None:
            return _nameless(said, self.look.nameless)
        why, name = self.look.why() if self.kind == cells.TEXT else "", self.name[:40]
        levels = f'levels={{"{name}": [...]}}, --levels {name}=..., or in the study'
        remedy = f"{why + '; or ' if why else ''}give its levels, as in {levels}"
        return EpviError(f"{said} holds {self.kind}: {remedy} ({self._found()}).")

    def _found(self) -> str:
        """The levels that were found; text has no order but the alphabet's."""
        found = [level for level, is_there in self.look.levels.items() if is_there]
        listed = few(sorted(found) if self.kind == cells.TEXT else found, _SHOWN)
        many = f"more than {MOST_LEVELS:,}" if len(self.look.levels) > MOST_LEVELS else f"{len(found):,}"
        return f"{many} found: {listed}"


def _nameless(said: str, value: Any) -> EpviError:
    return EpviError(
        f"{said} has values that are neither text nor plain numbers, as {str(value)[:40]}: make them text first, which"
        " levels can name."
    )


def _infinite(values: np.ndarray) -> int:
    if values.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.sum(values))
    return 0 if finite else values.size - int(np.count_nonzero(np.isfinite(values)))
