"""log p_m around a point, from its expansion there over all rows and the remainder on some of them.

Takes value, gradient and curvature of a tall subposterior at a point c, which climbing there gave; gives values near c
without another pass over the rows, with a standard error:

    f(θ) ≈ T(θ) + mean over parts g of [ f_g(θ) − T_g(θ) ]

T is the second-order expansion at c, of all rows or of part g scaled to all. A shard of n rows is n^(-1/2) standard
deviations wide, so the remainder is of the size n^(-1/2), and its error smaller by the square root of the parts' rows.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.site.derivatives.subposterior import Curve, Subposterior

# Parts that the remainder is computed on, each by itself: what they differ by gives the standard error.
_PARTS = 8
# Rows of a part at first. Judgement: with 8 parts 4,096 rows, whose pass is short.
_ROWS_PER_PART = 512
# From so many rows on, 8 times those of the parts, it is worth it: below, a pass over all of them is as cheap.
TALL = 8 * _PARTS * _ROWS_PER_PART
# Where that leaves too much in doubt, parts are made so many times as large.
_MORE = 8
# The parts' curvature is that of all rows up to this factor, unless they lack rows that matter.
_ALIKE = 2.0


class Taylor(NamedTuple):
    """Value, gradient (d,) and Hessian (a matrix or its diagonal) of a function at a point."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def form(self) -> Packing:
        """The form of the Hessian."""
        return form_of(self.hessian)

    def at(self, delta: np.ndarray) -> np.ndarray:
        """The second-order expansion, this far from the point."""
        bent = self.form.rows_times(delta, self.hessian)
        return np.asarray(self.value + delta @ self.gradient + 0.5 * np.sum(delta * bent, axis=-1))

    def moved(self, delta: np.ndarray) -> "Taylor":
        """The expansion of the same quadratic about another point, this far away."""
        bent = self.form.times(self.hessian, delta)
        return Taylor(float(self.at(delta)), self.gradient + bent, self.hessian)

    def distances(self, delta: np.ndarray) -> np.ndarray:
        """δᵀ|H|δ: how far that is from the point, in units of the curvature there."""
        return self.form.abs_square(self.hessian, delta)


class Near(NamedTuple):
    """Values at S points with standard errors."""

    value: Float[np.ndarray, " S"]
    error: Float[np.ndarray, " S"]


@dataclasses.dataclass(frozen=True, eq=False)
class Around:
    """The expansion about one point, of all rows and of parts of them, which `rows` has one after the other."""

    centre: Float[np.ndarray, " d"]
    whole: Taylor
    rows: Subposterior
    of_parts: list[Taylor]

    @property
    def is_alike(self) -> bool:
        """Whether the parts bend as all rows do in every direction; where a few rows bend it they may have none."""
        parts = -np.mean([one.hessian for one in self.of_parts], axis=0)
        ratio = self.whole.form.ratios(-self.whole.hessian, parts)
        return bool(np.all((np.abs(ratio) > 1 / _ALIKE) & (np.abs(ratio) < _ALIKE)))

    def derivatives(self, theta: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian, averaged over points near the centre: of the expansion, and of what it leaves out."""
        delta, part = theta - self.centre, Taylor(*(np.mean(one, axis=0) for one in zip(*self.of_parts, strict=True)))
        form = self.whole.form
        found = [self.rows.curve(points, form) for points in in_batches(theta, batch)]
        gradient = np.concatenate([one.gradient for one in found])[: len(theta)]
        hessian = np.concatenate([np.asarray(one.hessian) for one in found])[: len(theta)]
        change = np.mean(hessian, axis=0) - part.hessian
        bent = form.rows_times(delta, self.whole.hessian - part.hessian)
        moved = self.whole.gradient - part.gradient + np.mean(gradient + bent, axis=0)
        return moved, self.whole.hessian + change

    def near(self, theta: np.ndarray, batch: int) -> Near:
        """Values at points near the centre."""
        delta, count = theta - self.centre, len(self.of_parts)
        values = self.rows.values_by_part(theta, batch, count)
        left = [value - expanded.at(delta) for value, expanded in zip(values, self.of_parts, strict=True)]
        mean, error = np.mean(left, axis=0), np.std(left, axis=0, ddof=1) / np.sqrt(count)
        return Near(self.whole.at(delta) + mean, error)


def in_batches(theta: np.ndarray, batch: int) -> list[np.ndarray]:
    """Points in batches of one size, the last filled up with the last point."""
    filled = np.concatenate([theta, np.repeat(theta[-1:], -len(theta) % batch, axis=0)])
    return np.split(filled, len(filled) // batch)


def expand(
    subposterior: Subposterior,
    centres: np.ndarray,
    wholes: list[Taylor],
    rng: np.random.Generator,
    rows_per_part: int = _ROWS_PER_PART,
) -> list[Around]:
    """The expansions about several points, on the same parts of the rows."""
    rows, parts = subposterior.parts(rows_per_part, _PARTS, rng)
    made = []
    for centre, whole in zip(centres, wholes, strict=True):
        curves = [part.curve(centre[None], whole.form) for part in parts]
        made.append(Around(centre, whole, rows, [taylor for curve in curves for taylor in taylors(curve)]))
    return made


def sizes_of_parts(num_rows: int) -> list[int]:
    """Rows of a part, to be tried one after the other where fewer leave too much in doubt."""
    sizes = []
    size = _ROWS_PER_PART
    while 8 * _PARTS * size <= num_rows:
        sizes.append(size)
        size *= _MORE
    return sizes


def taylors(curve: Curve) -> list[Taylor]:
    """One expansion per point."""
    assert curve.hessian is not None
    parts = zip(curve.value, curve.gradient, curve.hessian, strict=True)
    return [Taylor(float(value), gradient, hessian) for value, gradient, hessian in parts]
