"""Sums over rows of the first and second derivatives of φ, for each of its arguments and each pair of them.

Row i has the gradient A_ia of argument a with respect to its coefficients: x_i of a matrix product, a one-hot vector of
a gather, 1 of a coordinate. The sums are Σ_i φ'_ia A_ia and Σ_i φ''_iab A_ia A_ibᵀ, in the shapes that they have:

    product and product   (V, V')           gather and product   (G, V)
    gather and itself     (G,), a diagonal   gather and gather    (G, G')

All sums by the same codes are columns of one table with a row per level: each row of the block is added to one row of
the table. Tables are updated in place, so that a block costs what its rows cost, not what its table has entries.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from epvi.site.derivatives.cuts import Code, levels
from epvi.site.derivatives.linear_predictors import LinkArgument
from epvi.site.derivatives.order import Order

# Blocks of columns of a symmetric product: with four of them, 10/16 of it are multiplied; and least columns of a block,
# below which matrix products are slower. Measured with 100 to 1,000 columns.
_BLOCKS, _LEAST_BLOCK = 4, 64
# An axis of a sum: a factor, or the coefficients of the first or second argument's matrix product.
_Axis = Code | int


class Sums(NamedTuple):
    """Sums over rows of the log likelihood and its derivatives with respect to ψ."""

    # The log likelihood; zero if it is not asked for.
    value: Any
    # Those of matrix products and coordinates.
    pieces: tuple[Any, ...]
    # Those with gathers, (levels, columns).
    tables: tuple[Any, ...]


class _Term(NamedTuple):
    """The sum of one argument's derivatives, or of a pair's."""

    # The arguments; `b` is None for first derivatives.
    a: int
    b: int | None
    # The factors and lengths of its axes.
    codes: tuple[Code, ...]
    heights: tuple[int, ...]
    # Which piece it is, or in which table and from which column.
    where: int
    start: int

    @property
    def width(self) -> int:
        """Its number of columns in a table."""
        return math.prod(self.heights)

    @property
    def axes(self) -> tuple[_Axis, ...]:
        """Its axes."""
        return (*self.codes, *range(len(self.heights)))


@dataclasses.dataclass(frozen=True)
class ArgumentSums:
    """The layout of the sums of some arguments for one order of derivatives."""

    arguments: tuple[LinkArgument, ...]
    order: Order

    @functools.cached_property
    def terms(self) -> list[_Term]:
        """All sums, with their places."""
        made: list[_Term] = []
        widths: dict[tuple[Code, ...], int] = {}
        for a, b in self._wanted:
            both = (self.arguments[a], *(() if b is None else (self.arguments[b],)))
            codes = tuple(sorted({code for one in both for code in one.codes}, key=str))
            # The diagonal of a pair's sum has one axis.
            ones = both[:1] if self.order is Order.DIAGONAL else both
            heights = tuple(one.height for one in ones if one.matrix is not None)
            if codes:
                where, start = list(widths).index(codes) if codes in widths else len(widths), widths.get(codes, 0)
                widths[codes] = start + math.prod(heights)
            else:
                where, start = sum(not term.codes for term in made), 0
            made.append(_Term(a, b, codes, heights, where, start))
        return made

    @property
    def _wanted(self) -> list[tuple[int, int | None]]:
        p = range(len(self.arguments))
        first: list[tuple[int, int | None]] = [] if self.order is Order.SCORES else [(a, None) for a in p]
        if self.order is Order.GRADIENT:
            return first
        return first + [(a, b) for a in p for b in p if (a == b if self.order is Order.DIAGONAL else a <= b)]

    @functools.cached_property
    def _tables(self) -> list[tuple[tuple[Code, ...], list[_Term]]]:
        """The codes and terms of each table."""
        made: dict[tuple[Code, ...], list[_Term]] = {}
        for term in self.terms:
            if term.codes:
                made.setdefault(term.codes, []).append(term)
        return list(made.items())

    @property
    def size(self) -> int:
        """How many numbers the sums have."""
        return sum(term.width * math.prod(code.size for code in term.codes) for term in self.terms)

    @property
    def width(self) -> int:
        """Numbers per row of a block that are added to tables."""
        return sum(term.width for _, terms in self._tables for term in terms)

    def zero(self, num_points: int) -> Sums:
        """The sums over no rows."""
        pieces = [term.heights for term in self.terms if not term.codes]
        tables = [(_num_levels(codes), sum(term.width for term in terms)) for codes, terms in self._tables]
        value, *parts = (np.zeros((num_points, *shape)) for shape in ((), *pieces, *tables))
        return Sums(value, tuple(parts[: len(pieces)]), tuple(parts[len(pieces) :]))

    def add(
        self,
        total: Sums,
        at: tuple[Any, ...],
        value: Any,
        scales: Callable[[int, int | None], Any],
        matrices: Mapping[int, Any],
        codes: Mapping[Code, Any],
    ) -> Sums:
        """Add a block to the total at an index of its leading axes.

        `scales` gives the derivatives (n,) of φ by one or two arguments, with the weights of the rows.
        """
        pieces = list(total.pieces)
        for term in self.terms:
            if not term.codes:
                part = self._product(term, scales(term.a, term.b), matrices)
                pieces[term.where] = pieces[term.where].at[at].add(part.astype(jnp.float64))
        tables = []
        for (own, terms), table in zip(self._tables, total.tables, strict=True):
            parts = [self._columns(term, scales(term.a, term.b), matrices).astype(jnp.float64) for term in terms]
            level = levels(own, [codes[code] for code in own])
            columns = jnp.concatenate(parts, axis=1)
            tables.append(table.at[(*at, level)].add(columns, mode="promise_in_bounds"))
        return Sums(total.value.at[at].add(value), tuple(pieces), tuple(tables))

    def _factors(self, term: _Term, matrices: Mapping[int, Any]) -> list[Any]:
        """The matrices of a term: none, one or two."""
        each = [self.arguments[i] for i in (term.a, term.b) if i is not None]
        found = [matrices[one.matrix] for one in each if one.matrix is not None]
        return [found[0] ** 2] if len(found) == 2 and len(term.heights) == 1 else found

    def _product(self, term: _Term, scale: Any, matrices: Mapping[int, Any]) -> Any:
        """Σ_i scale_i times the outer product of a row's vectors."""
        match self._factors(term, matrices):
            case [left, right]:
                scaled = left * scale[:, None]
                return _lower(scaled, right) if self._is_symmetric(term) else scaled.T @ right
            case [one]:
                return scale @ one
            case _:
                return jnp.sum(scale.astype(jnp.float64))

    def _columns(self, term: _Term, scale: Any, matrices: Mapping[int, Any]) -> Any:
        """What each row adds to its level, (n, width)."""
        found = self._factors(term, matrices)
        return scale[:, None] if not found else scale[:, None] * found[0]

    def part(self, sums: Sums, term: _Term) -> Any:
        """One sum, with its axes."""
        if not term.codes:
            piece = sums.pieces[term.where]
            if self._is_symmetric(term) and _width(term.heights[0]) < term.heights[0]:
                return jnp.tril(piece) + jnp.swapaxes(jnp.tril(piece, -1), -1, -2)
            return piece
        columns = sums.tables[term.where][:, term.start : term.start + term.width]
        return jnp.reshape(columns, (*(code.size for code in term.codes), *term.heights))

    def _is_symmetric(self, term: _Term) -> bool:
        """Whether both arguments of a pair are predictors of the same matrix, and its sum is a matrix."""
        if term.b is None or len(term.heights) < 2:
            return False
        return self.arguments[term.a].matrix is not None and (
            self.arguments[term.a].matrix == self.arguments[term.b].matrix
        )

    def own_axes(self, a: int, side: int = 0) -> tuple[_Axis, ...]:
        """The axes of an argument's coefficients; those of its matrix product are the pair's first or second."""
        one = self.arguments[a]
        return one.codes if one.matrix is None else (side,)

    def own_shape(self, a: int) -> tuple[int, ...]:
        """The shape of an argument's coefficients, in the order of ψ."""
        one = self.arguments[a]
        return (one.height,) if one.matrix is not None else tuple(code.size for code in one.codes)

    def sides(self, term: _Term) -> tuple[tuple[_Axis, ...], tuple[_Axis, ...]]:
        """The axes of the coefficients of both arguments of a pair, among those of its sum."""
        assert term.b is not None
        first = self.own_axes(term.a)
        has_two = len(term.heights) == 2
        return first, self.own_axes(term.b, 1 if has_two else 0)

    def vectors(self, sums: Sums, *, second: bool) -> list[Any]:
        """For each argument (height,): Σ_i φ'_ia A_ia, or for the order DIAGONAL the diagonal of the second ones."""
        made = []
        for term in self.terms:
            if (term.b is not None) == second:
                part = _arranged([self.part(sums, term)], [term.axes], self.own_axes(term.a))
                made.append(jnp.reshape(part, self.arguments[term.a].height))
        return made

    def times(self, sums: Sums, vectors: Sequence[Any]) -> list[Any]:
        """The matrix of all pairs' sums times a vector, both in one part (height,) per argument."""
        made = [jnp.zeros(one.height) for one in self.arguments]
        for term in self.terms:
            if term.b is not None:
                part, (first, second) = self.part(sums, term), self.sides(term)
                ways = [(term.a, first, term.b, second)]
                ways += [(term.b, second, term.a, first)] if term.a != term.b else []
                for to, axes, by, others in ways:
                    vector = jnp.reshape(vectors[by], self.own_shape(by))
                    made[to] = made[to] + jnp.ravel(_arranged([part, vector], [term.axes, others], axes))
        return made

    def matrix(self, sums: Sums, places: Sequence[np.ndarray], d: int) -> Any:
        """The matrix (d, d) of all pairs' sums, each added where `places` says that its coefficients are in θ."""
        made = jnp.zeros((d, d))
        for term in self.terms:
            if term.b is not None:
                part, (first, second) = self.part(sums, term), self.sides(term)
                rows = self._index(places[term.a], term.a, first, term.axes)
                columns = self._index(places[term.b], term.b, second, term.axes)
                if first + second == term.axes and _is_range(places[term.a]) and _is_range(places[term.b]):
                    rows, columns = (slice(one[0], one[-1] + 1) for one in (places[term.a], places[term.b]))
                    part = jnp.reshape(part, (rows.stop - rows.start, columns.stop - columns.start))
                    made = made.at[rows, columns].add(part)
                    made = made if term.a == term.b else made.at[columns, rows].add(part.T)
                else:
                    made = made.at[rows, columns].add(part)
                    made = made if term.a == term.b else made.at[columns, rows].add(part)
        return made

    def _index(self, places: np.ndarray, a: int, own: tuple[_Axis, ...], axes: tuple[_Axis, ...]) -> np.ndarray:
        """The places of an argument's coefficients, along the axes of a sum."""
        shaped = places.reshape(self.own_shape(a))
        moved = shaped.transpose([own.index(axis) for axis in axes if axis in own])
        return np.expand_dims(moved, tuple(i for i, axis in enumerate(axes) if axis not in own))


