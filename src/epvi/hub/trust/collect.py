"""Check the shards' scores of a posterior's draws, and sum them to the log joint density.

Takes a posterior and its shards' `Scores`; refuses scores of other draws, of shards that are not in the posterior, and
of other rows or another share of the prior than were fitted. A stand-in (a fit of a share of the prior without rows)
has nobody to score it: its Gaussian is evaluated here.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from epvi.gaussian.gaussian import components_of
from epvi.gaussian.quasi_random import log_density
from epvi.gaussian.structures import form_of
from epvi.ground.errors import EpviError
from epvi.hub.agreement.compatibility import Known, check_same_model, numbered
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.propose import Proposal, base_of, digest_of, propose
from epvi.wire.answer import Derivatives, Expected, Scores
from epvi.wire.request import mapped
from epvi.wire.shard_fit import ShardFit

# Largest relative difference between a draw as the site has it and as it is generated again here. Judgement: far above
# rounding, far below a posterior sd.
_SAME = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Answered:
    """All shards' answers to one request, and their sums.

    Attributes:
        proposal: the draws and the density that they came from.
        scores: the answers, sorted by shard, without stand-ins.
        log_p: log joint density at every draw: the sum of all log p_m.
        doubt: its standard error at every draw, in nats.
        centres: log joint density, its gradient and Hessian at the centres.
        moments: expected log joint density, gradient and Hessian under the Gaussians; None when not all shards sent
            any.
        slopes: gradients of the log joint density at the base draws of the first Gaussian; None when not all sent any.
    """

    proposal: Proposal
    scores: tuple[Scores, ...]
    log_p: Float[np.ndarray, " S"]
    doubt: Float[np.ndarray, " S"]
    centres: Derivatives
    moments: Expected | None
    slopes: Float[np.ndarray, "R d"] | None = None

    @property
    def proper(self) -> bool:
        """Whether the prior is a proper density, so that the evidence is defined."""
        return all(one.proper for one in self.scores)


def collect(posterior: Approximation, scores: Iterable[Scores]) -> Answered:
    """Check the scores and sum them."""
    given = _sorted(scores)
    for one in given[1:]:
        if one.asked != given[0].asked:
            raise EpviError(
                f"{given[0].called} and {one.called} answer different draws: have all sites score the same file."
            )
    if given[0].asked.posterior != digest_of(posterior):
        raise EpviError(
            f"{given[0].called} answers the draws of another posterior: have the sites score those of this one."
        )
    by_shard = {one.shard: one for one in given}
    _check_present(posterior, given, by_shard)
    proposal = propose(posterior, given[0].asked)
    known = Known()
    for fit in posterior.fits:
        if not fit.is_stand_in:
            _check_one(fit, by_shard[fit.shard], proposal, known)
    _check_echoes(given, proposal.theta[-1])
    stand_ins = [fit for fit in posterior.fits if fit.is_stand_in]
    points = mapped(proposal.modes, base_of(given[0].asked, posterior.space.dim))
    prior = [_own_answer(fit, proposal, points) for fit in stand_ins]
    # A stand-in's Gaussian is the normalised share of the prior; its ELBO is the log of the normalising constant.
    values = [log_density(fit.mixture, proposal.theta) + float(fit.elbo.value) for fit in stand_ins]
    moments = [one.moments for one in given]
    whole = [*moments, *(expected for _, expected in prior)] if points.shape[1] else [None]
    slopes = [*(one.slopes for one in given), *(_own_slopes(fit, proposal, points) for fit in stand_ins)]
    return Answered(
        proposal=proposal,
        scores=tuple(given),
        log_p=_sum([*(one.values for one in given), *values]),
        doubt=np.sqrt(_sum(one.errors**2 for one in given)),
        centres=Derivatives(*_summed([*(one.centres for one in given), *(centres for centres, _ in prior)])),
        moments=None if any(one is None for one in whole) else Expected(*_summed(whole)),
        slopes=None if any(one is None for one in slopes) else np.sum(slopes, axis=0),
    )


def _summed(groups: Sequence[Any]) -> list[np.ndarray]:
    return [_sum(parts) for parts in zip(*groups, strict=True)]


def _sum(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of many arrays, one after the other, without a copy of all."""
    first, *others = arrays
    total = np.array(first)
    for one in others:
        total += one
    return total


