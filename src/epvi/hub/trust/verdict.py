"""Decide whether a posterior can be trusted, from all diagnostics of a round, with the reasons.

Takes summed scores and importance weights; gives a `Judgement`. No diagnostic decides alone: k̂ is large on good fits
when a few draws lie far out, and the weights of draws from one mode look perfect when another was dropped. Whether the
shards agree does not decide (`agreement.py`): the text says it beside the verdict.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.structures import form_of
from epvi.hub.agreement.compatibility import missing_shards, numbered
from epvi.hub.trust.agreement import Agreement
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.importance import Weights
from epvi.hub.trust.reasons import Fault, Judgement, Reason, Verdict, headed, told
from epvi.hub.trust.single_parameters import by_single_parameters
from epvi.parameters.space import Space

# All thresholds are judgement where nothing else is said; `python benchmarks/verdicts.py` counts the false alarms that
# they raise on healthy fits, of which it allows 2 in 50.

# "Trust" needs that the importance weights shift every mean by at most this many sds, and change every sd by at most
# this fraction.
_SMALL_SHIFT, _SMALL_CHANGE = 0.05, 0.05
# It also needs this efficiency: effective sample size relative to that of an exact posterior.
_EVEN = 0.9
# The weights can correct a posterior from this effective sample size and this efficiency on, if the standard errors of
# the corrected means are at most this many sds (100 independent draws give 0.1).
_LEAST_ESS, _LEAST_EFFICIENCY, _KNOWN = 100.0, 0.05, 0.1
# Above this k̂ importance sampling converges too slowly (Vehtari et al. 2024); it counts only if the draws in the Pareto
# tail hold more than this share of the weight.
_HEAVY, _TAIL = 0.7, 0.3
# Above this k̂ the tail also counts if the weights change an sd by more than this fraction: draws farther out, which are
# missing, might change it more.
_HEAVIER, _MUCH = 0.9, 0.1
# With more parameters than this no adaptive rounds follow (importance weights degenerate with more), and nothing
# confirms what the weights say. There a shift of a mean by more than so many sds, by weights of less than this
# efficiency, is one of a curved ridge, whose ends draws miss: a Gaussian that is merely shifted keeps its efficiency.
# Judgement: bananas in two of 22 dimensions with larger shifts had sds down to 0.65 of the right ones; heavy tails and
# unknown scales had smaller shifts.
FEW_PARAMETERS, _CURVED_SHIFT, _CURVED = 20, 0.12, 0.6
# Posterior mass from which on a mode that the posterior lacks is reported.
_MASS = 0.01
# The largest standard error of log p at a draw, in nats, averaged with the weights: above it, the error of the scores
# dominates the weights.
_DOUBT = 0.1
# Two shards whose scores differ by less than this, relative to their size, have the same rows: far above the rounding
# errors of float64 sums over rows, far below the difference that other rows make.
_SAME_ROWS = 1e-6


def judge(
    posterior: Approximation,
    answered: Answered,
    weights: Weights,
    agreed: Agreement,
    accept_missing: bool,
    one_table: bool,
) -> Judgement:
    """Combine all diagnostics; shards of `one_table` have different rows, even where their values are equal."""
    uneven = _uneven(weights)
    faults = (
        *_shares(posterior, accept_missing),
        *_labels(posterior),
        *([] if one_table else _same_rows(answered)),
        *_lost_modes(answered, weights),
        *([uneven] if uneven else []),
        *_doubts(answered, weights),
        *_not_refined(posterior),
    )
    alone = by_single_parameters(posterior, answered, weights, agreed.clause) if set(faults) <= {uneven} else None
    if alone is not None and (uneven is not None or alone.verdict is Verdict.MARGINALS):
        return alone
    if faults:
        return Judgement(Verdict.NOT, told(faults, agreed.clause), faults, uneven is None)
    shift, change = float(np.max(np.abs(weights.shift))), float(np.max(np.abs(weights.sd_ratio - 1)))
    order = in_one_order(posterior.space) if weights.log_labellings > 0 else ""
    known = 2 * float(np.max(weights.noise))
    moved = (
        f"weights of {weights.ess:,.0f} effective draws ({weights.efficiency:.0%} of what could be) move means by at"
        f" most {shift:.3f} sds and sds by {change:.1%}, each known to ±{known:.3f} sds{order}"
    )
    # Even weights show that the whole density is right, and not only its means and sds.
    if shift <= _SMALL_SHIFT and change <= _SMALL_CHANGE and weights.efficiency >= _EVEN:
        return Judgement(Verdict.TRUST, f"{headed(Verdict.TRUST, agreed.clause)}: {moved}.", (), True)
    text = f"{headed(Verdict.CORRECTED, agreed.clause)}: {moved}; summaries and draws are corrected by them."
    return Judgement(Verdict.CORRECTED, text, (), True)


def in_one_order(space: Space) -> str:
    """What a verdict is about if units of the model are exchangeable, as a clause: one of their labellings."""
    names = "; ".join(", ".join(group) for group in space.exchangeable)
    return f"; exchangeable parameters ({names}) are in one order" if names else ""


def _uneven(weights: Weights) -> Fault | None:
    least = min(_LEAST_ESS, 0.25 * len(weights.corrected))
    few = weights.ess < least or weights.efficiency < _LEAST_EFFICIENCY
    change = float(np.max(np.abs(weights.sd_ratio - 1)))
    heavy = (weights.k_hat > _HEAVY and weights.tail > _TAIL) or (weights.k_hat > _HEAVIER and change > _MUCH)
    vague = float(np.max(weights.noise)) > _KNOWN
    if not (few or heavy or vague):
        return _curved(weights)
    return Fault(
        Reason.UNEVEN_WEIGHTS,
        f"the draws' weights are too uneven to correct it ({weights.ess:,.0f} effective draws, Pareto k̂"
        f" {weights.k_hat:.1f})",
    )


def _curved(weights: Weights) -> Fault | None:
    """A posterior of many parameters that is not Gaussian in a way that weights alone cannot correct."""
    shift = float(np.max(np.abs(weights.shift)))
    if len(weights.shift) <= FEW_PARAMETERS or shift <= _CURVED_SHIFT or weights.efficiency >= _CURVED:
        return None
    return Fault(
        Reason.UNEVEN_WEIGHTS,
        f"the draws' weights move a mean by {shift:.2f} sds and are uneven ({weights.efficiency:.0%} of what could be):"
        " it may be a curved ridge, whose ends no draw reaches",
    )


def when_refined(posterior: Approximation, faults: Sequence[Fault], disagree: str = "") -> str:
    """The text of "do not trust" after refinement has converged: the remedy is no longer to refine."""
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
    return told(faults, disagree, remedies)


def _shares(posterior: Approximation, accept_missing: bool) -> list[Fault]:
    fits, found = posterior.fits, []
    # Most shares are equal, and fractions are slow to add.
    total = sum(share * count for share, count in Counter(fit.prior for fit in fits).items())
    if total != 1 and not fits[0].made_of.flat_prior:
        finding = f"the shards' shares of the prior sum to {total}, not to 1"
        found.append(Fault(Reason.PRIOR_SHARES, finding))
    missing = missing_shards(fits)
    if missing and not accept_missing:
        found.append(Fault(Reason.MISSING_ROWS, f"the rows of shard {numbered(missing)} are missing"))
    return found


def _labels(posterior: Approximation) -> list[Fault]:
    """Labels that can be exchanged without changing the model, and that shards may have fitted in different orders."""
    unaligned = next((fit.made_of.unaligned for fit in posterior.fits if fit.made_of.unaligned), ())
    if not unaligned:
        return []
    finding = f"labels can be exchanged without changing the model, and are not aligned ({'; '.join(unaligned)})"
    return [Fault(Reason.LABELS, finding)]


def _same_rows(answered: Answered) -> list[Fault]:
    """The first pair of shards with the same rows: with equal row hashes, or with scores equal up to a constant.

    Gradients are compared as well: a tall shard's scores may come from a random subset of its rows, its gradients do
    not.
    """
    scores = answered.scores
    possible = np.all([np.isfinite(one.values) for one in scores], axis=0)
    values = np.stack([one.values[possible] for one in scores])
    values = values - np.mean(values[:, :8], axis=1, keepdims=True) if np.any(possible) else values
    gradients = np.stack([one.centres.gradient.ravel() for one in scores])
    # Where both hashes are known they decide: two sites can have equal values in different rows.
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
    """The first pair of shards with equal answers, among pairs of which not both row hashes are known."""
    scale = np.max(np.abs(answers), axis=1, initial=0.0)
    for a in range(0 if np.all(known) else len(answers) - 1):
        alike = np.max(np.abs(answers[a + 1 :] - answers[a]), axis=1, initial=0.0) < _SAME_ROWS * scale[a]
        alike &= ~(known[a] & known[a + 1 :])
        if np.any(alike):
            return a, a + 1 + int(np.argmax(alike))
    return None


def _lost_modes(answered: Answered, weights: Weights) -> list[Fault]:
    """Modes that shards have and the posterior lacks, with their mass by Laplace's approximation."""
    proposal = answered.proposal
    means = np.asarray(proposal.modes.means)
    for p in range(proposal.num_modes, len(means)):
        log_mass = _log_mass(*(array[p] for array in answered.centres))
        # The evidence includes the mode, since some of the draws come from there, and all labellings of each.
        share = min(log_mass - float(weights.log_evidence.value) + weights.log_labellings, 0.0)
        if share > np.log(_MASS):
            finding = f"it lacks a mode that shards have found and that holds about {np.exp(share):.0%} of the mass"
            return [Fault(Reason.LOST_MODE, finding)]
    return []


