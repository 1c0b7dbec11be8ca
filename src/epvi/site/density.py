"""The subposterior log p_m(θ) = f_m log p(θ) + Σ_i log p(x_i | θ): value, gradient and curvature at K points at once.

Takes a target, rows and the shard's share of the prior. One read of a block of rows serves all points and all
derivatives; blocks all have one shape (the last is filled up with rows of weight zero), so that one compilation serves
shards of any size. Blocks may be float32; sums over rows are float64.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.errors import EpviError
from epvi.site.rows import Columns
from epvi.site.target import Target

# Intermediate numbers per block that stay in a core's cache.
_CACHE = 2**20
_LEAST_BLOCK, _LARGEST_BLOCK = 64, 2**14
# A shard without a share of the prior can have parameters of which its rows say nothing, such as the scale of a
# hierarchy. There its density is flat and others bound it: a Gaussian of this precision, next to nothing, is put there.
_NEXT_TO_NOTHING = 1e-8
# Second derivatives are taken along this many directions at a time when only the diagonal is wanted.
_DIRECTIONS = 16


class Curve(NamedTuple):
    """log p_m and its derivatives at K points; `hessian` is (K, d, d), its diagonal (K, d), or None."""

    value: Float[np.ndarray, " K"]
    gradient: Float[np.ndarray, "K d"]
    hessian: np.ndarray | None


def block_size(target: Target, columns: Columns, num_rows: int, num_points: int) -> int:
    """Rows per block: small enough for the cache, no larger than the shards need."""
    numbers = sum(math.prod(column.shape[1:]) for column in columns.values())
    fits = _CACHE // (num_points * target.space.dim * numbers)
    size = min(max(fits, _LEAST_BLOCK), _LARGEST_BLOCK)
    return min(2 ** int(math.log2(size)), 2 ** math.ceil(math.log2(num_rows)))


class Programs:
    """The compiled passes of one target; made once per process and used by all its shards."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._made: dict[str, Callable] = {}

    def value(self) -> Callable:
        """Per point: the sum over a block."""
        return self._compile("value", lambda f: f)

    def gradient(self) -> Callable:
        """Per point: value and gradient."""
        return self._compile("gradient", jax.value_and_grad)

    def full(self) -> Callable:
        """Per point: value, gradient and Hessian."""
        return self._compile("full", _with_hessian)

    def diagonal(self) -> Callable:
        """Per point: value, gradient and the diagonal of the Hessian."""
        return self._compile("diagonal", _with_diagonal)

    def rows(self) -> Callable:
        """Per point and row of a block: the log likelihood, (P, n)."""
        return self._made.setdefault("rows", jax.jit(jax.vmap(self.target.log_likelihood, (0, None))))

    def at_one_point(self) -> Callable:
        """At one point: log prior, its slope along the point, and the log likelihood of every row of a block."""
        return self._made.setdefault("at one point", jax.jit(self._at_one_point))

    def _at_one_point(self, point: Any, block: Any) -> Any:
        return *jax.jvp(self.target.log_prior, (point,), (point,)), self.target.log_likelihood(point, block)

    def outside(self) -> Callable:
        """How many rows of a block have a value that the likelihood cannot have made."""
        return self._made.setdefault("outside", jax.jit(self._outside))

    def _outside(self, block: dict[str, Any], weights: Any) -> dict[str, Any]:
        bad = self.target.outside(block)
        return {name: jnp.sum(rows & (weights > 0)) for name, rows in bad.items()}

    def _compile(self, name: str, derive: Callable) -> Callable:
        if name not in self._made:
            self._made[name] = jax.jit(functools.partial(self._pass, derive))
        return self._made[name]

    def _pass(self, derive: Callable, total: Any, theta: Any, share: Any, block: Any, weights: Any) -> Any:
        """Add a block's part at every point to `total`; without a block, the prior's part.

        An array for a share is the precision that each coordinate has instead of the prior.
        """
        if block is None and jnp.ndim(share):
            added = jax.vmap(derive(lambda point: -0.5 * jnp.sum(share * point**2)))(theta)
        elif block is None:
            added = jax.vmap(derive(lambda point: share * self.target.log_prior(point)))(theta)
        else:
            added = jax.vmap(derive(lambda point: self._sum(point, block, weights)))(theta)
        return added if total is None else jax.tree.map(jnp.add, total, added)

    def _sum(self, point: Any, block: Any, weights: Any) -> Any:
        floats = {column.dtype for column in block.values() if jnp.issubdtype(column.dtype, jnp.floating)}
        dtype = jnp.float32 if floats == {jnp.dtype("float32")} else jnp.float64
        rows = self.target.log_likelihood(point.astype(dtype), block).astype(jnp.float64)
        # Rows of weight zero must not turn an infinity into NaN.
        return jnp.sum(jnp.where(weights > 0, weights * rows, 0.0))


def _with_hessian(function: Callable) -> Callable:
    def derived(point: Any) -> Any:
        (value, gradient), along = jax.linearize(jax.value_and_grad(function), point)
        return value, gradient, jax.vmap(lambda direction: along(direction)[1])(jnp.eye(len(point)))

    return derived


def _with_diagonal(function: Callable) -> Callable:
    def derived(point: Any) -> Any:
        d = len(point)
        (value, gradient), along = jax.linearize(jax.value_and_grad(function), point)

        def entry(i: Any) -> Any:
            return along(jnp.zeros_like(point).at[i].set(1.0))[1][i]

        return value, gradient, jax.lax.map(entry, jnp.arange(d), batch_size=min(d, _DIRECTIONS))

    return derived


