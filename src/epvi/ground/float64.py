"""The context that public verbs compute in: float64, whatever the user's JAX configuration says.

Takes and gives nothing of its own. Values that leave a public verb are NumPy arrays, because a float64
`jax.Array` is silently cut to float32 by the first operation outside the context when the user has x64 off.
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
# What a caller may pass where an array is meant.
ArrayLike = AnyArray | np.generic | Sequence[Any] | float | int

P = ParamSpec("P")
T = TypeVar("T")


def is_traced(tree: Any) -> bool:
    """Whether any leaf is being traced by `jit`, `vmap` or `grad`."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def to_numpy(tree: T) -> T:
    """The same tree with NumPy arrays for leaves."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


@contextlib.contextmanager
def promotion_allowed() -> Iterator[None]:
    """JAX promotes ranks and dtypes, as NumPyro expects, whatever the user's configuration says elsewhere."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def in_float64(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` and run it in float64; inside somebody else's trace, just call it.

    Arrays are traced, everything else (ints, tuples) is static.
    """
    program, doing = compiled(function), f"the mixture's {function.__name__.strip('_').replace('_', ' ')}"

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if is_traced((args, kwargs)):
            return function(*args, **kwargs)
        with at_work(doing), jax.enable_x64(True):
            return to_numpy(program(*args, **kwargs))

    return wrapper
