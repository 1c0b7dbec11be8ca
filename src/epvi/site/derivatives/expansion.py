"""Approximates log p_m near a point by a Taylor expansion over all rows, with the remainder estimated on subsamples.

Takes value, gradient and Hessian of a subposterior with many rows at a point c, known from the optimisation that ended
there; returns values near c, with standard errors, without another pass over all rows:

    f(θ) ≈ T(θ) + mean over subsamples g of [ f_g(θ) − T_g(θ) ]

T is the second-order Taylor expansion at c of all rows, T_g that of subsample g scaled to all rows: the expansion is a
control variate. A posterior of n rows has a width of order n^(-1/2), so the remainder is of order n^(-1/2), and its
standard error smaller by the square root of the number of rows in the subsamples.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.site.derivatives.subposterior import Curve, Subposterior

# Number of subsamples ("parts"), whose spread gives the standard error of the remainder. Judgement.
PARTS = 8
# Rows of a subsample at first. Judgement: 8 of them are 4,096 rows, whose pass is short.
_ROWS_PER_PART = 512
# Least number of rows of a subsample, if it is one of several shards' together. Judgement: their Hessian is compared
# with that of all rows.
_LEAST_ROWS_PER_PART = 64
# The same for a target whose rows are bundles of groups, in bundles: at least one in each part, enlarged by a factor of
# two up to half of all bundles. Judgement: there may be only a few dozen of them.
_LEAST_BUNDLES_PER_PART, _MORE_BUNDLES, _PART_OF_BUNDLES = 1, 2, 2
# Least number of rows of a "tall" shard, on which expansions are used: 8 times the rows of the subsamples, 32,768.
# Below, a pass over all rows costs about as much. Judgement.
TALL = 8 * PARTS * _ROWS_PER_PART
# The same in the user's rows where rows are bundles of groups, each of which costs several times as much. Judgement.
_TALL_BUNDLES = 2**11
# Where the standard error is too large, subsamples are enlarged by this factor, which divides it by √8. Judgement.
_MORE = 8
# Largest ratio of the Hessians of the subsamples and of all rows in any direction; beyond it the subsamples lack
# influential rows, and the expansion is not used. Judgement.
ALIKE = 2.0
# The same for bundles of groups: as few of them as there are in subsamples differ more.
_ALIKE_BUNDLES = 4.0


class Taylor(NamedTuple):
    """Second-order Taylor expansion of a function about a point."""

    # Value at the point.
    value: float
    # Gradient there, (d,).
    gradient: np.ndarray
    # Hessian there, (d, d), or its diagonal, (d,).
    hessian: np.ndarray

    @property
    def form(self) -> Packing:
        """The form of the Hessian."""
        return form_of(self.hessian)

    def at(self, delta: np.ndarray) -> np.ndarray:
        """The expansion at displacements `delta` from the point."""
        bent = self.form.rows_times(delta, self.hessian)
        return np.asarray(self.value + delta @ self.gradient + 0.5 * np.sum(delta * bent, axis=-1))

    def moved(self, delta: np.ndarray) -> "Taylor":
        """The same quadratic function, expanded about the point displaced by `delta`."""
        bent = self.form.times(self.hessian, delta)
        return Taylor(float(self.at(delta)), self.gradient + bent, self.hessian)

    def distances(self, delta: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distances δᵀ|H|δ from the point."""
        return self.form.abs_square(self.hessian, delta)


class Near(NamedTuple):
    """Estimated values at S points, with their standard errors."""

    value: Float[np.ndarray, " S"]
    error: Float[np.ndarray, " S"]


@dataclasses.dataclass(frozen=True, eq=False)
class Around:
    """The Taylor expansions about one point c, of all rows and of subsamples of them."""

    # c.
    centre: Float[np.ndarray, " d"]
    # T, of all rows.
    whole: Taylor
    # The subposterior of the rows of all subsamples, one subsample after the other.
    rows: Subposterior
    # T_g, each scaled to all rows.
    of_parts: list[Taylor]

    @property
    def is_alike(self) -> bool:
        """Whether the Hessian of the subsamples is close to that of all rows, and they lack no influential rows."""
        parts = -np.mean([one.hessian for one in self.of_parts], axis=0)
        ratio = self.whole.form.ratios(-self.whole.hessian, parts)
        most = ALIKE if self.rows.programs.target.bundle == 1 else _ALIKE_BUNDLES
        return bool(np.all((np.abs(ratio) > 1 / most) & (np.abs(ratio) < most)))

    def derivatives(self, theta: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian averaged over points near the centre: those of T plus those of the remainder."""
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
        """Estimated values at points near the centre."""
        delta, count = theta - self.centre, len(self.of_parts)
        values = self.rows.values_by_part(theta, batch, count)
        left = [value - expanded.at(delta) for value, expanded in zip(values, self.of_parts, strict=True)]
        mean, error = np.mean(left, axis=0), np.std(left, axis=0, ddof=1) / np.sqrt(count)
        return Near(self.whole.at(delta) + mean, error)


def in_batches(theta: np.ndarray, batch: int) -> list[np.ndarray]:
    """Points in batches of equal size, the last padded with copies of the last point."""
    filled = np.concatenate([theta, np.repeat(theta[-1:], -len(theta) % batch, axis=0)])
    return np.split(filled, len(filled) // batch)


def expand(
    subposterior: Subposterior,
    centres: np.ndarray,
    wholes: list[Taylor],
    rng: np.random.Generator,
    rows_per_part: int = _ROWS_PER_PART,
) -> list[Around]:
    """The expansions about several points, on the same subsamples of the rows."""
    rows, parts = subposterior.parts(rows_per_part, PARTS, rng)
    made = []
    for centre, whole in zip(centres, wholes, strict=True):
        curves = [part.curve(centre[None], whole.form) for part in parts]
        near = rows.prepared(centre)
        made.append(Around(centre, whole, near, [taylor for curve in curves for taylor in taylors(curve)]))
    return made


def is_tall(num_rows: int, bundle: int) -> bool:
    """Whether expansions are used on so many rows; `bundle` is that of the target."""
    return num_rows >= TALL if bundle == 1 else num_rows * bundle >= _TALL_BUNDLES


def sizes_of_parts(num_rows: int, share: float = 1.0, bundle: int = 1) -> list[int]:
    """Rows per subsample, to be tried in this order until the standard error is small enough.

    `share` is the part of all shards' rows that these are: fewer rows are enough where other shards have more.
    `bundle` is that of the target.
    """
    sizes = []
    size = max(round(_ROWS_PER_PART * share), _LEAST_ROWS_PER_PART)
    more, part = _MORE, 8
    if bundle > 1:
        size, more, part = max(size // bundle, _LEAST_BUNDLES_PER_PART), _MORE_BUNDLES, _PART_OF_BUNDLES
    while part * PARTS * size <= num_rows:
        sizes.append(size)
        size *= more
    return sizes


def taylors(curve: Curve) -> list[Taylor]:
    """The Taylor expansion at each point."""
    assert curve.hessian is not None
    parts = zip(curve.value, curve.gradient, curve.hessian, strict=True)
    return [Taylor(float(value), gradient, hessian) for value, gradient, hessian in parts]
