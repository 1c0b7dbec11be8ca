"""Approximates log p_m near a point by a Taylor expansion over all rows, with the remainder estimated on subsamples.

Takes value, gradient and Hessian of a subposterior with many rows at a point c, known from the optimisation that ended
there; returns values near c, with standard errors, without another pass over all rows:

    f(θ) ≈ T(θ) + mean over subsamples g of [ f_g(θ) − T_g(θ) ]

T is the second-order Taylor expansion at c of all rows, T_g that of subsample g scaled to all rows: the expansion is a
control variate. A posterior of n rows has a width of order n^(-1/2), so the remainder is of order n^(-1/2), and its
standard error smaller by the square root of the number of rows in the subsamples.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.site.derivatives.average_gradient import average_gradient
from epvi.site.derivatives.averages import average_curve
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.derivatives.subsamples import Subsamples, by_influence
from epvi.site.derivatives.windows import Windows

# Rows of a subsample on which average gradients are computed in one call. Judgement: it bounds the memory.
_WINDOW = 2**12
# Points at which values are computed in one call. Judgement: it bounds the memory.
_VALUES_AT_ONCE = 64
# Points near a centre at which the influence of each row is computed. Judgement: a row's remainder differs in size from
# point to point, and probabilities need it up to a factor only; with half as many, all rows of a rare category are now
# and then taken for unimportant, because the points happen to lie close to the centre in its direction.
PILOTS = 8
# Number of subsamples ("parts"), whose spread gives the standard error of the remainder. Judgement.
PARTS = 8
# Rows of a subsample of a fit. Judgement: 8 of them are 4,096 rows, whose pass is short.
ROWS_PER_PART = 512
# Rows of a subsample at first when draws are scored, with half or more of all rows, and the least number with fewer.
# Judgement: 2,048 draws are scored on all of them, and larger ones follow where their error is too large.
_SCORED_ROWS, _LEAST_ROWS_PER_PART = 256, 64
# The least number for each parameter, over all subsamples: by the Marchenko-Pastur law the Hessians of subsamples and
# of all rows then differ by less than `ALIKE` in every direction. Judgement.
_ROWS_PER_PARAMETER = 16
# Least number of rows of a "tall" shard, whose fit uses expansions: 8 times the rows of the subsamples, 32,768. Below,
# a pass over all rows costs about as much. Judgement.
TALL = 8 * PARTS * ROWS_PER_PART
# Where the standard error is too large, subsamples are enlarged by this factor, until they have more than a third of
# the rows: then all rows are taken. Judgement.
_MORE, _SPARED = 2, 3
# The same for a target whose rows are bundles of groups, in bundles: at least one in each part, enlarged by a factor of
# two up to half of all bundles. Judgement: there may be only a few dozen of them.
_LEAST_BUNDLES_PER_PART, _MORE_BUNDLES, _SPARED_BUNDLES = 1, 2, 2
# `TALL` in the user's rows where rows are bundles of groups, each of which costs several times as much. Judgement.
_TALL_BUNDLES = 2**11
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

    def plus(self, other: "Taylor") -> "Taylor":
        """The sum of two expansions about the same point."""
        return Taylor(self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian)

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
    # The subsamples of the rows.
    samples: Subsamples
    # T_g, each scaled to all rows.
    of_parts: list[Taylor]

    @property
    def is_alike(self) -> bool:
        """Whether the Hessian of the subsamples is close to that of all rows, and they lack no influential rows."""
        parts = -np.mean([one.hessian for one in self.of_parts], axis=0)
        ratio = self.whole.form.ratios(-self.whole.hessian, parts)
        most = ALIKE if self.samples.together.programs.target.bundle == 1 else _ALIKE_BUNDLES
        return bool(np.all((np.abs(ratio) > 1 / most) & (np.abs(ratio) < most)))

    def expected(
        self, theta: Float[np.ndarray, "R d"], batch: int, few: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values at points near the centre, and gradient and Hessian averaged over them: of T and of the remainder.

        With many parameters the remainder of the Hessian is averaged over `few` points instead.
        """
        delta, part = theta - self.centre, Taylor(*(np.mean(one, axis=0) for one in zip(*self.of_parts, strict=True)))
        form, rows = self.whole.form, self.samples.together
        if few is None:
            values, gradient, hessian, _ = average_curve(rows, theta, form, batch)
            values = self.whole.at(delta) + values - part.at(delta)
        else:
            values, gradient = self.near(theta, _VALUES_AT_ONCE).value, self._average_gradient(theta)
            hessian = average_curve(rows, few, form, batch).hessian
        bent = form.rows_times(np.mean(delta, axis=0), self.whole.hessian - part.hessian)
        moved = self.whole.gradient - part.gradient + gradient + bent
        return values, moved, self.whole.hessian + hessian - part.hessian

    def _average_gradient(self, theta: np.ndarray) -> np.ndarray:
        rows, size = self.samples.together, self.samples.together.num_rows
        windows = Windows(np.array([0, size]), min(size, _WINDOW), 1)
        prior = rows.without_its_rows().gradient(theta).gradient
        found = average_gradient(rows.programs, rows.rows, windows, 0, theta, rows.by_row)
        return np.mean(prior, axis=0) + rows.weight * found

    def near(self, theta: np.ndarray, batch: int) -> Near:
        """Estimated values at points near the centre."""
        delta, count = theta - self.centre, len(self.of_parts)
        values = self.samples.values(theta, batch)
        left = [value - expanded.at(delta) for value, expanded in zip(values, self.of_parts, strict=True)]
        mean, error = np.mean(left, axis=0), np.std(left, axis=0, ddof=1) / np.sqrt(count)
        return Near(self.whole.at(delta) + mean, error)


