"""Answers of shards with many parameters: what a Hessian at every base draw would cost too much for.

Takes the subposteriors of several shards, their Taylor expansions about the centres, and `Draws`. Log densities at the
draws and average gradients are computed from all rows, in float32 where that adds next to nothing to their sums
(`near_centre.py`). With many rows per parameter, the average Hessian under a Gaussian is that at the centre c and its
change, which is computed on a subsample of the rows at few base draws, in antithetic pairs z, −z, each on its own part
of them: what a row contributes varies over draws as it does over rows, so that other draws for other rows are as good
as all draws for all rows.

    E H ≈ H(c) + mean over parts g of [ ½ H_g(c + L⁻ᵀz_g) + ½ H_g(c − L⁻ᵀz_g) − H_g(c) ]

With few rows per parameter it is computed from all rows and base draws, averaged in each row (`averages.py`) where the
model has linear predictors.
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.matrices import positive_definite
from epvi.ground.float64 import promotion_allowed
from epvi.ground.seeds import SeedStream
from epvi.site.derivatives.average_gradient import average_gradient
from epvi.site.derivatives.averages import averages
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.near_centre import NearCentre, near_centre
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.rows.columns import generator
from epvi.wire.answer import Expected
from epvi.wire.request import Draws

# Answers are computed as described above with more than this many parameters, if Hessians at all base draws from all
# rows took more than this many operations. Judgement: a fraction of a second.
MANY, _MOST_OPERATIONS = 64, 2**34
# Draws at which log densities are computed in one pass. Judgement: enough for matrix products to be fast.
_DRAWS_AT_ONCE = 256
# Pairs of base draws at which Hessians of a subsample of rows are averaged. Judgement: their change from the centre is
# a small part of them.
_PAIRS = 8
# Pairs at which the change of a shard's Hessian is averaged, each on its own part of the subsample; other shards take
# other pairs. Judgement: a pair affects the average in its own direction only.
_PAIRS_OF_HESSIANS = 4
# Rows of that subsample per parameter, over all shards, and at least of shards that answer together. Judgement: the
# change is some percent of the Hessian, and known to a third by the Marchenko-Pastur law.
_ROWS_PER_PARAMETER, _LEAST_ROWS_PER_PARAMETER = 16, 8
# If the Hessian of the subsample is less than this part of that of all rows in some direction, or more than its
# inverse, the subsample lacks influential rows (of a rare category), and all rows are used. Judgement: it is beyond
# what the Marchenko-Pastur law lets expect.
_ALIKE = 0.3
# Least rows of a part of it. Judgement: with fewer, calls cost more than arithmetic.
_LEAST_ROWS = 64
# Rows per parameter on which a shard's outer products of scores are computed; with fewer than twice as many rows, on
# all. Judgement: their matrix is then known to a third in every direction.
_ROWS_OF_SCORES = 8
# Draws at which a window of rows shows the sizes of remainders and of rounding errors. Judgement: both are needed up to
# a factor of two.
_PILOT_DRAWS = 16
# Largest sd of what float32 adds to the sum of all shards' log densities, in nats. Judgement: a tenth of what their
# standard error may be.
_ROUNDING = 0.002
# Scores of a subsample in float64, with its Hessians, take as long as those of this many times its rows in float32.
# Judgement: measured with 300 columns.
_DEARER = 4
# The root mean square of a remainder over draws, relative to its mean size: that of the cube of a normal number.
_CUBE = 2.43
# The squared distance, per parameter, at which expansions about another point serve as well. Judgement: the points over
# which Hessians are averaged are four times as far away, and the change on the way to them is what is estimated.
_NEAR_PER_PARAMETER = 1 / 16


def too_many(draws: Draws, num_rows: int) -> bool:
    """Whether a Hessian of all rows at every base draw would cost too much."""
    d, points = draws.theta.shape[1], draws.gaussians.num_components * max(len(draws.base), 1)
    return draws.form.whole and d > MANY and 2 * points * num_rows * d**2 > _MOST_OPERATIONS


def near_enough(d: int) -> float:
    """The largest squared distance δᵀ|H|δ at which expansions are reused."""
    return _NEAR_PER_PARAMETER * d


def sampling_pays(each: Subposteriors, draws: Draws, shard: int, certain: float) -> bool:
    """Whether a subsample of rows that makes standard errors of scores as small as `certain` nats costs less than all.

    The remainders of a few rows tell how many would be needed, with probabilities in proportion to their remainders.
    """
    if not too_many(draws, each.windows.num_rows) or near_centre(each) is None:
        return True
    places = _pilot_rows(each, draws, shard)
    block = {name: np.take(each.rows[name], places, axis=0) for name in sorted(each.rows)}
    with jax.enable_x64(True), promotion_allowed():
        sizes = each.programs.remainders()(draws.centres[0], draws.theta[:_PILOT_DRAWS], block)
    total = each.windows.num_rows
    needed = (total * _CUBE * float(np.mean(np.asarray(sizes[1]))) / certain) ** 2
    return not _DEARER * needed > total


def _pilot_rows(each: Subposteriors, draws: Draws, shard: int) -> np.ndarray:
    """As many random rows as a window has, for which programs are compiled; some several times if there are fewer."""
    rng, total, size = generator(_key(draws, shard, 2)), each.windows.num_rows, each.windows.window
    return np.sort(rng.choice(total, size, replace=size > total))


def _key(draws: Draws, shard: int, stream: int) -> jax.Array:
    key = jax.random.wrap_key_data(jnp.asarray(draws.asked.key, jnp.uint32))
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, SeedStream.PARTS), shard), stream)


@dataclasses.dataclass(frozen=True, eq=False)
class ManyParameters:
    """The answers of B shards to one request."""

    each: Subposteriors
    # Expansions of all shards about each centre.
    own: list[Taylors]
    draws: Draws
    # The shards' numbers, and the part of all shards' rows that each has.
    shards: list[int]
    shares: Float[np.ndarray, " B"]
    # Whether all rows are used throughout.
    exact: bool

    @functools.cached_property
    def _quick(self) -> tuple[NearCentre, float] | None:
        """Programs in float32 with the sd of what rounding adds to the sums, if that is small enough."""
        found = None if self.exact else near_centre(self.each)
        if found is None:
            return None
        places = _pilot_rows(self.each, self.draws, self.shards[0])
        rounding = found.rounding(self.each, self._centre, self.draws.theta[:_PILOT_DRAWS], places)
        return (found, rounding) if rounding <= _ROUNDING * float(np.sqrt(np.sum(self.shares))) else None

    @property
    def _centre(self) -> Float[np.ndarray, " d"]:
        return self.own[0].centre[0]

    @property
    def errors(self) -> Float[np.ndarray, " B"]:
        """Standard errors of the log densities of each shard: what rounding adds to them."""
        rounding = 0.0 if self._quick is None else self._quick[1]
        return rounding * np.sqrt(self.each.sizes / self.each.windows.num_rows)

    def values(self, theta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "B S"]:
        """Log densities of each shard, from all rows."""
        if self._quick is not None:
            return self._quick[0].values(self.each, self._centre, theta)
        owner = np.arange(self.each.num_shards)
        short = -len(theta) % min(_DRAWS_AT_ONCE, len(theta))
        filled = np.concatenate([theta, np.repeat(theta[-1:], short, axis=0)])
        parts = np.split(filled, range(_DRAWS_AT_ONCE, len(filled), _DRAWS_AT_ONCE))
        made = [self.each.value(np.broadcast_to(part, (len(owner), *part.shape)), owner) for part in parts]
        return np.concatenate(made, axis=1)[:, : len(theta)]

    def moments(self) -> list[Expected]:
        """Expectations under the Gaussians, of each shard."""
        found = [self._expected(points, own) for points, own in zip(self.draws.points(), self.own, strict=True)]
        return [
            Expected(*(np.stack([one[i][b] for one in found]) for i in range(3))) for b in range(self.each.num_shards)
        ]

    def _expected(self, points: Float[np.ndarray, "R d"], own: Taylors) -> tuple[np.ndarray, ...]:
        """Log densities at base draws, average gradients and average Hessians, of each shard."""
        changed = self._changes(points, own)
        if changed is not None:
            return *self._with_gradients(points), own.hessian + changed
        # With few rows per parameter one Hessian with weights averaged in each row costs no more than that at a pair.
        rows = averages(self.each, points, Order.FULL)
        if rows is None:
            return *self._with_gradients(points), self._over_parts(points)
        return tuple(a + b for a, b in zip(rows, self._prior(points), strict=True))

    def products(self) -> Float[np.ndarray, "B d d"]:
        """Sums over each shard's rows of the outer products of their scores at the first centre."""
        return products(self.each, self.draws, self.shards, self.exact)

    def _with_gradients(self, points: Float[np.ndarray, "R d"]) -> tuple[np.ndarray, np.ndarray]:
        """Log densities of each shard at all base draws, and their average gradients, from all rows."""
        parts = np.array_split(points, max(len(points) // _DRAWS_AT_ONCE, 1))
        found = [self._with_gradients_at(part) for part in parts]
        sizes = [len(part) / len(points) for part in parts]
        slopes = sum(size * slope for size, (_, slope) in zip(sizes, found, strict=True))
        return np.concatenate([values for values, _ in found], axis=1), np.asarray(slopes)

    def _with_gradients_at(self, points: Float[np.ndarray, "R d"]) -> tuple[np.ndarray, np.ndarray]:
        each, made = self.each, []
        if self._quick is not None and self._quick[0].has_gradients:
            return self._quick[0].with_average_gradients(each, self._centre, points)
        for b in range(each.num_shards):
            prior = np.mean(each.prior_gradients(points, np.full(len(points), b)), axis=0)
            rows = average_gradient(each.programs, each.rows, each.windows, b, points)
            made.append(prior + each.weights[b] * rows)
        return self.values(points), np.stack(made)

    def _prior(self, points: Float[np.ndarray, "R d"]) -> tuple[np.ndarray, ...]:
        """The prior's part of the same; its Hessian at few pairs, one point after the other, as each is large."""
        each, half = self.each, len(points) // 2
        count, owner = each.num_shards, np.repeat(np.arange(each.num_shards), len(points))
        theta = np.tile(points, (count, 1))
        gradients = each.prior_gradients(theta, owner).reshape(count, len(points), -1)
        first = _PAIRS_OF_HESSIANS * self.shards[0]
        pairs = [(first + i) % half for i in range(min(_PAIRS_OF_HESSIANS, half))]
        hessian = sum(each.whole_prior(points[i : i + 1])[2][0] for pair in pairs for i in (pair, half + pair))
        return (
            each.prior_values(theta, owner).reshape(count, -1),
            np.mean(gradients, axis=1),
            np.multiply.outer(each.shares, hessian / (2 * len(pairs))),
        )

    def _changes(self, points: Float[np.ndarray, "R d"], own: Taylors) -> Float[np.ndarray, "B d d"] | None:
        """Average changes of Hessians from the centre, on subsamples; None if rows are few, or these lack some."""
        each, total = self.each, self.each.windows.num_rows
        wanted = max(_ROWS_PER_PARAMETER * float(np.sum(self.shares)), _LEAST_ROWS_PER_PARAMETER) * each.dim
        few = np.maximum((wanted * each.sizes / total).astype(int), _PAIRS_OF_HESSIANS * _LEAST_ROWS)
        if self.exact or np.any(2 * few > each.sizes):
            return None
        changed, seen = np.zeros_like(own.hessian), np.zeros_like(own.hessian[0])
        for b in range(each.num_shards):
            for share, (up, down, here) in self._at_pairs(b, int(few[b]), points, own.centre[:1]):
                changed[b] += share * (0.5 * (up + down) - here)
                seen += share * here
        whole = np.sum(own.hessian, axis=0)
        alike = np.all(positive_definite(np.stack([_ALIKE * whole - seen, _ALIKE * seen - whole])))
        return changed if alike else None

    def _over_parts(self, points: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "B d d"]:
        """Average Hessians of all rows, each part of them at its own pair."""
        each = self.each
        made = np.zeros((each.num_shards, each.dim, each.dim))
        for b in range(each.num_shards):
            for share, (up, down) in self._at_pairs(b, int(each.sizes[b]), points, points[:0]):
                made[b] += share * 0.5 * (up + down)
        return made

    def _parts(self, b: int, count: int) -> list[np.ndarray]:
        return np.array_split(_some(self.each, self.draws, self.shards, b, count, 1), _PAIRS_OF_HESSIANS)

    def _at_pairs(
        self, b: int, count: int, points: Float[np.ndarray, "R d"], others: Float[np.ndarray, "n d"]
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Hessians of parts of `count` rows of a shard at a pair each, and at other points, with the parts' shares."""
        half, parts = len(points) // 2, self._parts(b, count)
        for i, rows in enumerate(parts):
            if len(rows):
                pair = (_PAIRS_OF_HESSIANS * self.shards[b] + i) % half
                at = np.stack([points[pair], points[half + pair], *others])
                part = self.each.thinned(np.array([b]), [np.sort(rows)])
                yield len(rows) / count, part.second_order(at, np.zeros(len(at), int))[2]


def products(each: Subposteriors, draws: Draws, shards: list[int], exact: bool = False) -> Float[np.ndarray, "B d d"]:
    """Sums over each shard's rows of the outer products of their scores at the first centre."""
    rows, factors = each, np.ones(each.num_shards)
    most = _ROWS_OF_SCORES * each.dim
    if not exact and np.all(each.sizes >= 2 * most):
        chosen = [_some(each, draws, shards, b, most, 0) for b in range(each.num_shards)]
        rows = each.thinned(np.arange(each.num_shards), chosen)
        # The inverse of a covariance that n rows give is too large by n / (n − d − 1) on average (inverse Wishart).
        factors = factors * most / (most - rows.dim - 1)
    return factors[:, None, None] * rows.spread(draws.centres[0])


def _some(each: Subposteriors, draws: Draws, shards: list[int], b: int, count: int, stream: int) -> np.ndarray:
    """A random subsample of a shard's rows, in random order for stream 1, the same in every round."""
    rng = generator(_key(draws, shards[b], stream))
    chosen = rng.choice(int(each.sizes[b]), count, replace=False)
    return chosen if stream else np.sort(chosen)


def few_pairs(points: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "r d"]:
    """The first antithetic pairs of base draws mapped to a Gaussian: μ + Lz for half of them, μ − Lz for the others."""
    half = len(points) // 2
    return np.concatenate([points[:half][:_PAIRS], points[half:][:_PAIRS]])
