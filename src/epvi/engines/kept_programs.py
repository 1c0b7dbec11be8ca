"""The compilation cache in the caller's process: on while a fit runs; afterwards JAX is configured as before.

A cache that the user has already chosen for JAX is left alone.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from epvi.engines.compile_cache import cache_folder, can_be_used

# The folder of programs of processes that are no workers, in that of the workers.
_CALLERS = "callers"
# JAX's setting of the folder.
_FOLDER = "jax_compilation_cache_dir"
# How many fits of this process use the cache now, and what JAX's settings were before the first of them.
_lock = threading.Lock()
_users, _before = 0, dict[str, Any]()


@contextlib.contextmanager
def kept_programs() -> Iterator[None]:
    """A context in which what this process compiles is kept on disk, too; afterwards JAX is configured as before.

    In a folder beside that of the workers, whose programs are compiled for one thread.
    """
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _users
    with _lock:
        _users += 1
        folder = cache_folder()
        if _users > 1 or folder is None or getattr(jax.config, _FOLDER) is not None:
            return
        if not _can_be_used(folder / _CALLERS):
            return
        settings = {
            _FOLDER: str(folder / _CALLERS),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in settings.items():
            _before[name] = getattr(jax.config, name)
            jax.config.update(name, value)
        # JAX looks up its settings when it first compiles a program, and again after this.
        jax_cache.reset_cache()


@functools.lru_cache(maxsize=8)
def _can_be_used(folder: Path) -> bool:
    """Looked at once: it takes as long as a pass over many rows."""
    return can_be_used(folder)


def _end() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users or not _before:
            return
        while _before:
            jax.config.update(*_before.popitem())
        jax_cache.reset_cache()
