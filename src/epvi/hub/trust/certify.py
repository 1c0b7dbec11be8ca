"""Check a posterior by importance sampling: the shards' scores at its draws -> a `Certificate`.

Takes a posterior and every shard's `Scores`. These sum to the log joint density at draws of a known proposal, so the
hub needs neither rows nor model to compute importance weights, their effective sample size, PSIS and its k̂, the ELBO,
the evidence, and a verdict. The weights also correct the posterior's summary and draws.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import Estimate
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.status import Status
from epvi.ground.verb import verb
from epvi.hub.trust.agreement import Accord, Agreement, agreement_of
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.chains import Chains
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.reasons import Fault, Reason, Verdict, headed, told
from epvi.hub.trust.score_test import Curvature, Tested, score_test
from epvi.hub.trust.verdict import in_one_order, judge
from epvi.parameters.space import Space
from epvi.wire.answer import Scores

# Largest error of integrals over group effects, in posterior sds. Judgement: as large as that of estimated scores.
_MOST_OF_INTEGRALS = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """Two verdicts, from importance sampling with a posterior as (most of) the proposal.

    `verdict` says whether to trust it as the posterior of this model given these rows, `agreement` whether the rows of
    all shards follow the same parameters. Only the first decides whether it can be used.

    Attributes:
        verdict: "trust", "trust with corrected weights", "trust means and sds", "trust draws of NUTS" or "do not
            trust".
        text: the verdict with its reasons, and what to do; it begins with the verdict and with who disagrees.
        corrects: whether the importance weights are even enough to correct summaries and draws.
        ess: effective sample size of the weights.
        efficiency: `ess` relative to that of an exact posterior under the same proposal.
        k_hat: Pareto shape k̂ of the weights' upper tail (PSIS).
        mean_shift: the largest change of a mean by the weights, in posterior sds.
        mean_error: the largest standard error of a corrected mean, in posterior sds.
        sd_ratios: the smallest and the largest factor by which the weights change an sd.
        elbo: the ELBO in nats, with its standard error.
        log_evidence: log marginal likelihood in nats, with its standard error; None under a flat prior.
        doubt: weighted mean of the standard errors of log p at the draws, in nats; 0 when all scores are exact.
        agreement: whether the shards agree, with p-values and what to do.
        theta: the scored draws.
        weights: their normalised importance weights w ∝ p/g, smoothed by PSIS.
        own: their normalised weights v ∝ q/g if the posterior q were exact.
        faults: what is wrong, as reason codes (`reasons`) with a clause each.
        scales: the factors by which sds of single parameters are corrected under "trust means and sds"; None otherwise.
        chains: draws of NUTS on all rows, from which summaries and draws then are; the numbers above are those of the
            approximation before. None if `fallback` was not asked for, or not needed.
    """

    verdict: Verdict
    text: str
    corrects: bool
    ess: float
    efficiency: float
    k_hat: float
    mean_shift: float
    mean_error: float
    sd_ratios: tuple[float, float]
    elbo: Estimate
    log_evidence: Estimate | None
    doubt: float
    agreement: Agreement
    theta: Float[np.ndarray, "S d"]
    weights: Float[np.ndarray, " S"]
    own: Float[np.ndarray, " S"]
    faults: tuple[Fault, ...] = ()
    scales: Float[np.ndarray, " d"] | None = None
    chains: Chains | None = None

    def __str__(self) -> str:
        if self.chains is not None:
            return f"{_sentence(self.text)}\n{_sentence(self.agreement.text)}\n{_sentence(self.chains.went)}."
        evidence = "" if self.log_evidence is None else f"; log evidence {_told(self.log_evidence)}"
        low, high = self.sd_ratios
        moved = (
            f"; corrected means move by {self.mean_shift:.2f} sds at most, sds by factors from {low:.2f} to {high:.2f}"
            if self.verdict != Verdict.MARGINALS
            else ""
        )
        return (
            f"{_sentence(self.text)}\n{_sentence(self.agreement.text)}\n{self.ess:,.0f} of {self.num_draws:,} draws"
            f" count, Pareto k̂ {self.k_hat:.2f}{moved}; ELBO {_told(self.elbo)}{evidence}."
        )

    def __repr__(self) -> str:
        return f"Certificate({self.text})"

    @property
    def num_draws(self) -> int:
        """How many draws were scored."""
        return len(self.theta)

    @property
    def status(self) -> Status:
        """Whether the posterior can be used; `agreement.status` is another question."""
        disagree = f" {_sentence(self.agreement.text)}" if self.agreement.flagged else ""
        return Status(self.verdict.status_code, self.text + disagree)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why the posterior cannot be trusted, as codes: "uneven-weights", "lost-mode", ...

        None when it can, and of a certificate that an earlier version wrote to a file.
        """
        return tuple(fault.reason for fault in self.faults)

    @property
    def resamples(self) -> bool:
        """Whether samples of the posterior are resampled from the weighted draws."""
        return self.corrects and self.verdict != Verdict.TRUST

    def to_json(self) -> dict[str, Any]:
        """All but the draws, in plain numbers and text."""
        plain = {name: getattr(self, name) for name in _NUMBERS}
        pairs = {"elbo": self.elbo, "log_evidence": self.log_evidence}
        return {
            "verdict": self.verdict.value,
            "text": self.text,
            "reasons": [reason.value for reason in self.reasons],
            "corrects": self.corrects,
            **plain,
            "num_draws": self.num_draws,
            "sd_ratios": list(self.sd_ratios),
            "agreement": self.agreement.to_json(),
            "chains": None if self.chains is None else self.chains.to_json(),
            **{name: None if pair is None else [float(x) for x in pair] for name, pair in pairs.items()},
        }


