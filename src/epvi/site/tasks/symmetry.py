"""Finds exchangeable parameters: axes along which entries can be permuted without changing the log joint density.

Takes the compiled programs of a model and its rows; gives groups of axes, by evaluating the density at a few points
with the entries permuted. Rows are synthetic ones and a site's own, shuffled: in the rows as they are, permuting the
effects of two groups without rows, or the coefficients of two equal columns, changes nothing either.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.parameters.space import Parameter, Space
from epvi.parameters.stick_breaking import from_log_weights, log_weights
from epvi.site.derivatives.passes import Programs
from epvi.site.model.example_runs import FEW
from epvi.site.rows.columns import Columns

# Points θ at which densities are compared, and the sd of their coordinates. Judgement: one could be a special point,
# and densities near 0 are finite.
_POINTS, _SPREAD = 2, 0.7
# Log densities are equal within this, relative to 1 + their size: priors are computed in float64, likelihoods perhaps
# in float32. Judgement: well above the rounding of either, and far below what another order of entries changes.
_SAME, _SAME_SHORT = 1e-9, 1e-4
# Up to this many axes of one length all sets of them are tried; of more, sets of up to two, and of all but up to two.
# Judgement: each takes a fraction of a millisecond, and models have one to four.
_MOST_AXES, _FEW_AXES = 7, 2
# Up to this length of an axis it is also tried whether neighbouring entries are exchangeable where not all are.
# Judgement: each pair takes a fraction of a millisecond.
_SHORT = 8


class Axis(NamedTuple):
    """An axis of a parameter."""

    parameter: Parameter
    number: int

    @property
    def entry(self) -> str:
        """Its name in `Space.exchangeable`."""
        return f"{self.parameter.name}@{self.number}" if self.number else self.parameter.name


@dataclasses.dataclass(frozen=True)
class Symmetry:
    """Axes whose entries can be permuted together.

    Attributes:
        axes: the axes.
        entries: which entries can be permuted; all, or some of them.
        can_be_declared: whether fits can be aligned along these axes.
    """

    axes: tuple[Axis, ...]
    entries: tuple[int, ...]
    can_be_declared: bool

    @property
    def group(self) -> tuple[str, ...]:
        """The axes, as in `Space.exchangeable`."""
        return tuple(axis.entry for axis in self.axes)

    def __str__(self) -> str:
        whole = len(self.entries) == self.axes[0].parameter.shape[self.axes[0].number]
        return ", ".join(self.group) + ("" if whole else f" (entries {', '.join(map(str, self.entries))})")


def candidates(space: Space) -> list[tuple[Axis, ...]]:
    """Axes of two entries and more along which values can be permuted within their support, by their length."""
    by_length: dict[int, list[Axis]] = {}
    for parameter in space.parameters:
        for number, length in enumerate(parameter.shape):
            if length > 1 and (parameter.is_simplex(number) or parameter.is_equivariant(number)):
                by_length.setdefault(length, []).append(Axis(parameter, number))
    return [tuple(axes) for axes in by_length.values()]


def find_symmetries(test: "SymmetryTest") -> list[Symmetry]:
    """The smallest sets of axes along which entries can be permuted; none costs nothing if there are no candidates."""
    found = [one for axes in candidates(test.space) for one in _among(test, axes)]
    shared = [axis.parameter.name for one in found for axis in one.axes]
    return [
        dataclasses.replace(one, can_be_declared=False)
        if any(shared.count(axis.parameter.name) > 1 for axis in one.axes)
        else one
        for one in found
    ]


def is_symmetric(test: "SymmetryTest", group: tuple[str, ...]) -> bool:
    """Whether the log joint density does not change when a declared group is permuted."""
    axes = tuple(Axis(*test.space.axis_of(entry)) for entry in group)
    return all(test.unchanged(axes, order) for order in _generators(test.space.length(group)))


def _among(test: "SymmetryTest", axes: tuple[Axis, ...]) -> Iterator[Symmetry]:
    """The smallest sets of these axes, of one length, along which entries can be permuted."""
    length = axes[0].parameter.shape[axes[0].number]
    taken: list[set[Axis]] = []
    for some in _sets(axes):
        if any(before <= set(some) for before in taken):
            continue
        entries = _entries(test, some, length)
        if entries and test.is_felt(some, entries[0]):
            taken.append(set(some))
            yield Symmetry(some, entries, len(entries) == length)


def _sets(axes: Sequence[Axis]) -> Iterator[tuple[Axis, ...]]:
    sizes: Sequence[int] = range(1, len(axes) + 1)
    if len(axes) > _MOST_AXES:
        sizes = sorted({*range(1, _FEW_AXES + 1), *range(len(axes) - _FEW_AXES, len(axes) + 1)})
    return itertools.chain.from_iterable(itertools.combinations(axes, size) for size in sizes)


def _entries(test: "SymmetryTest", axes: tuple[Axis, ...], length: int) -> tuple[int, ...]:
    """The entries that can be permuted; of several sets of them, the first."""
    if all(test.unchanged(axes, order) for order in _generators(length)):
        return tuple(range(length))
    for i in range(length - 1) if 2 < length <= _SHORT else ():
        if test.unchanged(axes, _swapped(length, i, i + 1)) and test.is_felt(axes, i):
            others = range(i + 2, length)
            return (i, i + 1, *(j for j in others if test.unchanged(axes, _swapped(length, i, j))))
    return ()


def _generators(length: int) -> list[np.ndarray]:
    """Permutations of which all others are products: a swap of the first two entries, and a cycle of all."""
    return [_swapped(length, 0, 1), *([np.roll(np.arange(length), 1)] if length > 2 else [])]


def _swapped(length: int, i: int, j: int) -> np.ndarray:
    order = np.arange(length)
    order[[i, j]] = j, i
    return order


class SymmetryTest:
    """Compares log densities at a few points and rows with those of permuted parameters; each permutation once."""

    def __init__(self, programs: Programs, columns: Columns) -> None:
        self.programs, self.space, self._columns = programs, programs.target.space, columns
        self._rng = np.random.default_rng(0)
        self.points = _SPREAD * self._rng.standard_normal((_POINTS, self.space.dim))
        short = any(column.dtype.kind == "f" and column.dtype.itemsize < 8 for column in columns.values())
        self.same = _SAME_SHORT if short else _SAME
        self._own: dict[tuple[int, int], tuple[float, np.ndarray]] = {}
        self._known: dict[tuple[frozenset[str], bytes], bool] = {}

    @functools.cached_property
    def blocks(self) -> list[Any]:
        """The rows to compare densities on."""
        with jax.enable_x64(True):
            return jax.device_put(list(_blocks(self._columns, self._rng)))

    def unchanged(self, axes: Sequence[Axis], order: np.ndarray) -> bool:
        """Whether permuting entries along these axes changes no density."""
        asked = frozenset(axis.entry for axis in axes), order.tobytes()
        if asked not in self._known:
            self._known[asked] = all(self._unchanged_at(i, b, axes, order) for i, b in self._places())
        return self._known[asked]

    def _unchanged_at(self, i: int, b: int, axes: Sequence[Axis], order: np.ndarray) -> bool:
        prior, rows = self._plain(i, b)
        moved_prior, moved = self._at(permuted(self.space, self.points[i], axes, order), self.blocks[b])
        return _equal(np.array([prior]), np.array([moved_prior]), _SAME) and _equal(rows, moved, self.same)

    def is_felt(self, axes: Sequence[Axis], entry: int) -> bool:
        """Whether some row depends on this entry, so that it was not for want of such rows that nothing changed."""
        for i, b in self._places():
            rows = self._plain(i, b)[1]
            there = self._at(shifted(self.space, self.points[i], axes, entry), self.blocks[b])[1]
            both = np.isfinite(rows) & np.isfinite(there)
            if not _equal(rows[both], there[both], self.same):
                return True
        return False

    def _places(self) -> Iterator[tuple[int, int]]:
        return itertools.product(range(len(self.points)), range(len(self.blocks)))

    def _plain(self, i: int, b: int) -> tuple[float, np.ndarray]:
        """The densities at point i of the rows of block b, with nothing permuted."""
        if (i, b) not in self._own:
            self._own[i, b] = self._at(self.points[i], self.blocks[b])
        return self._own[i, b]

    def _at(self, theta: np.ndarray, block: Mapping[str, Any]) -> tuple[float, np.ndarray]:
        """The log prior, and the log likelihoods of the rows of a block."""
        with jax.enable_x64(True), promotion_allowed():
            prior, _, rows = self.programs.at_one_point()(theta, block)
        return float(prior), np.asarray(rows, np.float64)


def _equal(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Whether values are equal where both are finite, and not finite in the same places."""
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    return bool(np.all(np.abs(a[finite] - b[finite]) <= tolerance * (1 + np.abs(a[finite]))))


