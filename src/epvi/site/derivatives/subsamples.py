"""Subsamples of a shard's rows, on which the remainder of a Taylor expansion is estimated.

Takes a subposterior with many rows; gives G subsamples of equal size, each weighted so that it represents all rows.
Rows are drawn uniformly, or with probabilities that grow with their *influence*, the size of their own curvature and
remainder near the centre: rows with a rare category, or far from all others, then are in the subsamples whenever they
matter, and those that matter most in every one of them. Estimates are unbiased either way (Horvitz & Thompson 1952).
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.packing import Packing
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.scarce import find_scarce

# The part of a row's probability that does not depend on its influence. Judgement: a defensive mixture bounds weights
# by three times those of uniform subsamples, where influences are estimated badly.
_UNIFORM = 1 / 3
# Rows that are in every subsample are padded to a multiple of this number, so that few programs are compiled.
# Judgement.
_SURE_ROWS = 512
# Points at which the prior is evaluated in one call. Judgement: it bounds the memory.
_PRIOR_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Subsamples:
    """G subsamples of the rows."""

    # The rows of all subsamples, weighted so that together they represent all rows: one subsample after the other, then
    # the rows that are in every subsample, then rows of weight zero.
    together: Subposterior
    # G, and the number of rows of each subsample that are in no other.
    count: int
    size: int

    def prepared(self, point: Float[np.ndarray, " d"]) -> "Subsamples":
        """The same, cheaper to evaluate near a point if group effects are integrated out."""
        return dataclasses.replace(self, together=self.together.prepared(point))

    def values(self, theta: Float[np.ndarray, "S d"], batch: int) -> Float[np.ndarray, "G S"]:
        """Log p_m at any number of points, `batch` at a time, estimated from each subsample."""
        count, whole = self.count, self.together
        sums = whole.sums_by_part(theta, batch, count, self.size)
        return whole.without_its_rows().value(theta, _PRIOR_AT_ONCE) + sums[:, -1] + count * sums[:, :-1].T

    def expanded(self, point: Float[np.ndarray, " d"], form: Packing) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """Value, gradient and Hessian of log p_m at a point, estimated from each subsample."""
        whole, own = self.together, self.count * self.size
        sizes = np.array([self.size] * self.count + [whole.num_rows - own] * (whole.num_rows > own))
        windows = Windows.of(sizes, 2 ** math.ceil(math.log2(self.size)), self.size, whole.programs.target.bundle)
        # Rows of a subsample represent all rows alone, those that are in every one only themselves.
        weights = whole.weight * np.where(np.arange(len(sizes)) < self.count, self.count, 1)
        each = Subposteriors(whole.programs, whole.rows, windows, np.zeros(len(sizes)), weights, whole.by_row)
        found = each.derivatives(np.tile(point, (len(sizes), 1)), np.arange(len(sizes)), form)
        prior = whole.without_its_rows().curve(point[None], form)[:3]
        sure = [np.sum(part[self.count :], axis=0) + np.asarray(own)[0] for part, own in zip(found, prior, strict=True)]
        value, gradient, hessian = (part[: self.count] + more for part, more in zip(found, sure, strict=True))
        return [(float(value[g]), gradient[g], hessian[g]) for g in range(self.count)]


def uniform(subposterior: Subposterior, num_rows: int, count: int, rng: np.random.Generator) -> Subsamples:
    """Disjoint random subsamples of `num_rows` rows each."""
    chosen = np.sort(rng.choice(subposterior.num_rows, count * num_rows, replace=False, shuffle=False))
    together = _taken(subposterior, chosen, rng)
    together.weight = subposterior.weight * subposterior.num_rows / len(chosen)
    return Subsamples(together, count, num_rows)


def without_pass(subposterior: Subposterior, num_rows: int, count: int, rng: np.random.Generator) -> Subsamples:
    """The same; where some columns have scarce values, rows with them are more probable."""
    one = np.array([0, subposterior.num_rows])
    scarce = None if subposterior.programs.target.bundle > 1 else find_scarce(subposterior.rows, one)
    if scarce is None:
        return uniform(subposterior, num_rows, count, rng)
    return by_influence(subposterior, scarce[0].influence(subposterior.dim), num_rows, count, rng)


def by_influence(
    subposterior: Subposterior,
    influence: Float[np.ndarray, " N"],
    num_rows: int,
    count: int,
    rng: np.random.Generator,
) -> Subsamples:
    """Disjoint subsamples of `num_rows` rows each, and the rows whose probability would be at least 1."""
    chances, is_sure = _chances(influence, count * num_rows)
    sure = np.flatnonzero(is_sure)
    chosen = _systematic(np.where(is_sure, 0.0, chances), count * num_rows, rng)
    short = -len(sure) % _SURE_ROWS
    order = np.concatenate([rng.permutation(chosen), sure, np.zeros(short, np.int64)])
    together = _taken(subposterior, order, None)
    weights = np.concatenate([1 / chances[order[: len(chosen)]], np.ones(len(sure)), np.zeros(short)])
    return Subsamples(dataclasses.replace(together, by_row=weights), count, num_rows)


def _taken(subposterior: Subposterior, chosen: Int[np.ndarray, " n"], rng: np.random.Generator | None) -> Subposterior:
    """The subposterior of these rows in this order, or in random order; rows are read in increasing order."""
    increasing, inverse = np.unique(chosen, return_inverse=True)
    made = subposterior.of_rows(increasing)
    order = inverse if rng is None else rng.permutation(inverse)
    return dataclasses.replace(made, rows={name: column[order] for name, column in made.rows.items()})


def _chances(influence: Float[np.ndarray, " N"], size: int) -> tuple[np.ndarray, np.ndarray]:
    """The probability of each row in a sample of `size` rows, and which rows are sure to be in it besides.

    Rows whose probability would be 1 or more are taken out, and the probabilities of the others computed anew.
    """
    relative = _UNIFORM + (1 - _UNIFORM) * influence
    is_sure = np.zeros(len(influence), bool)
    while True:
        chances = relative * (size / float(np.sum(relative[~is_sure])))
        more = ~is_sure & (chances >= 1)
        if not np.any(more) or np.count_nonzero(~(is_sure | more)) < size:
            return np.where(is_sure, 1.0, np.minimum(chances, 1.0)), is_sure
        is_sure |= more


def _systematic(chances: Float[np.ndarray, " N"], size: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """A sample of exactly `size` different rows with these probabilities, which sum to `size`: systematic sampling."""
    order = rng.permutation(len(chances))
    ends = np.cumsum(chances[order])
    # The last end is `size` up to rounding.
    picks = (np.arange(size) + rng.random()) * (ends[-1] / size)
    return order[np.minimum(np.searchsorted(ends, picks, side="right"), len(order) - 1)]
