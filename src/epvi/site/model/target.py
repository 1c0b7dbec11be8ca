"""The narrow waist between model languages and the engine: a log prior and a log likelihood per row on θ ∈ ℝᵈ."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, promotion_allowed, to_numpy
from epvi.parameters.space import Space
from epvi.site.model.tracing import failed

Block = Mapping[str, AnyArray]

# A likelihood that factors over rows gives the same numbers for a block and for its halves, up to rounding.
_SAME = 1e-5
_ROWS_TO_TRY = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """What inference needs of a model. All are pure functions that JAX can transform.

    `log_prior(θ)` holds the Jacobian of the constraints, so that a share f of it in every shard multiplies to the
    posterior's density in ℝᵈ; `log_prior_again` computes it from another number of rows. `outside(block)` tells, per
    observed column or site, which rows the likelihood cannot have made whatever θ is; `terms` is how many numbers it
    observes in one row; `proper` whether the prior is a density, as far as that is known.
    """

    space: Space
    log_prior: Callable[[Float[AnyArray, " d"]], Float[AnyArray, ""]]
    log_prior_again: Callable[[Float[AnyArray, " d"]], Float[AnyArray, ""]]
    log_likelihood: Callable[[Float[AnyArray, " d"], Block], Float[AnyArray, " n"]]
    # With discrete sites: the same for values of them chosen by numbers in (0, 1), with all rows run at once.
    log_joint: Callable[[Float[AnyArray, " d"], Block, Float[AnyArray, " n"]], Float[AnyArray, " n"]] | None
    outside: Callable[[Block], dict[str, Bool[AnyArray, " n"]]]
    terms: int = 1
    proper: bool = True
    # What `check` compiled, by the number of rows.
    tries: dict[int, Callable] = dataclasses.field(default_factory=dict, repr=False)

    def check(self, rows: Mapping[str, np.ndarray]) -> None:
        """Refuse a model whose shards would not multiply to its posterior: try it on the first rows."""
        block = {name: column[:_ROWS_TO_TRY] for name, column in rows.items()}
        n = len(next(iter(block.values())))
        theta = 0.3 * np.random.default_rng(0).standard_normal(self.space.dim)
        tried = self.tries.get(n) or jax.jit(functools.partial(self._tried, n))
        with jax.enable_x64(True), promotion_allowed():
            try:
                prior, prior_again, parts = to_numpy(tried(theta, block))
            except EpviError:
                raise
            except Exception as error:
                raise failed(error) from error
        if n not in self.tries:
            self._check_derivatives(theta, block)
            self.tries[n] = tried
        if not np.isclose(prior, prior_again, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise EpviError(
                "the prior depends on the number of rows, so every shard would have another prior: pass what it needs"
                " as a fixed argument."
            )
        if parts and not _equal(parts[0], np.concatenate(parts[1:])):
            raise EpviError(
                "the likelihood does not factor over rows: a row's log likelihood changes when other rows are taken"
                " away. Shards cannot be fitted apart then. Move what is computed from several rows (centring, scaling,"
                " lags, sums) out of the model into the columns, or give it as a fixed argument."
            )

    def _tried(self, n: int, theta: AnyArray, block: Block) -> tuple:
        """The prior in two ways, and the likelihood of the rows together and apart."""
        joint = self.log_joint
        if joint is None:
            halves = [
                {name: column[part] for name, column in block.items()} for part in np.array_split(np.arange(n), 2)
            ]
            parts = [self.log_likelihood(theta, part) for part in ((block, *halves) if n > 1 else ())]
        else:
            # Discrete sites are summed out one row at a time, which hides what rows have to do with each other.
            draw = jnp.asarray(np.random.default_rng(1).random(n))
            single = jax.tree.map(lambda column: column[:, None], (dict(block), draw))
            alone = jax.vmap(lambda row: joint(theta, *row))(single)
            parts = [joint(theta, block, draw), jnp.reshape(alone, n)]
        return self.log_prior(theta), self.log_prior_again(theta), parts

    def _check_derivatives(self, theta: np.ndarray, block: Block) -> None:
        """Refuse a density that JAX cannot differentiate twice; tracing tells, nothing is computed."""

        def joint(theta: AnyArray) -> AnyArray:
            return self.log_prior(theta) + jnp.sum(self.log_likelihood(theta, block))

        with jax.enable_x64(True), promotion_allowed():
            try:
                jax.eval_shape(jax.hessian(joint), theta)
            except Exception as error:
                raise EpviError(
                    f"the log density cannot be differentiated twice ({failed(error)}): write loops with jax.lax.scan"
                    " or fori_loop over a fixed range, and give calls to Python a custom derivative."
                ) from error


def _equal(whole: np.ndarray, parts: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        near = np.abs(whole - parts) <= _SAME * (1 + np.abs(whole))
    return bool(np.all(near | (whole == parts) | (np.isnan(whole) & np.isnan(parts))))
