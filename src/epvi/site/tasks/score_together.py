"""Answers of several shards together, in a few passes over all their rows.

Takes the rows of several shards and `Draws`; gives the `Scores` of each shard, or None: then the shards answer alone
(`score.py`). Where rows are few, all are used at every draw. Otherwise each shard's Taylor expansions about the centres
come from its own rows. What they leave over is estimated for all shards of the batch together, on subsamples of their
rows, and allotted to them by their numbers of rows: the posterior needs the sum over shards, and it is the standard
error of the sum that counts.
"""

import dataclasses
import time
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from epvi.gaussian.structures import WHOLE
from epvi.site.derivatives.averages import averages
from epvi.site.derivatives.expansion import Taylor
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.expansions_cache import ExpansionsCache, summed
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.columns import Columns
from epvi.site.tasks.answers import Answers, Asking, each_checked, finite, scores_of, slopes_asked
from epvi.site.tasks.answers_expanded import Estimates, estimates
from epvi.site.tasks.score import answers_of_many
from epvi.site.tasks.score_many import MANY, ManyParameters, near_enough, products, sampling_pays, too_many
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part

# Most values of rows of a block, at all draws together, that are in memory at once: 8 MB; and least number of draws at
# once. Judgement.
_MOST_VALUES, _LEAST_AT_ONCE = 2**20, 64
# Most numbers of Hessians that are in memory at once: 32 MB. Judgement.
_MOST_NUMBERS = 2**22
# Up to this many shards, a matrix product for each is faster. Judgement.
_FEW_SHARDS = 8
# Most products of two coordinates of a displacement, counted twice, that are in memory at once: 256 MB. Judgement.
_MOST_PRODUCTS = 2**26


