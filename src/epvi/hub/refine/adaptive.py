"""Adaptive rounds: where Gaussians at the modes cannot hold a posterior, a mixture fitted to the scored draws does.

Takes a posterior and all shards' scores of its draws; gives the posterior of the next round, or the final one. A skewed
scale, an edge of a simplex or a curved ridge shows in the weights of the draws (adaptive importance sampling, Cappé et
al. 2008). Each round's verdict is that of its own, fresh draws alone; the best round of a run counts. A second run, on
draws of its own, has to confirm it (`agreement_of_runs.py`), and so have rounds that look around the heaviest draws of
all (`surroundings.py`); if they do not, a new run goes on with all draws.
"""

import dataclasses
from typing import TypeVar

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.status import Status, StatusCode
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.agreement_of_runs import disagreement, missed, wide
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.scale_mixture import scale_mixture
from epvi.hub.refine.step import Refinable, Run, Step, finished
from epvi.hub.refine.surroundings import around_heaviest
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.reasons import Fault, Reason, Verdict, told
from epvi.hub.trust.verdict import FEW_PARAMETERS
from epvi.parameters.one_labelling import OneLabelling

# Posteriors whose weights have this efficiency need no adaptive rounds, or no more. Judgement: as much as a mixture
# fitted to some thousand draws can have.
_EFFICIENT = 0.9
# A run ends when a round gains nothing over the best, from so many on (with the one before them), later if the best is
# below this efficiency; all runs end after so many. Judgement: the first rounds find where the posterior is, and may be
# worse than what was there before. A second run confirms the first from the same efficiency on: standard errors of
# means are 0.03 sds then.
_LEAST_ROUNDS, _LATER_ROUNDS, _MOST_ROUNDS, _HALF = 4, 8, 30, 0.5
# Rounds that look around the heaviest draws, after two runs that agree. Judgement: on thin ridges in three dimensions
# four are enough to show that they go on.
_AROUND = 6
# Draws from which on a mixture can be fitted. Judgement.
_LEAST_DRAWS = 1024
# Natural-gradient steps of a smaller KL divergence than this, in nats, do not mend weights that are too uneven.
# Judgement: means that move by 0.3 sds leave a few effective draws a few; near a scale of zero such steps can go on and
# on.
_TOO_SHORT = 0.05
# Why the best round of a run cannot be trusted by itself.
_ALONE = "no second run of adaptive rounds has confirmed the weights of the first"
_UNSEARCHED = "rounds have ended before the surroundings of the heaviest draws were searched"
# What adaptive rounds can mend.
_MENDABLE = frozenset({Reason.UNEVEN_WEIGHTS, Reason.LOST_MODE})

Posterior = TypeVar("Posterior", bound=Refinable)


def adaptable(posterior: Refinable) -> bool:
    """Whether adaptive rounds may improve a posterior that has its certificate."""
    found = posterior.certificate
    if found is None or posterior.mixture.dim > FEW_PARAMETERS or found.num_draws < _LEAST_DRAWS:
        return False
    enough = found.verdict == Verdict.TRUST or (found.verdict != Verdict.NOT and found.efficiency >= _EFFICIENT)
    return not enough and set(found.reasons) <= _MENDABLE


def least_step(posterior: Refinable, usual: float) -> float:
    """The least KL divergence of a step that is worth a round, larger where adaptive rounds do more.

    Efficient weights with a heavy tail are often mended by one more short step.
    """
    found = posterior.certificate
    uneven = found is not None and found.reasons == (Reason.UNEVEN_WEIGHTS,) and found.efficiency < _EFFICIENT
    return _TOO_SHORT if uneven and adaptable(posterior) else usual


def begun(posterior: Posterior, answered: Answered) -> Posterior:
    """The posterior of the first adaptive round, fitted to draws that were scored before."""
    step = posterior.step or Step(0, 1.0, 0.0)
    assert posterior.certificate is not None
    step = dataclasses.replace(step, pool=_pool(posterior, answered))
    return _next(posterior, posterior.certificate, step)


