"""The rounds after the first, when all shards can be asked: a certificate, and steps that are each confirmed or undone.

Takes a posterior and a function that asks all shards; gives the posterior with its certificate.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from epvi.draws import Draws
from epvi.errors import EpviError
from epvi.hub.answered import Answered, collect
from epvi.hub.certify import Certificate, certificate_of
from epvi.hub.posterior import Posterior
from epvi.hub.refine import advance, confirmed
from epvi.packing import mixture_arrays
from epvi.scores import Scores
from epvi.validation import at_least

# Unless said: more rounds have nothing left to gain, or will not gain it.
_MOST_ROUNDS = 3
# Shard m uses the m-th key; that of the draws is out of their reach.
_DRAWS_KEY = 2**31 + 3


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Whether the posterior is certified, and how many steps may refine it."""

    certify: bool
    refine: int

    @classmethod
    def of(cls, certify: Any, refine: Any) -> "Rounds":
        """Of what a user says; without a word, as many steps as help, up to three."""
        if not isinstance(certify, bool):
            raise EpviError(f"certify is {certify!r}: pass True or False.")
        usual = _MOST_ROUNDS if certify else 0
        return cls(certify, usual if refine is None else at_least("refine", refine, 0))

    @property
    def any(self) -> bool:
        """Whether shards are asked at all."""
        return self.certify or self.refine > 0


def run_rounds(posterior: Posterior, ask: Callable[[Draws], list[Scores]], rounds: Rounds, key: jax.Array) -> Posterior:
    """Certify, and refine while that helps; what comes back is never worse than the posterior was."""
    if not rounds.any:
        return posterior
    seed = jax.random.fold_in(key, _DRAWS_KEY)
    posterior, answered, certificate = _asked(posterior, ask, rounds.refine > 0, seed)
    first = posterior.with_certificate(certificate)
    if not rounds.refine:
        return first
    for left in reversed(range(rounds.refine)):
        posterior = advance(posterior, answered, certificate)
        if posterior.step is None or posterior.step.before is None:
            break
        posterior, answered, certificate = _asked(posterior, ask, True, seed)
        if not left:
            posterior = confirmed(posterior, answered, certificate)[0]
    return _better(posterior, first)


def _asked(
    posterior: Posterior, ask: Callable[[Draws], list[Scores]], moments: bool, seed: jax.Array
) -> tuple[Posterior, Answered, Certificate]:
    """Ask all shards; what travelled is counted."""
    draws = posterior.ask(moments=moments, seed=seed)
    scores = ask(draws)
    gaussians = sum(array.size for array in mixture_arrays(draws.gaussians).values())
    sent = draws.theta.size + draws.centres.size + draws.base.size + gaussians
    traffic = posterior.traffic + len(scores) * sent + sum(one.num_numbers for one in scores)
    posterior = dataclasses.replace(posterior, traffic=traffic)
    answered = collect(posterior, scores)
    return posterior, answered, certificate_of(posterior, answered, one_table=True)


def _better(refined: Posterior, first: Posterior) -> Posterior:
    """The refined posterior, unless the product of mixtures was nearer to what all rows say."""
    a, b = refined.certificate, first.certificate
    assert a is not None
    assert b is not None
    noise = 2 * float(np.hypot(a.elbo.standard_error, b.elbo.standard_error))
    if float(b.elbo.value) > float(a.elbo.value) + noise:
        return dataclasses.replace(first, traffic=refined.traffic)
    return refined
