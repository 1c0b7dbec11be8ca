"""The state of a refinement, which a posterior carries from one round to the next."""

import dataclasses
from typing import Protocol, TypeVar, runtime_checkable

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.refine.natural_gradient import JointMoments
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.verdict import when_refined


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run of adaptive rounds that has ended, while a second one is to confirm it.

    Attributes:
        mixture: the best posterior of its rounds.
        certificate: its certificate.
        adapted: the number of rounds to whose draws that posterior was fitted, or 0.
        pool: the scored draws of all its rounds.
    """

    mixture: GaussianMixture
    certificate: Certificate
    adapted: int
    pool: ScoredDraws


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """State of a refinement.

    Attributes:
        rounds: steps taken so far.
        rate: step size ρ of the next step.
        gained: ELBO gained by all confirmed steps, in nats.
        before: expectations before the last step, if that is not confirmed yet; otherwise None.
        mixture: the posterior before the unconfirmed step, to return to.
        certificate: its certificate.
        adapted: the number of rounds to whose draws the posterior's mixture was fitted (`adaptive.py`), or 0.
        mixture_adapted: the same of `mixture`.
        pool: the scored draws of this run of adaptive rounds, while it goes on; None before its first.
        first: the first run of adaptive rounds, while the second one goes on; the better one, with the draws of both,
            while rounds look around the heaviest draws.
        around: the number of the round that looks around the heaviest draws (`surroundings.py`), or 0.
    """

    rounds: int
    rate: float
    gained: float
    before: JointMoments | None = None
    mixture: GaussianMixture | None = None
    certificate: Certificate | None = None
    adapted: int = 0
    mixture_adapted: int = 0
    pool: ScoredDraws | None = None
    first: Run | None = None
    around: int = 0

    @property
    def adapts(self) -> bool:
        """Whether adaptive rounds are going on."""
        return self.pool is not None or self.first is not None

    @property
    def waits(self) -> bool:
        """Whether the posterior is yet to be scored."""
        return self.before is not None or self.adapts


@runtime_checkable
class Refinable(Approximation, Protocol):
    """A posterior approximation that can have a certificate."""

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, once draws were scored."""
        ...


Posterior = TypeVar("Posterior", bound=Refinable)


def finished(posterior: Posterior) -> Posterior:
    """The final posterior: the text of its certificate no longer recommends refinement."""
    found = posterior.certificate
    if found is None or not found.faults:
        return posterior
    text = when_refined(posterior, found.faults, found.agreement.clause)
    return dataclasses.replace(posterior, certificate=dataclasses.replace(found, text=text))