def continued(posterior: Posterior, answered: Answered, certificate: Certificate) -> Posterior:
    """The posterior of the next adaptive round, or the best one if that is not worth it."""
    if posterior.step is not None and posterior.step.around:
        return _looked_around(posterior, posterior.step, answered)
    best, found, better = _best(posterior, certificate)
    step = _scored(best, posterior, answered)
    in_run = len(step.pool.sources) if step.pool is not None else 0
    in_all = in_run + (len(step.first.pool.sources) if step.first is not None else 0)
    if in_all >= _MOST_ROUNDS:
        return _final(best, found)
    least = _LEAST_ROUNDS if found.efficiency >= _HALF else _LATER_ROUNDS
    if not _settled(found, second=step.first is not None, in_vain=not better and in_run > least):
        return _next(best, found, step)
    if step.first is None:
        return _second(best, found, step)
    assert step.pool is not None
    first, pool = step.first, step.first.pool.joined(step.pool)
    apart = disagreement((first.mixture, first.certificate), (best.mixture, found), pool, posterior.space)
    if apart is None:
        best, found = _better_of(first, best, found)
        adapted = 0 if best.step is None else best.step.adapted
        return _around(best, step, Run(best.mixture, found, adapted, pool), 1)
    return _next(best, _doubted(found, apart), dataclasses.replace(step, pool=pool, first=None))


def _settled(certificate: Certificate, *, second: bool, in_vain: bool) -> bool:
    """Whether a run has ended, from the certificate of its best round: a second one only has to confirm the first."""
    if certificate.verdict == Verdict.NOT:
        return False
    return in_vain or certificate.efficiency >= (_HALF if second else _EFFICIENT)


def _around(posterior: Posterior, step: Step, run: Run, count: int) -> Posterior:
    """The posterior whose draws are around the heaviest ones of a run that a second one has confirmed."""
    num_rounds = len(run.pool.sources)
    begins = dataclasses.replace(
        step,
        mixture=None,
        mixture_adapted=0,
        certificate=None,
        adapted=num_rounds,
        pool=None,
        first=run,
        around=count,
    )
    mixture = around_heaviest(run.pool, np.random.default_rng(num_rounds))
    return _asked(posterior, mixture, begins, "around the draws that weigh most")


def _looked_around(posterior: Posterior, step: Step, answered: Answered) -> Posterior:
    """The next round of looking around; after the last one the confirmed posterior, or that of a new run."""
    assert step.first is not None
    run = dataclasses.replace(step.first, pool=step.first.pool.joined(_pool(posterior, answered)))
    if step.around < _AROUND:
        return _around(posterior, step, run, step.around + 1)
    best = _with(posterior, run.mixture, run.adapted)
    assert best.step is not None
    apart = missed((run.mixture, run.certificate), run.pool, posterior.space)
    if apart is None:
        return _ended(best, run.certificate)
    doubted = _doubted(run.certificate, apart)
    if len(run.pool.sources) >= _MOST_ROUNDS:
        return _ended(best, doubted)
    return _next(best, doubted, dataclasses.replace(best.step, pool=run.pool, first=None, around=0))


def kept_best(posterior: Posterior, certificate: Certificate) -> Posterior:
    """The best posterior of all rounds, with its certificate."""
    step = posterior.step
    if step is not None and step.around and step.first is not None:
        confirmed = _with(posterior, step.first.mixture, step.first.adapted)
        return _ended(confirmed, _doubted(step.first.certificate, _UNSEARCHED))
    return _final(*_best(posterior, certificate)[:2])


def _best(posterior: Posterior, certificate: Certificate) -> tuple[Posterior, Certificate, bool]:
    """The posterior of this round or of an earlier one of its run, its certificate, and whether it is this round's.

    The best has the best verdict and, among these, the most efficient weights.
    """
    step = posterior.step
    assert step is not None
    if step.certificate is None or step.mixture is None or _rank(certificate) > _rank(step.certificate):
        return posterior, certificate, True
    return _with(posterior, step.mixture, step.mixture_adapted), step.certificate, False


def _better_of(first: Run, best: Posterior, certificate: Certificate) -> tuple[Posterior, Certificate]:
    """The better one of two runs that agree."""
    if _rank(first.certificate) < _rank(certificate):
        return best, certificate
    return _with(best, first.mixture, first.adapted), first.certificate


def _with(posterior: Posterior, mixture: GaussianMixture, adapted: int) -> Posterior:
    """The posterior with a mixture of an earlier round, fitted to the draws of so many."""
    assert posterior.step is not None
    status = Status(StatusCode.REFINED, "refined: the best of all rounds.")
    step = dataclasses.replace(posterior.step, adapted=adapted)
    return dataclasses.replace(posterior, product=ProductMixture(mixture, None, None, status), step=step)


