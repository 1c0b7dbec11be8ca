"""epvi's own worker processes as an engine: fragments are files that the workers read, and rows never pass the caller.

Rows that a worker has read are in memory-mapped files of a temporary folder, which all workers of the machine share.
"""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from epvi.engines.engine import Load
from epvi.engines.local import Pool, size_of, workers
from epvi.engines.performing import failure, lost, perform
from epvi.engines.process import WorkerDied
from epvi.ground.atomic import owner
from epvi.ground.errors import EpviError
from epvi.wire.fragment import Fragment

# What a new worker imports while it waits for its first task: the tasks are in a layer above this one.
PRELOADED = "epvi.run.worker"
# Worker processes that a task may lose before it fails: after the second one, the task itself is probably the cause.
_MOST_DEATHS = 2
# Seconds between looks for an interrupt while no task ends. Judgement.
_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class _Placed:
    """A fragment, and the folder that its rows are in once they were read."""

    fragment: Fragment
    load: Load
    folder: Path


class Local:
    """The cores of this machine, as an engine: `workers` processes of epvi's own, by default one per core."""

    def __init__(self, workers: int | None = None) -> None:
        size_of(workers)
        self._number = workers

    def __repr__(self) -> str:
        return f"Local({'' if self._number is None else self._number})"

    @property
    def said(self) -> str:
        """Who works, for the log."""
        return f"{size_of(self._number)} workers of epvi's own"

    @property
    def owns_workers(self) -> bool:
        """Nobody else uses them."""
        return True

    def partitions(self, source: Any, columns: Sequence[str]) -> list[Any]:
        """None: rows in the memory of this process have no need of an engine."""
        raise EpviError(
            f"rows are a {type(source).__name__} in this process, and engine= is for rows that stay elsewhere: pass"
            " files, or leave engine out (executor=...)."
        )

    def place(self, fragments: Sequence[Fragment], load: Load) -> list[_Placed]:
        """Handles: a folder for each fragment, in a temporary one."""
        try:
            whole = Path(tempfile.mkdtemp(prefix=f"epvi-rows-{owner()}-"))
            handles = [_Placed(fragment, load, whole / str(i)) for i, fragment in enumerate(fragments)]
            for handle in handles:
                handle.folder.mkdir()
        except OSError as error:
            raise EpviError(
                f"there is no room for rows in {tempfile.gettempdir()!r} ({error.strerror}): set TMPDIR to a folder"
                " that has it."
            ) from error
        return handles

    def map(
        self, task: bytes, handles: Sequence[_Placed], *, each: Sequence[bytes], name: str
    ) -> Generator[tuple[int, bytes]]:
        """Run a task on the rows of every handle; see `Engine.map`."""
        pool: Pool = workers(self._number, PRELOADED)
        pending: dict[Future, int] = {}
        deaths = [0] * len(handles)

        def begin(i: int) -> None:
            pending[pool.submit_near(i, _perform, task, handles[i], each[i])] = i

        try:
            for i in range(len(handles)):
                begin(i)
            while pending:
                for future in wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    i, error = pending.pop(future), future.exception()
                    if isinstance(error, WorkerDied):
                        deaths[i] += 1
                        if deaths[i] < _MOST_DEATHS:
                            begin(i)
                            continue
                        yield i, lost(f"{error}")
                    elif isinstance(error, Exception):
                        yield i, failure(error)
                    elif error is not None:
                        raise error
                    else:
                        yield i, future.result()
        finally:
            pool.abandon(list(pending))

    def release(self, handles: Sequence[_Placed]) -> None:
        """Remove the folders."""
        for handle in handles:
            shutil.rmtree(handle.folder, ignore_errors=True)
        for whole in {handle.folder.parent for handle in handles}:
            # Others may still be in it.
            with contextlib.suppress(OSError):
                whole.rmdir()


def _perform(task: bytes, handle: _Placed, each: bytes) -> bytes:
    """On a worker: make the rows, or find them in their folder, and do the task."""
    try:
        rows = handle.load(handle.fragment, (), handle.folder)
    except Exception as error:
        return failure(error)
    return perform(task, rows, each, "a worker of epvi's own")
