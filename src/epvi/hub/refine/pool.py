"""All scored draws of several rounds, weighted by their density over the mixture of all proposals that they came from.

These weights (Cornuet et al. 2012) are lower in variance than each round's own, and serve to fit the next proposal. For
a verdict they do not: a proposal that was fitted to draws looks good on them.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

from epvi.hub.trust.propose import Source

# Weights are tempered until so many draws for each parameter count. Judgement: enough for a mean and a covariance.
_LEAST_DRAWS = 12
# The factor by which the exponent of tempered weights falls. Judgement.
_TEMPERED = 0.8
# The number of draws that a mixture is fitted to, on average. Judgement: fits to more take seconds.
_MOST_DRAWS = 8192


@dataclasses.dataclass(frozen=True, eq=False)
class ScoredDraws:
    """Scored draws.

    Attributes:
        theta: the draws of all rounds, without those where the density is 0.
        log_p: their log joint density.
        sources: the proposal of each round, with its number of draws.
    """

    theta: Float[np.ndarray, "n d"]
    log_p: Float[np.ndarray, " n"]
    sources: tuple[Source, ...]

    @functools.cached_property
    def log_g(self) -> Float[np.ndarray, " n"]:
        """The log of the sum of all proposals' densities, each times its number of draws."""
        return self._log_g_at(self.theta)

    def _log_g_at(self, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        logs = [np.log(source.num_draws) + source.log_density(theta) for source in self.sources]
        return np.asarray(logsumexp(logs, axis=0))

    def joined(self, other: "ScoredDraws") -> "ScoredDraws":
        """The draws of both."""
        theta, log_p = np.concatenate([self.theta, other.theta]), np.concatenate([self.log_p, other.log_p])
        made = ScoredDraws(theta, log_p, self.sources + other.sources)
        # Densities at draws that had them already are not computed again: rounds would take ever longer.
        parts = np.concatenate([self.log_g, other.log_g]), (other._log_g_at(self.theta), self._log_g_at(other.theta))
        made.__dict__["log_g"] = np.logaddexp(parts[0], np.concatenate(parts[1]))
        return made

    def log_weights(self) -> Float[np.ndarray, " n"]:
        """log p/g, where g is the mixture of all proposals."""
        return self.log_p - self.log_g

    def telling(self, rng: np.random.Generator) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, " m"]]:
        """The draws that count, with normalised weights: tempered as long as too few count, and not too many draws."""
        log_w, least = self.log_weights(), _LEAST_DRAWS * (self.theta.shape[1] + 1)
        weights, power = softmax(log_w), 1.0
        while 1 / np.sum(weights**2) < min(least, 0.5 * len(weights)):
            power *= _TEMPERED
            weights = softmax(power * log_w)
        counts = weights > 0
        theta, weights = self.theta[counts], weights[counts]
        if len(weights) <= _MOST_DRAWS:
            return theta, weights
        # A draw with less than the threshold is kept with a chance in proportion to its weight, and then has it.
        threshold = _threshold(weights, _MOST_DRAWS)
        kept = rng.uniform(size=len(weights)) * threshold < weights
        kept_weights = np.maximum(weights[kept], threshold)
        return theta[kept], kept_weights / np.sum(kept_weights)


def _threshold(weights: Float[np.ndarray, " n"], most: int) -> float:
    """The c for which Σ min(w/c, 1) is `most`, fewer than there are: as many draws are kept on average."""
    ordered = np.sort(weights)[::-1]
    rest = np.cumsum(ordered[::-1])[::-1]
    # With the k largest kept for certain, the others are kept at the rate of their sum over c.
    counts = np.arange(most)
    found = rest[:most] / (most - counts)
    return float(found[np.argmax(ordered[:most] <= found)])
