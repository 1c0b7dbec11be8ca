"""Searches for the only mode of each of many shards, from several starts that all have to end there.

Takes the subposteriors of B shards and starts; gives for each shard where its search ended, and whether every climb
went there through concave regions only. A few shards are each climbed from all starts. Of many shards, rows are pooled
first and climbed from all starts; then each shard is climbed from the mode of the pool and from one of the starts, in
turn. If a single climb disagrees, all shards are climbed from all starts, as if each were alone.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from epvi.gaussian.matrices import positive_definite
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.fit.modes import SAME_MODE
from epvi.site.fit.newton import Climbed, Enough, Newton, Tolerances, climb, newton_steps

# Most Newton steps from a start: a shard that needs more is fitted alone. Judgement: a log-concave density takes about
# ten.
_MOST_STEPS = 30
# A climb has met another one if its quadratic model has its maximum where the other ends, and is at most this many nats
# higher there. Judgement: it is then within 1.4 standard deviations of it, in a concave region.
_MET = 1.0
# Least number of shards of which rows are pooled, and rows of the pool. Judgement: so many shards are climbed from each
# start 16 times; the pool has at least a hundred rows for each parameter.
_MANY, _POOLED_ROWS = 64, 2**14
# Largest squared distance between the modes of a shard's subsample and of the pool that counts as sampling error,
# relative to its expectation, d in standard deviations of the subsample. Judgement.
_SAMPLING_ERROR = 2.0


class Searched(NamedTuple):
    """Where the searches of b shards ended."""

    # The ends of their first climbs.
    found: Climbed
    # Whether all climbs ended there.
    fine: Bool[np.ndarray, " b"]
    # Where to go on with more rows, if these were subsamples.
    onwards: Float[np.ndarray, "b d"]


@dataclasses.dataclass(frozen=True, eq=False)
class OneModeSearch:
    """The search for the only modes of shards with these subposteriors."""

    subposteriors: Subposteriors
    # The starts, the first of which is followed to the end.
    starts: Float[np.ndarray, "k d"]
    precision: Tolerances

    def run(self, own: Int[np.ndarray, " b"]) -> Searched:
        """The ends of the climbs of some shards, which are in increasing order."""
        if len(own) >= _MANY:
            made = self._from_pool(own)
            if np.all(made.fine):
                return made
        return self._from(own, np.broadcast_to(self.starts, (len(own), *self.starts.shape)))

    def _from_pool(self, own: Int[np.ndarray, " b"]) -> Searched:
        sub = self.subposteriors
        pool = dataclasses.replace(self, subposteriors=_pooled(sub, own))._from(np.zeros(1, int), self.starts[None])
        if not pool.fine[0]:
            return pool
        distant = self.starts[np.arange(len(own)) % len(self.starts)]
        middle = np.broadcast_to(pool.found.points, distant.shape)
        made = self._from(own, np.stack([middle, distant], axis=1))
        # The mode of a subsample is off by sampling error. That of the pool is better, if it is no farther than that.
        with np.errstate(all="ignore"):
            away = middle - made.found.points
            squares = -np.einsum("bi,bij,bj->b", away, made.found.hessian, away)
            near = (sub.weights[own] > 1) & (squares < _SAMPLING_ERROR * sub.dim * sub.weights[own])
        return made._replace(onwards=np.where(near[:, None], middle, made.found.points))

    def _from(self, own: Int[np.ndarray, " b"], starts: Float[np.ndarray, "b k d"]) -> Searched:
        """Climb from k starts each; all have to meet the first one."""
        sub, (_, k, d) = self.subposteriors, starts.shape

        def met(points: np.ndarray, hessian: np.ndarray, newton: Newton) -> np.ndarray:
            with np.errstate(all="ignore"):
                near = newton.falls & (newton.decrement <= _MET)
                ends = (points + newton.step).reshape(-1, k, d)
                away = ends - ends[:, :1]
                distance = -np.einsum("bki,bij,bkj->bk", away, hessian.reshape(-1, k, d, d)[:, 0], away)
                made = near.reshape(-1, k) & near.reshape(-1, k)[:, :1] & (distance < SAME_MODE**2)
            return made.ravel()

        def others(points: np.ndarray, hessian: np.ndarray, newton: Newton) -> np.ndarray:
            return met(points, hessian, newton) & (np.arange(len(points)) % k > 0)

        owner = np.repeat(own, k)
        found = climbed(sub, owner, starts.reshape(-1, d), self.precision, _MOST_STEPS, others)
        # With group effects integrated out, the density is concave near the mode only: a scale has flat tails.
        concave = found.concave if sub.programs.target.bundle == 1 else positive_definite(-found.hessian)
        fine = found.converged & concave
        fine &= met(found.points, found.hessian, newton_steps(found.gradient, found.hessian, self.precision.floor))
        one = Climbed(*(part.reshape(-1, k, *part.shape[1:])[:, 0] for part in found))
        return Searched(one, np.all(fine.reshape(-1, k), axis=1), one.points)


def _pooled(sub: Subposteriors, own: Int[np.ndarray, " b"]) -> Subposteriors:
    """One subposterior of rows of all these shards, with their average share of the prior and number of rows."""
    rows = np.flatnonzero(np.repeat(np.isin(np.arange(sub.num_shards), own), sub.sizes))
    places = rows[:: max(len(rows) * sub.programs.target.bundle // _POOLED_ROWS, 1)]
    share, weight = np.mean(sub.shares[own]), np.mean(sub.weights[own] * sub.sizes[own]) / len(places)
    made = sub.of_rows(np.array([len(places)]), places, np.array([share]), np.array([weight]))
    # The same windows as those of the shards, so that compiled programs are shared.
    windows = dataclasses.replace(sub.windows, bounds=made.windows.bounds)
    return dataclasses.replace(made, windows=windows)


def climbed(
    sub: Subposteriors,
    owner: Int[np.ndarray, " P"],
    starts: Float[np.ndarray, "P d"],
    precision: Tolerances,
    max_steps: int,
    enough: Enough | None = None,
) -> Climbed:
    """Maximise the subposteriors of the shards `owner` from these starts."""

    def evaluate(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, ...]:
        if np.all(active):
            return sub.second_order(theta, owner)
        d = sub.dim
        made = tuple(np.full((len(theta), *shape), np.nan) for shape in ((), (d,), (d, d)))
        for whole, part in zip(made, sub.second_order(theta[active], owner[active]), strict=True):
            whole[active] = part
        return made

    return climb(evaluate, starts, precision, max_steps, enough)
