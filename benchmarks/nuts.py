"""NumPyro's NUTS on epvi's target density: the subposterior over unconstrained θ, in float64.

All shards of the same size share one compiled sampler.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer.hmc import hmc

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import programs_of

Rows = dict[str, np.ndarray]


class Lengths(NamedTuple):
    """Length of a run: steps of warm-up and draws per chain, and chains."""

    warm_up: int = 1000
    draws: int = 1000
    chains: int = 1


class Sampler:
    """NUTS with a dense mass matrix for one model, started at given values."""

    def __init__(self, model: epvi.Model, rows: Rows, start: Rows, lengths: Lengths) -> None:
        self._target = programs_of(model, rows).target
        self.space = self._target.space
        self._start = self.space.unconstrain(start)
        self._lengths = lengths
        self._compiled = jax.jit(self._chain)

    def _potential(self, block: Any, share: Any) -> Callable[[Any], jax.Array]:
        """-log p_m(θ) = -f_m log p(θ) - Σ log p(row | θ)."""

        def potential(theta: Any) -> jax.Array:
            rows = jnp.sum(self._target.log_likelihood(theta, block))
            return -(share * self._target.log_prior(theta) + rows)

        return potential

    def _chain(self, key: jax.Array, block: Any, share: Any) -> jax.Array:
        """θ (draws, d); the rows are arguments, so that shards share one compilation."""
        init, sample = hmc(potential_fn_gen=self._potential, algo="NUTS")

        def step(state: Any, _: Any) -> tuple[Any, Any]:
            state = sample(state, (block, share))
            return state, state.z

        warm_up, begin = self._lengths.warm_up, jnp.asarray(self._start)
        state = init(begin, warm_up, dense_mass=True, model_args=(block, share), rng_key=key)
        _, theta = jax.lax.scan(step, state, length=warm_up + self._lengths.draws)
        return theta[warm_up:]

    def draws(self, block: Rows, share: float, key: jax.Array) -> np.ndarray:
        """θ (chains, draws, d) of the subposterior of these rows with this share of the prior."""
        with jax.enable_x64(True), promotion_allowed():
            keys = jax.random.split(key, self._lengths.chains)
            return np.stack([np.asarray(self._compiled(key, block, share)) for key in keys])


def worth(theta: np.ndarray) -> float:
    """The smallest effective sample size over coordinates, from (chains, draws, d)."""
    return float(np.min(effective_sample_size(theta)))
