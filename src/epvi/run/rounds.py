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
from epvi.hub.refine.refine import WORTH, advance, confirmed, finished
from epvi.hub.trust.certify import Certificate, certificate_of
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.reasons import Reason, Verdict
from epvi.hub.trust.verdict import draws_that_tell
from epvi.run.scoring import Scoring
from epvi.wire.answer import Scores
from epvi.wire.codec import mixture_arrays
from epvi.wire.request import Draws

# Refinement rounds unless said. Judgement: most posteriors need one or two, some that are far from Gaussian need ten.
_MOST_ROUNDS = 10
# Where importance weights of at least this efficiency correct the posterior, steps of a smaller KL divergence than this
# (in nats) are not worth a round. Judgement: 0.01 nats are a mean that moves by 0.14 sds, which the weights correct.
_WELL, _LITTLE = 0.5, 0.01
# Above this many parameters the product of the fits is almost never good enough, and so many draws are scored of it
# instead of all: they only have to show whether a step is an improvement. Judgement.
_MANY_PARAMETERS, _FEW_DRAWS = 128, 256
# Where more draws can show that means and sds of many parameters are right, up to so many times as many are scored in
# the end, of so many numbers at most. Judgement: as much work as a few rounds, and 256 MB.
_MOST_TIMES, _MOST_NUMBERS = 8, 2**25


@dataclasses.dataclass(frozen=True)
class Rounds:
    """How a posterior is certified and refined.

    Attributes:
        certify: whether the result has a certificate.
        refine: the largest number of refinement steps.
        scoring: how shards score draws.
        contented: whether refinement ends as soon as the verdict is "trust".
    """

    certify: bool
    refine: int
    scoring: Scoring = dataclasses.field(default_factory=Scoring)
    contented: bool = False

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
        """The least KL divergence of a step, in nats, to be worth a round; larger where the weights correct well."""
        corrected = certificate.verdict == Verdict.CORRECTED and certificate.efficiency > _WELL
        return _LITTLE if self.contented and corrected else WORTH

    def beginning(self, dim: int) -> "Rounds":
        """The same for the first round of a refinement that goes on until the posterior can be trusted."""
        if dim <= _MANY_PARAMETERS or not (self.contented and self.refine) or self.scoring.num_draws <= _FEW_DRAWS:
            return self
        return dataclasses.replace(self, scoring=dataclasses.replace(self.scoring, num_draws=_FEW_DRAWS))

    def telling(self, posterior: Posterior, answered: Answered, certificate: Certificate) -> "Rounds | None":
        """The same with as many draws as can show that means and sds are right; None if that is no question."""
        if not self.contented or certificate.reasons != (Reason.UNEVEN_WEIGHTS,):
            return None
        count = draws_that_tell(posterior, answered)
        most = min(_MOST_TIMES * self.scoring.num_draws, _MOST_NUMBERS // posterior.space.dim)
        if count is None or not self.scoring.num_draws < count <= most:
            return None
        return dataclasses.replace(self, scoring=dataclasses.replace(self.scoring, num_draws=count))

    @property
    def any(self) -> bool:
        """Whether shards score draws at all."""
        return self.certify or self.refine > 0


# A function that sends a request to all shards and returns their scores.
Ask = Callable[[Draws, Scoring], list[Scores]]


def run_rounds(posterior: Posterior, ask: Ask, rounds: Rounds, key: jax.Array) -> Posterior:
    """Certify the posterior, and refine it while the ELBO rises: it never ends lower than it began, within noise."""
    if not rounds.any:
        return posterior
    seed = jax.random.fold_in(key, SeedStream.DRAWS)
    posterior, answered, certificate = _asked(posterior, ask, rounds.beginning(posterior.space.dim), seed)
    _log_round(posterior, certificate)
    first, scored = posterior.with_certificate(certificate), posterior
    for _ in range(rounds.refine):
        if answered.moments is None or (rounds.contented and certificate.verdict == Verdict.TRUST):
            break
        posterior = advance(posterior, answered, certificate, rounds.worth(certificate))
        if posterior.step is None or posterior.step.before is None:
            break
        posterior, answered, certificate = _asked(posterior, ask, rounds, seed)
        scored = posterior
        _log_round(posterior, certificate)
    # Without a certificate its last step is not confirmed yet.
    posterior = confirmed(posterior, answered, certificate)[0] if posterior.certificate is None else posterior
    best = _better(posterior, first)
    if best.certificate is not None and best.certificate.num_draws < rounds.scoring.num_draws:
        # It is the product, of which only few draws were scored.
        best, answered, certificate = _asked(best, ask, rounds, seed)
        best = scored = best.with_certificate(certificate)
    more = None if best.certificate is None else rounds.telling(scored, answered, best.certificate)
    if more is not None:
        best, _, certificate = _asked(best, ask, more, seed)
        best = best.with_certificate(certificate)
    best = finished(best) if rounds.contented else best
    return best if rounds.certify else dataclasses.replace(best, certificate=None)


def _asked(posterior: Posterior, ask: Ask, rounds: Rounds, seed: jax.Array) -> tuple[Posterior, Answered, Certificate]:
    """Have all shards score draws, and add the numbers exchanged to `traffic`."""
    draws = posterior.ask(rounds.scoring.num_draws, moments=rounds.refine > 0, seed=seed)
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
