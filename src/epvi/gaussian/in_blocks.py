"""A function of many items, in blocks of a bounded size: what `vmap` alone would compute in one piece."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
R = TypeVar("R")

# How many numbers (points x components x d) a batched density may hold at once.
_BLOCK = 2**22


def over_blocks(function: Callable[[T], R], items: T, numbers_per_item: int) -> R:
    """`vmap(function)(items)`, in blocks so that no more than about 2²² intermediate numbers exist at once.

    The last block is filled up with the last item. `lax.map` with a batch size would run what is left over beside the
    loop, and two batched factorisations at once can wait for each other for ever (see `structure.py`).
    """
    n, block = len(jax.tree.leaves(items)[0]), max(1, _BLOCK // numbers_per_item)
    if n <= block:
        return jax.vmap(function)(items)
    num_blocks = math.ceil(n / block)
    size = math.ceil(n / num_blocks)
    filled = np.minimum(np.arange(num_blocks * size), n - 1).reshape(num_blocks, size)
    made = jax.lax.map(jax.vmap(function), jax.tree.map(lambda x: jnp.asarray(x)[filled], items))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], made)
