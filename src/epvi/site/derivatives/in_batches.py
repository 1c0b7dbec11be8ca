"""Calls a compiled program with any number of points, in batches of the few sizes for which it is compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def in_batches(
    program: Callable, arguments: Any, shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> tuple[np.ndarray, ...]:
    """What a program makes of each of P points: arrays of these shapes, stacked.

    The leaves of the arguments have a leading axis of length P. `sizes` are the increasing lengths of batches; one that
    is not full is filled up with its last point.
    """
    leaves, tree = jax.tree.flatten(arguments)
    count, begin = len(leaves[0]), 0
    made = tuple(np.empty((count, *shape)) for shape in shapes)
    while begin < count:
        left = count - begin
        size = sizes[-1] if left > sizes[-1] // 2 else max((n for n in sizes if n <= left), default=sizes[0])
        part = slice(begin, min(begin + size, count))
        filled = jax.tree.unflatten(tree, [_filled(size, leaf[part]) for leaf in leaves])
        for whole, x in zip(made, program(*filled), strict=True):
            whole[part] = np.asarray(x)[: part.stop - part.start]
        begin = part.stop
    return made


def _filled(size: int, part: np.ndarray) -> np.ndarray:
    """The array with its last entry repeated up to this length."""
    short = size - len(part)
    return part if not short else np.concatenate([part, np.repeat(part[-1:], short, axis=0)])
