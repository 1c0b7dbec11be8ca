"""Whether the shards agree, which is another question than whether the posterior of all their rows is computed right.

Takes p-values of the score test; gives an `Agreement`, the second verdict of a certificate, with what to do. Shards
that differ (countries), or one with swapped labels, have a posterior like any others: it can be right, and the model
wrong about them.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from epvi.ground.status import Status, StatusCode
from epvi.hub.trust.score_test import FALSE_ALARMS, Tested

# Smaller p-values are not told apart: float64 ends there.
_SMALLEST = 1e-300


class Accord(enum.StrEnum):
    """Whether shards agree; the values are used in certificates and files."""

    AGREE = "the shards agree"
    DISAGREE = "the shards disagree"
    UNTESTED = "not tested"


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Whether the rows of every shard follow the same parameters as those of the others.

    Attributes:
        verdict: "the shards agree", "the shards disagree" or "not tested".
        text: the verdict with the shards that it is about, and what to do.
        shards: labels of the shards that have rows.
        p: their p-values by the score test, Bonferroni-corrected; 1 where a shard could not be tested.
        flagged: labels of the shards that disagree with the others, smallest p-value first.
    """

    verdict: Accord
    text: str
    shards: tuple[str, ...]
    p: tuple[float, ...]
    flagged: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """Whether no shard disagrees."""
        codes = {Accord.AGREE: StatusCode.AGREEMENT, Accord.DISAGREE: StatusCode.CONFLICT}
        return Status(codes.get(self.verdict, StatusCode.NOTHING_TO_COMPARE), self.text)

    @property
    def clause(self) -> str:
        """Who disagrees, as a clause; empty if nobody does."""
        if not self.flagged:
            return ""
        least = f"p = {min(self.p):.1g}" if min(self.p) > _SMALLEST else f"p < {_SMALLEST:.0g}"
        if len(self.shards) == 2:
            return f"shard {self.shards[0]} and shard {self.shards[1]} disagree ({least})"
        more = len(self.flagged) - 1
        who = f"shard {self.flagged[0]}" + (f" and {more} more disagree" if more else " disagrees")
        return f"{who} with the others ({least})"

    def to_json(self) -> dict[str, Any]:
        """In plain numbers and text."""
        return {
            "verdict": self.verdict.value,
            "text": self.text,
            "p": dict(zip(self.shards, self.p, strict=True)),
            "flagged": list(self.flagged),
        }


def agreement_of(shards: Sequence[str], tested: Tested) -> Agreement:
    """The verdict on the shards with these labels, by the score test."""
    p, labels = tested.p, tuple(shards)
    order = sorted((value, m) for m, value in enumerate(p) if value < FALSE_ALARMS)
    flagged = tuple(labels[m] for _, m in order)
    if flagged:
        made = Agreement(Accord.DISAGREE, "", labels, p, flagged)
        return dataclasses.replace(made, text=f"{made.clause}: {_REMEDY}.")
    if not any(tested.judged):
        return Agreement(Accord.UNTESTED, _why_not(len(labels), tested), labels, p)
    left = len(labels) - sum(tested.judged)
    few = f"; {left} had too few rows for the test" if left else ""
    text = f"the {len(labels)} shards agree: the smallest p-value of the score test is {min(p):.2g}{few}."
    return Agreement(Accord.AGREE, text, labels, p)


_REMEDY = (
    "see where (posterior.conflict(), epvi combine --check), and check the units and coding of its columns, and its"
    " labels; if these are right, the shards differ, and the model should say how (an effect of the shard, such as an"
    " intercept of its own)"
)


def _why_not(count: int, tested: Tested) -> str:
    if count < 2:
        return "whether shards agree was not tested: fewer than two have rows."
    if not tested.near_mode:
        return (
            "whether the shards agree was not tested: the posterior is too far from the mode of all rows. Look at"
            " posterior.conflict()."
        )
    return (
        "whether the shards agree was not tested: they have too few rows for the number of parameters. Take fewer"
        " shards to test it."
    )
