"""The context of every public function ("verb"), entered by the outermost call only.

It refuses a process that was forked after JAX was used, disables JAX's NaN and infinity checks (infinities are normal
in a line search), turns out-of-memory and missing-platform errors into an `EpviError`, and evicts compiled programs
afterwards.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax

from epvi.ground.compiled import let_go
from epvi.ground.errors import EpviError
from epvi.ground.forked import refuse_after_fork

P = ParamSpec("P")
T = TypeVar("T")

# Whether a verb is running, by thread.
_thread = threading.local()

_NO_MEMORY = (
    "there is not enough memory for {what}: take more shards, fewer workers at once, or fewer draws or components."
)


def verb(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for public functions; `doing` names the work in error messages, as in "fitting the shard"."""

    def made(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with at_work(doing):
                return function(*args, **kwargs)

        return wrapper

    return made


@contextlib.contextmanager
def at_work(doing: str) -> Iterator[None]:
    """The context of a verb; inside another verb it only translates errors."""
    if getattr(_thread, "busy", False):
        with in_a_sentence(doing):
            yield
        return
    refuse_after_fork()
    _thread.busy = True
    try:
        with jax.debug_nans(False), jax.debug_infs(False), in_a_sentence(doing):
            yield
    finally:
        _thread.busy = False
        let_go()


@contextlib.contextmanager
def in_a_sentence(what: str) -> Iterator[None]:
    """Turn errors of exhausted memory, and of a platform that JAX cannot use, into an `EpviError` that names `what`."""
    try:
        yield
    except MemoryError as error:
        said = f" ({str(error).rstrip('.')})" if str(error) else ""
        raise EpviError(_NO_MEMORY.format(what=f"{what}{said}")) from error
    except (RuntimeError, EpviError) as error:
        # An error from tracing a model has JAX's own error as its cause.
        said = str(error.__cause__ if isinstance(error, EpviError) else error)
        if said.startswith(("Unable to initialize backend", "Unknown backend")):
            chosen = os.environ.get("JAX_PLATFORMS") or getattr(jax.config, "jax_platforms", None)
            raise EpviError(
                f"JAX cannot use the platform {chosen!r} ({_first(said)}): set JAX_PLATFORMS=cpu, or leave it unset."
            ) from error
        if isinstance(error, RuntimeError) and ("RESOURCE_EXHAUSTED" in said or "Out of memory" in said):
            raise EpviError(_NO_MEMORY.format(what=f"{what} ({_first(said)})")) from error
        raise


def _first(said: str) -> str:
    return (said.splitlines() or [""])[0][:200].rstrip(".")
