"""Answers of several shards together, in a few passes over all their rows.

Takes the rows of several shards and `Draws`; gives the `Scores` of each shard, or None: then the shards answer alone
(`score.py`). Each shard's Taylor expansions about the centres come from its own rows. What they leave over is estimated
for all shards of the batch together, on subsamples of their rows, and allotted to them by their numbers of rows: the
posterior needs the sum over shards, and it is the standard error of the sum that counts.
"""

import dataclasses
import time
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from epvi.gaussian.structures import WHOLE
from epvi.site.derivatives.expansion import TALL, Taylor
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.columns import Columns
from epvi.site.tasks.score import (
    CERTAIN,
    Answers,
    Asking,
    answers_of_many,
    by_expansions,
    checked,
    scores_of,
    taylors_about,
)
from epvi.site.tasks.score_many import ManyParameters, too_many
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part

# Most products of two coordinates of a displacement, counted twice, that are in memory at once: 256 MB. Judgement.
_MOST_PRODUCTS = 2**26


def answer_together(
    programs: Programs,
    columns: Columns,
    sizes: Sequence[int],
    parts: Sequence[Part],
    draws: Draws,
    asking: Asking,
    all_rows: int,
) -> list[Scores] | None:
    """The scores of shards whose rows lie one after the other; `all_rows` is the number of rows of all shards."""
    start, num_rows = time.perf_counter(), sum(sizes)
    expands, many = num_rows >= TALL and not asking.exact, too_many(draws, num_rows)
    if draws.form is not WHOLE or not (expands or many):
        return None
    window = block_size(programs, columns, num_rows, 1)
    windows = Windows.of(np.array(sizes), window, max(sizes))
    shares = np.array([float(part.prior) for part in parts])
    each = Subposteriors(programs, columns, windows, shares, np.ones(len(parts)))
    batch = Subposterior.of(programs, columns, sum((part.prior for part in parts), Fraction(0)), asking.rows_per_block)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        own = [taylors_about(each, centre) for centre in draws.centres]
        memory = ExpansionCache(known=[(one.centre[0], _summed(one)) for one in own])
        share = num_rows / all_rows
        # Twice the share: half of the posterior's rows get the usual subsample, as one of two shards does.
        asked = dataclasses.replace(asking, memory=memory, certain=CERTAIN * np.sqrt(share), share=min(2 * share, 1.0))
        made = by_expansions(batch, draws, parts[0].shard, asked) if expands else None
        if made is not None:
            answers = _allotted(own, made, draws, np.array(sizes) / num_rows)
            answers = [checked(one) for one in _with_scores_of_rows(answers, each, own[0])]
        elif many:
            shards, shares = [part.shard for part in parts], np.array(sizes) / all_rows
            answers = answers_of_many(ManyParameters(each, own, draws, shards, shares, asking.exact))
        else:
            return None
    seconds = time.perf_counter() - start
    efforts = [(int(each.passes[m]), seconds * size / num_rows) for m, size in enumerate(sizes)]
    return [
        scores_of(programs, size, draws, part, asking, answer, effort)
        for part, size, answer, effort in zip(parts, sizes, answers, efforts, strict=True)
    ]


def _with_scores_of_rows(answers: list[Answers], each: Subposteriors, own: Taylors) -> list[Answers]:
    """The answers with sum and outer products of the rows' scores at the first centre."""
    products, prior = each.spread(own.centre[0]), each.prior_alone(own.centre, np.arange(len(answers)))[1]
    rows = (Variation(g - p, product) for g, p, product in zip(own.gradient, prior, products, strict=True))
    return [answer._replace(rows=one) for answer, one in zip(answers, rows, strict=True)]


def _summed(one: Taylors) -> Taylor:
    return Taylor(float(np.sum(one.value)), np.sum(one.gradient, axis=0), np.sum(one.hessian, axis=0))


def _allotted(own: list[Taylors], made: Answers, draws: Draws, shares: Float[np.ndarray, " B"]) -> list[Answers]:
    """The answers of each shard: its own expansions, and its share of what they leave over in the whole batch."""
    whole = [_summed(one) for one in own]
    distance = [taylor.distances(draws.theta - one.centre[0]) for taylor, one in zip(whole, own, strict=True)]
    values = _expanded(own, draws.theta, np.argmin(distance, axis=0))
    left = made.values - np.sum(values, axis=0)
    moments = None if made.moments is None else _moments(own, whole, made.moments, draws, shares)
    answers = []
    for m, share in enumerate(shares):
        centres = Derivatives(*(np.stack([getattr(one, name)[m] for one in own]) for name in Derivatives._fields))
        rest = made._replace(values=values[m] + share * left, errors=made.errors * np.sqrt(share), centres=centres)
        answers.append(rest._replace(moments=None if moments is None else moments[m]))
    return answers


def _expanded(own: list[Taylors], theta: np.ndarray, nearest: np.ndarray) -> Float[np.ndarray, "B S"]:
    """Each shard's expansion at the draws, about the centre that is nearest to each."""
    values = np.empty((len(own[0].value), len(theta)))
    for i, one in enumerate(own):
        chosen = nearest == i
        values[:, chosen] = _quadratics(one, theta[chosen] - one.centre[0])
    return values


def _quadratics(one: Taylors, delta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "B S"]:
    """All shards' expansions at the same displacements: by one matrix product over the products δ_i δ_j, if few."""
    d = delta.shape[1]
    if delta.size * d > _MOST_PRODUCTS:
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
    return [
        Expected(*(np.stack([part[m] for part in some]) for some in (values, gradients, hessians)))
        for m in range(len(shares))
    ]
