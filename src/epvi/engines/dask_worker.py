"""What Dask's workers run. Dask's scheduler reads these names too, so that nothing large is imported at first."""

from collections.abc import Sequence
from typing import Any

from epvi.engines.placed_work import done_with, rows_of


def carried(part: bytes) -> bytes:
    """A part of a task, which goes to the cluster once, and from worker to worker."""
    return part


def load(recipe: bytes, partitions: Sequence[Any]) -> Any:
    """The rows of a fragment."""
    return rows_of(recipe, partitions)


def run(parts: Sequence[bytes], rows: Any, each: bytes) -> bytes:
    """A task on the rows of a fragment."""
    from distributed import get_worker

    return done_with(b"".join(parts), rows, each, f"the Dask worker {get_worker().address}")
