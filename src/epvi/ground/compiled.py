"""An LRU cache of this process's compiled programs, evicted between calls.

JAX never frees compiled programs of about 2 MB each, so a process that fits models of many shapes would grow without
bound. Whatever epvi compiles is therefore referenced from this cache only: an evicted program is freed as soon as no
running call uses it. The user's own jitted functions are not touched.
"""

import abc
import ctypes
import functools
import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
T = TypeVar("T")

# Most programs held; above it, the least recently used are evicted until half as many are left. Judgement: about
# 320 MB, and enough for models of four shapes, since fitting one and all that follows it takes 20 to 40 programs.
MOST = 160
# JAX's monitoring event for each program that is compiled or read from the compilation cache on disk.
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Held(abc.ABC):
    """An entry of the cache: an object that holds compiled programs."""

    @property
    @abc.abstractmethod
    def num_programs(self) -> int:
        """How many compiled programs it holds."""


H = TypeVar("H", bound=Held)

_lock = threading.Lock()
_held: "OrderedDict[Hashable, Any]" = OrderedDict()
# Number of programs compiled since the process's caches were last cleared, by epvi or by anybody else.
_seen = 0


def kept(key: Hashable, make: Callable[[], H]) -> H:
    """The entry under this key, made if missing. Two threads may make it at the same time; only one is kept."""
    with _lock:
        if key in _held:
            _held.move_to_end(key)
            return _held[key]
    made = make()
    with _lock:
        _held.move_to_end(key) if key in _held else _held.update({key: made})
        return _held[key]


def rename(old: Hashable, new: Hashable) -> None:
    """Move all entries whose key is a tuple that starts with `old` to keys that start with `new`."""
    with _lock:
        for key in [key for key in _held if isinstance(key, tuple) and key[0] == old]:
            _held[new, *key[1:]] = _held.pop(key)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Jit `function` with cached programs: arrays are traced, all other arguments (ints, structures) are static."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
        # With their types, because 1, 1.0 and True are equal.
        static = tuple(
            (type(leaf), leaf) if array is None else None for leaf, array in zip(leaves, traced, strict=True)
        )
        shapes = tuple(None if array is None else (array.shape, array.dtype) for array in traced)
        program = kept((function, tree, static, shapes), lambda: _Program(function, tree, static))
        return program(traced)

    return wrapper


class _Program(Held):
    """A function jitted for one set of static arguments, shapes and dtypes."""

    def __init__(self, function: Callable, tree: Any, static: tuple) -> None:
        def on_leaves(traced: list) -> Any:
            leaves = [array if held is None else held[1] for array, held in zip(traced, static, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return function(*args, **kwargs)

        # The name in profiles, in JAX's logs and in the compilation cache on disk.
        on_leaves.__name__ = on_leaves.__qualname__ = function.__name__
        self._run = jax.jit(on_leaves)

    @property
    def num_programs(self) -> int:
        """One for each JAX configuration under which it was called."""
        return number_of(self._run)

    def __call__(self, traced: list) -> Any:
        return self._run(traced)


def number_of(jitted: Any) -> int:
    """How many compiled programs a jitted function holds."""
    return jitted._cache_size()


def let_go(*, own_process: bool = False, most: int | None = None) -> None:
    """Evict the least recently used programs above the bound; called after public functions and workers' tasks.

    Programs in use by a call in another thread survive until it ends. Repeated calls with the same shapes compile
    nothing again. In an `own_process`, where nobody else uses JAX (epvi's workers), all of JAX's caches are cleared
    when more than `most` programs (by default `MOST`) were compiled since the last time.
    """
    global _seen
    if own_process and _seen > (MOST if most is None else most):
        with _lock:
            _held.clear()
            _seen = 0
        jax.clear_caches()
        _give_back()
        return
    with _lock:
        total = sum(held.num_programs for held in _held.values())
        if total <= MOST:
            return
        while total > MOST // 2:
            total -= _held.popitem(last=False)[1].num_programs
    _give_back()


def num_held() -> int:
    """How many compiled programs are held."""
    with _lock:
        return sum(held.num_programs for held in _held.values())


def _give_back() -> None:
    """Return memory to the system: programs are in reference cycles, and glibc keeps a third of what they took."""
    gc.collect()
    if sys.platform == "linux":
        # C libraries other than glibc do not have it.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _count(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _seen
    if event == _COMPILED:
        _seen += 1


jax.monitoring.register_event_duration_secs_listener(_count)
