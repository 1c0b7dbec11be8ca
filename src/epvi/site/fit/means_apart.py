"""The Newton steps of `mean_steps.py` as one compiled program, for means that do not interact and rows in one block.

A shard with few rows spends its time on calls, not on arithmetic: here a whole sweep of the means is one call. Takes
and returns what `FirstBound.maximise` does; it stops where means begin to interact, and `mean_steps.py` goes on there.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.compiled import compiled
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.prior_part import PriorPart
from epvi.site.derivatives.subposterior import Curve
from epvi.site.fit.mean_steps import INTERACTING, TRIALS, FirstBound, Placed
from epvi.site.fit.newton import LEAST_GAIN, Tolerances

_LOG_2PI = float(np.log(2 * np.pi))
# Most iterations for the damping of a step, as in `newton.py`.
_DAMPINGS = 20


class _Rows(NamedTuple):
    """The subposterior: a block of rows with their weights, and the prior factor."""

    block: dict[str, Any]
    weights: Any
    prior: PriorPart

    def value(self, programs: Programs, means: Any) -> Any:
        made = programs.value(self.block)
        return made.finish(made.add(made.zero(len(means)), means, self.block, self.weights), means, self.prior)

    def full(self, programs: Programs, means: Any) -> Any:
        made = programs.full(self.block)
        return made.finish(made.add(made.zero(len(means)), means, self.block, self.weights), means, self.prior)


class _Pairs(NamedTuple):
    """S_kj⁻¹ as matrices, and log|S_kj|: covariances do not change while the means move."""

    inverses: Any
    log_dets: Any

    def slopes(self, means: Any) -> tuple[Any, Any]:
        """a_kj = S_kj⁻¹(μ_k − μ_j), and log N(μ_k; μ_j, S_kj)."""
        delta = means[:, None] - means[None, :]
        slopes = jnp.einsum("kjab,kjb->kja", self.inverses, delta)
        return slopes, -0.5 * (jnp.sum(delta * slopes, axis=-1) + self.log_dets + means.shape[1] * _LOG_2PI)

    def logs(self, means: Any) -> Any:
        """log q_k."""
        return jax.nn.logsumexp(self.slopes(means)[1], axis=1) - jnp.log(len(means))


class _State(NamedTuple):
    """The means during the climb."""

    means: Any
    # f by a pass that computes f alone: only such values are compared.
    f: Any
    # Value, gradient and Hessian of f.
    at: tuple[Any, Any, Any]
    # As in `Placed`; a radius before the first step is negative.
    radii: Any
    units: Any
    # Steps and passes so far.
    steps: Any
    passes: Any
    # Whether no mean can move, or some interact.
    ended: Any


class _Found(NamedTuple):
    """The search for a step of each mean, see `_Search` in `mean_steps.py`."""

    step: Any
    radius: Any
    waiting: Any
    taken: Any
    f: Any
    trials: Any


class _Limits(NamedTuple):
    """Numbers of `Tolerances`, and the most steps."""

    tolerance: Any
    floor: Any
    rounding: Any
    max_steps: Any


def maximise(bound: FirstBound, placed: Placed, precision: Tolerances, max_steps: int) -> Placed:
    """`FirstBound.maximise`, with as many of its steps as possible in one call."""
    subposterior = bound.subposterior
    if not 0 < subposterior.num_rows <= subposterior.rows_per_block:
        return bound.maximise(placed, precision, max_steps)
    placed, steps = _apart(bound, placed, precision, max_steps)
    return bound.maximise(placed, precision, max_steps - steps)


def _apart(bound: FirstBound, placed: Placed, precision: Tolerances, max_steps: int) -> tuple[Placed, int]:
    """Steps while no means interact, and their number."""
    subposterior, d = bound.subposterior, placed.means.shape[1]
    sums = bound.covariances[:, None] + bound.covariances[None, :]
    pairs = _Pairs(bound.packing.dense(bound.packing.inverse(sums), d), np.asarray(bound.packing.log_det(sums, d)))
    (block, weights), *_ = subposterior.blocks()
    rows = _Rows(block, weights, subposterior.prior)
    limits = _Limits(precision.tolerance, precision.floor, precision.rounding, float(max_steps))
    f = subposterior.value(placed.means, len(placed.means))
    radii = np.where(np.isfinite(placed.radii), placed.radii, -1.0)
    begin = _State(placed.means, f, placed.at[:3], radii, placed.units, 0, 0, False)
    start = time.perf_counter()
    with jax.enable_x64(True), promotion_allowed():
        given = jax.tree.map(jnp.asarray, (rows, pairs, limits, begin))
        ended = jax.tree.map(np.array, jax.block_until_ready(_climb(subposterior.programs, *given)))
    subposterior.count(int(ended.passes), time.perf_counter() - start)
    return Placed(ended.means, Curve(*ended.at), ended.radii, ended.units), int(ended.steps)


@compiled
def _climb(programs: Programs, rows: _Rows, pairs: _Pairs, limits: _Limits, begin: _State) -> _State:
    """Steps until no mean can move or some interact, at most as many as the limit."""
    k = len(begin.means)

    def step(state: _State) -> _State:
        state = state._replace(units=jnp.minimum(state.units, _units_of(state.at[2])))
        slopes, logs = pairs.slopes(state.means)
        shares = jax.nn.softmax(logs, axis=1)
        gradient = (state.at[1] + jnp.einsum("ij,ijd->id", shares + shares.T, slopes)) / k
        size, vectors = _eigen(state.at[2] / k, state.units, limits.floor)
        along = jnp.einsum("bij,bi->bj", vectors, gradient * state.units)
        decrement = 0.5 * jnp.sum(along**2 / size, axis=1)
        waiting = jnp.isfinite(state.f) & (decrement > limits.tolerance)
        length = jnp.linalg.norm(state.means / state.units, axis=1)
        state = state._replace(radii=jnp.where(state.radii < 0, jnp.maximum(1.0, length), state.radii))
        damped = size + _damping(along, size, state.radii)[:, None]
        interact = _interact(shares, slopes, pairs.inverses, state.units, jnp.min(damped, axis=1))
        return jax.lax.cond(
            jnp.any(waiting) & ~interact,
            lambda: moved(state, waiting, along, size, vectors),
            lambda: state._replace(ended=jnp.asarray(True)),
        )

    def moved(state: _State, waiting: Any, along: Any, size: Any, vectors: Any) -> _State:
        length = jnp.linalg.norm(state.means / state.units, axis=1)
        values = (state.f - pairs.logs(state.means)) / k

        def trial(found: _Found) -> _Found:
            coordinates, promised = _damped(along, size, found.radius)
            proposed = jnp.einsum("bij,bj->bi", vectors, coordinates) * state.units
            tried = state.means + jnp.where(found.waiting[:, None], proposed, found.step)
            f = rows.value(programs, tried)
            gain = (f - pairs.logs(tried)) / k - values
            drowned = promised <= limits.rounding * (1 + jnp.abs(values))
            good = found.waiting & jnp.isfinite(gain) & ((gain >= LEAST_GAIN * promised) | drowned)
            ratio = jnp.where(drowned, 1.0, gain / jnp.maximum(promised, 1e-300))
            long = jnp.linalg.norm(coordinates, axis=1)
            shrinks = found.waiting & (~good | (ratio < 0.25))
            radius = jnp.where(shrinks, 0.25 * jnp.minimum(long, found.radius), found.radius)
            radius = jnp.where(good & (ratio > 0.75), jnp.maximum(radius, 2 * long), radius)
            still = found.waiting & ~good & (radius > 1e-13 * (1 + length))
            own = jnp.where(good, f, found.f)
            kept = jnp.where(good[:, None], proposed, found.step)
            return _Found(kept, radius, still, found.taken | good, own, found.trials + 1)

        nothing = jnp.zeros(k, bool)
        first = _Found(jnp.zeros_like(state.means), state.radii, waiting, nothing, state.f, jnp.asarray(0))
        found = jax.lax.while_loop(lambda one: jnp.any(one.waiting) & (one.trials < TRIALS), trial, first)
        means = state.means + found.step
        at = rows.full(programs, means)
        kept = jnp.isfinite(at[0]) & jnp.all(jnp.isfinite(at[1]), axis=1) & jnp.all(jnp.isfinite(at[2]), axis=(1, 2))
        before, after = jnp.sum(values), jnp.mean(found.f - pairs.logs(means))
        kept = kept & ~(after < before - limits.rounding * (1 + jnp.abs(before)))
        return _after(state, found, at, kept)

    return jax.lax.while_loop(lambda one: ~one.ended & (one.steps < limits.max_steps), step, begin)


def _after(state: _State, found: _Found, at: tuple[Any, ...], kept: Any) -> _State:
    """The state after a step, with f's derivatives there; means that are not kept stay, with smaller radii."""
    value, gradient, hessian = (_either(kept, new, old) for new, old in zip(at, state.at, strict=True))
    return _State(
        _either(kept, state.means + found.step, state.means),
        _either(kept, found.f, state.f),
        (value, gradient, hessian),
        jnp.where(kept, found.radius, 0.25 * found.radius),
        state.units,
        state.steps + 1,
        state.passes + found.trials + 1,
        ~jnp.any(found.taken),
    )


