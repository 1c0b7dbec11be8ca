"""Answers of shards with many parameters: what a Hessian at every base draw would cost too much for.

Takes the subposteriors of several shards, their Taylor expansions about the centres, and `Draws`. Log densities at the
draws, which cost less than a Hessian, are computed from all rows. Average gradients and Hessians under a Gaussian are
computed at few of its base draws, in antithetic pairs, and the change of the Hessian from the centre on a subsample of
the rows. With d parameters and far more rows, a row's linear predictor varies about as much over draws as over rows, so
that few draws are enough:

    E H ≈ H(c) + mean over pairs z, −z of [ ½ H_g(c + Lz) + ½ H_g(c − Lz) − H_g(c) ],  g: the pair's part of the rows
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.seeds import SeedStream
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.rows.columns import generator
from epvi.wire.answer import Expected
from epvi.wire.request import Draws

# From this number of parameters on, answers are computed as described above. Judgement: a Hessian then costs as much as
# 64 gradients.
MANY = 128
# Draws at which log densities are computed in one pass. Judgement: enough for matrix products to be fast.
_DRAWS_AT_ONCE = 256
# Pairs of base draws at which gradients are averaged. Their average is off by a fluctuation of the order of that of the
# Laplace approximation's mean over √8. Judgement.
_PAIRS = 8
# Pairs at which the change of a shard's Hessian is averaged, each on its own part of the subsample; other shards take
# other pairs. Judgement: a pair affects the average in its own direction only.
_PAIRS_OF_HESSIANS = 4
# Rows of that subsample per parameter, over all shards. Judgement: the change is some percent of the Hessian, and known
# to a quarter by the Marchenko-Pastur law.
_ROWS_PER_PARAMETER = 16
# Least rows of a part of it. Judgement: with fewer, calls cost more than arithmetic.
_LEAST_ROWS = 64
# Rows per parameter on which a shard's outer products of scores are computed; with fewer than twice as many rows, on
# all. Judgement: their matrix is then known to a third in every direction.
_ROWS_OF_SCORES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class ManyParameters:
    """The answers of B shards to one request."""

    each: Subposteriors
    # Expansions of all shards about each centre.
    own: list[Taylors]
    draws: Draws
    # The shards' numbers, and the part of all shards' rows that each has.
    shards: list[int]
    shares: Float[np.ndarray, " B"]
    # Whether all rows are used throughout.
    exact: bool

    def values(self, theta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "B S"]:
        """Log densities of each shard, from all rows."""
        owner = np.arange(self.each.num_shards)
        short = -len(theta) % min(_DRAWS_AT_ONCE, len(theta))
        filled = np.concatenate([theta, np.repeat(theta[-1:], short, axis=0)])
        parts = np.split(filled, range(_DRAWS_AT_ONCE, len(filled), _DRAWS_AT_ONCE))
        made = [self.each.value(np.broadcast_to(part, (len(owner), *part.shape)), owner) for part in parts]
        return np.concatenate(made, axis=1)[:, : len(theta)]

    def moments(self) -> list[Expected]:
        """Expectations under the Gaussians, of each shard."""
        found = []
        for points, own in zip(self.draws.points(), self.own, strict=True):
            found.append([self.values(points), self._gradients(points), self._hessians(points, own)])
        return [
            Expected(*(np.stack([one[i][b] for one in found]) for i in range(3))) for b in range(self.each.num_shards)
        ]

    def products(self) -> Float[np.ndarray, "B d d"]:
        """Sums over each shard's rows of the outer products of their scores at the first centre."""
        rows, factors = self.each, np.ones(self.each.num_shards)
        most = _ROWS_OF_SCORES * rows.dim
        if not self.exact and np.all(rows.sizes >= 2 * most):
            chosen = [self._some(b, most, 0) for b in range(rows.num_shards)]
            rows = rows.thinned(np.arange(rows.num_shards), chosen)
            # The inverse of a covariance that n rows give is too large by n / (n − d − 1) on average (inverse Wishart).
            factors = factors * most / (most - rows.dim - 1)
        return factors[:, None, None] * rows.spread(self.draws.centres[0])

    def _gradients(self, points: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "B d"]:
        """Average gradients over the first pairs of base draws, from all rows."""
        count, chosen = self.each.num_shards, few_pairs(points)
        owner = np.repeat(np.arange(count), len(chosen))
        gradient = self.each.gradient(np.tile(chosen, (count, 1)), owner)[1]
        return np.mean(gradient.reshape(count, len(chosen), -1), axis=1)

    def _hessians(self, points: Float[np.ndarray, "R d"], own: Taylors) -> Float[np.ndarray, "B d d"]:
        """Average Hessians: those at the centre, and their average change on subsamples."""
        made, half = own.hessian.copy(), len(points) // 2
        owner = np.zeros(3, int)
        for b, shard in enumerate(self.shards):
            wanted = round(_ROWS_PER_PARAMETER * self.each.dim * self.shares[b])
            size = int(self.each.sizes[b])
            few = size if self.exact else min(max(wanted, _PAIRS_OF_HESSIANS * _LEAST_ROWS), size)
            chosen = np.array_split(self._some(b, few, 1), min(_PAIRS_OF_HESSIANS, few))
            for i, rows in enumerate(chosen):
                pair = (len(chosen) * shard + i) % half
                part = self.each.thinned(np.array([b]), [np.sort(rows)])
                at = np.stack([points[pair], points[half + pair], own.centre[b]])
                _, _, (up, down, here) = part.second_order(at, owner)
                made[b] += (len(rows) / few) * (0.5 * (up + down) - here)
        return made

    def _some(self, b: int, count: int, stream: int) -> np.ndarray:
        """A random subsample of a shard's rows, in random order for stream 1, the same in every round."""
        key = jax.random.wrap_key_data(jnp.asarray(self.draws.asked.key, jnp.uint32))
        key = jax.random.fold_in(jax.random.fold_in(key, SeedStream.PARTS), self.shards[b])
        rng = generator(jax.random.fold_in(key, stream))
        chosen = rng.choice(int(self.each.sizes[b]), count, replace=False)
        return chosen if stream else np.sort(chosen)


def few_pairs(points: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "r d"]:
    """The first antithetic pairs of base draws mapped to a Gaussian: μ + Lz for half of them, μ − Lz for the others."""
    half = len(points) // 2
    return np.concatenate([points[:half][:_PAIRS], points[half:][:_PAIRS]])
