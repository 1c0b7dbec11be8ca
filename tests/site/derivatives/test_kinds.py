"""Blocks of one kind share their programs."""

import jax
import numpy as np

from epvi.site.derivatives.kinds import kind_of


def test_a_block_is_of_the_same_kind_inside_a_function_that_is_traced():
    """JAX sorts the columns, and what was found on a block's numbers is looked up there."""
    block, seen = {"y": np.zeros(3), "g": np.zeros((3, 2), np.int32)}, []
    with jax.enable_x64(True):
        jax.jit(lambda block: seen.append(kind_of(block)) or 0)(block)
    assert seen == [kind_of(block)]
