"""Where assembled columns lie: in memory, or in nameless temporary files that are mapped.

Takes blocks of rows one after the other; gives a plain array of them. Such a file goes with its array, or with the
process, and the array cannot be written to.
"""

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from epvi.ground.errors import EpviError

_MOST_IN_MEMORY = 2**28
_STEP_BYTES = 2**22

Change = Callable[[np.ndarray], np.ndarray]


class InMemory:
    """Rows in an array with room for `num_rows`; room that is not needed takes no memory."""

    def __init__(self, num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.array = np.empty((num_rows, *row_shape), dtype)
        self.used = 0

    def room(self, num_rows: int) -> np.ndarray:
        """A block to be filled, then kept."""
        return self.array[self.used : self.used + num_rows]

    def keep(self, block: np.ndarray) -> None:
        """Take the block that was filled."""
        self.used += len(block)

    def revise(self, change: Change, dtype: np.dtype) -> "InMemory":
        """All rows changed, in place if their type stays."""
        made = self if dtype == self.array.dtype else InMemory(self.used, self.array.shape[1:], dtype)
        for start, stop in _steps(self.used, self.array.shape[1:], self.array.dtype):
            made.array[start:stop] = change(self.array[start:stop])
        made.used = self.used
        return made

    def finish(self) -> np.ndarray:
        """The rows."""
        return self.array[: self.used]


class OnDisk:
    """Rows in a temporary file with room for `num_rows` at most, in TMPDIR or where the system has such files."""

    def __init__(self, num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.num_rows, self.row_shape, self.dtype = num_rows, row_shape, dtype
        self.used = 0
        self.block = np.empty((0, *row_shape), dtype)
        with self._said():
            self.file = tempfile.TemporaryFile(prefix="epvi-rows-", buffering=0)  # noqa: SIM115 (it stays open until the rows are in it)
        weakref.finalize(self, self.file.close)

    def room(self, num_rows: int) -> np.ndarray:
        """A block to be filled, then kept."""
        if len(self.block) < num_rows:
            self.block = np.empty((num_rows, *self.row_shape), self.dtype)
        return self.block[:num_rows]

    def keep(self, block: np.ndarray) -> None:
        """Take the block that was filled."""
        self._write(self.used, block)
        self.used += len(block)

    def revise(self, change: Change, dtype: np.dtype) -> "OnDisk":
        """All rows changed, in place if their type stays."""
        made = self if dtype == self.dtype else OnDisk(self.used, self.row_shape, dtype)
        for start, stop in _steps(self.used, self.row_shape, self.dtype):
            made._write(start, np.ascontiguousarray(change(self._read(start, stop)), dtype))
        made.used = self.used
        return made

    def finish(self) -> np.ndarray:
        """The rows, mapped; the map keeps the file."""
        mapped = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        self.file.close()
        return np.frombuffer(mapped, self.dtype).reshape(self.used, *self.row_shape)

    def _read(self, start: int, stop: int) -> np.ndarray:
        block = np.empty((stop - start, *self.row_shape), self.dtype)
        left = block.data.cast("B")
        self.file.seek(start * _row_bytes(self.row_shape, self.dtype))
        while left:
            left = left[self.file.readinto(left) :]
        return block

    def _write(self, start: int, block: np.ndarray) -> None:
        left = block.data.cast("B") if len(block) else memoryview(b"")
        with self._said():
            self.file.seek(start * _row_bytes(self.row_shape, self.dtype))
            while left:
                left = left[self.file.write(left) :]

    @contextmanager
    def _said(self) -> Iterator[None]:
        """One sentence when the folder cannot take the file."""
        try:
            yield
        except OSError as error:
            size = self.num_rows * _row_bytes(self.row_shape, self.dtype) / 1e6
            folder = tempfile.tempdir or "the temporary folder"
            raise EpviError(
                f"the rows take {size:,.0f} MB, too much for memory, and cannot be put into {folder}"
                f" ({error.strerror or error}): set TMPDIR to a folder that has room."
            ) from error


Store: TypeAlias = InMemory | OnDisk


def spill(num_rows: int, columns: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, Store]:
    """A place for each column, given the shapes and types of their rows: on disk if they are large together."""
    needed = num_rows * sum(_row_bytes(*column) for column in columns.values())
    is_large = needed > _MOST_IN_MEMORY
    # A file without bytes cannot be mapped.
    return {
        name: (OnDisk if is_large and _row_bytes(*column) else InMemory)(num_rows, *column)
        for name, column in columns.items()
    }


def _row_bytes(row_shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize


def _steps(num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    step = max(1, _STEP_BYTES // max(1, _row_bytes(row_shape, dtype)))
    return ((start, min(num_rows, start + step)) for start in range(0, num_rows, step))