def _log_mass(value: float, gradient: Float[np.ndarray, " d"], hessian: np.ndarray) -> float:
    """Laplace approximation of the log mass from value, gradient and Hessian at a point; −inf if not concave."""
    matrix = -form_of(hessian).dense(hessian, len(gradient))
    try:
        root = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return -np.inf
    white = np.linalg.solve(root, gradient)
    # Far from the maximum the quadratic expansion overestimates its height: the gain is capped at 2 nats per parameter.
    gain = min(0.5 * float(white @ white), 2.0 * len(gradient))
    return float(value + gain - np.sum(np.log(np.diagonal(root))) + 0.5 * len(gradient) * np.log(2 * np.pi))


def _not_refined(posterior: Approximation) -> list[Fault]:
    """Whether shards that do not stand alone were asked only at points of their own so far."""
    lacking = [fit for fit in posterior.fits if not fit.stands_alone]
    if not lacking or posterior.step is not None:
        return []
    finding = f"{lacking[0].called} and {len(lacking) - 1} more" if len(lacking) > 1 else lacking[0].called
    return [Fault(Reason.NOT_REFINED, f"{finding} did not bound all parameters alone, and it was not refined yet")]


def _doubts(answered: Answered, weights: Weights) -> list[Fault]:
    doubt = float(weights.corrected @ answered.doubt)
    if doubt <= _DOUBT:
        return []
    return [Fault(Reason.UNCERTAIN_SCORES, f"the scores are known to {doubt:.2f} nats only")]
