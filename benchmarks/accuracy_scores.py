"""Errors of an answer against a reference posterior, and the targets that it meets.

Errors of means are in sds of the reference, and sds are ratios to those of the reference. An excess is what remains of
an error after subtracting three Monte Carlo standard errors, of reference and method combined.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from accuracy_peers import Answer
from posteriors import Gold, Moments

# Monte Carlo standard errors subtracted before an error counts against a target.
FORGIVEN = 3
# Largest errors of a refined posterior, in means (in sds) and in sds (relative), for linear and logistic models and for
# others.
LINEAR, OTHER = (0.05, 0.05), (0.1, 0.1)
# Largest error of a mean, in sds, of a posterior that is trusted after one round.
ONE_ROUND = 0.1
# Least rows per parameter in every shard for the targets to apply.
ROWS_PER_PARAMETER = 5

REFINED = "full, refined 3, certified"
ONE_ROUND_METHODS = ("full, certified", "defaults")


class Score(NamedTuple):
    """The worst errors over all scalars."""

    mean: float  # largest |error of a mean| in sds
    mean_error: float  # its Monte Carlo standard error
    where: str  # the scalar that has it
    excess: float  # largest |error| minus three Monte Carlo standard errors
    low: float  # smallest ratio of an sd to the reference's
    high: float  # largest ratio
    low_excess: float  # smallest ratio after moving each towards 1 by three standard errors
    high_excess: float  # largest ratio after the same


def score(found: Moments, reference: Moments) -> Score:
    """Compare the scalars of the reference."""
    found = found.of(reference.names)
    away = np.abs(found.mean - reference.mean) / reference.sd
    error = np.hypot(found.mean_error, reference.mean_error) / reference.sd
    ratio = found.sd / reference.sd
    ratio_error = np.hypot(found.sd_error, ratio * reference.sd_error) / reference.sd
    i = int(np.argmax(away))
    return Score(
        float(away[i]),
        float(error[i]),
        reference.names[i],
        float(np.max(away - FORGIVEN * error)),
        float(np.min(ratio)),
        float(np.max(ratio)),
        float(np.min(ratio + FORGIVEN * ratio_error)),
        float(np.max(ratio - FORGIVEN * ratio_error)),
    )


class Result(NamedTuple):
    """One line of the table; a method that failed has no answer and no score, but a message."""

    posterior: str
    is_linear: bool
    num_shards: int
    counts: bool  # whether every shard has five rows per parameter, so that the targets apply
    method: str
    is_peer: bool
    answer: Answer | None
    score: Score | None
    said: str = ""

    @property
    def case(self) -> str:
        return f"{self.posterior}, M = {self.num_shards}"


def rows_allow(gold: Gold, num_shards: int) -> bool:
    """Whether every shard has more rows than there are parameters."""
    return num_shards == 1 or gold.num_rows // num_shards > gold.dim


def counts(gold: Gold, num_shards: int) -> bool:
    return gold.num_rows // num_shards >= ROWS_PER_PARAMETER * gold.dim


class Outcome(NamedTuple):
    """Whether a target was met in one case."""

    target: str
    case: str
    word: str  # held, held within error, missed
    why: str  # the figures


def targets(results: Sequence[Result]) -> list[Outcome]:
    """All targets in all cases to which they apply, for the methods that were run."""
    about = [result for result in results if result.counts]
    refined = [_refined(result) for result in about if result.method == REFINED]
    one_round = [_one_round(result) for result in about if result.method in ONE_ROUND_METHODS]
    ours = [result for result in about if result.method == REFINED]
    theirs = [result for result in about if result.is_peer]
    beaten = [_beaten(mine, peer) for mine in ours for peer in theirs if _comparable(mine, peer)]
    return [*refined, *one_round, *beaten]


def _word(plainly: bool, within_error: bool) -> str:
    return "held" if plainly else "held within error" if within_error else "missed"


def _refined(result: Result) -> Outcome:
    means, sds = LINEAR if result.is_linear else OTHER
    target = f"{REFINED}: means within {means} sds, sds within {sds:.0%}"
    found = result.score
    if found is None:
        return Outcome(target, result.case, "missed", result.said)
    plainly = found.mean <= means and 1 - sds <= found.low and found.high <= 1 + sds
    within = found.excess <= means and 1 - sds <= found.low_excess and found.high_excess <= 1 + sds
    why = (
        f"{found.mean:.3f} ± {found.mean_error:.3f} sds ({found.where}), sd ratios {found.low:.3f} to {found.high:.3f}"
    )
    return Outcome(target, result.case, _word(plainly, within), why)


def _one_round(result: Result) -> Outcome:
    """An error is excused only by the verdict "do not trust": without a verdict the user is not warned."""
    target = f"{result.method}: means within {ONE_ROUND} sds, or not trusted"
    found, answer = result.score, result.answer
    if found is None or answer is None:
        return Outcome(target, result.case, "held", f"no answer: {result.said}")
    warned = answer.verdict is not None and not answer.verdict.startswith("trust")
    word = _word(warned or found.mean <= ONE_ROUND, found.excess <= ONE_ROUND)
    why = f"{found.mean:.3f} ± {found.mean_error:.3f} sds ({found.where}), verdict: {answer.verdict}"
    return Outcome(target, result.case, word, why)


def _comparable(mine: Result, peer: Result) -> bool:
    """Whether the two can be compared: a peer on all rows is listed at M = 1 and compared at every M."""
    return mine.posterior == peer.posterior and peer.num_shards in (1, mine.num_shards)


def _beaten(mine: Result, peer: Result) -> Outcome:
    target = f"{REFINED}: means no worse than those of {peer.method}"
    if peer.score is None:
        return Outcome(target, mine.case, "held", f"the peer gave no answer: {peer.said}")
    if mine.score is None:
        return Outcome(target, mine.case, "missed", mine.said)
    error = float(np.hypot(mine.score.mean_error, peer.score.mean_error))
    more = mine.score.mean - peer.score.mean
    # Any finite answer is better than one that is not finite.
    plainly = more <= 0 or (np.isnan(peer.score.mean) and np.isfinite(mine.score.mean))
    why = f"{mine.score.mean:.3f} beside {peer.score.mean:.3f}, ± {error:.3f} sds"
    return Outcome(target, mine.case, _word(bool(plainly), more <= FORGIVEN * error), why)


def told(outcomes: Iterable[Outcome]) -> list[str]:
    """One line per target with the number of cases that met it, then the cases that did not, or only within error."""
    lines = []
    by_target: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_target.setdefault(outcome.target, []).append(outcome)
    for target, cases in by_target.items():
        number: Callable[[str], int] = [case.word for case in cases].count
        word = "MISSED" if number("missed") else "held"
        within = f", {number('held within error')} more within error" if number("held within error") else ""
        lines.append(f"{word}: {target}; in {number('held')} of {len(cases)} cases{within}")
        lines += [f"    {case.word}: {case.case}: {case.why}" for case in cases if case.word != "held"]
    return lines
