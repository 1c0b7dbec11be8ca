"""Memory-mapped files of rows, sorted by shard, through which workers read their rows without copies.

Takes columns and a split; writes one raw binary file per column. A worker maps its shard's part of each.
"""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.rows.columns import Columns, map_rows
from epvi.site.rows.split import Split

# Bytes of rows that are gathered and written at a time. Judgement: they stay in the cache of a core.
_PIECE = 2**19
# Jobs per thread and column. Judgement: enough to keep all threads busy to the end, whatever the number of shards.
_JOBS_PER_THREAD = 4


@dataclasses.dataclass(frozen=True)
class Column:
    """One column's file.

    Attributes:
        name: name of the column.
        file: name of the file in the folder.
        dtype: NumPy type of its numbers.
        entry: shape of one row's entry.
    """

    name: str
    file: str
    dtype: str
    entry: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes per row."""
        return math.prod(self.entry) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class MappedRows:
    """A contiguous part of the rows in a folder of column files.

    Attributes:
        folder: the folder.
        listed: the columns in it.
        num_rows: number of rows in every file.
        part: the rows of this shard.
    """

    folder: Path
    listed: tuple[Column, ...]
    num_rows: int
    part: slice

    def columns(self) -> Columns:
        """The rows as memory-mapped arrays."""
        made = {}
        for column in self.listed:
            shape = (self.num_rows, *column.entry)
            made[column.name] = map_rows(self.folder / column.file, np.dtype(column.dtype), shape)[self.part]
        return made


@contextlib.contextmanager
def reported(folder: Path | str) -> Iterator[None]:
    """Turn an `OSError`, such as a full disk, into an error with a remedy."""
    try:
        yield
    except OSError as error:
        raise EpviError(
            f"rows cannot be written to {str(folder)!r} for the workers ({error.strerror or error}): make room, or set"
            " TMPDIR to a folder that has it."
        ) from error


def write_rows(columns: Columns, split: Split, folder: Path, num_threads: int) -> list[MappedRows]:
    """Write all columns with their rows sorted by shard; gives the rows of each shard."""
    bounds = np.concatenate([[0], np.cumsum(split.sizes)]).tolist()
    num_rows = bounds[-1]
    listed = tuple(
        Column(name, f"{i}.rows", column.dtype.str, column.shape[1:])
        for i, (name, column) in enumerate(columns.items())
    )
    with reported(folder.parent):
        for column in listed:
            # At least one byte: an empty file cannot be mapped.
            with open(folder / column.file, "wb") as file:
                file.truncate(max(num_rows * column.width, 1))
        with ThreadPoolExecutor(num_threads) as threads:
            jobs = [
                threads.submit(_write, folder / column.file, columns[column.name], some, bounds[first] * column.width)
                for first, some in _runs(split, _JOBS_PER_THREAD * num_threads)
                for column in listed
            ]
            try:
                for job in jobs:
                    job.result()
            finally:
                # After an error or an interrupt, jobs that have not begun are cancelled.
                threads.shutdown(cancel_futures=True)
    return [MappedRows(folder, listed, num_rows, slice(a, b)) for a, b in itertools.pairwise(bounds)]


def _runs(split: Split, count: int) -> Iterator[tuple[int, list[slice | np.ndarray]]]:
    """About `count` runs of consecutive shards with about equally many rows: the first shard, and the rows of all."""
    ends = np.cumsum(split.sizes)
    run = (ends - 0.5 * split.sizes) * count // ends[-1]
    firsts = np.flatnonzero(np.diff(run, prepend=-1)).tolist()
    for first, end in itertools.pairwise([*firsts, split.num_shards]):
        yield first, _merged(split.shards[first:end])


def _merged(shards: Sequence[slice | np.ndarray]) -> list[slice | np.ndarray]:
    """The rows of several shards, as one array of indices if they are such."""
    arrays = [rows for rows in shards if isinstance(rows, np.ndarray)]
    return [np.concatenate(arrays)] if len(arrays) == len(shards) > 1 else list(shards)


def _write(path: Path, column: np.ndarray, some: list[slice | np.ndarray], offset: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        for piece in itertools.chain.from_iterable(_pieces(column, rows) for rows in some):
            left = piece.reshape(-1).view(np.uint8).data
            while left:
                left = left[os.write(file.fileno(), left) :]


def _pieces(column: np.ndarray, rows: slice | np.ndarray) -> Iterator[np.ndarray]:
    """Some rows of one column, in pieces of about `_PIECE` bytes."""
    size = max(_PIECE // max(column.strides[0], column[:1].nbytes, 1), 1)
    if isinstance(rows, slice):
        for start in range(rows.start, rows.stop, size):
            yield np.ascontiguousarray(column[start : min(start + size, rows.stop)])
        return
    # One buffer for all pieces, which stays in the cache. With mode="clip" NumPy writes to it directly, without a copy;
    # nothing is clipped, since all indices are in range.
    place = np.empty((min(size, len(rows)), *column.shape[1:]), column.dtype)
    for start in range(0, len(rows), size):
        chosen = rows[start : start + size]
        yield np.take(column, chosen, axis=0, out=place[: len(chosen)], mode="clip")
