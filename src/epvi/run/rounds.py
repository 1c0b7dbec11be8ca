"""Certify and refine a posterior when all shards can be asked: rounds of scoring, each with a natural-gradient step.

Takes a posterior and a function that asks all shards; gives the posterior with its certificate.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import SeedStream
from epvi.ground.validation import at_least
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.refine.adaptive import adaptable, begun, continued, kept_best
from epvi.hub.refine.propriety import refuse_runaway, rests_on_information
from epvi.hub.refine.refine import WORTH, advance, confirmed, length
from epvi.hub.refine.step import finished
from epvi.hub.trust.certify import Certificate, certificate_of
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.propose import asked_of, usual_base
from epvi.hub.trust.reasons import Reason, Verdict
from epvi.hub.trust.single_parameters import MANY, VAGUE, may_be_by_dimension
from epvi.run.scoring import Scoring
from epvi.wire.answer import Scores
from epvi.wire.codec import mixture_arrays
from epvi.wire.request import Draws

# Refinement rounds unless said, at most; beyond the second number only while the last two gained at least so many nats.
# Judgement: most posteriors need one or two, some that are far from Gaussian ten, and a product that is far off more.
_MOST_ROUNDS, _USUAL_ROUNDS, _HELPS = 30, 10, 0.5
# Where importance weights of at least this efficiency correct the posterior, steps of a smaller KL divergence than this
# (in nats) are not worth a round. Judgement: 0.01 nats are a mean that moves by 0.14 sds, which the weights correct.
_WELL, _LITTLE = 0.5, 0.01
# Where weights cannot judge many parameters, they are refined with the usual base draws until a step has a smaller KL
# divergence than this, in nats. Judgement: as much as other base draws move the best Gaussian of so many.
_ROUGH = 0.1
# Where another step is likely to follow, so many draws are scored instead of all: they only have to show whether a step
# is an improvement. Judgement.
_FEW_DRAWS = 256
# Rounds that look around the heaviest draws score so many. Measured on eight ridges in three to five dimensions: they
# show that a ridge goes on as often as with all.
_DRAWS_AROUND = 512
# Another step is likely after the product of the fits above this many parameters, and where the fits are in all further
# from their subposteriors than this (in nats); and after a step if the next one is expected to have a larger KL
# divergence than this. Judgement: a wrong guess costs a round with few draws, or one with more than needed.
_MANY_PARAMETERS, _FAR_FITS, _LARGE_STEP = 64, 0.01, 0.005
# Where weights cannot judge many parameters, gradients are asked for at so many base draws, of so many numbers from all
# shards at most, and at no fewer than the last. Judgement: a mean that is best for R draws is off by a few tenths of an
# sd over √R; 1 GB.
_BASE, _MOST_NUMBERS, _LEAST_BASE = 2048, 2**27, 256


@dataclasses.dataclass(frozen=True)
class Rounds:
    """How a posterior is certified and refined.

    Attributes:
        certify: whether the result has a certificate.
        refine: the largest number of refinement steps.
        scoring: how shards score draws.
        contented: whether refinement ends as soon as the verdict is "trust".
        num_base: how many base draws to ask for gradients at, which judge single parameters; None for the usual
            expectations.
    """

    certify: bool
    refine: int
    scoring: Scoring = dataclasses.field(default_factory=Scoring)
    contented: bool = False
    num_base: int | None = None

    @classmethod
    def of(cls, certify: Any, refine: Any) -> "Rounds":
        """From the arguments of `epvi.fit`; with `refine=None`, refine until the posterior can be trusted."""
        if not isinstance(certify, bool | Scoring):
            raise EpviError(f"certify is {certify!r}: pass True, False, or epvi.Scoring(...).")
        usual = 0 if certify is False else _MOST_ROUNDS
        rounds = usual if refine is None else at_least("refine", refine, 0)
        scoring = certify if isinstance(certify, Scoring) else Scoring()
        return cls(certify is not False, rounds, scoring, contented=refine is None)

    def worth(self, certificate: Certificate) -> float:
        """The least KL divergence of a step, in nats, to be worth a round; larger where the weights correct well.

        What few draws say of the weights is not enough. Of many parameters, which are refined once more with many base
        draws, a first result is rough.
        """
        many = certificate.theta.shape[1] >= MANY and certificate.reasons == (Reason.UNEVEN_WEIGHTS,)
        if self.contented and many and self.num_base is None:
            return _ROUGH
        corrected = certificate.verdict == Verdict.CORRECTED and certificate.efficiency > _WELL
        known = certificate.num_draws >= self.scoring.num_draws
        return _LITTLE if self.contented and corrected and known else WORTH

    def with_few_draws(self, most: int = _FEW_DRAWS) -> "Rounds":
        """The same for a round whose draws are not those of the certificate."""
        few = min(self.scoring.num_draws, most)
        return dataclasses.replace(self, scoring=dataclasses.replace(self.scoring, num_draws=few))

    def goes_on(self, posterior: Posterior) -> bool:
        """Whether a step is likely to follow the round in which this posterior is scored."""
        if not (self.contented and self.refine):
            return False
        step = posterior.step
        gaps = float(np.nansum(np.maximum([fit.gap for fit in posterior.fits], 0.0)))
        if step is None:
            return rests_on_information(posterior) or posterior.space.dim > _MANY_PARAMETERS or gaps > _FAR_FITS
        if step.before is None:
            return False
        taken = length(step.before.gaussians, posterior.mixture)
        if rests_on_information(posterior):
            return taken > _LARGE_STEP
        return next_step(taken, gaps / len(posterior.fits) ** 2, posterior.space.dim) > _LARGE_STEP

    def by_gradients(self, posterior: Posterior, answered: Answered) -> "Rounds | None":
        """The same with gradients at many base draws, to judge single parameters; None if that is no question."""
        certificate = posterior.certificate
        if not self.contented or certificate is None or not may_be_by_dimension(posterior, answered):
            return None
        uneven = certificate.reasons == (Reason.UNEVEN_WEIGHTS,)
        vague = certificate.verdict == Verdict.CORRECTED and certificate.mean_error > VAGUE
        most = _MOST_NUMBERS // (posterior.space.dim * len(posterior.fits))
        if not (uneven or vague) or most < _LEAST_BASE:
            return None
        taken = 0 if posterior.step is None else posterior.step.rounds
        num_base = min(_BASE, 2 ** int(math.log2(most)))
        return dataclasses.replace(self, num_base=num_base, refine=max(self.refine - taken, 1))

    @property
    def any(self) -> bool:
        """Whether shards score draws at all."""
        return self.certify or self.refine > 0


def next_step(taken: float, gap: float, dim: int) -> float:
    """The KL divergence of the step that follows one of a KL divergence of `taken` nats, roughly.

    After a Newton step that moved a mean by e sds, ½ s e² are left, with s the third derivative of the log density in
    units of the sd, so that κ = ½ e² nats are followed by ½ s² κ². In d directions the gap of one Gaussian is about
    (5/24) s² d. It falls as 1/n with the number of rows: that of the posterior is the sum over M shards divided by M².
    """
    return 0.5 * (24 / 5) * gap / dim * taken**2


# A function that sends a request to all shards and returns their scores.
Ask = Callable[[Draws, Scoring], list[Scores]]


def run_rounds(posterior: Posterior, ask: Ask, rounds: Rounds, key: jax.Array) -> Posterior:
    """Certify the posterior, and refine it while the ELBO rises: it never ends lower than it began, within noise."""
    if not rounds.any:
        return posterior
    seed = jax.random.fold_in(key, SeedStream.DRAWS)
    best, answered = _refined(posterior, ask, rounds, seed, hasty=True)
    if best.certificate is not None and best.certificate.num_draws < rounds.scoring.num_draws:
        taken = 0 if best.step is None else best.step.rounds
        rest = dataclasses.replace(rounds, refine=max(rounds.refine - taken, 0))
        best, answered = _refined(best, ask, rest, seed, hasty=False)
    refuse_runaway(best, answered)
    more = rounds.by_gradients(best, answered)
    if more is not None:
        best, answered = _refined(best, ask, more, seed, hasty=False)
    left = rounds.refine - (0 if best.step is None else best.step.rounds)
    if left > 0 and adaptable(best):
        best = _adapted(best, answered, ask, dataclasses.replace(rounds, refine=left), seed)
    best = finished(best) if rounds.contented else best
    return best if rounds.certify else dataclasses.replace(best, certificate=None)


def _refined(
    posterior: Posterior, ask: Ask, rounds: Rounds, seed: jax.Array, *, hasty: bool
) -> tuple[Posterior, Answered]:
    """The posterior after all its rounds, and what the shards said of it.

    With `hasty`, few draws are scored in rounds that are not expected to be the last. Its certificate has few draws if
    one of them was the last nevertheless.
    """

    def asked(posterior: Posterior) -> tuple[Posterior, Answered, Certificate]:
        now = rounds.with_few_draws() if hasty and rounds.goes_on(posterior) else rounds
        bare = dataclasses.replace(posterior, certificate=None)
        posterior, answered, certificate = _asked(bare, ask, now, seed)
        _log_round(posterior, certificate)
        return posterior, answered, certificate

    posterior, answered, certificate = asked(posterior)
    first, at_first = posterior.with_certificate(certificate), answered
    gained: list[float] = []
    for _ in range(rounds.refine):
        if answered.moments is None or (rounds.contented and certificate.verdict == Verdict.TRUST):
            break
        further = advance(posterior, answered, certificate, rounds.worth(certificate))
        if further.step is not None:
            gained.append(further.step.gained)
        if rounds.contented and not _helps(gained):
            break
        posterior = further
        if posterior.step is None or posterior.step.before is None:
            break
        posterior, answered, certificate = asked(posterior)
    # Without a certificate its last step is not confirmed yet.
    posterior = confirmed(posterior, answered, certificate)[0] if posterior.certificate is None else posterior
    best = _better(posterior, first)
    return best, answered if best is posterior else at_first


def _adapted(posterior: Posterior, answered: Answered, ask: Ask, rounds: Rounds, seed: jax.Array) -> Posterior:
    """The posterior after at most `refine` adaptive rounds, which ask for log densities only."""
    only_values = dataclasses.replace(rounds, refine=0)
    posterior = begun(posterior, answered)
    while posterior.step is not None and posterior.step.waits:
        num_rounds, around = posterior.step.adapted, posterior.step.around
        now = only_values.with_few_draws(_DRAWS_AROUND) if around else only_values
        posterior, answered, certificate = _asked(posterior, ask, now, seed)
        logger.info(
            "adaptive round %d: %d Gaussians, %.0f of %s draws count; %s",
            *(num_rounds, posterior.mixture.num_components, certificate.ess),
            *(f"{certificate.num_draws:,}", certificate.verdict),
        )
        left = rounds.refine - num_rounds
        # What two runs have found is searched to its end: these rounds are few.
        goes_on = left > 0 or around > 0
        posterior = continued(posterior, answered, certificate) if goes_on else kept_best(posterior, certificate)
    return posterior


def _helps(gained: list[float]) -> bool:
    """Whether another round is worth it, from the nats gained in all before each round."""
    return len(gained) <= _USUAL_ROUNDS or gained[-1] - gained[-3] >= _HELPS


def _asked(posterior: Posterior, ask: Ask, rounds: Rounds, seed: jax.Array) -> tuple[Posterior, Answered, Certificate]:
    """Have all shards score draws, and add the numbers exchanged to `traffic`."""
    usual = usual_base(posterior.space.dim) if rounds.refine > 0 else 0
    num_base, slopes = rounds.num_base or usual, rounds.num_base is not None
    draws = asked_of(posterior, rounds.scoring.num_draws, num_base, slopes=slopes, seed=seed)
    scores = ask(draws, rounds.scoring)
    gaussians = sum(array.size for array in mixture_arrays(draws.gaussians).values())
    sent = draws.theta.size + draws.centres.size + draws.base.size + gaussians
    traffic = posterior.traffic + len(scores) * sent + sum(one.num_numbers for one in scores)
    posterior = dataclasses.replace(posterior, traffic=traffic)
    answered = collect(posterior, scores)
    return posterior, answered, certificate_of(posterior, answered, one_table=True)


def _log_round(posterior: Posterior, certificate: Certificate) -> None:
    """What the shards said of the product, or of the step that was taken last, before it is confirmed or undone."""
    step, elbo = posterior.step, certificate.elbo
    bound = f"ELBO {float(elbo.value):,.3f} ± {float(elbo.standard_error):.3f}; {certificate.verdict}"
    if step is None:
        logger.info("round 0: the product of the fits, %s", bound)
        return
    if step.before is None:
        logger.info("round %d again, with %s draws: %s", step.rounds, f"{certificate.num_draws:,}", bound)
        return
    before = math.nan if step.certificate is None else float(step.certificate.elbo.value)
    gained = float(elbo.value) - before
    logger.info("round %d: step size %.3g, %+.3g nats gained, %s", step.rounds, step.rate, gained, bound)


def _better(refined: Posterior, first: Posterior) -> Posterior:
    """The refined posterior, unless the ELBO of the product of mixtures was higher by more than two standard errors."""
    a, b = refined.certificate, first.certificate
    assert a is not None
    assert b is not None
    noise = 2 * float(np.hypot(a.elbo.standard_error, b.elbo.standard_error))
    impossible = np.isfinite(b.elbo.value) and not np.isfinite(a.elbo.value)
    if impossible or float(b.elbo.value) > float(a.elbo.value) + noise:
        return dataclasses.replace(first, traffic=refined.traffic)
    return refined