def _own_answer(fit: ShardFit, proposal: Proposal, points: Float[np.ndarray, "C R d"]) -> tuple[Derivatives, Expected]:
    """Derivatives and moments of a stand-in, from its Gaussian."""
    means = np.asarray(proposal.modes.means)
    structure = proposal.modes.structure
    own = components_of(fit.mixture, structure)[0]
    gradient = -structure.packing.rows_times(means - own.mean, own.precision)
    precision = structure.hessians.kept(own.precision, structure.packing, len(own.mean))
    hessian = np.broadcast_to(-precision, (len(means), *precision.shape))
    constant = float(fit.elbo.value)
    values = np.stack([log_density(fit.mixture, some) + constant for some in points])
    at = log_density(fit.mixture, means) + constant
    # The gradient is linear and the base draws have mean zero: its average over them is its value at the mean.
    return Derivatives(at, gradient, hessian), Expected(values, gradient, hessian)


def _own_slopes(fit: ShardFit, proposal: Proposal, points: Float[np.ndarray, "C R d"]) -> np.ndarray:
    """The gradients of a stand-in's Gaussian at the base draws of the first Gaussian."""
    structure = proposal.modes.structure
    own = components_of(fit.mixture, structure)[0]
    return -structure.packing.rows_times(points[0] - own.mean, own.precision)


def _sorted(scores: Iterable[Scores]) -> list[Scores]:
    if isinstance(scores, Scores) or not isinstance(scores, Iterable):
        raise EpviError("scores is not a list: pass a list of what epvi.score gives.")
    made = list(scores)
    if not made:
        raise EpviError("there are no scores: pass what epvi.score gives for every shard.")
    for one in made:
        if not isinstance(one, Scores):
            raise EpviError(f"one of the scores is a {type(one).__name__}: pass what epvi.score gives.")
    return sorted(made, key=lambda one: one.shard)


def _check_present(posterior: Approximation, given: list[Scores], by_shard: dict[int, Scores]) -> None:
    fitted = [fit.shard for fit in posterior.fits if not fit.is_stand_in]
    if len(by_shard) < len(given):
        twice = next(a for a, b in itertools.pairwise(given) if a.shard == b.shard)
        raise EpviError(f"{twice.called} has answered twice: leave one out.")
    strange = [one for shard, one in by_shard.items() if shard not in fitted]
    if strange:
        raise EpviError(
            f"{strange[0].called} has scored the draws, but its fit is not in the posterior: combine it first."
        )
    missing = [shard for shard in fitted if shard not in by_shard]
    if missing:
        raise EpviError(f"shard {numbered(missing)} has not scored the draws: add its file.")


def _check_one(fit: ShardFit, one: Scores, proposal: Proposal, known: Known) -> None:
    if (one.num_shards, one.prior) != (fit.num_shards, fit.prior):
        raise EpviError(
            f"{one.called} scored with {one.prior} of the prior, and its fit has {fit.prior}: score with that share."
        )
    rows = fit.made_of.rows, one.made_of.rows
    if one.num_rows != fit.num_rows or (all(rows) and rows[0] != rows[1]):
        raise EpviError(
            f"{one.called} scored {one.num_rows:,} other rows than the {fit.num_rows:,} that were fitted: score the"
            " draws with those, or fit again."
        )
    check_same_model(fit, one, known)
    theta, modes = proposal.theta, proposal.modes
    shapes = one.values.shape, one.echo.shape, one.centres.gradient.shape
    if shapes != ((len(theta),), (theta.shape[1],), np.asarray(modes.means).shape):
        raise EpviError(f"{one.called} has answered other draws than these: have it score them again.")
    if one.moments is not None and one.moments.gradient.shape != np.asarray(modes.means).shape:
        raise EpviError(f"{one.called} has moments of other Gaussians than these: have it score the draws again.")
    asked_whole = modes.structure.hessians.whole
    given = [one.rows.products, *(part.hessian[0] for part in (one.centres, one.moments) if part is not None)]
    for matrix in given:
        if form_of(matrix).whole != asked_whole:
            asked = "whole Hessians" if asked_whole else "diagonals of Hessians"
            raise EpviError(f"{one.called} has not answered with {asked}, as asked: have it score the draws again.")


def _check_echoes(given: list[Scores], last: Float[np.ndarray, " d"]) -> None:
    """Refuse scores of draws that are not the same at the site."""
    other = np.any(np.abs(np.stack([one.echo for one in given]) - last) > _SAME * (1 + np.abs(last)), axis=1)
    if np.any(other):
        one = given[int(np.argmax(other))]
        raise EpviError(
            f"{one.called} was given draws that another version of epvi made: make them again, and score them."
        )