def _width(v: int) -> int:
    """Columns of a block of a symmetric product of v columns; v if it is not divided."""
    width = max(_LEAST_BLOCK, -(-v // _BLOCKS))
    return width if 2 * width <= v else v


def _lower(scaled: Any, matrix: Any) -> Any:
    """XᵀDX from DX and X, both (n, V): only its blocks on and below the diagonal are multiplied, the others are 0."""
    v, width = matrix.shape[1], _width(matrix.shape[1])
    made = []
    for start in range(0, v, width):
        stop = min(start + width, v)
        made.append(jnp.pad(scaled[:, start:stop].T @ matrix[:, :stop], ((0, 0), (0, v - stop))))
    return made[0] if len(made) == 1 else jnp.concatenate(made)


def _is_range(places: np.ndarray) -> bool:
    return bool(np.all(np.diff(places) == 1))


def _num_levels(codes: tuple[Code, ...]) -> int:
    return math.prod(code.size for code in codes)


def _arranged(arrays: list[Any], axes: list[tuple[_Axis, ...]], wanted: tuple[_Axis, ...]) -> Any:
    """The product of arrays with named axes, summed over all that are not wanted."""
    names = {axis: i for i, axis in enumerate(dict.fromkeys(axis for each in axes for axis in each))}
    operands: list[Any] = []
    for array, each in zip(arrays, axes, strict=True):
        operands += [array, [names[axis] for axis in each]]
    return jnp.einsum(*operands, [names[axis] for axis in wanted])