def _interact(shares: Any, slopes: Any, inverses: Any, units: Any, least: Any) -> Any:
    """As in `mean_steps.py`."""
    k = len(shares)
    others = jnp.where(jnp.eye(k, dtype=bool), 0.0, shares + shares.T)
    spread = jnp.max(units[:, None] ** 2 * jnp.diagonal(inverses, axis1=-2, axis2=-1), axis=-1)
    most = others * (jnp.sum((units[:, None] * slopes) ** 2, axis=-1) + spread)
    return jnp.any(most > k * INTERACTING * least[:, None])


def _units_of(hessian: Any) -> Any:
    """`units_of` in `eigen.py`."""
    diagonal = jnp.abs(jnp.diagonal(hessian, axis1=-2, axis2=-1))
    return 1 / jnp.sqrt(jnp.maximum(diagonal, 1e-24 * jnp.max(diagonal, axis=-1, keepdims=True) + 1e-200))


def _eigen(hessian: Any, units: Any, floor: Any) -> tuple[Any, Any]:
    """Absolute eigenvalues, bounded away from zero, and eigenvectors of Hessians in these units."""
    finite = jnp.all(jnp.isfinite(hessian), axis=(-2, -1), keepdims=True)
    scaled = jnp.where(finite, hessian, -jnp.eye(hessian.shape[-1])) * units[:, :, None] * units[:, None, :]
    eigenvalues, vectors = jnp.linalg.eigh(scaled)
    size = jnp.abs(eigenvalues)
    return jnp.maximum(size, floor * jnp.max(size, axis=-1, keepdims=True) + 1e-290), vectors


