"""Arranges rows in bundles: each holds all rows of a few groups, and all have equally many places for rows.

Takes the group of every row; gives which rows are in which bundle. A pass over bundles then sees groups as wholes.
"""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from epvi.site.rows.columns import Columns

# Columns that bundles have besides those of the rows: the group of each row within its bundle, how many rows there are,
# and the number of each group among all levels, −1 for none.
LOCAL, COUNT, LEVELS = "epvi: group of row", "epvi: rows", "epvi: levels"
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

    def columns(self, columns: Columns) -> Columns:
        """The columns of the rows with one entry per bundle, and those that say which row belongs to which group."""
        made = {name: column[self.rows] for name, column in columns.items()}
        # In the order in which JAX passes them to programs.
        return dict(sorted({**made, LOCAL: self.local, COUNT: self.count, LEVELS: self.levels}.items()))

    def unnumbered(self, columns: Columns) -> Columns:
        """The same where the numbers of groups mean nothing: those that are there have the number 0."""
        return {**self.columns(columns), LEVELS: np.minimum(self.levels, 0)}

    @staticmethod
    def joined(parts: Sequence["Bundles"]) -> "Bundles":
        """The bundles of several parts, one part after the other."""
        width = max(one.levels.shape[1] for one in parts)
        wide = [np.pad(one.levels, ((0, 0), (0, width - one.levels.shape[1])), constant_values=-1) for one in parts]
        rows, local = (np.concatenate([getattr(one, name) for one in parts]) for name in ("rows", "local"))
        return Bundles(rows, local, np.concatenate([one.count for one in parts]), np.concatenate(wide))


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
