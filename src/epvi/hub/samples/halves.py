"""How far combined draws are off because the shards' draws are few: the first half of every shard's, and the second.

The two halves are combined as the whole was. Each has twice its variance, so half of their difference is one estimate
of the standard error of the whole; the root of the mean square over coordinates steadies it. Halves of a Markov chain
also differ when it had not converged. What both halves have in common (smoothing, a mode that nobody met) this does
not show.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import DrawsMethod, Remedies, Shards

# Means off by more of an sd, and sds off by a larger share, are not those of the posterior.
_MEANS = 0.3
_SDS = 0.2


class SplitError(NamedTuple):
    """About how far means are off, in sds of the result, and sds, as a share; standard errors."""

    means: float
    sds: float

    def judge(self, status: Status, remedies: Remedies) -> Status:
        """A good status with what was found, or another one."""
        told = f"means are off by about {self.means:.2f} sds and sds by {self.sds:.0%}"
        if self.means > _MEANS or self.sds > _SDS:
            remedy = f"draw more at every shard{remedies.few}"
            return Status(StatusCode.FEW_DRAWS, f"by what two halves of the draws give, {told}: {remedy}.")
        return Status(status.code, f"{status.text} By their halves, {told} for want of draws.")


def split_error(
    method: DrawsMethod, shards: Shards, theta: Float[np.ndarray, "R d"], key: jax.Array
) -> SplitError | None:
    """What the halves say of `theta`, which came from all of the draws; None when they are too few to be combined."""
    try:
        halves = [
            method.combine(half, None, jax.random.fold_in(key, i)).theta for i, half in enumerate(_cut(shards), 1)
        ]
    except EpviError:
        return None
    means, sds = (np.stack([statistic(half, axis=0) for half in halves]) for statistic in (np.mean, np.std))
    sd = np.std(theta, axis=0)
    return SplitError(_root_mean_square((means[0] - means[1]) / sd), _root_mean_square(np.log(sds[0] / sds[1])))


def _cut(shards: Shards) -> list[Shards]:
    first = tuple(draws[: len(draws) // 2] for draws in shards.theta)
    second = tuple(draws[len(draws) // 2 :] for draws in shards.theta)
    return [Shards(first, shards.layout), Shards(second, shards.layout)]


def _root_mean_square(differences: np.ndarray) -> float:
    return float(np.sqrt(np.mean(differences**2)) / 2)
