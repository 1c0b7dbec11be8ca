"""Estimate the Monte Carlo error of combined draws by splitting every shard's draws in two halves.

The first halves are combined with the same method as all draws, and so are the second halves. A half has twice the
variance of the whole, so half the difference between the two results estimates the standard error of the whole; it is
averaged over coordinates as a root mean square. Halves of a Markov chain that has not converged differ too. Errors that
both halves share (smoothing, a mode that no chain visited) remain invisible.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.method import DrawsMethod, Remedies, Shards

# Largest acceptable standard error of means, in sds of the result. Judgement.
_MEANS = 0.3
# Largest acceptable relative standard error of sds. Judgement.
_SDS = 0.2


class SplitError(NamedTuple):
    """Estimated standard errors of means, in sds of the result, and of sds, relative to them."""

    means: float
    sds: float

    def judge(self, status: Status, remedies: Remedies) -> Status:
        """`status` with the estimated errors added, or a bad status if they are too large."""
        told = f"means are off by about {self.means:.2f} sds and sds by {self.sds:.0%}"
        if self.means > _MEANS or self.sds > _SDS:
            remedy = f"draw more at every shard{remedies.few}"
            return Status(StatusCode.FEW_DRAWS, f"comparing two halves of the draws, {told}: {remedy}.")
        return Status(status.code, f"{status.text} Monte Carlo error, comparing two halves of the draws: {told}.")


def split_error(
    method: DrawsMethod, shards: Shards, theta: Float[np.ndarray, "R d"], key: jax.Array
) -> SplitError | None:
    """The estimated errors of `theta`, combined from all draws; None if a half has too few draws to be combined."""
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
