"""Further rounds: steps on the ELBO of all rows, each confirmed or undone by the next answers.

Takes a posterior and the shards' answers to its draws; gives the posterior of the next round, or the one to stay with.
What a step is, `ascent.py` says; that a posterior never ends worse than it began is decided here.
"""

import dataclasses
from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.status import Status, StatusCode
from epvi.ground.verb import verb
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.natural_gradient import JointMoments, divergence, only, paired_difference, stepped
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.certify import Certificate, certificate_of
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.propose import base_of
from epvi.hub.trust.verdict import when_refined
from epvi.wire.answer import Scores

# A step that moves the posterior by less than this, in nats, is not worth a round: 0.03 sds of one parameter.
WORTH = 5e-4
# Steps below this size are given up.
_LEAST_RATE = 0.1
# How near base draws are that were made again.
_SAME_DRAWS = 1e-6
# Modes that turn out lighter than this are dropped, as most stray ones are.
_LIGHTEST = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """Where a refinement is: after how many rounds, with which step size, and what was before the last step.

    `gained` are the nats that confirmed steps have gained. Without `before` no step is waiting to be confirmed; with
    it, `mixture` and `certificate` are the posterior's as it was, to go back to.
    """

    rounds: int
    rate: float
    gained: float
    before: JointMoments | None = None
    mixture: GaussianMixture | None = None
    certificate: Certificate | None = None


@runtime_checkable
class Refinable(Approximation, Protocol):
    """A posterior with its certificate, once draws of it were scored."""

    @property
    def certificate(self) -> Certificate | None:
        """What scored draws said of it."""
        ...


Posterior = TypeVar("Posterior", bound=Refinable)


@verb("the refinement")
def refine(posterior: Posterior, scores: Iterable[Scores], *, accept_missing: bool = False) -> Posterior:
    """Take the answers to a posterior's draws: confirm or undo its last step, and take the next.

    The posterior that comes back has draws for the sites to score again, unless `posterior.step.before` is None: then
    nothing was left to improve, and it has its certificate.
    """
    answered = collect(posterior, scores)
    made = advance(posterior, answered, certificate_of(posterior, answered, accept_missing))
    waits = made.step is not None and made.step.before is not None
    logger.info("refinement: %s", "a step was taken, which is to be scored" if waits else "no further step is worth it")
    return made


def settle(posterior: Posterior, scores: Iterable[Scores], *, accept_missing: bool = False) -> Posterior:
    """Take the answers to a posterior's draws and take no further step: its last one is confirmed or undone."""
    answered = collect(posterior, scores)
    return confirmed(posterior, answered, certificate_of(posterior, answered, accept_missing))[0]


def advance(posterior: Posterior, answered: Answered, certificate: Certificate, worth: float = WORTH) -> Posterior:
    """The posterior of the next round, or the one to stay with when the step would not be worth it."""
    stays, moments = confirmed(posterior, answered, certificate)
    if moments is None:
        raise EpviError(
            "the scores hold no moments, which a refinement needs: have the sites score draws that ask for them"
            " (posterior.ask(), epvi certify --draws)."
        )
    step = stays.step or Step(0, 1.0, 0.0)
    if step.rate < _LEAST_RATE:
        return finished(stays)
    after = stepped(moments, step.rate)
    if after is None:
        return finished(stays)
    kept = np.asarray(after.log_weights) >= np.log(_LIGHTEST)
    if divergence(only(moments.gaussians, kept), only(after, kept)) < worth:
        return finished(stays)
    after = only(after, kept)
    waiting = Step(step.rounds + 1, step.rate, step.gained, moments, stays.mixture, stays.certificate)
    return _with(stays, after, waiting, None)


def finished(posterior: Posterior) -> Posterior:
    """The posterior that no further round will improve: its verdict says so."""
    found = posterior.certificate
    if found is None or not found.faults:
        return posterior
    text = when_refined(posterior, found.faults)
    return dataclasses.replace(posterior, certificate=dataclasses.replace(found, text=text))


def confirmed(
    posterior: Posterior, answered: Answered, certificate: Certificate
) -> tuple[Posterior, JointMoments | None]:
    """The posterior after its last step was confirmed or undone, and its moments."""
    moments = moments_of(posterior, answered)
    step = posterior.step
    if step is not None and step.before is not None and moments is not None:
        _check_pairs(step.before, moments, answered.scores[0])
    if step is None or step.before is None:
        return dataclasses.replace(posterior, certificate=certificate), moments
    settled = dataclasses.replace(step, before=None, mixture=None, certificate=None)
    gain = _gain(step, moments, certificate)
    if gain > 0:
        kept = dataclasses.replace(settled, rate=1.0, gained=step.gained + gain)
        return _with(posterior, posterior.mixture, kept, certificate), moments
    undone = dataclasses.replace(settled, rate=0.5 * step.rate)
    mixture = step.before.gaussians if step.mixture is None else step.mixture
    return _with(posterior, mixture, undone, step.certificate), step.before


def moments_of(posterior: Refinable, answered: Answered) -> JointMoments | None:
    """What the shards together said of the posterior's Gaussians."""
    if answered.moments is None:
        return None
    base = base_of(answered.scores[0].asked, posterior.space.dim)
    return JointMoments(answered.proposal.modes, base, answered.moments)


def _check_pairs(before: JointMoments, after: JointMoments, one: Scores) -> None:
    """Refuse answers that cannot be set beside those before the last step, draw by draw."""
    if before.base.shape != after.base.shape or np.any(np.abs(before.base - after.base) > _SAME_DRAWS):
        raise EpviError(
            f"{one.called} answers draws of another seed than those before the last step, with which they are compared:"
            " have the sites score draws of the same seed (those that epvi refine wrote)."
        )


def _gain(step: Step, after: JointMoments | None, now: Certificate) -> float:
    """How many nats the step gained: by pairs of base draws, as far as the certificates' own draws allow it."""
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
    # Steps may suit the base draws better than the posterior: other draws must not deny it.
    return min(float(paired_difference(step.before, after).value), told + noise)


def _with(posterior: Posterior, gaussians: GaussianMixture, step: Step, certificate: Certificate | None) -> Posterior:
    """The posterior with these Gaussians in the place of its own."""
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
