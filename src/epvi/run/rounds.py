"""The rounds after the first, when all shards can be asked: a certificate, and steps that are each confirmed or undone.

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
from epvi.hub.trust.reasons import Verdict
from epvi.run.scoring import Scoring
from epvi.wire.answer import Scores
from epvi.wire.codec import mixture_arrays
from epvi.wire.request import Draws

# Steps of refinement at most, unless said. Judgement: most posteriors take one or two, some that are far from Gaussian
# take ten.
_MOST_ROUNDS = 10
# Weights of at least this efficiency (effective draws, as a part of what an exact posterior would have) correct what a
# step of this many nats would. Judgement: 0.01 nats are about 0.14 sds of one parameter.
_WELL, _LITTLE = 0.5, 0.01


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Whether and how the posterior is certified, and how many steps may refine it."""

    certify: bool
    refine: int
    scoring: Scoring = dataclasses.field(default_factory=Scoring)
    # Whether a posterior that can be trusted as it is needs no more steps.
    contented: bool = False

    @classmethod
    def of(cls, certify: Any, refine: Any) -> "Rounds":
        """Of what a user says; without a word, as many steps as it takes until the posterior can be trusted."""
        if not isinstance(certify, bool | Scoring):
            raise EpviError(f"certify is {certify!r}: pass True, False, or epvi.Scoring(...).")
        usual = 0 if certify is False else _MOST_ROUNDS
        rounds = usual if refine is None else at_least("refine", refine, 0)
        scoring = certify if isinstance(certify, Scoring) else Scoring()
        return cls(certify is not False, rounds, scoring, contented=refine is None)

    def worth(self, certificate: Certificate) -> float:
        """How far a step must lead, in nats, to be worth a round: weights that correct well leave little to do."""
        corrected = certificate.verdict == Verdict.CORRECTED and certificate.efficiency > _WELL
        return _LITTLE if self.contented and corrected else WORTH

    @property
    def any(self) -> bool:
        """Whether shards are asked at all."""
        return self.certify or self.refine > 0


# Asks all shards.
Ask = Callable[[Draws, Scoring], list[Scores]]


def run_rounds(posterior: Posterior, ask: Ask, rounds: Rounds, key: jax.Array) -> Posterior:
    """Certify, and refine while that helps; what comes back is never worse than the posterior was."""
    if not rounds.any:
        return posterior
    seed = jax.random.fold_in(key, SeedStream.DRAWS)
    posterior, answered, certificate = _asked(posterior, ask, rounds, seed)
    _log_round(posterior, certificate)
    first = posterior.with_certificate(certificate)
    for _ in range(rounds.refine):
        if answered.moments is None or (rounds.contented and certificate.verdict == Verdict.TRUST):
            break
        posterior = advance(posterior, answered, certificate, rounds.worth(certificate))
        if posterior.step is None or posterior.step.before is None:
            break
        posterior, answered, certificate = _asked(posterior, ask, rounds, seed)
        _log_round(posterior, certificate)
    # Its last step, if it is still to be confirmed.
    posterior = confirmed(posterior, answered, certificate)[0] if posterior.certificate is None else posterior
    best = _better(posterior, first)
    best = finished(best) if rounds.contented else best
    return best if rounds.certify else dataclasses.replace(best, certificate=None)


def _asked(posterior: Posterior, ask: Ask, rounds: Rounds, seed: jax.Array) -> tuple[Posterior, Answered, Certificate]:
    """Ask all shards; what travelled is counted."""
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
    """The refined posterior, unless the product of mixtures was nearer to what all rows say."""
    a, b = refined.certificate, first.certificate
    assert a is not None
    assert b is not None
    noise = 2 * float(np.hypot(a.elbo.standard_error, b.elbo.standard_error))
    impossible = np.isfinite(b.elbo.value) and not np.isfinite(a.elbo.value)
    if impossible or float(b.elbo.value) > float(a.elbo.value) + noise:
        return dataclasses.replace(first, traffic=refined.traffic)
    return refined
