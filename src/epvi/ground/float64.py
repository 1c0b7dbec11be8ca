"""Runs public functions in float64, whatever the user's JAX configuration says.

Public functions return NumPy arrays, because the first operation on a float64 `jax.Array` outside the context would
silently round it to float32 if the user has x64 disabled.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from epvi.ground.compiled import compiled
from epvi.ground.verb import at_work

AnyArray = jax.Array | np.ndarray
# What a caller may pass for an array.
ArrayLike = AnyArray | np.generic | Sequence[Any] | float | int

P = ParamSpec("P")
T = TypeVar("T")


def is_traced(tree: Any) -> bool:
    """Whether any leaf is being traced by `jit`, `vmap` or `grad`."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def to_numpy(tree: T) -> T:
    """The same pytree with its JAX arrays converted to NumPy."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


@contextlib.contextmanager
def promotion_allowed() -> Iterator[None]:
    """Allow JAX's implicit rank and dtype promotion, which NumPyro needs, whatever the user's configuration says."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def in_float64(function: Callable[P, T]) -> Callable[P, T]:
    """Jit `function` and run it in float64; if its arguments are being traced already, just call it.

    Arrays are traced, all other arguments (ints, tuples) are static.
    """
    program, doing = compiled(function), f"the mixture's {function.__name__.strip('_').replace('_', ' ')}"

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if is_traced((args, kwargs)):
            return function(*args, **kwargs)
        with at_work(doing), jax.enable_x64(True):
            return to_numpy(program(*args, **kwargs))

    return wrapper
