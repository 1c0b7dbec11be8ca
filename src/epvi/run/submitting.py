"""Submit tasks to any executor, read their errors, and give up those of a call that has failed."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from epvi.engines.local import Pool
from epvi.ground.errors import EpviError


class ExecutorClosedError(EpviError):
    """The executor accepts no tasks."""


def submit(executor: Executor, number: int, function: Callable, *arguments: Any) -> Future:
    """The future of a task.

    Of epvi's own workers preferably the same one runs all tasks of a number: it has compiled their programs before.
    """
    try:
        if isinstance(executor, Pool):
            return executor.submit_near(number, function, *arguments)
        return executor.submit(function, *arguments)
    except RuntimeError as error:
        said = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
        raise ExecutorClosedError(f"the executor takes no work ({said}): pass one that is still open.") from error


def error_of(future: Future) -> Exception | None:
    """The error of a finished task, or None; a `KeyboardInterrupt` or the like is raised at once."""
    try:
        error = future.exception()
    except CancelledError:
        return EpviError("the executor was closed while it had work to do: keep it open until the call is over.")
    if error is None or isinstance(error, Exception):
        return error
    raise error


def abandon(executor: Executor, futures: list[Future]) -> None:
    """Cancel the unfinished tasks of this call, and no others."""
    if isinstance(executor, Pool):
        executor.abandon(futures)
    for future in futures:
        future.cancel()
