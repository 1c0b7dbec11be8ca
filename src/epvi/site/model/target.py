"""`Target`: the interface between models and inference, a log prior and a log likelihood per row on θ ∈ ℝᵈ."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, promotion_allowed, to_numpy
from epvi.parameters.space import Space
from epvi.site.model.tracing import failed

Block = Mapping[str, AnyArray]

# Largest difference, relative to 1 + |log likelihood|, between a row's log likelihood in a block and in half of it.
# Judgement: about 100 times the rounding of float32 rows (6e-8), far below what a dependence between rows changes.
_SAME = 1e-5
# First rows on which that is tried. Judgement: takes no time, and rows that use their neighbours show it.
_ROWS_TO_TRY = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """What inference needs of a model; the densities are pure functions that JAX can transform."""

    space: Space
    # Log prior density of θ in ℝᵈ, with the log-Jacobian of the constraints: raised to the shards' shares of the prior,
    # which sum to 1, it multiplies to the prior once.
    log_prior: Callable[[Float[AnyArray, " d"]], Float[AnyArray, ""]]
    # The same computed from another number of example rows, to detect a prior that depends on it.
    log_prior_again: Callable[[Float[AnyArray, " d"]], Float[AnyArray, ""]]
    # Log likelihood of each row of a block.
    log_likelihood: Callable[[Float[AnyArray, " d"], Block], Float[AnyArray, " n"]]
    # For models with discrete latent variables: the joint log density of each row and of the discrete values that
    # numbers in (0, 1) choose, all rows in one run; otherwise None.
    log_joint: Callable[[Float[AnyArray, " d"], Block, Float[AnyArray, " n"]], Float[AnyArray, " n"]] | None
    # Mask, by observed column or NumPyro site, of the rows that have likelihood zero for all θ.
    outside: Callable[[Block], dict[str, Bool[AnyArray, " n"]]]
    # How many numbers the likelihood observes in one row.
    terms: int = 1
    # Whether the prior is proper, as far as that is known.
    proper: bool = True
    # How many of the user's rows one row of this target has places for: more than one where group effects are
    # integrated out, and a row is a bundle of groups.
    bundle: int = 1
    # Name of the column with the number of these rows; None if each row of the target is one of the user's.
    counted: str | None = None
    # Where group effects are integrated out: the function of φ, a block, and whether shapes are needed, that gives the
    # moments of the effects given φ (see `site/derivatives/conditional.py`); otherwise None.
    conditional: Callable[[Float[AnyArray, " d"], Block, Any], tuple] | None = None
    # The same for several φ, without derivatives, and the log integrals over the effects.
    conditional_values: Callable[[Float[AnyArray, "S d"], Block], tuple] | None = None
    # The function that judges approximate distributions of the effects (see `site/derivatives/effect_audit.py`).
    audit: Callable[..., Any] | None = None
    # The functions of several φ and a block that give moments and draws of the effects given each, and the errors of
    # the integrals over them (see `site/derivatives/effect_draws.py`).
    draw_effects: Callable[[Float[AnyArray, "S d"], Any, Block], tuple] | None = None
    integral_errors: Callable[[Float[AnyArray, "S d"], Block], Any] | None = None
    # The function of a block to derivatives of its rows that are computed otherwise than through this target's own
    # linear predictors (see `site/derivatives/through_marginal.py`), if there is any; otherwise None.
    links: Callable[[Block], Any] | None = None
    # Where two nested factors are integrated out: the target of which only the inner one is; otherwise None.
    inner: "Target | None" = None
    # Programs compiled by `check`, by the number of rows.
    tries: dict[int, Callable] = dataclasses.field(default_factory=dict, repr=False)

    def num_rows(self, rows: Mapping[str, np.ndarray]) -> int:
        """How many rows of the user these are."""
        return int(np.sum(rows[self.counted])) if self.counted else len(next(iter(rows.values())))

    def check(self, rows: Mapping[str, np.ndarray]) -> None:
        """Refuse a model whose subposteriors would not multiply to its posterior, tested on the first rows."""
        block = {name: column[:_ROWS_TO_TRY] for name, column in rows.items()}
        n = len(next(iter(block.values())))
        # Near 0, the middle of unconstrained space, where log densities are finite and not at a special point.
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
        """The prior in both ways, and the rows' log likelihoods computed together and apart."""
        joint = self.log_joint
        if joint is None:
            halves = [
                {name: column[part] for name, column in block.items()} for part in np.array_split(np.arange(n), 2)
            ]
            parts = [self.log_likelihood(theta, part) for part in ((block, *halves) if n > 1 else ())]
        else:
            # Marginalising runs row by row, which would hide a dependence between rows: use the joint density.
            draw = jnp.asarray(np.random.default_rng(1).random(n))
            single = jax.tree.map(lambda column: column[:, None], (dict(block), draw))
            alone = jax.vmap(lambda row: joint(theta, *row))(single)
            parts = [joint(theta, block, draw), jnp.reshape(alone, n)]
        return self.log_prior(theta), self.log_prior_again(theta), parts

    def _check_derivatives(self, theta: np.ndarray, block: Block) -> None:
        """Refuse a density that JAX cannot differentiate twice; it is traced abstractly, not evaluated."""

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
