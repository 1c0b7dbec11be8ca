"""What this process has compiled and keeps: one table in the order of last use, cut to a bound between calls.

JAX keeps what it compiled, and one program takes about 2 MB, so a process that fits models of many shapes would grow
without end. Whatever epvi compiles is therefore held here and nowhere else: dropped from the table it is gone, as soon
as no call under way uses it. The user's own programs are not touched.
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

# When more programs than this are held, those that were not used for longest are given up until half is left. A fit of
# one shape has 20 to 40, with all that follows it.
MOST = 160
# JAX's event for each program that is compiled, or read from the folder of compiled programs.
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Held(abc.ABC):
    """What the table holds."""

    @property
    @abc.abstractmethod
    def num_programs(self) -> int:
        """How many programs it has compiled."""


H = TypeVar("H", bound=Held)

_lock = threading.Lock()
_held: "OrderedDict[Hashable, Any]" = OrderedDict()
# Programs that were compiled since the caches of the whole process were last cleared, whoever compiled them.
_seen = 0


def kept(key: Hashable, make: Callable[[], H]) -> H:
    """What is held under this key, made if it is not there. Two threads may make it at once; one of the two stays."""
    with _lock:
        if key in _held:
            _held.move_to_end(key)
            return _held[key]
    made = make()
    with _lock:
        _held.move_to_end(key) if key in _held else _held.update({key: made})
        return _held[key]


def rename(old: Hashable, new: Hashable) -> None:
    """Hold what is held under a pair with `old` under one with `new` from now on."""
    with _lock:
        for key in [key for key in _held if isinstance(key, tuple) and key[0] == old]:
            _held[new, *key[1:]] = _held.pop(key)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` for each kind of its arguments: arrays are traced, all else (ints, structures) is static."""

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
    """A function compiled for one kind of arguments."""

    def __init__(self, function: Callable, tree: Any, static: tuple) -> None:
        def on_leaves(traced: list) -> Any:
            leaves = [array if held is None else held[1] for array, held in zip(traced, static, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return function(*args, **kwargs)

        # What profilers, JAX's logs and the folder of compiled programs call it.
        on_leaves.__name__ = on_leaves.__qualname__ = function.__name__
        self._run = jax.jit(on_leaves)

    @property
    def num_programs(self) -> int:
        """How many: one for each setting of JAX that it was used under."""
        return number_of(self._run)

    def __call__(self, traced: list) -> Any:
        return self._run(traced)


def number_of(jitted: Any) -> int:
    """How many programs a function of `jax.jit` holds: one for each kind of arguments."""
    return jitted._cache_size()


def let_go(*, own_process: bool = False) -> None:
    """Keep to the bound, by giving up what was not used for longest; to be called between verbs, or a worker's tasks.

    What a call under way in another thread uses stays with that call. Repeated calls of the same shapes compile nothing
    again. In an `own_process`, whose JAX nobody else uses (a worker of epvi's), JAX's own caches are emptied as well
    when more than the bound was compiled since the last time.
    """
    global _seen
    if own_process and _seen > MOST:
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
    """Return freed memory to the system: programs are in cycles, and glibc keeps a third of what they took."""
    gc.collect()
    if sys.platform == "linux":
        # Another C library has no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _count(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _seen
    if event == _COMPILED:
        _seen += 1


jax.monitoring.register_event_duration_secs_listener(_count)
