"""Where a program is cut at its linear predictors: matrix products X(rows) W(θ), and gathers W(θ)[codes(rows)].

A gather of parameters by indices made of rows, as in `a[g]`, is a matrix product with one-hot X, given by its codes. A
cut computes its coefficients W from values of θ, X or the codes from values of the rows, and gives the predictors η the
shape that the program has for them.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Code(NamedTuple):
    """A factor: a number 0 .. size - 1 in each row, by which parameters are gathered. Equal codes are equal factors."""

    # Number of the value that has it.
    value: int
    # Its index along the last axis of that value; None if that is no axis of index vectors.
    column: int | None
    # Which of several indices of a row it is.
    which: int
    # The number of levels.
    size: int
    # How many earlier axes of the same operand are gathered by the same code.
    again: int = 0


@dataclasses.dataclass(frozen=True)
class MatrixCut:
    """A matrix product X W of a function of the rows with one or more functions of θ."""

    # Number of the value X.
    rows: int
    # The axis of X that is summed over.
    axis: int
    # Numbers of the factors of W, each with its axis that is summed over.
    weights: tuple[tuple[int, int], ...]
    # Number of the product.
    output: int
    # Whether the row axis of the product comes first.
    rows_first: bool
    # Shape and dtype of the product.
    shape: tuple[int, ...]
    dtype: Any
    # V, the length of the axis that is summed over.
    height: int

    @property
    def width(self) -> int:
        """The number of predictors per row."""
        return math.prod(self.shape) // self.shape[0 if self.rows_first else -1]

    @property
    def of_rows(self) -> list[int]:
        """Numbers of the values of the rows that it is computed from."""
        return [self.rows]

    @property
    def of_theta(self) -> list[int]:
        """Numbers of the values of θ that it is computed from."""
        return [number for number, _ in self.weights]

    def matrix(self, values: Mapping[int, Any]) -> Any:
        """X, (n, V)."""
        return values[self.rows] if self.axis == 1 else values[self.rows].T

    def coefficients(self, values: Mapping[int, Any]) -> Any:
        """W, (V, C)."""
        factors = [jnp.moveaxis(values[number], axis, 0) for number, axis in self.weights]
        return functools.reduce(jnp.matmul, [w.reshape(w.shape[0], -1) for w in factors])

    def places(self, known: Mapping[int, np.ndarray | None]) -> np.ndarray | None:
        """Indices in θ of the entries of W, from those of the values of θ; None if some are no coordinates."""
        (number, axis), *more = self.weights
        found = known[number]
        if found is None or more:
            return None
        moved = np.moveaxis(found, axis, 0)
        return moved.reshape(moved.shape[0], -1)

    def shaped(self, eta: Any) -> Any:
        """The predictors (n, C) as the program has them."""
        return (eta if self.rows_first else eta.T).reshape(self.shape).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class GatherCut:
    """A gather W[codes] from a function of θ by indices that are a function of the rows.

    A row may have several indices; each gives as many predictors as one index selects entries.
    """

    # Number of the operand, whose axes are rearranged to W.
    operand: int
    # The axes that are indexed by rows, in the order of `codes`; by fixed indices; and that are taken whole.
    by_rows: tuple[int, ...]
    by_fixed: tuple[int, ...]
    whole: tuple[int, ...]
    # For each index of a row: the codes that its levels are made of.
    codes: tuple[tuple[Code, ...], ...]
    # For each index of a row: the fixed indices.
    fixed: tuple[tuple[int, ...], ...]
    # The shape of the indices, and which of its axes is that of the rows.
    batch: tuple[int, ...]
    axis: int
    # The axes of the output that are not those of the indices.
    offsets: tuple[int, ...]
    # Number of the output, with its shape and dtype.
    output: int
    shape: tuple[int, ...]
    dtype: Any
    # Whether an index out of range gives NaN; otherwise it counts as the nearest one in range.
    fills: bool

    @property
    def height(self) -> int:
        """The number of levels."""
        return math.prod(code.size for code in self.codes[0])

    @property
    def width(self) -> int:
        """The number of predictors per row."""
        return math.prod(self.shape) // self.batch[self.axis]

    @property
    def of_rows(self) -> list[int]:
        """Numbers of the values of the rows that it is computed from."""
        return [code.value for codes in self.codes for code in codes]

    @property
    def of_theta(self) -> list[int]:
        """Numbers of the values of θ that it is computed from."""
        return [self.operand]

    def coefficients(self, values: Mapping[int, Any]) -> Any:
        """W, (levels, C): one column per predictor."""
        return self._arranged(values[self.operand])

    def places(self, known: Mapping[int, np.ndarray | None]) -> np.ndarray | None:
        """Indices in θ of the entries of W, from those of the values of θ; None if some are no coordinates."""
        found = known[self.operand]
        return None if found is None else np.asarray(self._arranged(found))

    def _arranged(self, operand: Any) -> Any:
        moved = operand.transpose(*self.by_rows, *self.by_fixed, *self.whole)
        moved = moved.reshape(self.height, *(operand.shape[axis] for axis in self.by_fixed), -1)
        parts = [moved[(slice(None), *fixed)] for fixed in self.fixed]
        return (np if isinstance(operand, np.ndarray) else jnp).concatenate(parts, axis=1)

    def indices(self, values: Mapping[int, Any], code: Code) -> Any:
        """The indices (n,) that a code stands for, as they are in the rows, in range or not."""
        found = values[code.value]
        found = found if code.column is None else found[..., code.column]
        n = self.batch[self.axis]
        if found.size == n:
            return found.reshape(n)
        return jnp.moveaxis(found.reshape(self.batch), self.axis, 0).reshape(n, -1)[:, code.which]

    def predictors(self, values: Mapping[int, Any], weights: Any) -> Any:
        """η (n, C) from W."""
        parts = []
        for codes, w in zip(self.codes, jnp.split(weights, len(self.codes), axis=1), strict=True):
            indices = [self.indices(values, code) for code in codes]
            found = jnp.take(w, levels(codes, indices), axis=0, mode="clip")
            if self.fills:
                known = functools.reduce(
                    jnp.logical_and, [(i >= 0) & (i < c.size) for i, c in zip(indices, codes, strict=True)]
                )
                found = jnp.where(known[:, None], found, jnp.nan)
            parts.append(found)
        return jnp.concatenate(parts, axis=1)

    def shaped(self, eta: Any) -> Any:
        """The predictors (n, C) as the program has them."""
        others = [size for i, size in enumerate(self.batch) if i != self.axis]
        split = eta.reshape(len(eta), *others, *(self.shape[axis] for axis in self.offsets))
        split = jnp.moveaxis(split, 0, self.axis)
        batch = [axis for axis in range(len(self.shape)) if axis not in self.offsets]
        axes = [*batch, *self.offsets]
        return jnp.transpose(split, [axes.index(axis) for axis in range(len(axes))]).astype(self.dtype)


Cut = MatrixCut | GatherCut


def levels(codes: tuple[Code, ...], indices: list[Any]) -> Any:
    """The level of each row in the combination of several factors, the last one fastest; in range always."""
    found: Any = 0
    for code, index in zip(codes, indices, strict=True):
        # Not in a type of 8 bits, where the number of levels may have no place.
        wide = index if index.dtype == np.int32 else index.astype(np.int64)
        found = found * code.size + jnp.clip(wide, 0, code.size - 1).astype(np.int32)
    return found
