"""What Dask's workers run. Dask's scheduler reads these names too, so that nothing large is imported at first.

Takes recipes and tasks as bytes; gives rows, which Dask keeps, and results as bytes.
"""

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class FailedLoad:
    """Why there are no rows, as the result of every task on them."""

    result: bytes


def carried(part: bytes) -> bytes:
    """A part of a task, which goes to the cluster once, and from worker to worker."""
    return part


def load(recipe: bytes, partitions: Sequence[Any]) -> Any:
    """The rows of a fragment."""
    from epvi.engines.allocation import kept_blocks
    from epvi.engines.performing import failure

    try:
        make, fragment = pickle.loads(recipe)
        with kept_blocks() as keep_for:
            rows = make(fragment, partitions, None)
            keep_for(rows)
        return rows
    except Exception as error:
        return FailedLoad(failure(error))


def run(parts: Sequence[bytes], rows: Any, each: bytes) -> bytes:
    """A task on the rows of a fragment."""
    from distributed import get_worker

    from epvi.engines.performing import perform

    if isinstance(rows, FailedLoad):
        return rows.result
    return perform(b"".join(parts), rows, each, f"the Dask worker {get_worker().address}")