_NUMBERS = ("ess", "efficiency", "k_hat", "mean_shift", "mean_error", "doubt")


@verb("the certificate")
def certify(posterior: Approximation, scores: Iterable[Scores], *, accept_missing: bool = False) -> Certificate:
    """The certificate of a posterior from the scores of all its shards.

    `posterior.with_certificate(certificate)` has its summary and its draws corrected by the importance weights. A
    posterior that lacks the rows of some shards gets "do not trust", unless `accept_missing` declares that the
    posterior of the other shards is what is wanted.
    """
    if not isinstance(posterior, Approximation):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")
    made = certificate_of(posterior, collect(posterior, scores), accept_missing)
    logger.info("certified by %s draws: %s", f"{made.num_draws:,}", made.text)
    warn_of(made.agreement)
    return made


def warn_of(agreement: Agreement) -> None:
    """Log a warning if shards disagree."""
    if agreement.verdict == Accord.DISAGREE:
        logger.warning("%s", agreement.text)


def with_chains(certificate: Certificate, chains: Chains, space: Space, missed: int) -> Certificate:
    """The certificate of draws of NUTS, in place of that of an approximation that cannot be trusted.

    `space` is that of the chains, and `missed` how many modes of the approximation no chain visited.
    """
    disagree = certificate.agreement.clause
    made = dataclasses.replace(certificate, corrects=False, chains=chains)
    finding = chains.fault([space.coordinate(i) for i in range(space.dim)])
    if missed and not finding:
        finding = f"the chains of NUTS visited all but {missed} of the modes that were found"
    if finding:
        fault = Fault(Reason.CHAINS, finding)
        return dataclasses.replace(made, text=told([fault], disagree), faults=(fault, *certificate.faults))
    text = f"{headed(Verdict.SAMPLED, disagree)}: {chains.went}; summaries and draws are theirs{in_one_order(space)}."
    return dataclasses.replace(made, verdict=Verdict.SAMPLED, text=text, faults=())


def certificate_of(
    posterior: Approximation, answered: Answered, accept_missing: bool = False, one_table: bool = False
) -> Certificate:
    """The certificate from checked scores.

    With `one_table` epvi itself has split the rows, so that equal scores of two shards do not mean that rows count
    twice, and says by itself how well it has integrated out the effects of groups.
    """
    if not np.any(np.isfinite(answered.log_p)):
        raise EpviError("no draw of the posterior is possible for all shards: look at posterior.conflict().")
    weights = weigh(answered.proposal, answered.log_p, posterior.mixture, posterior.space)
    agreed = agreement_of([one.label for one in answered.scores], _tested(answered))
    judged = judge(posterior, answered, weights, agreed, accept_missing, one_table)
    made = Certificate(
        verdict=judged.verdict,
        text=judged.text,
        corrects=judged.corrects,
        ess=weights.ess,
        efficiency=weights.efficiency,
        k_hat=weights.k_hat,
        mean_shift=float(np.max(np.abs(weights.shift))),
        mean_error=float(np.max(weights.noise)),
        sd_ratios=(float(np.min(weights.sd_ratio)), float(np.max(weights.sd_ratio))),
        elbo=weights.elbo,
        log_evidence=weights.log_evidence if answered.proper else None,
        doubt=float(weights.corrected @ answered.doubt),
        agreement=agreed,
        theta=answered.proposal.theta,
        weights=weights.corrected,
        own=weights.own,
        faults=judged.faults,
        scales=judged.scales,
    )
    groups = posterior.fits[0].made_of.groups
    if not groups or one_table:
        return made
    return with_integrals(made, groups, sum(one.integral for one in answered.scores))


def with_integrals(made: Certificate, groups: str, error: float) -> Certificate:
    """The certificate of shared parameters, which judges how well sites have integrated out the effects of groups.

    `error` is the sd, over draws of the shared parameters, of the error of their log density δ: a posterior mean is off
    by Cov(θ, δ), at most sd(δ) posterior sds.
    """
    if error <= _MOST_OF_INTEGRALS:
        said = (
            f" It judges the shared parameters; the effects of {groups} were integrated out where their rows are, with"
            f" errors that move no mean by more than {error:.1g} sds."
        )
        return dataclasses.replace(made, text=made.text + said)
    finding = f"the integrals over the effects of {groups} may be off by what moves a mean by {error:.2g} sds"
    faults = (*made.faults, Fault(Reason.INTEGRALS, finding))
    return dataclasses.replace(made, verdict=Verdict.NOT, text=told(faults), faults=faults)


def _tested(answered: Answered) -> Tested:
    """The score test at the first centre, the posterior's mode or mean."""
    scores = answered.scores
    gradients, products = (np.stack([one.rows[i] for one in scores]) for i in (0, 1))
    hessians = np.stack([one.centres.hessian[0] for one in scores])
    whole = Curvature(answered.centres.gradient[0], answered.centres.hessian[0])
    return score_test(gradients, products, hessians, np.array([one.num_rows for one in scores], np.float64), whole)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _told(estimate: Estimate) -> str:
    return f"{float(estimate.value):,.3f} ± {float(estimate.standard_error):.3f}"