def _damped(along: Any, size: Any, radius: Any) -> tuple[Any, Any]:
    """`damped_steps` in `newton.py`, in coordinates along the eigenvectors."""
    coordinates = along / (size + _damping(along, size, radius)[:, None])
    return coordinates, jnp.sum(along * coordinates - 0.5 * size * coordinates**2, axis=1)


def _damping(along: Any, size: Any, radius: Any) -> Any:
    """`damping_of` in `newton.py`."""

    def more(carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        damping, _, count = carried
        damped = size + damping[:, None]
        square = jnp.sum((along / damped) ** 2, axis=1)
        length = jnp.sqrt(square)
        added = square / jnp.sum((along / damped) ** 2 / damped, axis=1) * (length / radius - 1)
        long = (length > radius * (1 + 1e-3)) & jnp.isfinite(added)
        return jnp.where(long, damping + added, damping), jnp.any(long), count + 1

    # A lower bound of ν to start from: no single coordinate of the step may exceed the radius.
    least = jnp.maximum(jnp.max(jnp.abs(along) / radius[:, None] - size, axis=1), 0.0)
    start = (least, jnp.asarray(True), jnp.asarray(0))
    return jax.lax.while_loop(lambda one: one[1] & (one[2] < _DAMPINGS), more, start)[0]


def _either(mask: Any, some: Any, others: Any) -> Any:
    return jnp.where(jnp.reshape(mask, (-1,) + (1,) * (some.ndim - 1)), some, others)
