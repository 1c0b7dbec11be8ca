"""Peers of epvi in accuracy.py: NumPyro's NUTS per shard, and NUTS, SVI and Laplace's approximation on all rows.

A peer takes a posterior, a number of shards and a seed, and returns an `Answer`. NumPyro's `consensus` and
`parametric_draws` merge the draws of shards. Peers get the same shards as epvi and run in float64. They start in the
middle of the posterior, which epvi has to find by itself. Their seconds include compilation.
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

# Draws from a guide or a product of Gaussians: the Monte Carlo error of a mean is 0.007 sds.
NUM_DRAWS = 20_000
# Steps of SVI. Judgement.
_ADAM_STEPS = 20_000


class Answer(NamedTuple):
    """The answer of a method; `None` for what the method does not have."""

    moments: Moments
    seconds: float
    num_bytes: int | None = None  # exchanged between shards and hub
    k_hat: float | None = None  # Pareto k̂ of the certificate
    ess: float | None = None
    verdict: str | None = None  # of the certificate


class Method(NamedTuple):
    """A method of approximating a posterior."""

    name: str
    answer: Callable[[Gold, int, int], Answer]  # from a posterior, a number of shards and a seed
    is_sharded: bool  # if not, it uses all rows at once


class ShardDraws(NamedTuple):
    """Draws of all subposteriors."""

    theta: np.ndarray  # (M, n, d)
    worth: float  # smallest effective sample size
    seconds: float


def shards_of(rows: Rows, num_shards: int, seed: int) -> list[Rows]:
    """The rows of each shard, assigned as by `epvi.fit` with this seed."""
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
    """A peer that merges draws of the shards; each shard sends `num_numbers(n, d)` numbers."""

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        drawn = shard_draws(gold, num_shards, seed, lengths)
        start = time.perf_counter()
        with jax.enable_x64(True), promotion_allowed():
            theta = np.asarray(merge(list(map(jnp.asarray, drawn.theta)), jax.random.key(seed)))
        values = programs_of(gold.model, gold.rows).target.space.constrain(theta)
        seconds = drawn.seconds + time.perf_counter() - start
        _, n, d = drawn.theta.shape
        # A merged mean is a weighted average over shards: its Monte Carlo error in sds of the product equals that of a
        # shard's mean in sds of the shard.
        return Answer(gold.moments(values, drawn.worth), seconds, 8 * num_shards * num_numbers(n, d))

    return answer


def _full_nuts(lengths: Lengths) -> Callable:
    """NUTS on all rows, four times as long as on a shard, so that its Monte Carlo error is small."""
    lengths = lengths._replace(draws=4 * lengths.draws)

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        drawn = shard_draws(gold, 1, seed, lengths)
        values = programs_of(gold.model, gold.rows).target.space.constrain(drawn.theta[0])
        return Answer(gold.moments(values, drawn.worth), drawn.seconds, ess=drawn.worth)

    return answer


def _guided(found: Callable[[Gold, Callable, int], tuple[AutoContinuous, Any]]) -> Callable:
    """A peer that fits a guide to all rows: `found` returns the guide and its parameters."""

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
    """Laplace's approximation: the mode by BFGS, and the Hessian there."""
    guide = AutoLaplaceApproximation(model, init_loc_fn=init_to_value(values=gold.start))
    engine = SVI(model, guide, numpyro.optim.Minimize(), Trace_ELBO(), **gold.rows)
    state, _ = engine.update(engine.init(jax.random.key(seed)))
    return guide, engine.get_params(state)


def _gaussian(steps: int) -> Callable[[Gold, Callable, int], tuple[AutoMultivariateNormal, Any]]:
    def found(gold: Gold, model: Callable, seed: int) -> tuple[AutoMultivariateNormal, Any]:
        """SVI by Adam with a decaying step size, started at Laplace's approximation."""
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
    """All peers, with these lengths of NUTS and this number of Adam steps."""

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
