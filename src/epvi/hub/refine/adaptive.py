"""Adaptive rounds: where Gaussians at the modes cannot hold a posterior, a mixture fitted to the scored draws does.

Takes a posterior and all shards' scores of its draws; gives the posterior of the next round, or the final one. A skewed
scale, an edge of a simplex or a curved ridge shows in the weights of the draws (adaptive importance sampling, Cappé et
al. 2008). Each round's verdict is that of its own, fresh draws alone; the best round counts.
"""

import dataclasses
from typing import TypeVar

import numpy as np

from epvi.ground.status import Status, StatusCode
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.scale_mixture import scale_mixture
from epvi.hub.refine.step import Refinable, Step, finished
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.reasons import Reason, Verdict

# Parameters up to which mixtures are fitted to draws. Judgement: importance weights degenerate with more.
_FEW_PARAMETERS = 20
# Posteriors whose weights have this efficiency need no adaptive rounds, and those with trust and this one no more.
# Judgement: as much as a mixture fitted to some thousand draws can have.
_EFFICIENT = 0.9
# Rounds end when one gains nothing over the best, after this many; and in any case after so many. Judgement: the first
# ones find where the posterior is, and may be worse than what was there before.
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12
# Draws from which on a mixture can be fitted. Judgement.
_LEAST_DRAWS = 1024
# What adaptive rounds can mend.
_MENDABLE = frozenset({Reason.UNEVEN_WEIGHTS, Reason.LOST_MODE})

Posterior = TypeVar("Posterior", bound=Refinable)


def adaptable(posterior: Refinable) -> bool:
    """Whether adaptive rounds may improve a posterior that has its certificate."""
    found = posterior.certificate
    if found is None or posterior.mixture.dim > _FEW_PARAMETERS or found.num_draws < _LEAST_DRAWS:
        return False
    enough = found.verdict == Verdict.TRUST or (found.verdict != Verdict.NOT and found.efficiency >= _EFFICIENT)
    return not enough and set(found.reasons) <= _MENDABLE


def begun(posterior: Posterior, answered: Answered) -> Posterior:
    """The posterior of the first adaptive round, fitted to draws that were scored before."""
    step = posterior.step or Step(0, 1.0, 0.0)
    assert posterior.certificate is not None
    return _next(posterior, dataclasses.replace(step, pool=_pool(answered)), posterior.certificate)


def continued(posterior: Posterior, answered: Answered, certificate: Certificate) -> Posterior:
    """The posterior of the next adaptive round, or the best one if that is not worth it."""
    best, certificate, better = _best(posterior, certificate)
    step = best.step
    assert step is not None
    assert step.pool is not None
    num_rounds = len(step.pool.sources)
    enough = certificate.verdict == Verdict.TRUST and certificate.efficiency >= _EFFICIENT
    in_vain = not better and num_rounds > _LEAST_ROUNDS and certificate.verdict != Verdict.NOT
    if enough or in_vain or num_rounds >= _MOST_ROUNDS:
        return _ended(best, certificate)
    return _next(best, dataclasses.replace(step, pool=step.pool.joined(_pool(answered))), certificate)


def kept_best(posterior: Posterior, certificate: Certificate) -> Posterior:
    """The best posterior of all rounds, with its certificate."""
    return _ended(*_best(posterior, certificate)[:2])


def _best(posterior: Posterior, certificate: Certificate) -> tuple[Posterior, Certificate, bool]:
    """The posterior of this round or of an earlier one, its certificate, and whether it is that of this round.

    The best has the best verdict and, among these, the most efficient weights.
    """
    step = posterior.step
    assert step is not None
    assert step.certificate is not None
    assert step.mixture is not None
    if _rank(certificate) > _rank(step.certificate):
        return posterior, certificate, True
    product = ProductMixture(step.mixture, None, None, Status(StatusCode.REFINED, "refined: the best of all rounds."))
    earlier = dataclasses.replace(step, adapted=step.mixture_adapted)
    return dataclasses.replace(posterior, product=product, step=earlier), step.certificate, False


def _pool(answered: Answered) -> ScoredDraws:
    proposal, possible = answered.proposal, np.isfinite(answered.log_p)
    return ScoredDraws(proposal.theta[possible], answered.log_p[possible], (proposal.source,))


def _rank(certificate: Certificate) -> tuple[int, float]:
    order = (Verdict.NOT, Verdict.MARGINALS, Verdict.CORRECTED, Verdict.TRUST)
    return order.index(certificate.verdict), certificate.efficiency


def _next(best: Posterior, step: Step, certificate: Certificate) -> Posterior:
    """The posterior with a mixture fitted to the pool, to be scored; `best` is what to return to."""
    assert step.pool is not None
    num_rounds = len(step.pool.sources)
    # The number of rounds is the seed: the same draws give the same mixture.
    rng = np.random.default_rng(num_rounds)
    mixture = scale_mixture(*step.pool.telling(rng), rng)
    waiting = dataclasses.replace(
        step,
        rounds=step.rounds + 1,
        before=None,
        adapted=num_rounds,
        mixture=best.mixture,
        mixture_adapted=step.adapted,
        certificate=certificate,
    )
    text = (
        f"{mixture.num_components} Gaussians after {_rounds(waiting)}, fitted to scored draws: have the sites score"
        " the next ones."
    )
    product = ProductMixture(mixture, None, None, Status(StatusCode.UNCONFIRMED, text))
    return dataclasses.replace(best, product=product, step=waiting, certificate=None)


def _ended(posterior: Posterior, certificate: Certificate) -> Posterior:
    step = posterior.step
    assert step is not None
    done = dataclasses.replace(step, mixture=None, mixture_adapted=0, certificate=None, pool=None)
    count = posterior.mixture.num_components
    how = "fitted to scored draws" if done.adapted else "refined"
    text = f"{how}: {count} Gaussian{'s' if count > 1 else ''} after {_rounds(done)}."
    product = ProductMixture(posterior.mixture, None, None, Status(StatusCode.REFINED, text))
    return finished(dataclasses.replace(posterior, product=product, step=done, certificate=certificate))


def _rounds(step: Step) -> str:
    return f"{step.rounds} round{'s' if step.rounds != 1 else ''}"
