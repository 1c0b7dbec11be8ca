"""What every public verb does around its work, in the outermost of them only.

A process that was forked after JAX had computed is refused; JAX's switches for debugging are off inside (infinities are
normal in a line search); an exhausted memory and a platform that JAX does not have end in a sentence; and what was
compiled is cut to its bound afterwards.
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

_thread = threading.local()

_NO_MEMORY = (
    "there is not enough memory for {what}: take more shards, fewer workers at once, or fewer draws or components."
)


def verb(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a public function a verb; `doing` is what it does, as in "fitting the shard"."""

    def made(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with at_work(doing):
                return function(*args, **kwargs)

        return wrapper

    return made


@contextlib.contextmanager
def at_work(doing: str) -> Iterator[None]:
    """The context of a verb; inside another one it only says what could not be done."""
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
    """An exhausted memory while doing `what`, and a platform that JAX cannot use, as an `EpviError`."""
    try:
        yield
    except MemoryError as error:
        said = f" ({str(error).rstrip('.')})" if str(error) else ""
        raise EpviError(_NO_MEMORY.format(what=f"{what}{said}")) from error
    except (RuntimeError, EpviError) as error:
        # A model that was looked at says what JAX said to it.
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
