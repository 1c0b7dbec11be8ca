"""The second round: scored draws -> a `Certificate` that says whether a posterior can be trusted, and corrects it.

Takes a posterior and every shard's `Scores`. They sum to the log joint at draws of a known density, so the centre needs
neither rows nor model: importance weights, their effective number, PSIS and k̂, the ELBO, the evidence, and a verdict.
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
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered, collect
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.reasons import Fault, Reason, Verdict
from epvi.hub.trust.score_test import agreement
from epvi.hub.trust.verdict import judge
from epvi.wire.answer import Scores


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """What scored draws say of a posterior.

    `verdict` is "trust", "trust with corrected weights" or "do not trust", and `text` says why and what to do. `ess` of
    `num_draws` draws count, `k_hat` is the Pareto shape of their weights' tail. `mean_shift` is by how many sds the
    weights move the mean that moves most, `mean_error` the greatest standard error of a corrected mean, in sds, and
    `sd_ratios` the least and greatest factor by which the weights change an sd. `elbo` and `log_evidence` are in nats
    (no evidence under a flat prior), `doubt` how well the scores are known. `conflict` are p-values of the shards.
    `theta` are the draws with normalised `weights`, and `own` what the posterior itself would weigh them with;
    `corrects` says whether the weights are even enough to be used. `faults` are what is wrong: codes (`reasons`) with
    a clause each.
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
    conflict: tuple[float, ...]
    theta: Float[np.ndarray, "S d"]
    weights: Float[np.ndarray, " S"]
    own: Float[np.ndarray, " S"]
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        evidence = "" if self.log_evidence is None else f"; log evidence {_told(self.log_evidence)}"
        low, high = self.sd_ratios
        return (
            f"{self.text[0].upper()}{self.text[1:]}\n{self.ess:,.0f} of {self.num_draws:,} draws count, Pareto k̂"
            f" {self.k_hat:.2f}; corrected means move by {self.mean_shift:.2f} sds at most, sds by factors from"
            f" {low:.2f} to {high:.2f}; ELBO {_told(self.elbo)}{evidence}."
        )

    def __repr__(self) -> str:
        return f"Certificate({self.text})"

    @property
    def num_draws(self) -> int:
        """How many draws were scored."""
        return len(self.theta)

    @property
    def status(self) -> Status:
        """Whether the posterior can be used."""
        return Status(self.verdict.status_code, self.text)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why the posterior cannot be trusted, as codes: "uneven-weights", "lost-mode", "conflict", ...

        None when it can, and of a certificate that an earlier version wrote to a file.
        """
        return tuple(fault.reason for fault in self.faults)

    @property
    def resamples(self) -> bool:
        """Whether draws of the posterior are to be taken from the weighted ones."""
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
            "conflict": list(self.conflict),
            **{name: None if pair is None else [float(x) for x in pair] for name, pair in pairs.items()},
        }


_NUMBERS = ("ess", "efficiency", "k_hat", "mean_shift", "mean_error", "doubt")


@verb("the certificate")
def certify(posterior: Approximation, scores: Iterable[Scores], *, accept_missing: bool = False) -> Certificate:
    """The certificate of a posterior from the scores of all its shards.

    `posterior.with_certificate(certificate)` has its summary and its draws corrected by it. A posterior without the
    rows of some shards is not trusted unless `accept_missing` says that it is to stand for the others only.
    """
    if not isinstance(posterior, Approximation):
        raise EpviError(f"posterior is a {type(posterior).__name__}: pass what epvi.fit or epvi.combine gives.")
    made = certificate_of(posterior, collect(posterior, scores), accept_missing)
    logger.info("certified by %s draws: %s", f"{made.num_draws:,}", made.text)
    return made


def certificate_of(
    posterior: Approximation, answered: Answered, accept_missing: bool = False, one_table: bool = False
) -> Certificate:
    """The certificate of answers that were checked; of `one_table` when its rows were split by epvi itself."""
    if not np.any(np.isfinite(answered.log_p)):
        raise EpviError("no draw of the posterior is possible for all shards: look at posterior.conflict().")
    weights = weigh(answered.proposal, answered.log_p, posterior.mixture)
    gradients, products = (np.stack([one.rows[i] for one in answered.scores]) for i in (0, 1))
    hessians = np.stack([one.centres.hessian[0] for one in answered.scores])
    agreed = agreement(gradients, products, hessians, np.array([one.num_rows for one in answered.scores], np.float64))
    judged = judge(posterior, answered, weights, agreed, accept_missing, one_table)
    return Certificate(
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
        conflict=agreed.p,
        theta=answered.proposal.theta,
        weights=weights.corrected,
        own=weights.own,
        faults=judged.faults,
    )


def _told(estimate: Estimate) -> str:
    return f"{float(estimate.value):,.3f} ± {float(estimate.standard_error):.3f}"
