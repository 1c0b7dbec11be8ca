"""Verdicts and the reasons for them as values, and the one place where they become text.

Takes what was found wrong with a posterior, as codes with a clause each; gives the text of a certificate. Which remedy
it names depends on the code and on whether further rounds can still help, never on the wording.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from epvi.ground.status import StatusCode


class Verdict(enum.StrEnum):
    """Whether a posterior can be trusted; the values are the words of certificates and files."""

    TRUST = "trust"
    CORRECTED = "trust with corrected weights"
    NOT = "do not trust"

    @property
    def status_code(self) -> StatusCode:
        """The same as the code of a status."""
        return _STATUS_CODES[self]


_STATUS_CODES = {
    Verdict.TRUST: StatusCode.TRUSTED,
    Verdict.CORRECTED: StatusCode.CORRECTED,
    Verdict.NOT: StatusCode.NOT_TRUSTED,
}


class Reason(enum.StrEnum):
    """Why a posterior cannot be trusted; OTHER is one that a later version has written to a file."""

    PRIOR_SHARES = "prior-shares"
    MISSING_ROWS = "missing-rows"
    SAME_ROWS = "same-rows"
    CONFLICT = "conflict"
    LOST_MODE = "lost-mode"
    UNEVEN_WEIGHTS = "uneven-weights"
    UNCERTAIN_SCORES = "uncertain-scores"
    OTHER = "other"


class Fault(NamedTuple):
    """A reason, and what was found as a clause: "it lacks a mode that ..."."""

    reason: Reason
    finding: str


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
    Reason.OTHER: "",
}
# What rounds of refinement can mend.
_REFINABLE = frozenset({Reason.LOST_MODE, Reason.UNEVEN_WEIGHTS})


def told(faults: Sequence[Fault], instead_of_rounds: Sequence[str] = ()) -> str:
    """The text of "do not trust"; `instead_of_rounds` are the remedies when no further round will help."""
    return f"{Verdict.NOT}: {' Also: '.join(_sentence(fault, instead_of_rounds) for fault in faults)}"


def _sentence(fault: Fault, instead_of_rounds: Sequence[str]) -> str:
    remedy = _REMEDIES[fault.reason]
    if instead_of_rounds and fault.reason in _REFINABLE:
        remedy = f"more rounds do not help: take {', or '.join(instead_of_rounds)}"
    return f"{fault.finding}; {remedy}." if remedy else f"{fault.finding}."
