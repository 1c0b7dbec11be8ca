"""Searches for the only mode of each of many shards, from several starts that all have to end there.

Takes the subposteriors of B shards and starts; gives for each shard where its search ended, and whether it has one mode
as far as the search shows: a few climbs all went there through concave regions only, or, where the density is not
concave everywhere (scales, dispersions), those of all starts that end at a mode end at the same one. Of many shards,
rows are pooled first and climbed from all starts; then each shard is climbed from the mode of the pool and, unless its
density is concave everywhere (`concavity.py`), from some of the starts, in turn. Where densities are concave, the mode
of a pool is searched for on few of its rows first.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.fit.concavity import is_concave
from epvi.site.fit.ladder import first_part, part_sizes
from epvi.site.fit.modes import SAME_MODE
from epvi.site.fit.newton import Climbed, Enough, Newton, Tolerances, climb, newton_steps

# Most Newton steps from a start: a shard that needs more is fitted alone. Judgement: a log-concave density takes about
# ten, and others often take twice as many.
_MOST_STEPS = 30
# Most Newton steps on more rows from the mode of fewer: a shard that needs more is fitted alone. Judgement: a
# log-concave density takes about four.
MORE_STEPS = 15
# Ends of climbs through concave regions only are the same mode if they are closer than this, in standard deviations.
# Judgement: a concave function has one maximum, about which climbs differ where it is flat: for the coefficient of a
# rare category on a subsample that has one row of it.
_SAME_PEAK = 2.0
# Least part of the climbs that have to end at the mode where the density is not concave everywhere; the others have
# ended nowhere, in flat tails. Judgement.
_LEAST_PART = 0.5
# A climb has met another one if its quadratic model has its maximum where the other ends, and is at most this many nats
# higher there. Judgement: it is then within 1.4 standard deviations of it, in a concave region.
_MET = 1.0
# Least number of shards of which rows are pooled, and rows of the pool. Judgement: so many shards are climbed from each
# start several times; the pool has at least a hundred rows for each parameter.
_MANY, _POOLED_ROWS = 16, 2**14
# Least number of shards of which rows are pooled if densities are concave. Judgement: a search for each of them takes
# longer than one for all, and leads less close to their modes.
_SOME = 4
# Rows with a scarce value that at most so many rows have move a mode farther than its curvature is constant. Judgement.
_FEW = 32
# Largest squared distance between the modes of a shard's subsample and of the pool that counts as sampling error,
# relative to its expectation, d in standard deviations of the subsample. Judgement.
_SAMPLING_ERROR = 2.0
# Starts of each shard beside the mode of the pool: where the density is concave on the way, and elsewhere. Judgement.
_DISTANT, _MORE_DISTANT = 1, 2


class _Way(NamedTuple):
    """What a search asks of the climbs from several starts to one mode."""

    # The number of starts, and of those of each shard beside the mode of a pool.
    num_starts: int
    num_distant: int
    # Least part of the climbs that have to end at the mode; none may end elsewhere.
    least_part: float
    # Ends that are closer than this, in standard deviations, are the same mode.
    closer: float
    # Whether climbs may go through regions in which the density is not concave.
    anywhere: bool


class Searched(NamedTuple):
    """Where the searches of b shards ended."""

    # The highest ends of their climbs.
    found: Climbed
    # Whether it is their only mode, as far as the climbs show.
    fine: Bool[np.ndarray, " b"]
    # Where to go on with more rows, if these were subsamples.
    onwards: Float[np.ndarray, "b d"]


@dataclasses.dataclass(frozen=True, eq=False)
class OneModeSearch:
    """The search for the only modes of shards with these subposteriors."""

    subposteriors: Subposteriors
    # The starts.
    starts: Float[np.ndarray, "n d"]
    # The number of starts that are enough where all climbs from them go through concave regions.
    few: int
    precision: Tolerances

    def run(self, own: Int[np.ndarray, " b"]) -> Searched:
        """The ends of the climbs of some shards, which are in increasing order."""
        made = self._searched(own, _Way(self.few, _DISTANT, 1.0, _SAME_PEAK, anywhere=False))
        rest = np.flatnonzero(~made.fine)
        if len(rest):
            anywhere = _Way(len(self.starts), _MORE_DISTANT, _LEAST_PART, SAME_MODE, anywhere=True)
            more = self._searched(own[rest], anywhere)
            for whole, part in zip((*made.found, *made[1:]), (*more.found, *more[1:]), strict=True):
                whole[rest] = part
        return made

    def of_pool(self, own: Int[np.ndarray, " b"], rng: np.random.Generator) -> Float[np.ndarray, " d"] | None:
        """The mode of rows of many shards, if each of these has one mode only: where all densities are concave."""
        if len(own) < _SOME or self.subposteriors.programs.target.bundle > 1:
            return None
        pool = _pooled(self.subposteriors, own)
        part, one = _first_of(pool, rng), np.zeros(1, int)
        way = _Way(self.few, _DISTANT, 1.0, _SAME_PEAK, anywhere=False)
        made = dataclasses.replace(self, subposteriors=part)._from(one, self.starts[None, : self.few], way)
        mode = made.found.points[0]
        if not made.fine[0] or not is_concave(part, mode, self.starts):
            return None
        if part is pool:
            return mode
        found = climbed(pool, one, mode[None], self.precision, MORE_STEPS)
        return found.points[0] if found.converged[0] else None

    def _searched(self, own: Int[np.ndarray, " b"], way: _Way) -> Searched:
        starts = self.starts[: way.num_starts]
        if len(own) < _MANY:
            return self._from(own, np.broadcast_to(starts, (len(own), *starts.shape)), way)
        pooled = dataclasses.replace(self, subposteriors=_pooled(self.subposteriors, own))
        pool = pooled._from(np.zeros(1, int), starts[None], way)
        if not pool.fine[0]:
            found = Climbed(*(np.repeat(part, len(own), axis=0) for part in pool.found))
            return Searched(found, np.zeros(len(own), bool), found.points.copy())
        turn = np.arange(len(own))[:, None] * way.num_distant + np.arange(way.num_distant)
        middle = np.broadcast_to(pool.found.points, (len(own), starts.shape[1]))
        made = self._from(own, np.concatenate([middle[:, None], starts[turn % len(starts)]], axis=1), way)
        return made._replace(onwards=self._onwards(own, made.found, middle))

    def _onwards(self, own: np.ndarray, found: Climbed, middle: np.ndarray) -> Float[np.ndarray, "b d"]:
        """The modes of subsamples are off by sampling error: that of the pool is better, if it is no farther."""
        weights = self.subposteriors.weights[own]
        with np.errstate(all="ignore"):
            away = middle - found.points
            squares = -np.einsum("bi,bij,bj->b", away, found.hessian, away)
            near = (weights > 1) & (squares < _SAMPLING_ERROR * middle.shape[1] * weights)
        return np.where(near[:, None], middle, found.points)

    def _from(self, own: Int[np.ndarray, " b"], starts: Float[np.ndarray, "b k d"], way: _Way) -> Searched:
        """Climb from k starts each, and compare where they end."""
        sub, (_, k, d) = self.subposteriors, starts.shape

        def met(points: np.ndarray, hessian: np.ndarray, newton: Newton) -> np.ndarray:
            """Which climbs need not go on, because they meet the first one; that one always goes on."""
            first = np.arange(0, len(points), k)
            return _meets(points, hessian, newton, first, way.closer) & (np.arange(len(points)) % k > 0)

        found = climbed(sub, np.repeat(own, k), starts.reshape(-1, d), self.precision, _MOST_STEPS, met)
        newton = newton_steps(found.gradient, found.hessian, self.precision.floor)
        # With group effects integrated out, the density is concave near the mode only: a scale has flat tails.
        bundled = sub.programs.target.bundle > 1
        ended = found.converged & newton.falls & (found.concave | bundled | way.anywhere)
        # Those that only met the first one have not arrived.
        arrived = ended & (newton.decrement <= self.precision.tolerance)
        best = np.argmax(np.where(arrived, found.value, -np.inf).reshape(-1, k), axis=1) + np.arange(0, len(ended), k)
        same = ended & _meets(found.points, found.hessian, newton, best, way.closer)
        elsewhere = np.any((found.converged & ~same).reshape(-1, k), axis=1)
        fine = arrived[best] & (np.mean(same.reshape(-1, k), axis=1) >= way.least_part) & ~elsewhere
        one = Climbed(*(part[best] for part in found))
        return Searched(one, fine, one.points.copy())


def _meets(
    points: Float[np.ndarray, "P d"],
    hessian: Float[np.ndarray, "P d d"],
    newton: Newton,
    one: Int[np.ndarray, " b"],
    closer: float,
) -> Bool[np.ndarray, " P"]:
    """Which climbs are near a mode that is the same as that of climb `one` of their shard, by the curvature at both.

    Towards a maximum at infinity the curvature vanishes: by the smaller one alone, points far out would be the same.
    """
    k, d = len(points) // len(one), points.shape[1]
    with np.errstate(all="ignore"):
        near = newton.falls & (newton.decrement <= _MET)
        both = near.reshape(-1, k) & near[one][:, None]
        if not np.any(both):
            return both.ravel()
        ends = points + newton.step
        away = ends.reshape(-1, k, d) - ends[one][:, None]
        there = -np.einsum("bki,bij,bkj->bk", away, hessian[one], away)
        here = -np.einsum("bki,bkij,bkj->bk", away, hessian.reshape(-1, k, d, d), away)
        same = (there < closer**2) & (here < closer**2)
        return (both & same).ravel()


def _pooled(sub: Subposteriors, own: Int[np.ndarray, " b"]) -> Subposteriors:
    """One subposterior of rows of all these shards, with their average share of the prior and number of rows."""
    rows = np.flatnonzero(np.repeat(np.isin(np.arange(sub.num_shards), own), sub.sizes))
    places = rows[:: max(len(rows) * sub.programs.target.bundle // _POOLED_ROWS, 1)]
    share, weight = np.mean(sub.shares[own]), np.mean(sub.weights[own] * sub.sizes[own]) / len(places)
    made = sub.of_rows(np.array([len(places)]), places, np.array([share]), np.array([weight]))
    # The same windows as those of the shards, so that compiled programs are shared.
    windows = dataclasses.replace(sub.windows, bounds=made.windows.bounds)
    return dataclasses.replace(made, windows=windows)


def _first_of(pool: Subposteriors, rng: np.random.Generator) -> Subposteriors:
    """The first subsample of a pool, in windows of the same size; the pool itself if it has few rows."""
    steps = part_sizes(int(pool.sizes[0]), first_part(pool.dim, pool.programs.target.terms))
    if not steps:
        return pool
    made = pool.sampled(np.zeros(1, int), steps[:1], [rng])
    return dataclasses.replace(made, windows=dataclasses.replace(pool.windows, bounds=made.windows.bounds))


def moved_by_scarce(
    sub: Subposteriors, shards: Int[np.ndarray, " b"], start: Float[np.ndarray, "b d"], precision: Tolerances
) -> Float[np.ndarray, "b d"]:
    """Points nearer to the modes of shards, some of whose rows have values that are scarce: in one pass.

    These rows and the prior are climbed on, with all others by their Taylor expansions about the start. By Newton steps
    on all rows, coefficients that a few rows inform would take many passes.
    """
    if sub.scarce is None:
        return start
    few = [sub.scarce[m].places[sub.scarce[m].leverage >= 1 / _FEW] for m in shards]
    some = np.flatnonzero([len(rows) for rows in few])
    if not len(some):
        return start
    chosen, own, begin = [few[i] for i in some], np.arange(len(some)), start[some]
    part = sub.thinned(shards[some], chosen, [np.ones(len(rows)) for rows in chosen])
    whole, known = sub.second_order(begin, shards[some]), part.second_order(begin, own)
    rest = Taylors(begin, *(a - b for a, b in zip(whole, known, strict=True)))

    def expanded(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, ...]:
        value, gradient, hessian = part.second_order(theta, own)
        slope = rest.gradient + np.einsum("bij,bj->bi", rest.hessian, theta - begin)
        return rest.at(theta[:, None])[:, 0] + value, slope + gradient, rest.hessian + hessian

    found, made = climb(expanded, begin, precision, MORE_STEPS), start.copy()
    made[some[found.converged]] = found.points[found.converged]
    return made


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


def last_step(sub: Subposteriors, owner: np.ndarray, ended: Climbed, precision: Tolerances) -> Climbed:
    """Take the last step without a pass: the rows' part by its Taylor expansion, the prior's part exactly."""
    prior = sub.prior_alone(ended.points, owner)
    rows = Taylors(ended.points, ended.value - prior[0], ended.gradient - prior[1], ended.hessian - prior[2])

    def expanded(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, ...]:
        more = sub.prior_alone(theta, owner)
        slope = rows.gradient + np.einsum("bij,bj->bi", rows.hessian, theta - rows.centre)
        return rows.at(theta[:, None])[:, 0] + more[0], slope + more[1], rows.hessian + more[2]

    last, known = climb(expanded, ended.points, precision, MORE_STEPS), ended.converged
    return Climbed(
        *(np.where(np.reshape(known, (-1,) + (1,) * (a.ndim - 1)), a, b) for a, b in zip(last, ended, strict=True))
    )