def answer_together(
    programs: Programs,
    columns: Columns,
    sizes: Sequence[int],
    parts: Sequence[Part],
    draws: Draws,
    asking: Asking,
    known: ExpansionsCache,
) -> list[Scores] | None:
    """The scores of shards whose rows lie one after the other; `known` are expansions from earlier rounds."""
    start, num_rows = time.perf_counter(), sum(sizes)
    if draws.form is not WHOLE:
        return None
    window = block_size(programs, columns, num_rows, 1)
    windows = Windows.of(np.array(sizes), window, max(sizes), programs.target.bundle)
    shares = np.array([float(part.prior) for part in parts])
    each = Subposteriors(programs, columns, windows, shares, np.ones(len(parts)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        answers = None
        bundle = programs.target.bundle
        tries = not asking.exact and (bundle > 1 or bool(asking.sizes(num_rows, draws, bundle)))
        if tries and sampling_pays(each, draws, parts[0].shard, asking.certain):
            prior = sum((part.prior for part in parts), Fraction(0))
            batch = Subposterior.of(programs, columns, prior, asking.rows_per_block)
            answers = _estimated(each, batch, draws, [part.shard for part in parts], asking, known)
        if answers is None and too_many(draws, num_rows):
            own = [known.about(each, centre, near_enough(each.dim)) for centre in draws.centres]
            shards, shares = [part.shard for part in parts], asking.share * np.array(sizes) / num_rows
            answers = answers_of_many(ManyParameters(each, own, draws, shards, shares, asking.exact))
        answers = each_checked(answers or _by_all_rows(each, draws))
        slopes = slopes_asked(each, draws)
    seconds = time.perf_counter() - start
    scores = []
    for m, (part, begin, size, answer) in enumerate(zip(parts, windows.bounds[:-1], sizes, answers, strict=True)):
        effort = int(each.passes[m]), seconds * size / num_rows
        count = programs.target.num_rows({name: column[begin : begin + size] for name, column in columns.items()})
        scores.append(scores_of(programs, count, draws, part, asking, answer, effort, slopes[m]))
    return scores


def _estimated(
    each: Subposteriors,
    batch: Subposterior,
    draws: Draws,
    shards: list[int],
    asking: Asking,
    known: ExpansionsCache,
) -> list[Answers] | None:
    """The answers by Taylor expansions; None if no size of subsamples is accurate enough."""
    own = [known.about(each, centre) for centre in draws.centres]
    memory = known.one_shard(own)
    made = estimates(batch, draws, shards[0], dataclasses.replace(asking, memory=memory))
    known.keep(memory.higher)
    if made is None:
        return None
    spread = products(each, draws, shards) if each.dim > MANY else known.spread(each, own[0])
    rows = _variation(each, own[0].moved(draws.centres[0]), spread)
    return _allotted(own, made, draws, each.sizes / batch.num_rows, rows)


def _by_all_rows(each: Subposteriors, draws: Draws) -> list[Answers]:
    """The answers with all rows of every shard at every draw."""
    count, shards, d = each.num_shards, np.arange(each.num_shards), each.dim
    block = each.windows.block * each.programs.target.bundle
    at_once = max(_MOST_VALUES // block, _LEAST_AT_ONCE)
    pieces = [draws.theta[i : i + at_once] for i in range(0, len(draws.theta), at_once)]
    values = [each.value(np.broadcast_to(theta, (count, *theta.shape)), shards) for theta in pieces]
    scores = finite(np.concatenate(values, axis=1))
    own = [
        Taylors(centres, *each.second_order(centres, shards))
        for centres in (np.tile(c, (count, 1)) for c in draws.centres)
    ]
    moments = None
    if len(draws.base):
        at_once = max(_MOST_NUMBERS // (count * d * d), 1)
        found = [_mean_derivatives(each, points, at_once) for points in draws.points()]
        moments = [
            Expected(*(np.stack([part[m] for part in some]) for some in zip(*found, strict=True))) for m in shards
        ]
    rows = _variation(each, own[0], each.spread(own[0].centre[0]))
    return [
        Answers(
            scores[m],
            np.zeros(len(draws.theta)),
            Derivatives(*(np.stack([getattr(one, name)[m] for one in own]) for name in Derivatives._fields)),
            rows[m],
            None if moments is None else moments[m],
            True,
        )
        for m in shards
    ]


def _mean_derivatives(each: Subposteriors, points: Float[np.ndarray, "R d"], at_once: int) -> tuple[np.ndarray, ...]:
    """For every shard the values at the points, and the averages of gradient and Hessian over them."""
    count, values, slopes, bends = each.num_shards, [], 0.0, 0.0
    rows = averages(each, points, Order.FULL)
    if rows is not None:
        parts = [each.whole_prior(points[i : i + at_once]) for i in range(0, len(points), at_once)]
        sums = [sum(np.sum(part[order], axis=0) for part in parts) for order in (1, 2)]
        means = np.concatenate([part[0] for part in parts]), *(total / len(points) for total in sums)
        return tuple(part + np.multiply.outer(each.shares, own) for part, own in zip(rows, means, strict=True))
    for i in range(0, len(points), at_once):
        some = points[i : i + at_once]
        theta = np.tile(some, (count, 1))
        value, gradient, hessian = each.second_order(theta, np.repeat(np.arange(count), len(some)))
        values.append(value.reshape(count, -1))
        slopes += np.sum(gradient.reshape(count, len(some), -1), axis=1)
        bends += np.sum(hessian.reshape(count, len(some), *hessian.shape[1:]), axis=1)
    return np.concatenate(values, axis=1), np.asarray(slopes) / len(points), np.asarray(bends) / len(points)


def _variation(each: Subposteriors, at: Taylors, products: Float[np.ndarray, "B d d"]) -> list[Variation]:
    """Sum and outer products of the rows' score vectors of each shard; the sum at the point of the expansions."""
    prior = each.prior_alone(at.centre, np.arange(each.num_shards))[1]
    return [Variation(*one) for one in zip(at.gradient - prior, products, strict=True)]


def _allotted(
    own: list[Taylors], made: Estimates, draws: Draws, shares: Float[np.ndarray, " B"], rows: list[Variation]
) -> list[Answers]:
    """The answers of each shard: its own expansions, and its share of what they leave over in the whole batch."""
    whole = [summed(one) for one in own]
    moved = [one.moved(centre) for one, centre in zip(own, draws.centres, strict=True)]
    distance = [taylor.distances(draws.theta - one.centre[0]) for taylor, one in zip(whole, own, strict=True)]
    values = _expanded(own, draws.theta, np.argmin(distance, axis=0))
    left = made.values - np.sum(values, axis=0)
    moments = None if made.moments is None else _moments(own, whole, made.moments, draws, shares)
    stacked = [np.stack([getattr(one, name) for one in moved], axis=1) for name in Derivatives._fields]
    values += shares[:, None] * left
    errors = np.sqrt(shares)[:, None] * made.errors
    return [
        Answers(
            values[m],
            errors[m],
            Derivatives(*(array[m] for array in stacked)),
            rows[m],
            None if moments is None else moments[m],
            False,
        )
        for m in range(len(shares))
    ]


def _expanded(own: list[Taylors], theta: np.ndarray, nearest: np.ndarray) -> Float[np.ndarray, "B S"]:
    """Each shard's expansion at the draws, about the centre that is nearest to each."""
    values = np.empty((len(own[0].value), len(theta)))
    for i, one in enumerate(own):
        chosen = nearest == i
        if np.all(chosen):
            return _quadratics(one, theta - one.centre[0])
        values[:, chosen] = _quadratics(one, theta[chosen] - one.centre[0])
    return values


def _quadratics(one: Taylors, delta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "B S"]:
    """All shards' expansions at the same displacements: by one matrix product over the products δ_i δ_j, if few."""
    d = delta.shape[1]
    if len(one.hessian) <= _FEW_SHARDS or delta.size * d > _MOST_PRODUCTS:
        bent = np.stack([np.sum((delta @ hessian) * delta, axis=1) for hessian in one.hessian])
        return one.value[:, None] + one.gradient @ delta.T + 0.5 * bent
    rows, columns = np.triu_indices(d)
    doubled = np.where(rows == columns, 0.5, 1.0) * one.hessian[:, rows, columns]
    return one.value[:, None] + one.gradient @ delta.T + doubled @ (delta[:, rows] * delta[:, columns]).T


def _moments(
    own: list[Taylors], whole: list[Taylor], made: Expected, draws: Draws, shares: np.ndarray
) -> list[Expected]:
    """Expectations under the Gaussians, of each shard."""
    values, gradients, hessians = [], [], []
    for c, points in enumerate(draws.points()):
        far = [np.mean(taylor.distances(points - one.centre[0])) for taylor, one in zip(whole, own, strict=True)]
        one = own[int(np.argmin(far))]
        delta = points - one.centre[0]
        value = _quadratics(one, delta)
        gradient = one.gradient + np.einsum("bij,j->bi", one.hessian, np.mean(delta, axis=0))
        values.append(value + shares[:, None] * (made.values[c] - np.sum(value, axis=0)))
        gradients.append(gradient + shares[:, None] * (made.gradient[c] - np.sum(gradient, axis=0)))
        left = made.hessian[c] - np.sum(one.hessian, axis=0)
        hessians.append(one.hessian + shares[:, None, None] * left)
    stacked = [np.stack(some, axis=1) for some in (values, gradients, hessians)]
    return [Expected(*(array[m] for array in stacked)) for m in range(len(shares))]
