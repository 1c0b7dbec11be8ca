"""The protocol of engines, which run tasks where rows are.

Takes recipes for rows (`Fragment`) and pickled tasks; gives small results as they are completed. What a worker has read
is only a cache: any worker can make the rows of any handle again, so that a lost worker costs a reading, and no answer.
"""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from epvi.wire.fragment import Fragment

# What an engine knows placed rows by.
Handle = Any
# Makes rows from a recipe, the engine's partitions of it, and a folder that may hold them for all workers of a machine.
# It is pickled by its name, so that it is a function of a module.
Load = Callable[[Fragment, Sequence[Any], Path | None], Any]


@runtime_checkable
class Engine(Protocol):
    """What epvi asks of a cluster."""

    @property
    def said(self) -> str:
        """Who works, for the log."""
        ...

    @property
    def owns_workers(self) -> bool:
        """Whether nobody else uses JAX and the user's modules in the worker processes."""
        ...

    def partitions(self, source: Any, columns: Sequence[str]) -> list[Any]:
        """The partitions of a source that the engine itself holds, with these columns or, if there are none, all."""
        ...

    def place(self, fragments: Sequence[Fragment], load: Load) -> list[Handle]:
        """Handles of the rows that `load` makes of each fragment; it may be called later, and more than once."""
        ...

    def map(
        self, task: bytes, handles: Sequence[Handle], *, each: Sequence[bytes], name: str
    ) -> Generator[tuple[int, bytes]]:
        """Run a task on the rows of every handle; gives its number, and what `perform` gave, as completed.

        `each` is what the task needs to know of the handle besides, and `name` what a dashboard calls the work. A task
        that has lost its worker is run again on another; one that has lost several gives `lost(...)`. When the iterator
        is closed before it has ended, tasks that have not begun are cancelled.
        """
        ...

    def release(self, handles: Sequence[Handle]) -> None:
        """Free the rows."""
        ...
