"""How far an answer is from a known posterior, and which targets that meets.

Errors of means are in the posterior's sds, and sds are ratios to the posterior's. An excess is what is left of an error
after three of its Monte Carlo errors, the reference's and the method's together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from accuracy_peers import Answer
from posteriors import Gold, Moments

# So many Monte Carlo errors are forgiven.
FORGIVEN = 3
# What a refined posterior may be off by, in means and in sds, where rows enter linearly and elsewhere.
LINEAR, OTHER = (0.05, 0.05), (0.1, 0.1)
ONE_ROUND = 0.1
ROWS_PER_PARAMETER = 5

REFINED = "full, refined 3, certified"
ONE_ROUND_METHODS = ("full, certified", "defaults")


class Score(NamedTuple):
    """The worst over all scalars."""

    mean: float  # |error of a mean| in sds
    mean_error: float  # its Monte Carlo error
    where: str  # the scalar that has it
    excess: float  # the most of |error| - 3 Monte Carlo errors
    low: float  # ratios of sds
    high: float
    low_excess: float  # the same, each moved towards 1 by three Monte Carlo errors
    high_excess: float


def score(found: Moments, reference: Moments) -> Score:
    """What is found of the reference's scalars beside the reference."""
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
    """One line of the table; an answer that never came has no score but a sentence."""

    posterior: str
    is_linear: bool
    num_shards: int
    counts: bool  # whether every shard has five rows per parameter: the targets are about these
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
    """A target in one case."""

    target: str
    case: str
    word: str  # held, held within error, missed
    why: str


def targets(results: Sequence[Result]) -> list[Outcome]:
    """All targets in all cases that they are about, from those of their methods that were run."""
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
    """Only a verdict that says not to trust excuses an error: without any, the user is not warned."""
    target = f"{result.method}: means within {ONE_ROUND} sds, or not trusted"
    found, answer = result.score, result.answer
    if found is None or answer is None:
        return Outcome(target, result.case, "held", f"no answer: {result.said}")
    warned = answer.verdict is not None and not answer.verdict.startswith("trust")
    word = _word(warned or found.mean <= ONE_ROUND, found.excess <= ONE_ROUND)
    why = f"{found.mean:.3f} ± {found.mean_error:.3f} sds ({found.where}), verdict: {answer.verdict}"
    return Outcome(target, result.case, word, why)


def _comparable(mine: Result, peer: Result) -> bool:
    """A peer that looks at all rows at once is listed at M = 1 and compared with every M."""
    return mine.posterior == peer.posterior and peer.num_shards in (1, mine.num_shards)


def _beaten(mine: Result, peer: Result) -> Outcome:
    target = f"{REFINED}: means no worse than those of {peer.method}"
    if peer.score is None:
        return Outcome(target, mine.case, "held", f"the peer gave no answer: {peer.said}")
    if mine.score is None:
        return Outcome(target, mine.case, "missed", mine.said)
    error = float(np.hypot(mine.score.mean_error, peer.score.mean_error))
    more = mine.score.mean - peer.score.mean
    # A peer without a finite answer is beaten by any that is finite.
    plainly = more <= 0 or (np.isnan(peer.score.mean) and np.isfinite(mine.score.mean))
    why = f"{mine.score.mean:.3f} beside {peer.score.mean:.3f}, ± {error:.3f} sds"
    return Outcome(target, mine.case, _word(bool(plainly), more <= FORGIVEN * error), why)


def told(outcomes: Iterable[Outcome]) -> list[str]:
    """One line per target with how often it was held, then the cases where it was not plainly."""
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
