"""What epvi is measured beside in accuracy.py: NumPyro's NUTS per shard, and NUTS, SVI and Laplace on all rows.

A peer takes a posterior, a number of shards and a seed; gives an `Answer`. Draws of shards are merged in NumPyro's two
ways. Peers have the shards that epvi has, begin in the middle of the posterior, which epvi must find by itself, and run
in float64; their seconds include compiling.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoContinuous, AutoLaplaceApproximation, AutoMultivariateNormal
from numpyro.infer.hmc_util import consensus, parametric_draws
from nuts import Lengths, Sampler, worth
from posteriors import Gold, Moments, Rows

from epvi.ground.float64 import promotion_allowed
from epvi.ground.seeds import SeedStream, as_key
from epvi.site.derivatives.passes import programs_of
from epvi.site.rows.split import split_evenly

NUM_DRAWS = 20_000
_ADAM_STEPS = 20_000


class Answer(NamedTuple):
    """What a method says of a posterior, and what it took; `None` where a method has no such thing."""

    moments: Moments
    seconds: float
    num_bytes: int | None = None
    k_hat: float | None = None
    ess: float | None = None
    verdict: str | None = None


class Method(NamedTuple):
    """A method by its name; one that is not sharded looks at all rows at once."""

    name: str
    answer: Callable[[Gold, int, int], Answer]
    is_sharded: bool


class ShardDraws(NamedTuple):
    """θ (M, n, d) of all subposteriors, what the least of them is worth in independent draws, and their seconds."""

    theta: np.ndarray
    worth: float
    seconds: float


def shards_of(rows: Rows, num_shards: int, seed: int) -> list[Rows]:
    """The rows of each shard, as `epvi.fit` deals them out under this seed."""
    num_rows = len(next(iter(rows.values())))
    key = jax.random.fold_in(as_key(seed), SeedStream.SPLIT)
    split = split_evenly(num_rows, num_shards, shuffle=True, key=key)
    return [{name: column[part] for name, column in rows.items()} for part in split.shards]


@functools.lru_cache(maxsize=2)
def shard_draws(gold: Gold, num_shards: int, seed: int, lengths: Lengths) -> ShardDraws:
    """NUTS on every subposterior."""
    start = time.perf_counter()
    sampler = Sampler(gold.model, gold.rows, gold.start, lengths)
    keys = jax.random.split(jax.random.key(seed), num_shards)
    parts = shards_of(gold.rows, num_shards, seed)
    runs = [sampler.draws(part, 1 / num_shards, key) for part, key in zip(parts, keys, strict=True)]
    seconds = time.perf_counter() - start
    theta = np.stack([run.reshape(-1, run.shape[-1]) for run in runs])
    return ShardDraws(theta, min(map(worth, runs)), seconds)


def _merged(merge: Callable, num_numbers: Callable[[int, int], int], lengths: Lengths) -> Callable:
    """A peer that merges draws; a shard sends `num_numbers(n, d)` numbers."""

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        drawn = shard_draws(gold, num_shards, seed, lengths)
        start = time.perf_counter()
        with jax.enable_x64(True), promotion_allowed():
            theta = np.asarray(merge(list(map(jnp.asarray, drawn.theta)), jax.random.key(seed)))
        values = programs_of(gold.model, gold.rows).target.space.constrain(theta)
        seconds = drawn.seconds + time.perf_counter() - start
        _, n, d = drawn.theta.shape
        # A merged mean is a weighted average over shards: its error in sds is that of a shard's mean in the shard's.
        return Answer(gold.moments(values, drawn.worth), seconds, 8 * num_shards * num_numbers(n, d))

    return answer


def _full_nuts(lengths: Lengths) -> Callable:
    """A longer run than a shard's, so that its own error is below what is compared."""
    lengths = lengths._replace(draws=4 * lengths.draws)

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        drawn = shard_draws(gold, 1, seed, lengths)
        values = programs_of(gold.model, gold.rows).target.space.constrain(drawn.theta[0])
        return Answer(gold.moments(values, drawn.worth), drawn.seconds, ess=drawn.worth)

    return answer


def _guided(found: Callable[[Gold, Callable, int], tuple[AutoContinuous, Any]]) -> Callable:
    """A peer that fits a guide to all rows: `found` gives the guide and its parameters."""

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        model = functools.partial(gold.model.function, **gold.model.fixed)
        start = time.perf_counter()
        with jax.enable_x64(True), promotion_allowed():
            guide, params = found(gold, model, seed)
            draws = guide.sample_posterior(jax.random.key(seed + 1), params, sample_shape=(NUM_DRAWS,))
            names = programs_of(gold.model, gold.rows).target.space.by_name
            values = {name: np.asarray(draws[name]) for name in names}
        return Answer(gold.moments(values), time.perf_counter() - start)

    return answer


def _laplace(gold: Gold, model: Callable, seed: int) -> tuple[AutoLaplaceApproximation, Any]:
    """The mode by BFGS, and the curvature there."""
    guide = AutoLaplaceApproximation(model, init_loc_fn=init_to_value(values=gold.start))
    engine = SVI(model, guide, numpyro.optim.Minimize(), Trace_ELBO(), **gold.rows)
    state, _ = engine.update(engine.init(jax.random.key(seed)))
    return guide, engine.get_params(state)


def _gaussian(steps: int) -> Callable[[Gold, Callable, int], tuple[AutoMultivariateNormal, Any]]:
    def found(gold: Gold, model: Callable, seed: int) -> tuple[AutoMultivariateNormal, Any]:
        """By Adam with falling steps, from Laplace's approximation."""
        laplace, at_mode = _laplace(gold, model, seed)
        mode = laplace.get_posterior(at_mode)
        guide = AutoMultivariateNormal(model, init_loc_fn=init_to_value(values=gold.start))
        adam = numpyro.optim.Adam(lambda i: 0.01 * 0.001 ** (i / steps))
        engine = SVI(model, guide, adam, Trace_ELBO(num_particles=4), **gold.rows)
        begin = {"auto_loc": mode.mean, "auto_scale_tril": mode.scale_tril}
        found = engine.run(jax.random.key(seed), steps, progress_bar=False, init_params=begin)
        return guide, found.params

    return found


def peers(lengths: Lengths, steps: int = _ADAM_STEPS) -> tuple[Method, ...]:
    """All of them, with NUTS and Adam so long."""

    def drawn(subposteriors: list, key: jax.Array) -> jax.Array:
        return parametric_draws(subposteriors, NUM_DRAWS, rng_key=key)

    def averaged(subposteriors: list, key: jax.Array) -> jax.Array:
        return consensus(subposteriors, rng_key=key)

    return (
        Method("NUTS per shard, consensus", _merged(averaged, lambda n, d: n * d, lengths), True),
        Method("NUTS per shard, parametric", _merged(drawn, lambda n, d: d + d * (d + 1) // 2, lengths), True),
        Method("AutoMultivariateNormal, all rows", _guided(_gaussian(steps)), False),
        Method("AutoLaplaceApproximation, all rows", _guided(_laplace), False),
        Method("NUTS, all rows", _full_nuts(lengths), False),
    )
