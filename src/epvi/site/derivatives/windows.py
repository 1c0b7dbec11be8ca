"""Plans a pass over the rows of several shards: which rows are in memory together, and which points they are for.

Takes the rows of B shards, one shard after the other, and P points, each of which belongs to one shard; gives the calls
of a compiled program. A call has a window of W consecutive rows and at most C points; within it each *item* is a block
of n rows of one shard with one of its points. Windows, blocks and points have fixed sizes, so that one compilation
serves any number of shards of any sizes; rows of a block that belong to another shard have weight zero.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from epvi.site.rows.columns import Columns

# What a block costs besides its rows, in rows. Measured: about 2 µs, as much as 32 rows take for 18 parameters.
_BESIDES = 32
# Least number of rows of a block, unless a shard has fewer: with fewer, call overhead dominates. Judgement.
_LEAST_BLOCK = 128
# Least window of bundles of groups: programs for few of them are then the same whatever their number, and passes skip
# what is not used. Judgement: a program takes seconds to compile, and so many bundles little memory.
_LEAST_WINDOW = 16
# Most rows of a block of bundles. Judgement: their numbers at all nodes stay in the cache.
_MOST_BUNDLED = 2**13


class Items(NamedTuple):
    """The items of a call, as arrays of fixed length; only the first `used` are."""

    # Index of the call's point.
    point: Int[np.ndarray, " I"]
    # First row of the block in the window.
    start: Int[np.ndarray, " I"]
    # The rows of the block that count: from `low` to `high`, without the latter.
    low: Int[np.ndarray, " I"]
    high: Int[np.ndarray, " I"]
    # The number of items.
    used: int


class Call(NamedTuple):
    """One call of a compiled program."""

    # First row of the window.
    first: int
    # The points: indices into all points, without padding.
    points: Int[np.ndarray, " c"]
    # What to compute.
    items: Items


@dataclasses.dataclass(frozen=True)
class Windows:
    """The sizes of a pass over the rows of B shards."""

    # First row of each shard, and the number of all rows, (B + 1,).
    bounds: Int[np.ndarray, " C"]
    # W, rows of a window.
    window: int
    # n, rows of a block.
    block: int

    @classmethod
    def of(cls, sizes: Int[np.ndarray, " B"], window: int, largest: int, bundle: int = 1) -> "Windows":
        """The windows of shards with these sizes, of which the largest is `largest`; `bundle` is that of the target.

        Blocks are of the size with which all rows, padded to whole blocks, cost least.
        """
        window = window if bundle == 1 else max(window, _LEAST_WINDOW)
        most = min(math.ceil(math.log2(largest)), int(math.log2(window)))
        if bundle > 1:
            most = min(most, int(math.log2(max(_MOST_BUNDLED // bundle, 1))))
        least = min(int(math.log2(max(_LEAST_BLOCK // bundle, 1))), most)
        blocks = 2 ** np.arange(least, most + 1)
        costs = [np.sum(-(-sizes // block)) * (block + max(_BESIDES // bundle, 1)) for block in blocks]
        block = int(blocks[np.argmin(costs)])
        return cls(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), window, block)

    def of_others(self, sizes: Int[np.ndarray, " B"]) -> "Windows":
        """Windows and blocks of the same sizes for other rows, so that compiled programs are shared."""
        return dataclasses.replace(self, bounds=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def num_rows(self) -> int:
        """The rows of all shards."""
        return int(self.bounds[-1])

    def rows(self, array: np.ndarray, first: int) -> np.ndarray:
        """The entries of one column in the window that begins at `first`; a short window is padded with the last."""
        made = array[first : first + self.window]
        short = self.window - len(made)
        return made if short <= 0 else np.concatenate([made, np.repeat(made[-1:], short, axis=0)])

    def cut(self, columns: Columns, first: int) -> Columns:
        """The rows of the window that begins at `first`, with columns in alphabetical order, as JAX passes them on."""
        return {name: self.rows(columns[name], first) for name in sorted(columns)}

    def calls(self, owner: Int[np.ndarray, " P"], most: int) -> Iterator[Call]:
        """The calls for points of these shards (in increasing order), in order of their rows; `most` is C."""
        sizes = np.diff(self.bounds)
        begin = 0
        while begin < len(owner):
            if sizes[owner[begin]] > self.window:
                end = int(np.searchsorted(owner, owner[begin], side="right"))
                for some in range(begin, end, most):
                    yield from self._tall(owner, np.arange(some, min(some + most, end)), most)
            else:
                end = self._reach(owner, begin, most)
                yield self._call(owner, np.arange(begin, end), int(self.bounds[owner[begin]]), most)
            begin = end

    def _reach(self, owner: np.ndarray, begin: int, most: int) -> int:
        """One past the last point that a call may have: its rows fit into the window, and there are at most C."""
        last = self.bounds[owner[begin]] + self.window
        end = begin + int(np.searchsorted(self.bounds[owner[begin:] + 1], last, side="right"))
        return min(end, begin + most)

    def _tall(self, owner: np.ndarray, points: np.ndarray, most: int) -> Iterator[Call]:
        """The calls for points of one shard that has more rows than a window."""
        start, stop = int(self.bounds[owner[points[0]]]), int(self.bounds[owner[points[0]] + 1])
        for first in range(start, stop, self.window):
            yield self._call(owner, points, first, most)

    def _call(self, owner: np.ndarray, points: np.ndarray, begin: int, most: int) -> Call:
        """The call for some points and the rows from `begin` to at most the window's end."""
        first = max(min(begin, self.num_rows - self.window), 0)
        start = np.maximum(self.bounds[owner[points]], begin)
        stop = np.minimum(self.bounds[owner[points] + 1], begin + self.window)
        count = -(-(stop - start) // self.block)
        which = np.repeat(np.arange(len(points)), count)
        number = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        row = start[which] + number * self.block
        place = np.minimum(row - first, self.window - self.block)
        low = row - first - place
        high = low + np.minimum(stop[which] - row, self.block)
        # Points of one shard take turns on each block, which is then in the cache.
        order = np.lexsort((which, row))
        parts = np.zeros((4, most * -(-self.window // self.block)), np.int32)
        for part, own in zip(parts, (which, place, low, high), strict=True):
            part[: len(order)] = own[order]
        return Call(first, points, Items(parts[0], parts[1], parts[2], parts[3], len(which)))
