"""A task as bytes, what a worker does with it, and its result as bytes: all that an engine has to carry.

Takes a function of a module, what it needs besides the rows, and the rows; gives its result, or why there is none.
Model and settings are pickled; the versions of the packages, by which results may differ, come first and are compared
before anything else is read.
"""

import dataclasses
import functools
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import cloudpickle

from epvi.engines.kept_programs import kept_programs
from epvi.engines.one_thread import with_one_thread
from epvi.ground.errors import EpviError
from epvi.ground.version import __version__

# Packages that must be the same for a worker as for the caller: they make numbers, or read pickled models.
_PACKAGES = ("jax", "numpyro")


class WorkerLostError(EpviError):
    """A task has lost its worker too often to be tried again."""


@dataclasses.dataclass(frozen=True)
class _Failure:
    """Why a task has no result."""

    kind: type[Exception]
    said: str


@functools.cache
def versions() -> dict[str, str]:
    """The versions that caller and workers must share."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"epvi": __version__, **{name: version(name) for name in _PACKAGES}, "Python": python}


def packed_task(function: Callable[[Any, Any, Any], Any], shared: Any) -> bytes:
    """The task to call a module's function with `shared`, the rows, and what there is of each handle."""
    return cloudpickle.dumps((versions(), cloudpickle.dumps((function, shared))))


def packed_each(value: Any) -> bytes:
    """What a task needs to know of one handle."""
    return cloudpickle.dumps(value)


def perform(task: bytes, rows: Any, each: bytes, where: str = "a worker") -> bytes:
    """Do a task on a worker; an error is a result too, so that no engine takes it for one of its own."""
    try:
        theirs, work = cloudpickle.loads(task)
        _refuse_other(theirs, where)
        with_one_thread()
        function, shared = cloudpickle.loads(work)
        with kept_programs():
            made = function(shared, rows, cloudpickle.loads(each))
        return cloudpickle.dumps(made)
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> bytes:
    """The result of a task that failed."""
    if isinstance(error, EpviError):
        return cloudpickle.dumps(_Failure(EpviError, str(error)))
    said = f"{type(error).__name__}: {str(error).rstrip('.')}" if str(error) else type(error).__name__
    return cloudpickle.dumps(_Failure(RuntimeError, said))


def lost(said: str) -> bytes:
    """The result of a task that has lost its worker too often."""
    return cloudpickle.dumps(_Failure(WorkerLostError, said))


def result_of(made: bytes) -> Any:
    """What a task gave; a failure as an exception, which is not raised."""
    result = cloudpickle.loads(made)
    return result.kind(result.said) if isinstance(result, _Failure) else result


def _refuse_other(theirs: dict[str, str], where: str) -> None:
    ours = versions()
    other = [name for name, number in theirs.items() if ours.get(name) != number]
    if other:
        has = " and ".join(f"{name} {ours.get(name, 'none')}" for name in other)
        caller = " and ".join(f"{name} {theirs[name]}" for name in other)
        raise EpviError(
            f"{where} has {has}, and the caller {caller}: install the same versions on all workers, because results"
            " would depend on who computes them."
        )
