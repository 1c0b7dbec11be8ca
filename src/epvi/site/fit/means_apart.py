"""The Newton steps of `mean_steps.py` in compiled programs, for rows that fit into one block.

A shard with few rows spends its time on calls, not on arithmetic: here a whole sweep of the means is one call, or two
if means interact. Takes and returns what `FirstBound.maximise` does. The means are moved one after the other, each in a
trust region of its own, so that a mean on a curved ridge costs evaluations at one point only. Means that interact are
moved only close to their maxima in this way; a second program then moves all of them together.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.compiled import compiled
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Curve
from epvi.site.fit.compiled_steps import (
    Limits,
    Pairs,
    RowBlock,
    State,
    TrustStep,
    by_cholesky,
    prepared,
    units_of,
)
from epvi.site.fit.mean_steps import INTERACTING, TRIALS, FirstBound, Placed
from epvi.site.fit.newton import LEAST_GAIN, Tolerances

# Decrement, in nats, up to which a mean that interacts with others is moved alone. Judgement: the joint steps that
# follow converge quadratically from there; where they have to wait for a later sweep, because another mean was stopped
# by the limit of steps, no more is lost than the tolerance of the sweeps.
_NEAR = 1e-4
# Most rounds in which each mean is moved alone, until none moves. Judgement: means that hardly interact lose nine
# tenths of their error in each.
_ROUNDS = 10


class _Climb(NamedTuple):
    """Some of the means on their way: q of them, in one trust region."""

    points: Any
    f: Any
    at: tuple[Any, Any, Any]
    radius: Any
    units: Any
    # Steps taken, trials since the last step, and passes over the rows.
    steps: Any
    trials: Any
    passes: Any
    # Whether they move no further, and whether the bound ties them to means that stay.
    ended: Any
    tied: Any


class _Moved(NamedTuple):
    """All means after the steps."""

    state: State
    # Evaluations of f over all rows at one point.
    passes: Any
    # Whether some mean interacted with others, and whether one was stopped by the limit of steps.
    tied: Any
    stopped: Any
    # Steps of all means in the last round.
    steps: Any


class _MeansSearch(NamedTuple):
    """L1 of a subposterior, with the settings of the search."""

    programs: Programs
    rows: RowBlock
    pairs: Pairs
    limits: Limits

    def begin(self, state: State, who: Any) -> _Climb:
        """The means with these indices before their first step."""
        at, points = tuple(part[who] for part in state.at), state.means[who]
        units = jnp.minimum(state.units[who], units_of(at[2]))
        first = jnp.maximum(1.0, jnp.linalg.norm(points / units, axis=1))
        radius = jnp.sqrt(jnp.sum(jnp.where(state.radii[who] < 0, first, state.radii[who]) ** 2))
        no, zero = jnp.asarray(False), jnp.asarray(0)
        return _Climb(points, state.f[who], at, radius, units, zero, zero, zero, no, no)

    def climb(self, state: State, who: Any) -> _Climb:
        """Steps of the means with these indices, while the others stay."""

        def trial(one: _Climb) -> _Climb:
            means = state.means.at[who].set(one.points)
            gradient, hessian, ties = self.model(means, one, who)
            # The least curvature of a mean says whether others matter for it.
            least = jnp.max(ties) / INTERACTING
            found = by_cholesky(gradient, hessian, one.radius, self.limits.floor, least)
            tied = found.least < least
            enough = jnp.where(tied, jnp.maximum(_NEAR, self.limits.tolerance), self.limits.tolerance)
            waiting = jnp.all(jnp.isfinite(one.f)) & (found.decrement > enough)
            one = one._replace(tied=tied)
            return jax.lax.cond(
                waiting, lambda: self.tried(state.means, one, who, found), lambda: one._replace(ended=~waiting)
            )

        return jax.lax.while_loop(
            lambda one: ~one.ended & (one.steps < self.limits.max_steps), trial, self.begin(state, who)
        )

    def model(self, means: Any, one: _Climb, who: Any) -> tuple[Any, Any, Any]:
        """Gradient and Hessian of L1 in the moved means, scaled; and how strongly the bound ties each to others."""
        (k, d), q = means.shape, len(who)
        slopes, logs = self.pairs.slopes(means)
        shares = jnp.where(jnp.eye(k, dtype=bool), 0.0, jax.nn.softmax(logs, axis=1))
        both, own, inverses = (shares + shares.T)[who], slopes[who], self.pairs.inverses[who]
        gradient = (one.at[1] + jnp.einsum("qj,qjd->qd", both, own)) / k
        hessian = bound_hessian(shares, slopes, self.pairs.inverses, who)
        at = jnp.arange(q)
        hessian = hessian.at[at, :, at, :].add(one.at[2] / k).reshape(q * d, q * d)
        spread = jnp.max(one.units[:, None] ** 2 * jnp.diagonal(inverses, axis1=-2, axis2=-1), axis=-1)
        most = both * (jnp.sum((one.units[:, None] * own) ** 2, axis=-1) + spread) / k
        ties = most.at[:, who].set(0.0)
        flat = one.units.ravel()
        return gradient.ravel() * flat, hessian * flat[:, None] * flat[None, :], ties

    def tried(self, means: Any, one: _Climb, who: Any, found: TrustStep) -> _Climb:
        """Take a step if it raises L1 enough, and adapt the radius."""
        k, points = len(means), one.points + found.step.reshape(one.points.shape) * one.units
        f, length = self.rows.value(self.programs, points), jnp.linalg.norm(found.step)
        before, after = (self.pairs.bound(means.at[who].set(some)) for some in (one.points, points))
        gain, promised = jnp.sum(f - one.f) / k + after - before, found.promised
        # Near the maximum the gain is below the rounding error: there steps are taken without a check of the gain.
        drowned = promised <= self.limits.rounding * (1 + jnp.sum(jnp.abs(one.f)) / k)
        good = jnp.isfinite(gain) & ((gain >= LEAST_GAIN * promised) | drowned)
        ratio = jnp.where(drowned, 1.0, gain / jnp.maximum(promised, 1e-300))
        # The usual rules of the radius (Nocedal & Wright 2006, algorithm 4.1).
        radius = jnp.where(good & (ratio >= 0.25), one.radius, 0.25 * jnp.minimum(length, one.radius))
        radius = jnp.where(good & (ratio > 0.75), jnp.maximum(radius, 2 * length), radius)
        least = 1e-13 * (1 + jnp.linalg.norm(one.points / one.units))
        stays = one._replace(
            radius=radius,
            trials=one.trials + 1,
            passes=one.passes + len(who),
            ended=(one.trials + 1 >= TRIALS) | (radius <= least),
        )
        return jax.lax.cond(good, lambda: self.taken(stays, points, f), lambda: stays)

    def taken(self, one: _Climb, points: Any, f: Any) -> _Climb:
        """The means at these points, unless f has no finite derivatives there."""
        at = self.rows.full(self.programs, points)
        good = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(part)) for part in at]))
        there = one._replace(
            points=points,
            f=f,
            at=at,
            units=jnp.minimum(one.units, units_of(at[2])),
            steps=one.steps + 1,
            trials=jnp.zeros_like(one.trials),
            ended=jnp.asarray(False),
        )
        one = one._replace(radius=0.25 * one.radius)
        moved = jax.tree.map(lambda some, other: jnp.where(good, some, other), there, one)
        return moved._replace(passes=one.passes + len(points))

    def after(self, state: State, one: _Climb, who: Any) -> State:
        """All means, those with these indices after their steps."""
        at = tuple(whole.at[who].set(part) for whole, part in zip(state.at, one.at, strict=True))
        radius = one.radius / jnp.sqrt(len(who))
        return State(
            state.means.at[who].set(one.points),
            state.f.at[who].set(one.f),
            at,
            state.radii.at[who].set(radius),
            state.units.at[who].set(one.units),
        )


def maximise(bound: FirstBound, placed: Placed, precision: Tolerances, max_steps: int) -> Placed:
    """`FirstBound.maximise`, compiled where the rows fit into one block."""
    subposterior = bound.subposterior
    if not 0 < subposterior.num_rows <= subposterior.rows_per_block:
        return bound.maximise(placed, precision, max_steps)
    rows, pairs, limits, begin = prepared(bound, placed, precision, max_steps)
    start = time.perf_counter()
    with jax.enable_x64(True), promotion_allowed():
        given = jax.tree.map(jnp.asarray, (rows, pairs, limits, begin))
        moved = _one_after_another(subposterior.programs, *given)
        passes = int(moved.passes)
        if bool(moved.tied) and not bool(moved.stopped):
            moved = _together(subposterior.programs, given[0], given[1], given[2], moved.state)
            passes += int(moved.passes)
        state = jax.tree.map(np.array, moved.state)
    # A pass evaluates f at all means.
    subposterior.count(-(-passes // len(placed.means)), time.perf_counter() - start)
    return Placed(state.means, Curve(*state.at), state.radii, state.units)


@compiled
def _one_after_another(programs: Programs, rows: RowBlock, pairs: Pairs, limits: Limits, begin: State) -> _Moved:
    """Move each mean while the others stay, in rounds; f by a pass that computes f alone need not be known."""
    search = _MeansSearch(programs, rows, pairs, limits)
    begin = begin._replace(f=rows.value(programs, begin.means))

    def of_mean(k: Any, moved: _Moved) -> _Moved:
        who = jnp.asarray(k)[None]
        one = search.climb(moved.state, who)
        return _Moved(
            search.after(moved.state, one, who),
            moved.passes + one.passes,
            moved.tied | one.tied,
            moved.stopped | ~one.ended,
            moved.steps + one.steps,
        )

    def of_all(carried: tuple[_Moved, Any]) -> tuple[_Moved, Any]:
        moved, count = carried
        fresh = moved._replace(tied=no, stopped=no, steps=jnp.zeros_like(moved.steps))
        return jax.lax.fori_loop(0, len(begin.means), of_mean, fresh), count + 1

    def goes_on(carried: tuple[_Moved, Any]) -> Any:
        moved, count = carried
        return (moved.steps > 0) & ~moved.tied & ~moved.stopped & (count < _ROUNDS)

    no, one = jnp.asarray(False), jnp.asarray(1)
    first = _Moved(begin, len(begin.means) * one, no, no, one)
    return jax.lax.while_loop(goes_on, of_all, (first, 0 * one))[0]


@compiled
def _together(programs: Programs, rows: RowBlock, pairs: Pairs, limits: Limits, begin: State) -> _Moved:
    """Move all means in one trust region."""
    search, who = _MeansSearch(programs, rows, pairs, limits), jnp.arange(len(begin.means))
    one = search.climb(begin, who)
    return _Moved(search.after(begin, one, who), one.passes, one.tied, ~one.ended, one.steps)


def bound_hessian(shares: Any, slopes: Any, inverses: Any, who: Any) -> Any:
    """The blocks (q, d, q, d) of `mean_hessian` in `entropy_bound.py` for the means with these indices.

    `shares` are the responsibilities with a zero diagonal.
    """
    k, at = len(shares), jnp.arange(len(who))
    own = slopes[who]
    outer = own[..., :, None] * own[..., None, :] - inverses[who]
    pairs = (shares + shares.T)[who][..., None, None] * outer
    total = -jnp.swapaxes(pairs[:, who], 1, 2)
    total = total.at[at, :, at, :].add(jnp.sum(pairs, axis=1))
    average = shares[:, who, None] * slopes[:, who]
    average = average.at[who, at].add(-jnp.einsum("qj,qjd->qd", shares[who], own))
    return -(total - jnp.einsum("iab,icd->abcd", average, average)) / k
