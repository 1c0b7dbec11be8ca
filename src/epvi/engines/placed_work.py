"""What workers of a cluster do with recipes and tasks; nothing large is imported before it is needed.

Takes recipes and tasks as bytes; gives rows, which the cluster keeps, and results as bytes.
"""

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class FailedLoad:
    """Why there are no rows, as the result of every task on them."""

    result: bytes


def rows_of(recipe: bytes, partitions: Sequence[Any]) -> Any:
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


def done_with(task: bytes, rows: Any, each: bytes, where: str) -> bytes:
    """A task on the rows of a fragment; `where` is how messages call this worker."""
    from epvi.engines.performing import perform

    return rows.result if isinstance(rows, FailedLoad) else perform(task, rows, each, where)
