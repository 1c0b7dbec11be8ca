"""Taylor expansions of the subposteriors of several shards together, as `expansion.py` has them for one.

Takes value, gradient and Hessian of each shard at its own point; gives values near these points with standard errors,
from subsamples of each shard's rows with the expansion as control variate.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.matrices import positive_definite
from epvi.site.derivatives.expansion import ALIKE, PARTS
from epvi.site.derivatives.subposteriors import Subposteriors


@dataclasses.dataclass(frozen=True, eq=False)
class Taylors:
    """Second-order expansions of n functions, each about its own point."""

    centre: Float[np.ndarray, "n d"]
    value: Float[np.ndarray, " n"]
    gradient: Float[np.ndarray, "n d"]
    hessian: Float[np.ndarray, "n d d"]

    def at(self, theta: Float[np.ndarray, "n q d"]) -> Float[np.ndarray, "n q"]:
        """The expansions at q points each."""
        delta = theta - self.centre[:, None]
        bent = np.matmul(delta, self.hessian)
        return self.value[:, None] + np.einsum("nqd,nqd->nq", delta, self.gradient[:, None] + 0.5 * bent)

    def moved(self, point: Float[np.ndarray, " d"]) -> "Taylors":
        """The same quadratic functions, expanded about one point."""
        bent = np.einsum("nij,nj->ni", self.hessian, point - self.centre)
        value = self.at(np.broadcast_to(point, (len(self.value), 1, len(point))))[:, 0]
        return Taylors(np.broadcast_to(point, self.centre.shape), value, self.gradient + bent, self.hessian)


@dataclasses.dataclass(frozen=True, eq=False)
class Expansions:
    """The expansions of B shards, with subsamples of their rows in equally many parts for each."""

    # Of all rows of each shard, with its share of the prior.
    whole: Taylors
    # The parts' subposteriors, without the prior: those of the first shard, then those of the second, and so on. Each
    # part is scaled to all rows of its shard.
    parts: Subposteriors
    # The expansions of the parts.
    of_parts: Taylors

    def near(self, theta: Float[np.ndarray, "B q d"], batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Estimated values at q points near each centre, `batch` at a time, and their standard errors, (B, q)."""
        count, q, _ = theta.shape
        repeated = np.repeat(theta, PARTS, axis=0)
        owner = np.arange(len(repeated))
        values = np.concatenate(
            [self.parts.value(repeated[:, i : i + batch], owner) for i in range(0, q, batch)], axis=1
        )
        left = (values - self.of_parts.at(repeated)).reshape(count, PARTS, q)
        # The shares of the prior are not in the parts: their own expansion errors are exact, at the draws.
        prior = self._prior(theta) - self._prior_expanded.at(theta)
        mean, error = np.mean(left, axis=1), np.std(left, axis=1, ddof=1) / np.sqrt(PARTS)
        return self.whole.at(theta) + prior + mean, error

    @property
    def alike(self) -> Bool[np.ndarray, " B"]:
        """Where the Hessian of the parts is within a factor of two of that of all rows, in every direction."""
        d = self.whole.centre.shape[1]
        prior = self._prior_expanded.hessian
        parts = -(np.mean(self.of_parts.hessian.reshape(-1, PARTS, d, d), axis=1) + prior)
        whole = -self.whole.hessian
        return positive_definite(ALIKE * whole - parts) & positive_definite(ALIKE * parts - whole)

    @property
    def _prior_expanded(self) -> Taylors:
        """The expansions of the shares of the prior."""
        centre = self.whole.centre
        return Taylors(centre, *self._shares.prior_alone(centre, np.arange(len(centre))))

    def _prior(self, theta: np.ndarray) -> np.ndarray:
        count, q, d = theta.shape
        owner = np.repeat(np.arange(count), q)
        return self._shares.prior_values(theta.reshape(-1, d), owner).reshape(count, q)

    # The subposteriors of all rows, for their shares of the prior.
    _shares: Subposteriors = dataclasses.field(kw_only=True)


def expand_together(
    subposteriors: Subposteriors,
    shards: np.ndarray,
    whole: Taylors,
    rows_per_part: np.ndarray,
    rngs: list[np.random.Generator],
) -> Expansions:
    """The expansions of some shards, with this many rows in each part of each shard, and scarce ones besides."""
    scarce, chosen, represented = subposteriors.scarce, [], []
    for m, size in zip(shards, rows_per_part, strict=True):
        drawn = rngs[m].choice(subposteriors.sizes[m], PARTS * size, replace=False)
        for part in np.sort(drawn.reshape(PARTS, size), axis=1):
            rows, each = (part, None) if scarce is None else scarce[m].besides(part, rngs[m])
            chosen.append(rows)
            represented.append(each)
    owner = np.repeat(shards, PARTS)
    made = subposteriors.thinned(owner, chosen, None if scarce is None else represented)
    parts = dataclasses.replace(made, shares=np.zeros(len(owner)))
    centres = np.repeat(whole.centre, PARTS, axis=0)
    of_parts = Taylors(centres, *parts.second_order(centres, np.arange(len(centres))))
    return Expansions(whole, parts, of_parts, _shares=subposteriors.only(shards))
