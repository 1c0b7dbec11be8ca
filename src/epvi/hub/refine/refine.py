"""Refine a posterior by natural-gradient steps on the ELBO of all rows, each confirmed or undone by the next scores.

Takes a posterior and the shards' scores of its draws; gives the posterior of the next round, or the final one. The step
itself is in `natural_gradient.py`; here is decided whether it is kept, so that the ELBO never ends lower than it began.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.status import Status, StatusCode
from epvi.ground.verb import verb
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.adaptive import adaptable, begun, continued, kept_best, least_step
from epvi.hub.refine.natural_gradient import JointMoments, divergence, only, paired_difference, stepped
from epvi.hub.refine.propriety import refuse_runaway, refuse_singular, rests_on_information
from epvi.hub.refine.step import Refinable, Step, finished
from epvi.hub.trust.certify import Certificate, certificate_of
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.propose import base_of
from epvi.wire.answer import Scores

# Steps with a smaller KL divergence, in nats, are not worth a round: 5e-4 is a mean that moves by 0.03 sds (0.03²/2).
WORTH = 5e-4
# After an undone step the step size ρ is divided by the first number, and after a confirmed one multiplied by the
# second, up to 1; below the third refinement ends, after five undone steps in a row. Judgement.
_SHORTER, _LONGER, _LEAST_RATE = 3.0, 2.0, 0.01
# Largest difference between base draws (standard normal) that are generated again. Judgement: far above rounding.
_SAME_DRAWS = 1e-6
# Modes of smaller weight are dropped, as most stray ones are. Judgement: no summary shows 1e-6 of the mass.
_LIGHTEST = 1e-6


Posterior = TypeVar("Posterior", bound=Refinable)


@verb("the refinement")
def refine(posterior: Posterior, scores: Iterable[Scores], *, accept_missing: bool = False) -> Posterior:
    """Confirm or undo the posterior's last step by the scores of its draws, and take the next step.

    The sites then score draws of the posterior that is returned, until its `step.waits` is False: then refinement has
    ended, and the posterior has its certificate. Where steps have converged and Gaussians at the modes are not enough,
    adaptive rounds follow (`adaptive.py`).
    """
    answered = collect(posterior, scores)
    certificate = certificate_of(posterior, answered, accept_missing)
    adapts = posterior.step is not None and posterior.step.adapts
    made = (continued if adapts else advance)(posterior, answered, certificate)
    if not adapts and adaptable(made):
        made = begun(made, answered)
    waits = made.step is not None and made.step.waits
    if not waits:
        refuse_runaway(made, answered)
    logger.info("refinement: %s", "a step was taken, which is to be scored" if waits else "no further step is worth it")
    return made


def settle(posterior: Posterior, scores: Iterable[Scores], *, accept_missing: bool = False) -> Posterior:
    """Confirm or undo the posterior's last step by the scores of its draws, without a further step."""
    answered = collect(posterior, scores)
    certificate = certificate_of(posterior, answered, accept_missing)
    if certificate.status.ok:
        refuse_runaway(posterior, answered)
    if posterior.step is not None and posterior.step.adapts:
        return kept_best(posterior, certificate)
    return confirmed(posterior, answered, certificate)[0]


def advance(posterior: Posterior, answered: Answered, certificate: Certificate, worth: float = WORTH) -> Posterior:
    """The posterior of the next round, or the final one when the next step would move it by less than `worth` nats."""
    stays, moments = confirmed(posterior, answered, certificate)
    if moments is None:
        raise EpviError(
            "the scores hold no moments, which a refinement needs: have the sites score draws that ask for them"
            " (posterior.ask(), epvi certify --draws)."
        )
    refuse_singular(posterior, answered)
    step = stays.step or Step(0, 1.0, 0.0)
    if step.rate < _LEAST_RATE:
        return finished(stays)
    after = stepped(moments, step.rate)
    if after is None:
        return finished(stays)
    kept = np.asarray(after.log_weights) >= np.log(_LIGHTEST)
    # Shards that do not stand alone are asked at the consensus at least once more.
    unasked = stays.step is None and rests_on_information(stays)
    least = least_step(stays, worth)
    if not unasked and divergence(only(moments.gaussians, kept), only(after, kept)) < least:
        return finished(stays)
    after = only(after, kept)
    waiting = Step(step.rounds + 1, step.rate, step.gained, moments, stays.mixture, stays.certificate)
    return _with(stays, after, waiting, None)


