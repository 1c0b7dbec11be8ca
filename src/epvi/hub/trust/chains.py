"""Draws of Markov chains on all rows, and whether they can be trusted: R-hat, effective sample sizes, divergences.

Takes the draws of chains; gives a certificate with their verdict. R-hat and effective sample sizes are those of Vehtari
et al. (2021): of split chains, rank-normalised, in the middle and in the tails.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from epvi.hub.product.mixing import effective_size, split_r_hat

# Draws can be trusted with a split R-hat below the first, and effective sample sizes of at least the second number
# (Vehtari et al. 2021), and if at most the third part of the steps diverged (judgement: single divergences occur on
# posteriors that are sampled well).
MOST_R_HAT, LEAST_ESS, MOST_DIVERGENT = 1.01, 400.0, 0.001
# Probabilities between which the tails begin.
_TAILS = (0.05, 0.95)


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """Draws of θ of several chains on the log joint density of all rows.

    Attributes:
        theta: the draws, by chain; all parameters, with group effects.
        divergences: how many steps diverged.
        num_warmup: steps of each chain before.
        seconds: wall-clock time of all chains together.
    """

    theta: Float[np.ndarray, "C S d"]
    divergences: int
    num_warmup: int
    seconds: float

    @property
    def draws(self) -> Float[np.ndarray, "n d"]:
        """The draws of all chains, one chain after the other."""
        return self.theta.reshape(-1, self.theta.shape[2])

    @functools.cached_property
    def r_hat(self) -> Float[np.ndarray, " d"]:
        """Split R-hat of each coordinate: the larger one of ranks, and of ranks of the distance from the median."""
        folded = np.abs(self.theta - np.median(self.draws, axis=0))
        one = np.ones(self.theta.shape[2])
        return np.maximum(*(split_r_hat(_normal_scores(part), one) for part in (self.theta, folded)))

    @functools.cached_property
    def ess(self) -> Float[np.ndarray, " d"]:
        """Effective sample size of each coordinate: the smallest of that of ranks, and of both tails."""
        split, one = _split(self.theta), np.ones(self.theta.shape[2])
        below = [split <= np.quantile(self.draws, p, axis=0) for p in _TAILS]
        found = [effective_size(part, one) for part in (_normal_scores(split), *(part.astype(float) for part in below))]
        return np.min(found, axis=0)

    def fault(self, names: Sequence[str]) -> str:
        """What is wrong with them as a clause, or nothing; `names` are those of the coordinates."""
        worst, least = int(np.argmax(self.r_hat)), int(np.argmin(self.ess))
        if not self.r_hat[worst] < MOST_R_HAT:
            return f"the chains of NUTS have not mixed (R-hat {self.r_hat[worst]:.2f} in {names[worst]})"
        if self.ess[least] < LEAST_ESS:
            return f"NUTS has {self.ess[least]:,.0f} effective draws of {names[least]} only"
        total = self.theta.shape[0] * self.theta.shape[1]
        if self.divergences > MOST_DIVERGENT * total:
            return f"{self.divergences:,} of {total:,} steps of NUTS diverged"
        return ""

    @property
    def went(self) -> str:
        """How it went, as a clause."""
        count, size, _ = self.theta.shape
        return (
            f"{count} chains of {size:,} draws, R-hat at most {np.max(self.r_hat):.3f}, at least"
            f" {np.min(self.ess):,.0f} effective draws, {self.divergences:,} divergences"
        )

    def to_json(self) -> dict[str, Any]:
        """All but the draws, in plain numbers."""
        count, size, _ = self.theta.shape
        return {
            "num_chains": count,
            "num_warmup": self.num_warmup,
            "num_samples": size,
            "r_hat": float(np.max(self.r_hat)),
            "ess": float(np.min(self.ess)),
            "divergences": self.divergences,
            "seconds": self.seconds,
        }


def _split(series: Float[np.ndarray, "C n q"]) -> Float[np.ndarray, "K h q"]:
    """Each chain as two, without the middle draw of an odd number."""
    half = series.shape[1] // 2
    return np.concatenate([series[:, :half], series[:, -half:]])


def _normal_scores(series: Float[np.ndarray, "C n q"]) -> Float[np.ndarray, "C n q"]:
    """Normal scores of the ranks among all chains."""
    # Imported here, since it takes half a second that few need.
    from scipy.stats import rankdata

    flat = series.reshape(-1, series.shape[2])
    # Steps that were rejected repeat a draw: equal ones share a rank.
    return ndtri((rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25)).reshape(series.shape)
