"""What Ray's workers run."""

import platform
from typing import Any

from epvi.engines.placed_work import done_with, rows_of


def load(recipe: bytes, *partitions: Any) -> Any:
    """The rows of a fragment."""
    return rows_of(recipe, partitions)


def run(task: bytes, rows: Any, each: bytes) -> bytes:
    """A task on the rows of a fragment."""
    return done_with(task, rows, each, f"a Ray worker on {platform.node()}")
