"""Stores assembled columns in memory, or in unnamed, memory-mapped temporary files when they are large.

Takes blocks of rows one after the other; gives an array of them. A temporary file is gone when its array is garbage
collected or the process ends; a mapped array is read-only.
"""

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from epvi.ground.errors import EpviError

# Most bytes of all columns together that stay in memory: 256 MB, as `Rows` and docs/multi-site.md say. Judgement: small
# beside the memory of any machine, so that several workers or sites can share one.
_MOST_IN_MEMORY = 2**28
# Bytes of rows that `revise` changes at a time: 4 MB. Judgement: to standardise 1,000,000 x 18 values takes the
# same CPU time within 8 % from 2^18 to 2^24, and with 2^24 more memory.
_STEP_BYTES = 2**22

# Maps a block of rows to the changed block.
Change = Callable[[np.ndarray], np.ndarray]


class InMemory:
    """Rows in an array allocated for `num_rows`; pages that are never written take no memory."""

    def __init__(self, num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.array = np.empty((num_rows, *row_shape), dtype)
        self.used = 0

    def room(self, num_rows: int) -> np.ndarray:
        """A buffer for the next rows, to be filled and then passed to `keep`."""
        return self.array[self.used : self.used + num_rows]

    def keep(self, block: np.ndarray) -> None:
        """Append the filled buffer."""
        self.used += len(block)

    def revise(self, change: Change, dtype: np.dtype) -> "InMemory":
        """Apply `change` to all rows, block by block; in place if the dtype stays the same."""
        made = self if dtype == self.array.dtype else InMemory(self.used, self.array.shape[1:], dtype)
        for start, stop in _steps(self.used, self.array.shape[1:], self.array.dtype):
            made.array[start:stop] = change(self.array[start:stop])
        made.used = self.used
        return made

    def finish(self) -> np.ndarray:
        """The rows as an array."""
        return self.array[: self.used]


class OnDisk:
    """At most `num_rows` rows in a temporary file, in TMPDIR or the system's default folder."""

    def __init__(self, num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.num_rows, self.row_shape, self.dtype = num_rows, row_shape, dtype
        self.used = 0
        self.block = np.empty((0, *row_shape), dtype)
        with self._disk_errors():
            self.file = tempfile.TemporaryFile(prefix="epvi-rows-", buffering=0)  # noqa: SIM115 (it stays open until the rows are in it)
        weakref.finalize(self, self.file.close)

    def room(self, num_rows: int) -> np.ndarray:
        """A buffer for the next rows, to be filled and then passed to `keep`."""
        if len(self.block) < num_rows:
            self.block = np.empty((num_rows, *self.row_shape), self.dtype)
        return self.block[:num_rows]

    def keep(self, block: np.ndarray) -> None:
        """Append the filled buffer to the file."""
        self._write(self.used, block)
        self.used += len(block)

    def revise(self, change: Change, dtype: np.dtype) -> "OnDisk":
        """Apply `change` to all rows, block by block; in place if the dtype stays the same."""
        made = self if dtype == self.dtype else OnDisk(self.used, self.row_shape, dtype)
        for start, stop in _steps(self.used, self.row_shape, self.dtype):
            made._write(start, np.ascontiguousarray(change(self._read(start, stop)), dtype))
        made.used = self.used
        return made

    def finish(self) -> np.ndarray:
        """The rows as a read-only memory map, which keeps the unnamed file alive."""
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
        with self._disk_errors():
            self.file.seek(start * _row_bytes(self.row_shape, self.dtype))
            while left:
                left = left[self.file.write(left) :]

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Turn an `OSError` of the temporary folder into an `EpviError`."""
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
    """An empty store for each column, given its row shape and dtype; all on disk if they are large together."""
    needed = num_rows * sum(_row_bytes(*column) for column in columns.values())
    is_large = needed > _MOST_IN_MEMORY
    # An empty file cannot be memory-mapped.
    return {
        name: (OnDisk if is_large and _row_bytes(*column) else InMemory)(num_rows, *column)
        for name, column in columns.items()
    }


def _row_bytes(row_shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize


def _steps(num_rows: int, row_shape: tuple[int, ...], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    step = max(1, _STEP_BYTES // max(1, _row_bytes(row_shape, dtype)))
    return ((start, min(num_rows, start + step)) for start in range(0, num_rows, step))
