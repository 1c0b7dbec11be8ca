"""Maps a function over many items in blocks of bounded size, where `vmap` alone would hold all of them in memory."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
R = TypeVar("R")

# Most intermediate numbers (points x components x d) of a block: 32 MB in float64. Judgement.
_BLOCK = 2**22


def over_blocks(function: Callable[[T], R], items: T, numbers_per_item: int) -> R:
    """`vmap(function)(items)`, computed in blocks with at most about 2²² intermediate numbers each.

    The last block is padded with copies of the last item. `lax.map` with a batch size would instead run the remainder
    in parallel with the loop, and two batched factorisations in parallel can deadlock (see `structure.py`).
    """
    n, block = len(jax.tree.leaves(items)[0]), max(1, _BLOCK // numbers_per_item)
    if n <= block:
        return jax.vmap(function)(items)
    num_blocks = math.ceil(n / block)
    size = math.ceil(n / num_blocks)
    filled = np.minimum(np.arange(num_blocks * size), n - 1).reshape(num_blocks, size)
    made = jax.lax.map(jax.vmap(function), jax.tree.map(lambda x: jnp.asarray(x)[filled], items))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], made)
