"""NumPyro's NUTS on epvi's own target: a share of the prior and the likelihood of some rows, over unconstrained θ.

Takes a model, rows, and where to start; gives draws in chains. All shards of one size share one compiled sampler, and
everything is in float64.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, init_to_value

import epvi
from epvi.float64 import promotion_allowed

Rows = dict[str, np.ndarray]


class Lengths(NamedTuple):
    """How long a run is."""

    warm_up: int = 1000
    draws: int = 1000
    chains: int = 1


class Sampler:
    """NUTS with a dense mass matrix for one model, started in the middle of the posterior."""

    def __init__(self, model: epvi.Model, rows: Rows, start: Rows, lengths: Lengths) -> None:
        self._target = model.programs(rows).target
        self.space = self._target.space
        self._start = self.space.unconstrain(start)
        kernel = NUTS(self._density, dense_mass=True, init_strategy=init_to_value(values={"theta": self._start}))
        self._chains = MCMC(
            kernel,
            num_warmup=lengths.warm_up,
            num_samples=lengths.draws,
            num_chains=lengths.chains,
            chain_method="sequential",
            progress_bar=False,
            jit_model_args=True,
        )

    def _density(self, block: Any, share: Any) -> None:
        """log p_m(θ) = f_m log p(θ) + Σ log p(row | θ)."""
        theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real_vector, (), (self.space.dim,)))
        with numpyro.handlers.block():  # the target runs the model, whose sites are none of this one's
            rows = jnp.sum(self._target.log_likelihood(theta, block))
            prior = self._target.log_prior(theta)
        numpyro.factor("log density", share * prior + rows)

    def draws(self, block: Rows, share: float, key: jax.Array) -> np.ndarray:
        """θ (chains, draws, d) of the subposterior of these rows with that share of the prior."""
        with jax.enable_x64(True), promotion_allowed():
            self._chains.run(key, {name: jnp.asarray(column) for name, column in block.items()}, jnp.asarray(share))
            return np.asarray(self._chains.get_samples(group_by_chain=True)["theta"])


def worth(theta: np.ndarray) -> float:
    """The effective number of draws of the coordinate that has fewest, from (chains, draws, d)."""
    return float(np.min(effective_sample_size(theta)))
