"""Whether a posterior can be trusted: a verdict that joins all signals of a round, with its reasons.

Takes answers, weights and agreement; gives a `Judgement`. No signal alone decides: k̂ of single far draws is
large on healthy fits, and draws from one mode look perfect when another was dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.structures import form_of
from epvi.hub.agreement.compatibility import missing_shards, numbered
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.importance import Weights
from epvi.hub.trust.reasons import Fault, Reason, Verdict, told
from epvi.hub.trust.score_test import Agreement

# All thresholds are judgement where nothing else is said; `python benchmarks/verdicts.py` counts the false alarms that
# they raise on healthy fits, of which it allows 2 in 50.

# Up to here the posterior is used as it is: means move by less than this many sds, sds by less than this part.
_SMALL_SHIFT, _SMALL_CHANGE = 0.05, 0.05
# And weights are at least as even as this: effective draws, as a part of what an exact posterior would have.
_EVEN = 0.9
# Weights correct it as long as so many draws count, which are at least this part of those that could, and the
# correction is known to this many sds (with 100 independent draws a mean is known to 0.1 sds).
_LEAST_ESS, _LEAST_EFFICIENCY, _KNOWN = 100.0, 0.05, 0.1
# From this k̂ on, means of weights converge too slowly (Vehtari et al. 2024), if the draws that it is about weigh more
# than this share.
_HEAVY, _TAIL = 0.7, 0.3
# And from this one on, if they change an sd by more than this part: how much more is beyond them is not known.
_HEAVIER, _MUCH = 0.9, 0.1
# A mode that is missing is one with at least this share of the mass.
_MASS = 0.01
# Scores that are known to fewer nats than this do not tell enough.
_DOUBT = 0.1
# Answers of two shards that differ by less than this part are those of the same rows: far above the rounding of sums
# over rows in float64, far below what other rows change.
_SAME_ROWS = 1e-6


class Judgement(NamedTuple):
    """The verdict, its text, what is wrong, and whether the weights correct it."""

    verdict: Verdict
    text: str
    faults: tuple[Fault, ...]
    corrects: bool


def judge(
    posterior: Approximation,
    answered: Answered,
    weights: Weights,
    agreed: Agreement,
    accept_missing: bool,
    one_table: bool,
) -> Judgement:
    """Join the signals; shards of one table have different rows, also where these hold the same values."""
    uneven = _uneven(weights)
    faults = (
        *_shares(posterior, accept_missing),
        *([] if one_table else _same_rows(answered)),
        *_conflicts(answered, agreed),
        *_lost_modes(answered, weights),
        *([uneven] if uneven else []),
        *_doubts(answered, weights),
    )
    if faults:
        return Judgement(Verdict.NOT, told(faults), faults, uneven is None)
    shift, change = float(np.max(np.abs(weights.shift))), float(np.max(np.abs(weights.sd_ratio - 1)))
    moved = (
        f"weights of {weights.ess:,.0f} effective draws ({weights.efficiency:.0%} of what could be) move means by at"
        f" most {shift:.3f} sds and sds by {change:.1%}"
    )
    # Weights that are even say that the shape is right, which means and sds alone do not.
    if shift <= _SMALL_SHIFT and change <= _SMALL_CHANGE and weights.efficiency >= _EVEN:
        return Judgement(Verdict.TRUST, f"{Verdict.TRUST}: {moved}.", (), True)
    text = f"{Verdict.CORRECTED}: {moved}; summaries and draws are corrected by them."
    return Judgement(Verdict.CORRECTED, text, (), True)


def _uneven(weights: Weights) -> Fault | None:
    least = min(_LEAST_ESS, 0.25 * len(weights.corrected))
    few = weights.ess < least or weights.efficiency < _LEAST_EFFICIENCY
    change = float(np.max(np.abs(weights.sd_ratio - 1)))
    heavy = (weights.k_hat > _HEAVY and weights.tail > _TAIL) or (weights.k_hat > _HEAVIER and change > _MUCH)
    vague = float(np.max(weights.noise)) > _KNOWN
    if not (few or heavy or vague):
        return None
    return Fault(
        Reason.UNEVEN_WEIGHTS,
        f"the draws' weights are too uneven to correct it ({weights.ess:,.0f} effective draws, Pareto k̂"
        f" {weights.k_hat:.1f})",
    )


def when_refined(posterior: Approximation, faults: Sequence[Fault]) -> str:
    """The text of "do not trust" when no further round will help: the remedy is another one then."""
    diagonal = not posterior.mixture.structure.hessians.whole
    lacks_mode = any(fault.reason is Reason.LOST_MODE for fault in faults)
    relabelled = lacks_mode and not posterior.space.exchangeable
    remedies = [
        *(["exchangeable=[...] if modes differ only by the order of parameters (epvi.Model)"] if relabelled else []),
        *(["full covariances (inference=epvi.NVI(covariance=epvi.Full()))"] if diagonal else []),
        *(["fewer shards"] if len(posterior.fits) > 1 else []),
        "another parametrisation of the model",
        "MCMC",
    ]
    return told(faults, remedies)


def _shares(posterior: Approximation, accept_missing: bool) -> list[Fault]:
    fits, found = posterior.fits, []
    total = sum(fit.prior for fit in fits)
    if total != 1 and not fits[0].made_of.flat_prior:
        finding = f"the shards' shares of the prior sum to {total}, not to 1"
        found.append(Fault(Reason.PRIOR_SHARES, finding))
    missing = missing_shards(fits)
    if missing and not accept_missing:
        found.append(Fault(Reason.MISSING_ROWS, f"the rows of shard {numbered(missing)} are missing"))
    return found


def _same_rows(answered: Answered) -> list[Fault]:
    """The first pair of shards with the same rows: by their hash, or by answers that are the same up to a constant.

    Of tall shards the scores come from parts of the rows, each shard's own, but the gradients from all.
    """
    scores = answered.scores
    possible = np.all([np.isfinite(one.values) for one in scores], axis=0)
    values = np.stack([one.values[possible] for one in scores])
    values = values - np.mean(values[:, :8], axis=1, keepdims=True) if np.any(possible) else values
    gradients = np.stack([one.centres.gradient.ravel() for one in scores])
    # Where both hashes are known they tell: sites can have the same counts of other rows.
    known = np.array([bool(one.made_of.rows) for one in scores])
    pair = _same_hash(answered) or _first_alike(values, known) or _first_alike(gradients, known)
    if pair is None:
        return []
    a, b = (scores[m].called for m in pair)
    return [Fault(Reason.SAME_ROWS, f"{a} and {b} have scored the same rows, which count twice")]


def _same_hash(answered: Answered) -> tuple[int, int] | None:
    seen: dict[str, int] = {}
    for m, one in enumerate(answered.scores):
        if one.made_of.rows and seen.setdefault(one.made_of.rows, m) != m:
            return seen[one.made_of.rows], m
    return None


def _first_alike(answers: Float[np.ndarray, "M n"], known: Bool[np.ndarray, " M"]) -> tuple[int, int] | None:
    """The first pair with the same answers of which not both are known to have other rows."""
    scale = np.max(np.abs(answers), axis=1, initial=0.0)
    for a in range(len(answers) - 1):
        alike = np.max(np.abs(answers[a + 1 :] - answers[a]), axis=1, initial=0.0) < _SAME_ROWS * scale[a]
        alike &= ~(known[a] & known[a + 1 :])
        if np.any(alike):
            return a, a + 1 + int(np.argmax(alike))
    return None


def _conflicts(answered: Answered, agreed: Agreement) -> list[Fault]:
    if not agreed.flagged:
        return []
    worst = answered.scores[agreed.flagged[0]]
    more = f" (and {len(agreed.flagged) - 1} more)" if len(agreed.flagged) > 1 else ""
    finding = f"{worst.called}{more} is in conflict with the others (p = {agreed.p[agreed.flagged[0]]:.1g})"
    return [Fault(Reason.CONFLICT, finding)]


def _lost_modes(answered: Answered, weights: Weights) -> list[Fault]:
    """Modes that shards have and the posterior lacks, by their mass as the derivatives there tell."""
    proposal = answered.proposal
    means = np.asarray(proposal.modes.means)
    for p in range(proposal.num_modes, len(means)):
        log_mass = _log_mass(*(array[p] for array in answered.centres))
        # The evidence has the mode in it: some of the draws come from there.
        share = min(log_mass - float(weights.log_evidence.value), 0.0)
        if share > np.log(_MASS):
            finding = f"it lacks a mode that shards have found and that holds about {np.exp(share):.0%} of the mass"
            return [Fault(Reason.LOST_MODE, finding)]
    return []


def _log_mass(value: float, gradient: Float[np.ndarray, " d"], hessian: np.ndarray) -> float:
    """The log mass of the Gaussian with these derivatives, at least of the part around the point; none on a slope."""
    matrix = -form_of(hessian).dense(hessian, len(gradient))
    try:
        root = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return -np.inf
    white = np.linalg.solve(root, gradient)
    # Far from a maximum the quadratic says little of its height.
    gain = min(0.5 * float(white @ white), 2.0 * len(gradient))
    return float(value + gain - np.sum(np.log(np.diagonal(root))) + 0.5 * len(gradient) * np.log(2 * np.pi))


def _doubts(answered: Answered, weights: Weights) -> list[Fault]:
    doubt = float(weights.corrected @ answered.doubt)
    if doubt <= _DOUBT:
        return []
    return [Fault(Reason.UNCERTAIN_SCORES, f"the scores are known to {doubt:.2f} nats only")]
