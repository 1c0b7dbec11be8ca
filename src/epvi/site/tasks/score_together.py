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
from epvi.site.derivatives.expansion import Taylor, is_tall
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.columns import Columns
from epvi.site.tasks.score import CERTAIN, Answers, Asking, by_expansions, checked, scores_of
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part


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
    if draws.form is not WHOLE or not is_tall(num_rows, programs.target.bundle) or asking.exact:
        return None
    window = block_size(programs, columns, num_rows, 1)
    windows = Windows.of(np.array(sizes), window, max(sizes), programs.target.bundle)
    shares = np.array([float(part.prior) for part in parts])
    each = Subposteriors(programs, columns, windows, shares, np.ones(len(parts)))
    batch = Subposterior.of(programs, columns, sum((part.prior for part in parts), Fraction(0)), asking.rows_per_block)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        own = [_taylors(each, centre) for centre in draws.centres]
        memory = ExpansionCache(known=[(one.centre[0], _summed(one)) for one in own])
        share = num_rows / all_rows
        # Twice the share: half of the posterior's rows get the usual subsample, as one of two shards does.
        asked = dataclasses.replace(asking, memory=memory, certain=CERTAIN * np.sqrt(share), share=min(2 * share, 1.0))
        made = by_expansions(batch, draws, parts[0].shard, asked)
        if made is None:
            return None
        products, prior = each.spread(draws.centres[0]), each.prior_alone(own[0].centre, np.arange(len(parts)))[1]
        answers = _allotted(own, made, draws, np.array(sizes) / num_rows)
    seconds = time.perf_counter() - start
    scores = []
    for m, (part, begin, size, answer) in enumerate(zip(parts, windows.bounds, sizes, answers, strict=False)):
        rows = Variation(own[0].gradient[m] - prior[m], products[m])
        effort = int(each.passes[m]), seconds * size / num_rows
        own_rows = {name: column[begin : begin + size] for name, column in columns.items()}
        count = programs.target.num_rows(own_rows)
        scores.append(scores_of(programs, count, draws, part, asking, checked(answer._replace(rows=rows)), effort))
    return scores


def _taylors(each: Subposteriors, centre: Float[np.ndarray, " d"]) -> Taylors:
    """The expansion of every shard about one centre."""
    centres = np.tile(centre, (each.num_shards, 1))
    return Taylors(centres, *each.second_order(centres, np.arange(each.num_shards)))


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
    """All shards' expansions at the same displacements, as one matrix product over the products δ_i δ_j."""
    d = delta.shape[1]
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
