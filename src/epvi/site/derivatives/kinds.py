"""The kind of a block of rows: names, shapes and dtypes of its columns. Blocks of one kind share compiled programs."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

# Name, shape and dtype of every column of a block: blocks of one kind share compiled programs.
Kind = tuple[tuple[str, tuple[int, ...], str], ...]


def kind_of(block: Mapping[str, Any], num_rows: int | None = None) -> Kind:
    """The kind of a block, with its own number of rows or with `num_rows`; each kind needs its own program.

    Columns are sorted, since JAX sorts them when it traces a function of the block.
    """
    return tuple(
        (name, (len(column) if num_rows is None else num_rows, *column.shape[1:]), np.dtype(column.dtype).str)
        for name, column in sorted(block.items())
    )


def rows_dtype(kind: Kind) -> Any:
    """The dtype of per-row arithmetic: float32 if all floating-point columns are float32, else float64."""
    floats = {dtype for _, _, dtype in kind if np.dtype(dtype).kind == "f"}
    return jnp.float32 if floats == {np.dtype(np.float32).str} else jnp.float64
