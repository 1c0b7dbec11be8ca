"""Makes shards of fragments, which are never divided: one of each, so many of all, or one for each value of a column.

Takes fragments that were looked at; gives the shards with their recipes. By default each fragment is a shard, but small
ones are merged: fragments are taken in their order until they have `LEAST_ROWS` rows together.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from epvi.fragments.looking import Looked
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.ground.validation import at_least
from epvi.wire.fragment import Fragment, joined

# Rows below which a fragment does not become a shard by itself. Judgement: fits of fewer rows are further from
# Gaussian, and each takes as long as one of so many.
LEAST_ROWS = 1000


@dataclasses.dataclass(frozen=True)
class FragmentShards:
    """Shards of fragments.

    Attributes:
        fragments: the recipe of each shard's rows.
        labels: how messages name each shard.
    """

    fragments: tuple[Fragment, ...]
    labels: tuple[str, ...]

    @property
    def sizes(self) -> np.ndarray:
        """The number of rows of each shard."""
        return np.array([one.num_rows for one in self.fragments])


def shards_of_fragments(looked: Looked, shards: int | None, by: str | None) -> FragmentShards:
    """The shards, and their names."""
    if by is not None:
        return _by_value(looked, by)
    groups = _merged(looked.fragments) if shards is None else _grouped(looked.fragments, at_least("shards", shards, 1))
    labels = tuple(f"{m} of {len(groups)}{_files(group)}" for m, group in enumerate(groups, start=1))
    return FragmentShards(tuple(joined(group) for group in groups), labels)


def _by_value(looked: Looked, by: str) -> FragmentShards:
    found: dict[str, list[Fragment]] = {}
    for value, fragment in zip(looked.values, looked.fragments, strict=True):
        assert value is not None
        found.setdefault(value, []).append(fragment)
    if len(found) < 2:
        raise EpviError(f"column {by!r} has one value in all rows: there is nothing to split by.")
    values = sorted(found)
    labels = tuple(shown(f"{m} of {len(values)} ({by} = {value})") for m, value in enumerate(values, start=1))
    return FragmentShards(tuple(joined(found[value]) for value in values), labels)


def _merged(fragments: Sequence[Fragment]) -> list[list[Fragment]]:
    """Runs of fragments with at least `LEAST_ROWS` rows each; what is left at the end goes to the last run."""
    runs: list[list[Fragment]] = [[]]
    for fragment in fragments:
        if sum(one.num_rows for one in runs[-1]) >= LEAST_ROWS:
            runs.append([])
        runs[-1].append(fragment)
    if len(runs) > 1 and sum(one.num_rows for one in runs[-1]) < LEAST_ROWS:
        runs[-2:] = [runs[-2] + runs[-1]]
    return runs


def _grouped(fragments: Sequence[Fragment], shards: int) -> list[list[Fragment]]:
    """So many runs of fragments, with about equally many rows each."""
    if shards > len(fragments):
        raise EpviError(
            f"there are {shards:,} shards for {len(fragments):,} fragments with rows, and fragments are not divided:"
            " take fewer shards, or write the rows to more files."
        )
    sizes = np.array([one.num_rows for one in fragments])
    middle = np.cumsum(sizes) - 0.5 * sizes
    wanted = (middle * shards / np.sum(sizes)).astype(int).tolist()
    groups: list[list[Fragment]] = []
    for i, (fragment, run) in enumerate(zip(fragments, wanted, strict=True)):
        # Each shard gets a fragment, and none is left without.
        if not groups or run >= len(groups) or shards - len(groups) >= len(fragments) - i:
            groups.append([])
        groups[-1].append(fragment)
    return groups


def _files(group: Sequence[Fragment]) -> str:
    """The file of a shard, and how many more."""
    paths = [one.pieces[0].path for one in group]
    if not paths[0]:
        return ""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return shown(f" ({PurePath(paths[0]).name}{more})")