def expand(
    centres: np.ndarray,
    wholes: list[Taylor],
    samples: Subsamples,
) -> list[Around]:
    """The expansions about several points, on the same subsamples of the rows."""
    made = []
    for centre, whole in zip(centres, wholes, strict=True):
        near = samples.prepared(centre)
        of_parts = [Taylor(*one) for one in near.expanded(centre, whole.form)]
        made.append(Around(centre, whole, near, of_parts))
    return made


def near_by_influence(
    sub: Subposterior,
    centre: Float[np.ndarray, " d"],
    whole: Taylor,
    theta: Float[np.ndarray, "S d"],
    num_rows: int,
    rng: np.random.Generator,
) -> Near | None:
    """Estimated values near a point from subsamples of `num_rows` rows each that have the influential rows.

    None if their Hessian is not close to that of all rows.
    """
    samples = by_influence(sub, sub.influence(centre, theta[:PILOTS]), num_rows, PARTS, rng)
    (around,) = expand(centre[None], [whole], samples)
    return around.near(theta, _VALUES_AT_ONCE) if around.is_alike else None


def is_tall(num_rows: int, bundle: int) -> bool:
    """Whether a fit uses expansions on so many rows; `bundle` is that of the target."""
    return num_rows >= TALL if bundle == 1 else num_rows * bundle >= _TALL_BUNDLES


def sizes_of_parts(num_rows: int, share: float = 1.0, d: int = 1, bundle: int = 1) -> list[int]:
    """Rows per subsample, to be tried in this order until the standard error is small enough.

    `share` is the part of all shards' rows that these are: fewer rows are enough where other shards have more. The
    Hessian of d parameters takes rows in proportion to be like that of all rows. Sizes are powers of two, so that few
    programs are compiled. `bundle` is that of the target.
    """
    first = max(_SCORED_ROWS * share, _LEAST_ROWS_PER_PART, _ROWS_PER_PARAMETER * d / PARTS)
    more, spared = (_MORE, _SPARED) if bundle == 1 else (_MORE_BUNDLES, _SPARED_BUNDLES)
    sizes, size = [], 2 ** math.ceil(math.log2(max(first / bundle, _LEAST_BUNDLES_PER_PART)))
    while spared * PARTS * size <= num_rows:
        sizes.append(size)
        size *= more
    return sizes


def taylors(curve: Curve) -> list[Taylor]:
    """The Taylor expansion at each point."""
    assert curve.hessian is not None
    parts = zip(curve.value, curve.gradient, curve.hessian, strict=True)
    return [Taylor(float(value), gradient, hessian) for value, gradient, hessian in parts]
