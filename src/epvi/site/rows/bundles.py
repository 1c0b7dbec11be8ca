"""Arranges rows in bundles: each holds all rows of a few groups, and all have equally many places for rows.

Takes the group of every row; gives which rows are in which bundle. A pass over bundles then sees groups as wholes.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from epvi.site.rows.columns import Columns

# Columns that bundles have besides those of the rows: the group of each row within its bundle, how many rows there are,
# and the number of each group among all levels, −1 for none.
LOCAL, COUNT, LEVELS = "epvi: group of row", "epvi: rows", "epvi: levels"
# The same of groups that lie in larger ones, which then are the groups of the columns above; and the larger group of
# each within its bundle.
INNER_LOCAL, INNER_LEVELS, PARENT = "epvi: inner group of row", "epvi: inner levels", "epvi: group of inner group"
# A column that is added where integrals over effects are computed near a known point: see
# `site/derivatives/conditional.py`.
PILOT = "epvi: pilot"
# Bundles may have this many places for each row of all of them; if there are more, larger bundles are tried. Judgement.
_MOST_PLACES = 1.4


@dataclasses.dataclass(frozen=True, eq=False)
class Bundles:
    """Which rows are in which bundle."""

    # Row of each place; places that are left over repeat a row of their bundle.
    rows: Int[np.ndarray, "B r"]
    # The group of each place within its bundle.
    local: Int[np.ndarray, "B r"]
    # Places that are used: the first ones of each bundle.
    count: Int[np.ndarray, " B"]
    # The groups of each bundle, −1 for none.
    levels: Int[np.ndarray, "B L"]
    # Of groups that lie in larger ones, which then are the groups above, the same, and the group of each in its bundle.
    inner_local: Int[np.ndarray, "B r"] | None = None
    inner_levels: Int[np.ndarray, "B l"] | None = None
    parent: Int[np.ndarray, "B l"] | None = None

    def columns(self, columns: Columns) -> Columns:
        """The columns of the rows with one entry per bundle, and those that say which row belongs to which group."""
        made = {name: column[self.rows] for name, column in columns.items()}
        inner = {INNER_LOCAL: self.inner_local, INNER_LEVELS: self.inner_levels, PARENT: self.parent}
        made |= {name: column for name, column in inner.items() if column is not None}
        # In the order in which JAX passes them to programs.
        return dict(sorted({**made, LOCAL: self.local, COUNT: self.count, LEVELS: self.levels}.items()))

    def unnumbered(self, columns: Columns) -> Columns:
        """The same where the numbers of groups mean nothing: those that are there have the number 0."""
        return {**self.columns(columns), LEVELS: np.minimum(self.levels, 0)}

    @staticmethod
    def joined(parts: Sequence["Bundles"]) -> "Bundles":
        """The bundles of several parts, one part after the other."""

        def end_to_end(name: str) -> Any:
            arrays = [getattr(one, name) for one in parts]
            return None if arrays[0] is None else np.concatenate(arrays)

        def widened(name: str, absent: int) -> Any:
            arrays = [getattr(one, name) for one in parts]
            if arrays[0] is None:
                return None
            width = max(one.shape[1] for one in arrays)
            padded = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=absent) for one in arrays]
            return np.concatenate(padded)

        rows, local, count, inner = (end_to_end(name) for name in ("rows", "local", "count", "inner_local"))
        levels, inner_levels, parent = (widened(*one) for one in (("levels", -1), ("inner_levels", -1), ("parent", 0)))
        return Bundles(rows, local, count, levels, inner, inner_levels, parent)


def size_of_bundles(sizes: Int[np.ndarray, " G"]) -> int:
    """Places per bundle: as many as the largest group has rows, or a few times that if less is left over then."""
    # At least two, so that a bundle is never a row.
    largest, total = max(int(np.max(sizes)), 2), int(np.sum(sizes))
    tried = {}
    for times in (1, 2, 4):
        tried[times * largest] = len(_packed(sizes, times * largest)) * times * largest
        if tried[times * largest] <= _MOST_PLACES * total:
            break
    return min(tried, key=lambda size: tried[size])


def bundle(codes: Int[np.ndarray, " n"], rows: Int[np.ndarray, " n"], size: int) -> Bundles:
    """The bundles of rows with these groups, with `size` places each."""
    order = np.argsort(codes, kind="stable")
    levels, starts, counts = np.unique(codes[order], return_index=True, return_counts=True)
    packed = _packed(counts, size)
    number, width = len(packed), max(map(len, packed))
    chosen = np.full((number, width), -1, np.int32)
    places, local, used = np.zeros((number, size), np.int64), np.zeros((number, size), np.int32), np.zeros(number, int)
    for b, groups in enumerate(packed):
        chosen[b, : len(groups)] = levels[groups]
        own = np.concatenate([np.arange(starts[g], starts[g] + counts[g]) for g in groups])
        used[b] = len(own)
        places[b, : len(own)], places[b, len(own) :] = order[own], order[own[-1]]
        local[b, : len(own)] = np.repeat(np.arange(len(groups)), counts[groups])
        local[b, len(own) :] = len(groups) - 1
    return Bundles(rows[places], local, used.astype(np.int32), chosen)


def bundle_nested(
    inner: Int[np.ndarray, " N"], codes: Int[np.ndarray, " N"], rows: Int[np.ndarray, " n"], size: int
) -> Bundles:
    """The bundles of some rows with these larger groups `codes`, and the groups `inner` that lie in them."""
    # Sorted by both: within a bundle the rows of every group are then contiguous.
    rows = rows[np.argsort(inner[rows], kind="stable")]
    made = bundle(codes[rows], rows, size)
    of_rows = inner[made.rows]
    local = np.cumsum(np.diff(of_rows, axis=1, prepend=of_rows[:, :1]) != 0, axis=1).astype(np.int32)
    # Places that are left over repeat the last row.
    levels = np.full((len(local), int(np.max(local)) + 1), -1, np.int32)
    parent = np.zeros_like(levels)
    bundles = np.arange(len(local))[:, None]
    levels[bundles, local], parent[bundles, local] = of_rows, made.local
    return dataclasses.replace(made, inner_local=local, inner_levels=levels, parent=parent)


def _packed(sizes: Int[np.ndarray, " G"], capacity: int) -> list[list[int]]:
    """Groups in bundles of at most this many rows: in each the largest that is left, then the largest that fit."""
    order = np.argsort(sizes, kind="stable")
    left, ends = [int(g) for g in order], [int(sizes[g]) for g in order]
    packed = []
    while left:
        groups, room = [], capacity
        while left and ends[0] <= room:
            at = bisect.bisect_right(ends, room) - 1
            room -= ends.pop(at)
            groups.append(left.pop(at))
        packed.append(groups)
    return packed