def _scored(best: Posterior, posterior: Posterior, answered: Answered) -> Step:
    """The state of `best` with the draws of this round in the pool of its run."""
    step, new = best.step, _pool(posterior, answered)
    assert step is not None
    return dataclasses.replace(step, pool=new if step.pool is None else step.pool.joined(new))


def _pool(posterior: Refinable, answered: Answered) -> ScoredDraws:
    """The draws that can be, in one labelling of exchangeable units: the density is that of this one alone."""
    proposal, possible = answered.proposal, np.isfinite(answered.log_p)
    if posterior.space.exchangeable:
        possible &= OneLabelling.around(posterior.mixture, posterior.space).has(proposal.theta)
    return ScoredDraws(proposal.theta[possible], answered.log_p[possible], (proposal.source,))


def _rank(certificate: Certificate) -> tuple[int, float]:
    order = (Verdict.NOT, Verdict.MARGINALS, Verdict.CORRECTED, Verdict.TRUST)
    return order.index(certificate.verdict), certificate.efficiency


def _next(best: Posterior, certificate: Certificate, step: Step) -> Posterior:
    """The posterior with a mixture fitted to the pool, to be scored; `best` is what to return to."""
    assert step.pool is not None
    num_rounds = len(step.pool.sources) + (len(step.first.pool.sources) if step.first is not None else 0)
    # The number of rounds is the seed: the same draws give the same mixture.
    rng = np.random.default_rng(num_rounds)
    mixture = scale_mixture(*step.pool.telling(rng), rng)
    waiting = dataclasses.replace(
        step, mixture=best.mixture, mixture_adapted=step.adapted, certificate=certificate, adapted=num_rounds
    )
    return _asked(best, mixture, waiting, "fitted to scored draws")


def _second(best: Posterior, certificate: Certificate, step: Step) -> Posterior:
    """The posterior that begins the second run."""
    assert step.pool is not None
    first = Run(best.mixture, certificate, step.adapted, step.pool)
    begins = dataclasses.replace(
        step,
        mixture=None,
        mixture_adapted=0,
        certificate=None,
        adapted=len(step.pool.sources),
        pool=None,
        first=first,
    )
    return _asked(best, wide(certificate), begins, "around all scored draws, to confirm them")


def _asked(posterior: Posterior, mixture: GaussianMixture, step: Step, how: str) -> Posterior:
    """The posterior with a mixture whose draws are to be scored."""
    waiting = dataclasses.replace(step, rounds=step.rounds + 1, before=None)
    count = mixture.num_components
    gaussians = "one Gaussian" if count == 1 else f"{count} Gaussians"
    text = f"{gaussians} after {_rounds(waiting)}, {how}: have the sites score the next ones."
    product = ProductMixture(mixture, None, None, Status(StatusCode.UNCONFIRMED, text))
    return dataclasses.replace(posterior, product=product, step=waiting, certificate=None)


def _final(best: Posterior, certificate: Certificate) -> Posterior:
    """The best posterior when no further round follows: one of adaptive rounds is not trusted without a second run."""
    step = best.step
    assert step is not None
    if step.first is not None:
        best, certificate = _better_of(step.first, best, certificate)
    alone = step.first is not None or step.adapted > 0
    return _ended(best, _doubted(certificate, _ALONE) if alone else certificate)


def _doubted(certificate: Certificate, finding: str) -> Certificate:
    """The certificate of a run that no other one confirms."""
    if certificate.verdict == Verdict.NOT:
        return certificate
    faults = (Fault(Reason.RUNS_DIFFER, finding),)
    return dataclasses.replace(
        certificate, verdict=Verdict.NOT, text=told(faults, certificate.agreement.clause), faults=faults
    )


def _ended(posterior: Posterior, certificate: Certificate) -> Posterior:
    step = posterior.step
    assert step is not None
    done = dataclasses.replace(step, mixture=None, mixture_adapted=0, certificate=None, pool=None, first=None, around=0)
    count = posterior.mixture.num_components
    how = "fitted to scored draws" if done.adapted else "refined"
    text = f"{how}: {count} Gaussian{'s' if count > 1 else ''} after {_rounds(done)}."
    product = ProductMixture(posterior.mixture, None, None, Status(StatusCode.REFINED, text))
    return finished(dataclasses.replace(posterior, product=product, step=done, certificate=certificate))


def _rounds(step: Step) -> str:
    return f"{step.rounds} round{'s' if step.rounds != 1 else ''}"