@dataclasses.dataclass(eq=False)
class Subposterior:
    """One shard's part of the posterior; counts its passes over the rows.

    `share` is of the prior, or, of a shard without any, the precision that each coordinate has instead of it.
    """

    programs: Programs
    blocks: list[tuple[dict[str, jax.Array], jax.Array]]
    share: float | Float[np.ndarray, " d"]
    num_rows: int
    passes: float = 0.0

    @classmethod
    def of(cls, programs: Programs, columns: Columns, prior: Fraction, rows_per_block: int) -> "Subposterior":
        """The subposterior of these rows with this share of the prior."""
        n = len(next(iter(columns.values())))
        return cls(programs, _blocks(columns, np.arange(n), 1.0, rows_per_block), float(prior), n)

    @classmethod
    def without_rows(cls, programs: Programs, prior: Fraction) -> "Subposterior":
        """A share of the prior alone."""
        return cls(programs, [], float(prior), 0)

    def bounded(self) -> "Subposterior":
        """As it can be fitted: without a share of the prior, with next to nothing where only the prior would bound it.

        That is along coordinates that the prior depends on and the rows do not: their derivatives are exactly zero.
        """
        if np.any(self.share):
            return self
        theta = 0.3 * np.random.default_rng(0).standard_normal((2, self.dim))
        rows = dataclasses.replace(self, share=np.zeros(self.dim))
        prior = Subposterior(self.programs, [], 1.0, 0)
        unseen = np.all((rows.gradient(theta).gradient == 0) & (prior.gradient(theta).gradient != 0), axis=0)
        return dataclasses.replace(rows, share=np.where(unseen, _NEXT_TO_NOTHING, 0.0))

    @property
    def unseen(self) -> list[str]:
        """The coordinates of which these rows say nothing, and which are left to the shards that carry the prior."""
        if np.ndim(self.share) == 0:
            return []
        return [self.programs.target.space.coordinate(int(i)) for i in np.flatnonzero(self.share)]

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.programs.target.space.dim

    def thinned(self, columns: Columns, num_rows: int, rng: np.random.Generator) -> "Subposterior":
        """The same from a random part of the rows, each standing for several."""
        chosen = np.sort(rng.choice(self.num_rows, num_rows, replace=False))
        blocks = _blocks(columns, chosen, self.num_rows / num_rows, len(self.blocks[0][1]))
        return Subposterior(self.programs, blocks, self.share, num_rows)

    def refuse_outside(self) -> None:
        """Refuse rows that the likelihood cannot have made, whatever θ is."""
        with jax.enable_x64(True):
            counts: dict[str, int] = {}
            for block, weights in self.blocks:
                for name, count in self.programs.outside()(block, weights).items():
                    counts[name] = counts.get(name, 0) + int(count)
        for name, count in counts.items():
            if count:
                raise EpviError(
                    f"{name} has {count:,} values outside the support of its distribution in the model:"
                    " check how they are coded (for example 0 and 1 for a Bernoulli)."
                )

    def value(self, theta: np.ndarray, batch: int) -> Float[np.ndarray, " n"]:
        """Log p_m at any number of points, `batch` at a time."""
        short = -len(theta) % batch
        filled = np.concatenate([theta, np.repeat(theta[-1:], short, axis=0)])
        parts = [self._sweep(self.programs.value(), part) for part in np.split(filled, len(filled) // batch)]
        return np.concatenate([np.asarray(part) for part in parts])[: len(theta)]

    def gradient(self, theta: np.ndarray) -> Curve:
        """Value and gradient."""
        value, gradient = self._sweep(self.programs.gradient(), theta)
        return Curve(np.asarray(value), np.asarray(gradient), None)

    def full(self, theta: np.ndarray) -> Curve:
        """Value, gradient and Hessian."""
        return Curve(*map(np.asarray, self._sweep(self.programs.full(), theta)))

    def second_order(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same as a plain tuple, for an optimiser."""
        at = self.full(theta)
        assert at.hessian is not None
        return at.value, at.gradient, at.hessian

    def diagonal(self, theta: np.ndarray) -> Curve:
        """Value, gradient and the Hessian's diagonal."""
        return Curve(*map(np.asarray, self._sweep(self.programs.diagonal(), theta)))

    def _sweep(self, program: Callable, theta: np.ndarray) -> Any:
        """One pass over all blocks."""
        self.passes += 1
        with jax.enable_x64(True):
            points = jnp.asarray(theta, jnp.float64)
            total = program(None, points, self.share, None, None)
            for block, weights in self.blocks:
                total = program(total, points, self.share, block, weights)
            return jax.block_until_ready(total)


def _blocks(columns: Columns, chosen: np.ndarray, weight: float, size: int) -> list:
    """Blocks of `size` rows with their weights; the last repeats its last row with weight zero."""
    blocks = []
    with jax.enable_x64(True):
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            short = size - len(rows)
            rows = np.concatenate([rows, np.repeat(rows[-1:], short)])
            weights = np.where(np.arange(size) < size - short, weight, 0.0)
            block = {name: jnp.asarray(column[rows]) for name, column in columns.items()}
            blocks.append((block, jnp.asarray(weights)))
    return blocks