def length(before: GaussianMixture, after: GaussianMixture) -> float:
    """The KL divergence of a step, in nats; infinite if it dropped components."""
    return divergence(before, after) if before.num_components == after.num_components else np.inf


def confirmed(
    posterior: Posterior, answered: Answered, certificate: Certificate
) -> tuple[Posterior, JointMoments | None]:
    """The posterior with its last step confirmed or undone, and the expectations under it."""
    moments = moments_of(posterior, answered)
    step = posterior.step
    if step is not None and step.before is not None and moments is not None:
        _check_pairs(step.before, moments, answered.scores[0])
    if step is None or step.before is None:
        return dataclasses.replace(posterior, certificate=certificate), moments
    settled = dataclasses.replace(step, before=None, mixture=None, certificate=None)
    gain = _gain(step, moments, certificate)
    if gain > 0:
        kept = dataclasses.replace(settled, rate=min(_LONGER * step.rate, 1.0), gained=step.gained + gain)
        return _with(posterior, posterior.mixture, kept, certificate), moments
    undone = dataclasses.replace(settled, rate=step.rate / _SHORTER)
    mixture = step.before.gaussians if step.mixture is None else step.mixture
    return _with(posterior, mixture, undone, step.certificate), step.before


def moments_of(posterior: Refinable, answered: Answered) -> JointMoments | None:
    """The expectations under the posterior's Gaussians, summed over shards; None when they were not asked for."""
    if answered.moments is None:
        return None
    base = base_of(answered.scores[0].asked, posterior.space.dim)
    return JointMoments(answered.proposal.modes, base, answered.moments)


def _check_pairs(before: JointMoments, after: JointMoments, one: Scores) -> None:
    """Refuse scores whose base draws are not those before the last step: the gain is estimated from pairs."""
    if before.base.shape != after.base.shape or np.any(np.abs(before.base - after.base) > _SAME_DRAWS):
        raise EpviError(
            f"{one.called} answers draws of another seed than those before the last step, with which they are compared:"
            " have the sites score draws of the same seed (those that epvi refine wrote)."
        )


def _gain(step: Step, after: JointMoments | None, now: Certificate) -> float:
    """The ELBO gained by the step: from paired base draws, limited by what the certificates' draws confirm."""
    assert step.before is not None
    if step.certificate is None:
        return float(paired_difference(step.before, after).value) if after is not None else 0.0
    now_bound, then_bound = now.elbo, step.certificate.elbo
    noise = 2 * float(np.hypot(now_bound.standard_error, then_bound.standard_error))
    told = float(now_bound.value) - float(then_bound.value)
    if not np.isfinite(now_bound.value):
        return -np.inf
    if not np.isfinite(then_bound.value):
        return np.inf if after is None else float(paired_difference(step.before, after).value)
    if after is None:
        return told
    # Steps may overfit the base draws: independent draws limit the gain, with two standard errors of tolerance.
    return min(float(paired_difference(step.before, after).value), told + noise)


def _with(posterior: Posterior, gaussians: GaussianMixture, step: Step, certificate: Certificate | None) -> Posterior:
    """The posterior with this mixture instead of its own."""
    count = "one Gaussian" if gaussians.num_components == 1 else f"{gaussians.num_components} Gaussians"
    rounds = f"{step.rounds} round{'s' if step.rounds != 1 else ''}"
    if step.before is None:
        text = f"refined: {count} after {rounds}, {step.gained:.3g} nats better than the product."
        status = Status(StatusCode.REFINED, text)
    else:
        text = f"{count} after {rounds}: the last step is not confirmed yet; have the sites score it."
        status = Status(StatusCode.UNCONFIRMED, text)
    product = ProductMixture(gaussians, None, None, status)
    return dataclasses.replace(posterior, product=product, step=step, certificate=certificate)
