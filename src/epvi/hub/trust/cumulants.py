"""Means and sds of single parameters where there are too many of them for joint importance weights.

With r = log p − log q and joint cumulants κ under the posterior q, the mean of h under p is the series

    E_p h = E_q h + κ(h, r) + ½ κ(h, r, r) + ...

Importance weights exp(r) need a number of draws that grows exponentially with Var r, and that is proportional to the
number of parameters even where every marginal is right. The terms of the series for an h of one parameter contain only
those parts of r that involve it, and their standard errors grow like Var r. The first term is zero for means and sds
where q has the highest ELBO of its family; the second shows what that family lacks, which gradients tell with smaller
errors (`linear_response.py`). The log ratios are what checks these: they need no derivatives.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.trust.linear_response import Response
from epvi.hub.trust.propose import Proposal

# Numbers of an array of draws by parameters that is in memory at once: 32 MB in float64. Judgement.
_BLOCK = 2**22
# An estimate clearly differs from zero when it is more than so many standard errors away. Judgement: of 10,000
# parameters none does so by chance, even though products of log ratios have heavier tails than a Gaussian.
_CLEAR = 6.0


@dataclasses.dataclass(frozen=True, eq=False)
class Marginals:
    """How single parameters under p differ from those under the posterior q.

    Attributes:
        shift: change of every mean, in sds of q, by cumulants up to the third.
        shift_error: its standard errors.
        change: relative change of every sd, in the same way.
        change_error: its standard errors.
        shape: κ(h, r) for h the normalised Hermite polynomials of degrees 1 to 4 of every parameter: the expansion of
            E_q[r | parameter], which is constant where p has the same shape as q along it.
        shape_error: its standard errors.
        num_draws: how many draws they were estimated from.
        skewness: skewness of r.
        excess: excess kurtosis of r.
    """

    shift: Float[np.ndarray, " d"]
    shift_error: Float[np.ndarray, " d"]
    change: Float[np.ndarray, " d"]
    change_error: Float[np.ndarray, " d"]
    shape: Float[np.ndarray, "4 d"]
    shape_error: Float[np.ndarray, "4 d"]
    num_draws: int
    skewness: float
    excess: float

    def less(self, response: Response) -> "Marginals":
        """The same, less the changes of sds that gradients tell."""
        return dataclasses.replace(self, change=self.change - 0.5 * response.first)

    def unlike(self, least: float) -> int:
        """How many parameters clearly have another mean, sd or shape, by more than `least`."""
        found = np.any(np.abs(self.shape) - _CLEAR * self.shape_error > least, axis=0)
        found |= np.abs(self.shift) - _CLEAR * self.shift_error > least
        return int(np.count_nonzero(found | (np.abs(self.change) - _CLEAR * self.change_error > least)))


def marginals_of(proposal: Proposal, log_p: Float[np.ndarray, " S"], q: GaussianMixture) -> Marginals | None:
    """The estimates from the draws that came from q; None if some of these are impossible under p."""
    own, count = slice(0, proposal.num_own), proposal.num_own
    ratio = (log_p - proposal.log_q)[own]
    if count < 2 or not np.all(np.isfinite(ratio)) or np.ptp(ratio) == 0:
        return None
    r = ratio - np.mean(ratio)
    variance = np.mean(r**2)
    # The factors of h in the sum of both terms of the series, and in the first.
    factors = np.stack([r + 0.5 * (r**2 - np.mean(r**2)), r])
    mean, sd = np.asarray(q.mean()), np.asarray(q.sd())
    parts, size = [], max(_BLOCK // count, 1)
    for start in range(0, len(mean), size):
        some = slice(start, start + size)
        z = (proposal.theta[own, some] - mean[some]) / sd[some]
        polynomials = np.stack([z, (z**2 - 1) / 2**0.5, (z**3 - 3 * z) / 6**0.5, (z**4 - 6 * z**2 + 3) / 24**0.5])
        h = polynomials - np.mean(polynomials, axis=1, keepdims=True)
        first = [_mean_of(factors[0], one) for one in h[:2]]
        parts.append([*first, *(_mean_of(factors[1], one) for one in h)])
    estimates, errors = np.moveaxis(np.concatenate([np.array(part) for part in parts], axis=-1), 1, 0)
    # An sd is 1 + ½ E(z² − 1) to first order.
    half = 0.5**0.5
    return Marginals(
        shift=estimates[0],
        shift_error=errors[0],
        change=half * estimates[1],
        change_error=half * errors[1],
        shape=estimates[2:],
        shape_error=errors[2:],
        num_draws=count,
        skewness=float(np.mean(r**3) / variance**1.5),
        excess=float(np.mean(r**4) / variance**2 - 3),
    )


def _mean_of(factor: Float[np.ndarray, " n"], h: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "2 d"]:
    """The means of factor times h, and their standard errors."""
    mean = factor @ h / len(h)
    square = factor**2 @ h**2 / len(h) - mean**2
    return np.stack([mean, np.sqrt(square / (len(h) - 1))])
