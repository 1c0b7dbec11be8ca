"""Source columns from all files of a source: read once, checked, and turned into numbers one column at a time.

Takes the parts of a source and the columns' names; gives `Loaded`. Every refusal names the column and the file.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from epvi.errors import EpviError
from epvi.site import cells
from epvi.site.cells import Cells
from epvi.site.formats import Part
from epvi.site.source import few, unknown_column


@dataclasses.dataclass
class Loaded:
    """Source columns in the pieces of their files, and which rows of each file stay (all for None)."""

    parts: list[Part]
    pieces: dict[str, list[Cells]]
    keep: list[np.ndarray | None]
    num_rows: int = 0
    dropped: int = 0

    def numbers(self, name: str, limits: tuple[float, float] | None) -> np.ndarray:
        """A column of finite numbers within limits."""
        made = []
        for part, piece, keep in zip(self.parts, self.pieces[name], self.keep, strict=True):
            said = f"column {name!r}" + (f" of {part.said}" if part.where else "")
            piece = cells.kept(piece, keep)
            if len(piece) and cells.kind_of(piece) not in (cells.NUMBERS, cells.TRUTHS):
                raise _no_numbers(said, name, piece)
            values = cells.numbers(piece)
            _refuse_infinite(said, values)
            if limits is not None:
                _refuse_outside(said, values, limits)
            made.append(values)
        filled = [values for values in made if len(values)]
        return np.ascontiguousarray(np.concatenate(filled) if len(filled) > 1 else (filled or made)[0])

    def codes(self, name: str, levels: Mapping[Any, int], names: tuple[str, ...]) -> np.ndarray:
        """A column of the levels' numbers."""
        made = []
        for part, piece, keep in zip(self.parts, self.pieces[name], self.keep, strict=True):
            if cells.row_shape(piece):
                raise EpviError(f"column {name!r} of {part.said} is a matrix: only a single column can have levels.")
            numbered, strange = cells.codes(cells.kept(piece, keep), levels)
            if strange is not None:
                text = any(isinstance(level, str) for level in levels)
                value = repr(strange.strip()[:40] if isinstance(strange, str) else strange)
                listed = few([repr(level) if text else level for level in names])
                raise EpviError(
                    f"column {name!r} of {part.said} has the value {value}, which is not among its levels"
                    f" ({listed}): mend the value or add the level."
                )
            made.append(numbered)
        return np.concatenate(made)

    def unchanged(self, name: str) -> np.ndarray:
        """A column as it is, in one piece."""
        pairs = zip(self.pieces[name], self.keep, strict=True)
        return np.concatenate([cells.unchanged(cells.kept(piece, keep)) for piece, keep in pairs])


def load(parts: list[Part], wanted: list[str], coded: Mapping[str, Mapping[Any, int]], drop_missing: bool) -> Loaded:
    """Read columns from every part, and find out which rows lack a value; `coded` columns have levels."""
    text = [name for name in wanted if any(isinstance(level, str) for level in coded.get(name, ()))]
    pieces: dict[str, list[Cells]] = {name: [] for name in wanted}
    keep: list[np.ndarray | None] = []
    num_rows = dropped = 0
    for part in parts:
        unknown = [name for name in wanted if name not in part.names]
        if unknown:
            raise unknown_column(unknown[0], part)
        read = part.fetch(wanted, text)
        length = _one_length(part, read)
        stays = _complete(part, read, length, drop_missing)
        stay = length if stays is None else int(np.count_nonzero(stays))
        num_rows, dropped = num_rows + stay, dropped + length - stay
        keep.append(stays)
        for name in wanted:
            pieces[name].append(read[name])
    _same_kinds(parts, {name: column for name, column in pieces.items() if name not in coded})
    if not num_rows:
        if dropped:
            raise EpviError(
                f"no row of {parts[0].said} is left: all {dropped:,} lack a value in a column that is used."
            )
        raise EpviError(f"{parts[0].said} has zero rows: it needs at least one.")
    return Loaded(parts, pieces, keep, num_rows, dropped)


def _one_length(part: Part, read: dict[str, Cells]) -> int:
    single = [name for name, column in read.items() if cells.row_shape(column) is None]
    if single:
        raise EpviError(f"column {single[0]!r} of {part.said} is a single value: it needs one per row.")
    lengths = {name: len(column) for name, column in read.items()}
    if len(set(lengths.values())) > 1:
        listed = few([f"{name} has {length:,}" for name, length in lengths.items()])
        raise EpviError(f"the columns of {part.said} have different lengths ({listed}): one entry per row in each.")
    return next(iter(lengths.values()))


def _complete(part: Part, read: dict[str, Cells], length: int, drop: bool) -> np.ndarray | None:
    """Which rows have all their values, None when all have; rows that lack one are refused unless dropped."""
    lacking = np.zeros(length, bool)
    for name, column in read.items():
        found = cells.missing(column)
        if found is None:
            continue
        if not drop:
            count = int(np.count_nonzero(found))
            raise EpviError(
                f"column {name!r} of {part.said} has {count:,} missing value{'s' if count > 1 else ''} in {length:,}"
                " rows: fill them in, or leave those rows out (drop_missing=True, --drop-missing, or in the study)."
            )
        lacking |= found
    return ~lacking if lacking.any() else None


def _same_kinds(parts: list[Part], pieces: dict[str, list[Cells]]) -> None:
    for name, column in pieces.items():
        kinds = [(cells.kind_of(piece), cells.row_shape(piece)) for piece in column]
        filled = [i for i, kind in enumerate(kinds) if kind[0] != cells.NOTHING]
        other = next((i for i in filled if kinds[i] != kinds[filled[0]]), None)
        if other is not None:
            words = [kinds[i][0] + (f" of shape {kinds[i][1]}" if kinds[i][1] else "") for i in (other, filled[0])]
            raise EpviError(
                f"column {name!r} of {parts[other].said} holds {words[0]} and in {parts[filled[0]].said} {words[1]}:"
                " give all files the same kind."
            )


def _no_numbers(said: str, name: str, piece: Cells) -> EpviError:
    kind = cells.kind_of(piece)
    if kind == cells.TEXT:
        why = cells.why_text(piece)
        levels = f'levels={{"{name[:40]}": [...]}}, --levels {name[:40]}=..., or in the study'
        return EpviError(f"{said} holds text: {why + '; or ' if why else ''}give its levels, as in {levels}.")
    if kind == cells.DATES:
        return EpviError(f"{said} holds dates or times: turn it into numbers first, in a unit you choose.")
    return EpviError(f"{said} holds {kind}: pass real numbers, or text with levels.")


def _refuse_infinite(said: str, values: np.ndarray) -> None:
    if values.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.sum(values))
    if not finite and (bad := values.size - int(np.count_nonzero(np.isfinite(values)))):
        raise EpviError(f"{said} has {bad:,} infinite values: remove those rows or fill them in.")


def _refuse_outside(said: str, values: np.ndarray, limits: tuple[float, float]) -> None:
    low, high = limits
    bad = int(np.count_nonzero(values < low)) + int(np.count_nonzero(values > high))
    if bad:
        words = f"below {low:g}" if high == math.inf else f"above {high:g}" if low == -math.inf else ""
        raise EpviError(
            f"{said} has {bad:,} value{'s' if bad > 1 else ''} {words or f'outside {low:g} to {high:g}'}, its limits:"
            " mend them, widen the limits, or mark them as missing (NA) and leave those rows out (drop_missing)."
        )