def shifted(space: Space, theta: np.ndarray, axes: Sequence[Axis], entry: int) -> np.ndarray:
    """θ with one entry along the axes moved; of a simplex, half of its weight moved to the next entry."""
    theta = theta.copy()
    for parameter, number in axes:
        part = space.slices[parameter.name]
        flat = theta[part].reshape(parameter.flat_shape)
        if parameter.is_simplex(number):
            moved = log_weights(flat)
            half = moved[..., entry] - np.log(2.0)
            moved[..., entry], moved[..., entry + 1] = half, np.logaddexp(moved[..., entry + 1], half)
            theta[part] = from_log_weights(moved).ravel()
        else:
            moved = flat.copy()
            np.moveaxis(moved, number, 0)[entry] += _SPREAD
            theta[part] = moved.ravel()
    return theta


def permuted(space: Space, theta: np.ndarray, axes: Sequence[Axis], order: np.ndarray) -> np.ndarray:
    """θ of the values whose entries along the axes are permuted.

    The log-Jacobian of a simplex, Σ log w, and of all other supports that are permuted does not change by that, so that
    densities of θ can be compared.
    """
    theta = theta.copy()
    for parameter, number in axes:
        part = space.slices[parameter.name]
        flat = theta[part].reshape(parameter.flat_shape)
        if parameter.is_simplex(number):
            theta[part] = from_log_weights(log_weights(flat)[..., order]).ravel()
        else:
            theta[part] = np.take(flat, order, axis=number).ravel()
    return theta


