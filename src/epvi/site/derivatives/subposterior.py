"""Evaluates the subposterior log p_m(θ) = f_m log p(θ) + Σ_i log p(x_i | θ) and its derivatives at K points at once.

Takes compiled programs, rows and the shard's share of the prior. Each block of rows is read once per pass, for all
points and all derivatives; rows are never copied as a whole. All blocks have the same shape (the last is padded with
rows of weight zero), so that one compilation serves shards of any size. Blocks may be float32; sums over rows are
float64.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import DIAGONALS, WHOLE
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, promotion_allowed
from epvi.site.derivatives.conditional import prepared, products_of_scores
from epvi.site.derivatives.passes import Pass, Programs
from epvi.site.derivatives.prior_part import Precisions, PriorPart, PriorShare, few_numbers
from epvi.site.rows.columns import Columns, let_go

# Most intermediate numbers per block, so that they stay in the cache: 8 MB in float64, part of a last-level cache.
# Judgement.
_CACHE = 2**20
# Least and most rows per block: with fewer, call overhead dominates; with more, nothing is gained. Judgement.
_LEAST_BLOCK, _LARGEST_BLOCK = 64, 2**14
# Least rows per block for each parameter, with linear predictors: the matrix product over a block, of d² numbers, then
# costs more than adding it to the sum over all blocks. Judgement.
_ROWS_PER_PARAMETER = 2
# Most rows per block of a subsample, whose passes are short anyway. Judgement.
_PART_BLOCK = 2**11
# Bytes of rows from files that stay in memory once they were read. Judgement: more than a block, little beside a core's
# share of the memory.
_WINDOW = 2**23
# More values of rows than this are computed in float32 where the rounding of their sum, which is measured at some
# points, is at most so many nats. Judgement: fewer take some milliseconds; scores are known to 0.02 nats.
_MANY_VALUES, _ROUNDING = 2**22, 1e-3
# Precision of the Gaussian that a shard without a share of the prior gets along coordinates that its likelihood does
# not depend on, such as the scale of a hierarchy; there its density is flat, and other shards bound it. In
# unconstrained coordinates. Judgement: an sd of 10,000 is negligible beside any prior.
_NEXT_TO_NOTHING = 1e-8

# Callback: receives the number of passes so far.
Report = Callable[[int], None]


class Curve(NamedTuple):
    """log p_m and its derivatives at K points."""

    # log p_m.
    value: Float[np.ndarray, " K"]
    # Its gradient.
    gradient: Float[np.ndarray, "K d"]
    # Its Hessian, packed in `form`: (K, d, d), or the diagonals (K, d); None if it was not computed.
    hessian: np.ndarray | None
    # How the Hessian is packed.
    form: Packing = WHOLE


def block_size(programs: Programs, columns: Columns, num_rows: int, num_points: int) -> int:
    """Rows per block, a power of two: small enough for the cache, no larger than the number of rows requires."""
    numbers = sum(math.prod(column.shape[1:]) for column in columns.values())
    linked = programs.linked({name: column[:_LEAST_BLOCK] for name, column in columns.items()})
    # With linear predictors the points are processed one by one, and only the rows and their products are in memory.
    d, bundle = programs.target.space.dim, programs.target.bundle
    held = numbers + linked.held if linked is not None else num_points * d * numbers
    least = max(_LEAST_BLOCK // bundle, _ROWS_PER_PARAMETER * d if linked is not None else 1)
    size = min(max(_CACHE // held, least), max(_LARGEST_BLOCK // bundle, 1))
    return min(2 ** int(math.log2(size)), 2 ** math.ceil(math.log2(num_rows)))


@dataclasses.dataclass(eq=False)
class Subposterior:
    """The subposterior of one shard; counts its passes over the rows."""

    # Compiled programs of the model.
    programs: Programs
    # The rows; empty for the prior alone.
    rows: Columns
    # The share of the prior; for a shard without a share, a Gaussian in its place (see `bounded`).
    prior: PriorPart
    # Rows per block of a pass.
    rows_per_block: int = 1
    # Weight of each row's log likelihood: for a subsample, the number of rows that each represents.
    weight: float = 1.0
    # Weight of each row besides, (N,); None if all are 1.
    by_row: Float[np.ndarray, " N"] | None = None
    # Called after each pass with the number of passes so far.
    report: Report = lambda passes: None
    # Number of passes so far, and the time they took.
    passes: float = 0.0
    seconds: float = 0.0
    # Compiled passes by what they compute and rows per block, looked up once.
    _made: dict[tuple[str, int | None], Pass] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        programs: Programs,
        columns: Columns,
        prior: Fraction,
        rows_per_block: int,
        report: Report = lambda passes: None,
    ) -> "Subposterior":
        """The subposterior of rows and a share of the prior; `report` is called with the number of passes so far."""
        return cls(programs, columns, PriorShare(float(prior)), rows_per_block, report=report)

    @classmethod
    def without_rows(cls, programs: Programs, prior: Fraction) -> "Subposterior":
        """A subposterior without rows: a share of the prior alone."""
        return cls(programs, {}, PriorShare(float(prior)))

    def without_its_rows(self) -> "Subposterior":
        """Its prior factor alone."""
        return Subposterior(self.programs, {}, self.prior)

    @property
    def num_rows(self) -> int:
        """The number of rows; of a subsample, its own."""
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def bounded(self) -> "Subposterior":
        """The same; if it has no share of the prior, with a very wide Gaussian along coordinates that need one.

        These are the coordinates that the prior depends on and the likelihood does not: its derivatives are exactly 0.
        """
        if isinstance(self.prior, Precisions) or self.prior.fraction > 0:
            return self
        theta = 0.3 * np.random.default_rng(0).standard_normal((2, self.dim))
        rows = dataclasses.replace(self, prior=Precisions(np.zeros(self.dim)))
        prior = Subposterior.without_rows(self.programs, Fraction(1))
        unseen = np.all((rows.gradient(theta).gradient == 0) & (prior.gradient(theta).gradient != 0), axis=0)
        return dataclasses.replace(rows, prior=Precisions(np.where(unseen, _NEXT_TO_NOTHING, 0.0)))

    @property
    def unseen(self) -> list[str]:
        """The coordinates that the likelihood of these rows does not depend on, see `bounded`."""
        if isinstance(self.prior, PriorShare):
            return []
        return [self.programs.target.space.coordinate(int(i)) for i in np.flatnonzero(self.prior.values)]

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.programs.target.space.dim

    def thinned(self, num_rows: int, rng: np.random.Generator) -> "Subposterior":
        """The subposterior of a random subsample of the rows, each with a larger weight."""
        made = self.of_rows(np.sort(rng.choice(self.num_rows, num_rows, replace=False, shuffle=False)))
        made.weight = self.weight * self.num_rows / num_rows
        return made

    def of_rows(self, chosen: np.ndarray) -> "Subposterior":
        """The subposterior of the rows with these increasing indices, with the same weight each."""
        size = min(self.rows_per_block, _PART_BLOCK, len(chosen))
        return Subposterior(self.programs, self._taken(chosen), self.prior, size, self.weight)

    def prepared(self, point: Float[np.ndarray, " d"], *, few: bool = False) -> "Subposterior":
        """The same, cheaper to evaluate near a point if group effects are integrated out; `few` as for the rows."""
        columns = prepared(self.programs.target, self.rows, point, few=few)
        return self if columns is self.rows else dataclasses.replace(self, rows=columns)

    def _taken(self, chosen: np.ndarray) -> Columns:
        """Copies of the rows with these increasing indices; releases the memory of files read on the way."""
        pieces: dict[str, list[np.ndarray]] = {name: [] for name in self.rows}
        bounds = np.append(np.arange(0, self.num_rows, self._window), self.num_rows)
        for (start, stop), part in zip(
            itertools.pairwise(bounds), np.split(chosen, np.searchsorted(chosen, bounds[1:-1])), strict=True
        ):
            for name, column in self.rows.items():
                pieces[name].append(np.take(column, part, axis=0))
            let_go(self.rows, int(start), int(stop))
        return {name: np.concatenate(found) for name, found in pieces.items()}

    @property
    def _window(self) -> int:
        """Number of rows, a multiple of the block size, that may stay in memory after they were read."""
        size = self.rows_per_block
        return size * max(_WINDOW // max(sum(size * column[:1].nbytes for column in self.rows.values()), 1), 1)

    def sums_by_part(self, theta: np.ndarray, batch: int, count: int, size: int) -> Float[np.ndarray, "S G"]:
        """Weighted sums of the rows' log likelihoods at any number of points, with all rows in memory.

        They are over each of `count` consecutive parts of `size` rows, and over the rows behind these. Many values are
        computed in float32, if those at the first points then hardly differ.
        """
        weights = self.weight * (np.ones(self.num_rows) if self.by_row is None else self.by_row)
        short = -len(theta) % batch
        filled = np.concatenate([theta, np.repeat(theta[-1:], short, axis=0)])
        first, *others = np.split(filled, len(filled) // batch)
        with jax.enable_x64(True), promotion_allowed():
            program, rows = self.programs.by_part(count, size), jax.device_put(self.rows)
            made = [program(first, rows, weights)]
            if self.programs.target.bundle == 1 and len(filled) * self.num_rows > _MANY_VALUES:
                rounded = jax.device_put(_in_float32(self.rows))
                off = np.sum(np.asarray(made[0] - program(first, rounded, weights)), axis=1)
                rows = rounded if np.mean(off**2) < _ROUNDING**2 else rows
            made += [program(part, rows, weights) for part in others]
            return np.concatenate(made)[: len(theta)]

    def influence(self, centre: Float[np.ndarray, " d"], theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " N"]:
        """How much each row matters for an expansion about the centre, relative to the average row.

        The mean of two measures, both averaged over points near the centre: the row's second-order term, which is its
        leverage, and what its expansion leaves over.
        """
        with jax.enable_x64(True), promotion_allowed():
            program = self.programs.remainders()
            made = [program(centre, theta, block) for block, _ in self.blocks()]
            sizes = np.concatenate([np.asarray(part, np.float64) for part in made], axis=1)[:, : self.num_rows]
        finite = np.isfinite(sizes)
        sizes = np.where(finite, sizes, np.max(sizes, axis=1, initial=0.0, where=finite, keepdims=True))
        average = np.mean(sizes, axis=1, keepdims=True)
        return np.mean(sizes / np.where(average > 0, average, 1.0), axis=0)

    def log_density(self, theta: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """log p_m(θ) at one point, all rows at once: a pure function that JAX can compile, batch and differentiate.

        For external samplers and optimisers; in float64 if x64 is enabled. The rows become constants of the program.
        """
        target = self.programs.target
        with promotion_allowed():
            prior = self.prior.log_density(target, theta)
            if not self.rows:
                return prior
            rows = {name: jnp.asarray(column) for name, column in self.rows.items()}
            return prior + self.weight * jnp.sum(target.log_likelihood(theta, rows))

    def refuse_outside(self) -> None:
        """Refuse rows with observed values outside the support of their distribution, and indices out of range."""
        with jax.enable_x64(True):
            counts: dict[str, int] = {}
            for number, (block, weights) in enumerate(self.blocks()):
                self.programs.refuse_indices(block, weights, number * self.rows_per_block)
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
        # A pass that computes values only holds the observed numbers of a block once for each point.
        numbers = batch * self.programs.target.terms
        size = min(max(2 ** int(math.log2(max(_CACHE // numbers, 1))), _LEAST_BLOCK), self.rows_per_block)
        parts = [self._sweep(self.programs.value, part, size) for part in np.split(filled, len(filled) // batch)]
        return np.concatenate([np.asarray(part) for part in parts])[: len(theta)]

    def gradient(self, theta: np.ndarray) -> Curve:
        """Value and gradient."""
        value, gradient = self._sweep(self.programs.gradient, theta)
        return Curve(np.asarray(value), np.asarray(gradient), None)

    def full(self, theta: np.ndarray) -> Curve:
        """Value, gradient and Hessian."""
        value, gradient, hessian = map(np.asarray, self._sweep(self.programs.full, theta))
        return Curve(value, gradient, hessian)

    def second_order(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient and Hessian as a plain tuple, for an optimiser."""
        at = self.full(theta)
        assert at.hessian is not None
        return at.value, at.gradient, at.hessian

    def diagonal(self, theta: np.ndarray) -> Curve:
        """Value, gradient and the Hessian's diagonal."""
        value, gradient, hessian = map(np.asarray, self._sweep(self.programs.diagonal, theta))
        return Curve(value, gradient, hessian, DIAGONALS)

    def curve(self, theta: np.ndarray, form: Packing) -> Curve:
        """Value, gradient, and the Hessian packed in `form`."""
        return self.full(theta) if form.whole else self.diagonal(theta)

    def spread(self, point: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
        """The sum over rows of the outer products of their score vectors (the empirical Fisher information)."""
        if (target := self.programs.target).conditional is not None and self.rows and self.by_row is None:
            return self.weight * products_of_scores(target, self.rows, point)
        made = self.programs.scores(next(iter(self.blocks()), (None, None))[0])
        with jax.enable_x64(True), promotion_allowed():
            theta, total = jnp.asarray(point, jnp.float64)[None], made.zero(1)
            for block, weights in self.blocks():
                total = made.add(total, theta, block, weights)
            return np.asarray(made.finish(total, theta, self.prior)[0][0])

    def _sweep(self, program: Callable[[Any], Pass], theta: np.ndarray, size: int | None = None) -> Any:
        """Make one pass over all blocks, by default of `rows_per_block` rows."""
        start, key = time.perf_counter(), (program.__name__, size)
        if key not in self._made:
            self._made[key] = program(next(iter(self.blocks(size=size)), (None, None))[0])
        made = self._made[key]
        number, theta = len(theta), theta if self.rows else few_numbers(theta, self.programs.target.bundle)
        with jax.enable_x64(True):
            points = jnp.asarray(theta, jnp.float64)
            total = [made.zero(len(theta))]
            # JAX computes asynchronously: rows may be released only after the computation has caught up.
            for block, weights in self.blocks(lambda: jax.block_until_ready(total[0]), size):
                total[0] = made.add(total[0], points, block, weights)
            done = jax.block_until_ready(made.finish(total[0], points, self.prior))
        self.count(1, time.perf_counter() - start)
        return done if number == len(theta) else jax.tree.map(lambda part: part[:number], done)

    def count(self, passes: int, seconds: float) -> None:
        """Add to the number of passes, and to the time that they took."""
        self.passes += passes
        self.seconds += seconds
        self.report(int(self.passes))

    def blocks(
        self, settled: Callable[[], Any] = lambda: None, size: int | None = None
    ) -> Iterator[tuple[Columns, np.ndarray]]:
        """Blocks of equal size with the weights of their rows; the last is padded with its last row, with weight zero.

        Every few blocks `settled` is called, which waits for computations on them, and then their memory is released.
        """
        size, held = size or self.rows_per_block, 0
        for start in range(0, self.num_rows, size):
            if start - held >= self._window:
                settled()
                let_go(self.rows, held, start)
                held = start
            block = {name: column[start : start + size] for name, column in self.rows.items()}
            weights = np.full(size, float(self.weight))
            if self.by_row is not None:
                weights[: self.num_rows - start] *= self.by_row[start : start + size]
            short = start + size - self.num_rows
            if short > 0:
                block = {name: np.concatenate([c, np.repeat(c[-1:], short, axis=0)]) for name, c in block.items()}
                weights[size - short :] = 0.0
            yield block, weights
        settled()
        let_go(self.rows, held, self.num_rows)


def _in_float32(rows: Columns) -> Columns:
    """The rows with all real numbers in float32."""
    return {name: column.astype(np.float32) if column.dtype.kind == "f" else column for name, column in rows.items()}
