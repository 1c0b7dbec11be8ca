"""The verdict on means and sds of single parameters, where there are too many for joint importance weights.

Takes a posterior of one Gaussian and scores with gradients at its base draws. Gradients tell what the Gaussian lacks
(`linear_response.py`): sds are corrected by that. Expected gradients and Hessians tell whether it has the highest ELBO,
which this presumes (`stationarity.py`), and log ratios whether single parameters have the shape that it implies
(`cumulants.py`).
"""

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.cumulants import Marginals, marginals_of
from epvi.hub.trust.importance import Weights
from epvi.hub.trust.linear_response import Response, response_of
from epvi.hub.trust.propose import base_of
from epvi.hub.trust.reasons import Fault, Judgement, Reason, Verdict, headed, told
from epvi.hub.trust.stationarity import Moves, step_of

# From this many parameters on, weights that are too uneven may be so by the number of parameters alone. Judgement.
MANY = 100
# With so many parameters the largest of their errors is about three times the standard error: above this one, in sds,
# single parameters may be known better by gradients than by weights. Judgement.
VAGUE = 0.02
# The most that is tolerated of what is not corrected: of means, in sds, in the root mean square over all parameters
# (two standard errors included); and of sds, relative, for the least known of all. Judgement: accuracy targets.
_MEANS_OFF, _SDS_OFF = 0.05, 0.03
# No parameter may clearly be off by more, and expected gradients and Hessians may move none by more. Judgement.
_ONE_OFF, _MOVED = 0.1, 0.03
# The log ratios of draws are then sums of many small terms: skewness and excess kurtosis are at most this. Judgement.
_NORMAL = 1.0


def may_be_by_dimension(posterior: Approximation, answered: Answered) -> bool:
    """Whether a posterior has so many parameters that weights can be uneven although it is right about each.

    It is one Gaussian, with a covariance that can hold correlations, and with expected Hessians of the rows to refine
    it by: otherwise correlations may be lacking, which no single parameter shows.
    """
    alone = len(np.asarray(answered.proposal.modes.means)) == 1 and answered.moments is not None
    return alone and may_be_alone(posterior.mixture)


def may_be_alone(mixture: GaussianMixture) -> bool:
    """The same, as far as the posterior's own mixture shows."""
    return mixture.num_components == 1 and mixture.dim >= MANY and mixture.structure.hessians.whole


def by_single_parameters(
    posterior: Approximation, answered: Answered, weights: Weights, disagree: str
) -> Judgement | None:
    """The verdict on single parameters; None where it is not for them to give, or without gradients at draws.

    `disagree` is a clause on shards that disagree, which follows the verdict.
    """
    if answered.slopes is None or not may_be_by_dimension(posterior, answered):
        return None
    if float(np.max(weights.noise)) <= VAGUE:
        return None
    assert answered.moments is not None
    gaussian = answered.proposal.modes
    found = marginals_of(answered.proposal, answered.log_p, posterior.mixture)
    base = base_of(answered.scores[0].asked, len(gaussian.means[0]))
    response = response_of(gaussian, base, answered.moments.values[0], answered.slopes)
    step = step_of(gaussian, answered.moments)
    wrong = _wrong(found, response, step)
    many = f"joint weights cannot judge {len(response.first):,} parameters ({weights.ess:,.0f} effective draws)"
    if wrong:
        fault = Fault(Reason.UNEVEN_WEIGHTS, f"{many}, and {wrong}")
        return Judgement(Verdict.NOT, told((fault,), disagree), (fault,), False)
    largest = float(np.max(response.factors)) - 1
    text = (
        f"{headed(Verdict.MARGINALS, disagree)}: {many}; by gradients at draws, means are off by about"
        f" {response.typical_shift():.3f} sds or less (root mean square; the worst by {response.largest_shift():.2f}"
        f" sds), and sds, corrected by up to {largest:.1%}, are known to {response.known:.1%}. What depends on many"
        " parameters at once is not certified."
    )
    return Judgement(Verdict.MARGINALS, text, (), False, response.factors)


def _wrong(found: Marginals | None, response: Response, step: Moves) -> str:
    """What stands against trusting single parameters, as a clause; empty if nothing does."""
    if found is None or max(abs(found.skewness), found.excess) > _NORMAL:
        return "the log ratios of its draws are not those of many small differences"
    if max(step) > _MOVED:
        change = f"a mean by {step.shift:.2f} sds and an sd by {step.change:.0%}"
        return f"expected gradients and Hessians would move {change}"
    odd = found.less(response).unlike(_ONE_OFF)
    if odd:
        return f"{odd:,} of them clearly {'has' if odd == 1 else 'have'} another mean, sd or shape"
    off = response.typical_shift()
    if off > _MEANS_OFF:
        return f"means are known to be within {off:.2f} sds only (root mean square)"
    if response.known > _SDS_OFF:
        largest = float(np.max(response.factors)) - 1
        return f"sds, which gradients at draws correct by up to {largest:.0%}, are known to {response.known:.0%} only"
    return ""