def _blocks(columns: Columns, rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    """Rows to compare densities on.

    The first ones do not depend on the site's own: numbers of either sign with codes 0 and 1, and numbers within (0, 1)
    with codes 0 to 3. Then rows of the site whose entries come from different rows, with other sizes; and rows as they
    are, which are possible values of what is observed.
    """
    names = sorted(columns)
    yield {name: _made_up(columns[name], rng.standard_normal, 2, rng) for name in names}
    yield {name: _made_up(columns[name], rng.random, 4, rng) for name in names}
    shuffled = {}
    for name in names:
        column = columns[name]
        which = rng.integers(len(column), size=(FEW, *column.shape[1:]))
        entries = np.take_along_axis(column, which.reshape(FEW, *column.shape[1:]), axis=0)
        scaled = entries * rng.uniform(0.5, 1.5, entries.shape) if column.dtype.kind == "f" else entries
        shuffled[name] = np.asarray(scaled, column.dtype)
    yield shuffled
    which = rng.integers(len(columns[names[0]]), size=FEW)
    yield {name: np.asarray(columns[name][which]) for name in names}


def _made_up(column: np.ndarray, draw: Any, codes: int, rng: np.random.Generator) -> np.ndarray:
    shape = (FEW, *column.shape[1:])
    if column.dtype.kind == "f":
        return draw(shape).astype(column.dtype)
    return rng.integers(2 if column.dtype.kind == "b" else codes, size=shape).astype(column.dtype)
