"""Verdicts and reason codes, and the only place where they are turned into text.

Takes what is wrong with a posterior, as reason codes with a clause each; gives the text of a certificate. The remedy
that it names depends on the code and on whether further refinement rounds can help, never on the wording.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.ground.status import StatusCode


class Verdict(enum.StrEnum):
    """Whether a posterior can be trusted; the values are used in certificates and files."""

    TRUST = "trust"
    CORRECTED = "trust with corrected weights"
    MARGINALS = "trust means and sds"
    SAMPLED = "trust draws of NUTS"
    NOT = "do not trust"

    @property
    def status_code(self) -> StatusCode:
        """The status code of the verdict."""
        return _STATUS_CODES[self]


_STATUS_CODES = {
    Verdict.TRUST: StatusCode.TRUSTED,
    Verdict.CORRECTED: StatusCode.CORRECTED,
    Verdict.MARGINALS: StatusCode.MARGINALS,
    Verdict.SAMPLED: StatusCode.CHAINS,
    Verdict.NOT: StatusCode.NOT_TRUSTED,
}


class Reason(enum.StrEnum):
    """Why a posterior cannot be trusted; OTHER stands for a code of a later version, read from a file.

    CONFLICT is only in files of earlier versions, in which shards that disagree made it "do not trust".
    """

    PRIOR_SHARES = "prior-shares"
    MISSING_ROWS = "missing-rows"
    SAME_ROWS = "same-rows"
    CONFLICT = "conflict"
    LOST_MODE = "lost-mode"
    UNEVEN_WEIGHTS = "uneven-weights"
    UNCERTAIN_SCORES = "uncertain-scores"
    LABELS = "labels"
    NOT_REFINED = "not-refined"
    EFFECTS = "effects"
    CHAINS = "chains"
    RUNS_DIFFER = "runs-differ"
    INTEGRALS = "integrals"
    OTHER = "other"


class Fault(NamedTuple):
    """A reason code, and the finding as a clause: "it lacks a mode that ..."."""

    reason: Reason
    finding: str


class Judgement(NamedTuple):
    """A verdict with its reasons.

    Attributes:
        verdict: whether the posterior can be trusted.
        text: the verdict in words, with reasons and remedies.
        faults: what is wrong, as reason codes with a clause each.
        corrects: whether the importance weights can correct summaries and draws.
        scales: factors by which the sds of single parameters are to be corrected, where weights cannot; else None.
    """

    verdict: Verdict
    text: str
    faults: tuple[Fault, ...]
    corrects: bool
    scales: Float[np.ndarray, " d"] | None = None


_REFINE = "refine it (refine=10, epvi refine)"
_REMEDIES = {
    Reason.PRIOR_SHARES: "fit them with shares that do",
    Reason.MISSING_ROWS: (
        "add them (posterior.update, epvi combine), or accept it as the posterior of the others (accept_missing=True,"
        " --accept-missing)"
    ),
    Reason.SAME_ROWS: "leave one out, and let the other carry its share of the prior",
    Reason.CONFLICT: (
        "check the coding and units of its columns, and its labels (posterior.conflict(), epvi combine --check)"
    ),
    Reason.LOST_MODE: _REFINE,
    Reason.UNEVEN_WEIGHTS: _REFINE,
    Reason.UNCERTAIN_SCORES: "ask for exact ones (exact=True, --exact)",
    Reason.LABELS: "fix an order by an ordered prior (dist.transforms.OrderedTransform), or declare them (epvi.Model)",
    Reason.NOT_REFINED: _REFINE,
    Reason.EFFECTS: "write the model so that effects are nearly normal given the other parameters, or take MCMC",
    Reason.CHAINS: (
        "take more warm-up and draws (fallback=epvi.NUTS(num_warmup=..., num_samples=...)), or another parametrisation"
        " of the model"
    ),
    Reason.RUNS_DIFFER: _REFINE,
    Reason.INTEGRALS: "give each group fewer effects, or effects whose prior is nearer to a normal one",
    Reason.OTHER: "",
}
# Reasons that refinement rounds can remove.
_REFINABLE = frozenset({Reason.LOST_MODE, Reason.UNEVEN_WEIGHTS, Reason.RUNS_DIFFER})


def headed(verdict: Verdict, disagree: str) -> str:
    """What a text begins with: the verdict and, if some shards do, the clause that they `disagree`."""
    return f"{verdict}, {'and' if verdict == Verdict.NOT else 'but'} {disagree}" if disagree else f"{verdict}"


def told(faults: Sequence[Fault], disagree: str = "", instead_of_rounds: Sequence[str] = ()) -> str:
    """The text of "do not trust"; `instead_of_rounds` are the remedies when no further round will help."""
    sentences = " Also: ".join(_sentence(fault, instead_of_rounds) for fault in faults)
    return f"{headed(Verdict.NOT, disagree)}: {sentences}"


def _sentence(fault: Fault, instead_of_rounds: Sequence[str]) -> str:
    remedy = _REMEDIES[fault.reason]
    if instead_of_rounds and fault.reason in _REFINABLE:
        remedy = f"more rounds do not help: take {', or '.join(instead_of_rounds)}"
    return f"{fault.finding}; {remedy}." if remedy else f"{fault.finding}."
