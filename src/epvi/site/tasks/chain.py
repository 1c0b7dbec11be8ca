"""One chain of NumPyro's NUTS on the log joint density of all rows.

Takes a target, all rows, and where the chain starts, in coordinates in which an approximation of the posterior is
standard normal; gives draws of θ. Discrete sites are summed out and group effects are parameters, as the target says.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.ground.validation import check_settings
from epvi.site.model.target import Target
from epvi.site.rows.columns import Columns

# Least numbers of chains, of steps of warm-up and of draws: R-hat compares chains, and step sizes are adapted in the
# warm-up. Judgement.
_LEAST_CHAINS, _LEAST_WARMUP, _LEAST_DRAWS = 2, 100, 100
# Steps of warm-up, and draws, unless said. Judgement: as is usual; two chains know a mean to about 0.03 sds.
_USUAL = 1000
# Steps in one call of the compiled program, at most: between calls progress is reported. Judgement.
_STEPS_AT_ONCE = 50
# Parameters up to which NUTS adapts a whole mass matrix in whitened coordinates, and its diagonal beyond. Judgement: a
# thousand draws of warm-up determine it.
_WHOLE_MASS = 50
# The acceptance that step sizes are adapted to. Judgement: above NumPyro's 0.8, for curved posteriors.
_ACCEPTANCE = 0.9
# Rows on which a gradient is timed, and how often. Judgement: some milliseconds.
_ROWS_TO_TIME, _TIMES = 2**14, 5


@dataclasses.dataclass(frozen=True)
class NUTS:
    """The No-U-Turn Sampler on all rows, for `epvi.fit(..., fallback=epvi.NUTS())`.

    Attributes:
        num_chains: chains, each a task of its own.
        num_warmup: steps of each that adapt it, and are not kept.
        num_samples: draws of each.
    """

    num_chains: int = _LEAST_CHAINS
    num_warmup: int = _USUAL
    num_samples: int = _USUAL

    def __post_init__(self) -> None:
        check_settings(self, num_chains=_LEAST_CHAINS, num_warmup=_LEAST_WARMUP, num_samples=_LEAST_DRAWS)


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Where a chain starts, and in which coordinates: θ = mean + root z.

    Attributes:
        mean: the middle of the coordinates.
        root: a root of a covariance.
        candidates: points θ, of which the one with the highest density is taken.
        key: the two words of the chain's key.
    """

    mean: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]
    candidates: Float[np.ndarray, "n d"]
    key: tuple[int, int]

    def theta(self, z: Any) -> Any:
        """θ at z, of NumPy or JAX."""
        return self.mean + z @ self.root.T

    def z(self, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """z at θ."""
        return np.linalg.solve(self.root, (theta - self.mean).T).T


class ChainDraws(NamedTuple):
    """The draws of one chain."""

    theta: Float[np.ndarray, "S d"]
    # Steps after the warm-up that diverged.
    divergences: int
    seconds: float


def gradient_seconds(target: Target, rows: Columns) -> float:
    """The time of a gradient of the log joint density of all rows, measured on the first ones."""
    num_rows = len(next(iter(rows.values())))
    block = {name: column[:_ROWS_TO_TIME] for name, column in rows.items()}
    theta = np.zeros(target.space.dim)
    with jax.enable_x64(True), promotion_allowed():

        def log_joint(theta: Any, block: Any) -> Any:
            return target.log_prior(theta) + jnp.sum(target.log_likelihood(theta, block))

        gradient = jax.jit(jax.grad(log_joint))
        block = jax.device_put(block)
        gradient(theta, block).block_until_ready()
        begin = time.perf_counter()
        for _ in range(_TIMES):
            gradient(theta, block).block_until_ready()
    return (time.perf_counter() - begin) / _TIMES * max(num_rows / _ROWS_TO_TIME, 1.0)


def run_chain(target: Target, rows: Columns, start: Start, nuts: NUTS, report: Callable[[int], None]) -> ChainDraws:
    """One chain; `report` is called with the number of steps so far."""
    from numpyro.infer.hmc import hmc

    begin = time.perf_counter()
    with jax.enable_x64(True), promotion_allowed():

        def potential_of(rows: Any) -> Callable:
            def potential(z: Any) -> Any:
                theta = start.theta(z)
                return -(target.log_prior(theta) + jnp.sum(target.log_likelihood(theta, rows)))

            return potential

        block = jax.device_put(dict(rows))
        candidates = start.z(start.candidates)
        heights = -np.asarray(jax.jit(lambda z, rows: jax.lax.map(potential_of(rows), z))(candidates, block))
        if not np.any(np.isfinite(heights)):
            raise EpviError("the log density is not finite at any draw of the posterior, where chains would start.")
        first = candidates[int(np.nanargmax(np.where(np.isfinite(heights), heights, -np.inf)))]
        begin_chain, step = hmc(potential_fn_gen=potential_of, algo="NUTS")
        state = begin_chain(
            jnp.asarray(first),
            nuts.num_warmup,
            dense_mass=len(first) <= _WHOLE_MASS,
            target_accept_prob=_ACCEPTANCE,
            rng_key=jax.random.wrap_key_data(jnp.asarray(start.key, jnp.uint32)),
            model_args=(block,),
        )
        size = math.gcd(math.gcd(nuts.num_warmup, nuts.num_samples), _STEPS_AT_ONCE)

        @jax.jit
        def some_steps(state: Any, rows: Any) -> tuple:
            def once(state: Any, _: None) -> tuple:
                state = step(state, (rows,))
                return state, (state.z, state.diverging)

            return jax.lax.scan(once, state, None, length=size)

        kept: list[np.ndarray] = []
        divergences = 0
        for done in range(size, nuts.num_warmup + nuts.num_samples + 1, size):
            state, (z, diverging) = some_steps(state, block)
            if done > nuts.num_warmup:
                kept.append(np.asarray(z))
                divergences += int(np.count_nonzero(diverging))
            report(done)
    return ChainDraws(start.theta(np.concatenate(kept)), divergences, time.perf_counter() - begin)
