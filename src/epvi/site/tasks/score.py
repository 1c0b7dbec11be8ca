"""Answers of a site in later rounds: log p_m at the hub's draws, and expectations under the hub's Gaussians.

Takes a subposterior and `Draws`; returns `Scores`. On a shard with many rows ("tall") the answers come from Taylor
expansions about the centres, with the remainder and its standard error estimated on subsamples of the rows; all rows
are used if that is not accurate enough, or on request.
"""

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.verb import verb
from epvi.site.derivatives.averages import average_curve
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Curve, Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.columns import Columns, length
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.rows import with_constants
from epvi.site.tasks.answers import (
    POINTS_AT_ONCE,
    Answers,
    Asking,
    at_once,
    checked,
    curve_at,
    finite,
    scores_of,
    slopes_asked,
    variation,
)
from epvi.site.tasks.answers_expanded import by_expansions
from epvi.site.tasks.fingerprint import hash_rows
from epvi.site.tasks.fit_shard import ONE_SITE, as_model, parse_shard
from epvi.site.tasks.integral_error import integral_error
from epvi.site.tasks.predictive import same_coding, same_space
from epvi.site.tasks.prepared import prepared
from epvi.site.tasks.score_many import ManyParameters, sampling_pays, too_many
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part


@verb("scoring the draws")
def score(model: Any, rows: Any, draws: Draws, shard: str, *, exact: bool = False) -> Scores:
    """Answer the hub's draws for shard "3/6": log p_m at each of them, and the derivatives and moments they ask for.

    `rows` are those that the shard was fitted to; its share of the prior is that of its fit. On a shard with many rows
    the scores are estimates with standard errors, unless `exact` is True.
    """
    if not isinstance(draws, Draws):
        raise EpviError(f"draws is a {type(draws).__name__}: pass what posterior.ask() or epvi.load gives.")
    model = as_model(model)
    index, num_shards = parse_shard(shard)
    part = draws.share_of(index)
    if num_shards != part.num_shards:
        count = part.num_shards
        raise EpviError(f'shard is {shard!r}, but the draws are for {count} shards: write "{index}/{count}".')
    undeclared = Undeclared(fitted=draws.made_of.levels)
    table = read_grouped(with_constants(rows, ONE_SITE), model.groups, undeclared=undeclared)
    programs, columns, made_of = prepared(model, table, labels=False)
    same_space(draws.space, programs.target.space)
    same_coding(draws.made_of, table)
    made_of = dataclasses.replace(made_of, rows=hash_rows(table.columns, table.hash_key), study=draws.made_of.study)
    size = block_size(programs, columns, length(columns), POINTS_AT_ONCE)
    # How many rows other sites have is not known: as many, as far as that goes.
    asking = Asking(size, made_of, exact, share=1 / num_shards)
    made = answer_columns(programs, columns, draws, part, asking)
    if model.groups is not None:
        made = dataclasses.replace(made, integral=integral_error(programs.target, columns, draws.theta))
    logger.info("%s", made.account)
    return made


def answer_columns(programs: Programs, columns: Columns, draws: Draws, part: Part, asking: Asking) -> Scores:
    """Answer for checked columns with compiled programs."""
    start = time.perf_counter()
    subposterior = Subposterior.of(programs, columns, part.prior, asking.rows_per_block)
    if not asking.checked:
        subposterior.refuse_outside()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        made = answer(subposterior, draws, part.shard, asking)
        (slopes,) = slopes_asked(_as_many(subposterior, draws, part.shard), draws)
    effort = int(subposterior.passes), time.perf_counter() - start
    return scores_of(programs, programs.target.num_rows(columns), draws, part, asking, made, effort, slopes)


def answer(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers:
    """Scores, derivatives and moments, by Taylor expansions where they are accurate enough."""
    each = _as_many(subposterior, draws, shard) if too_many(draws, subposterior.num_rows) else None
    made = None
    if not asking.exact and (each is None or sampling_pays(each, draws, shard, asking.certain)):
        made = by_expansions(subposterior, draws, shard, asking)
    if made is not None:
        return made
    if each is not None:
        return _with_many_parameters(each, subposterior, draws, shard, asking)
    return _by_all_rows(subposterior, draws, asking)


def _as_many(subposterior: Subposterior, draws: Draws, shard: int) -> Subposteriors:
    """The same shard, as the only one of several."""
    programs, columns, size = subposterior.programs, subposterior.rows, subposterior.num_rows
    windows = Windows.of(np.array([size]), block_size(programs, columns, size, 1), size)
    return Subposteriors(programs, columns, windows, np.array([float(draws.share_of(shard).prior)]), np.ones(1))


def _with_many_parameters(
    each: Subposteriors, subposterior: Subposterior, draws: Draws, shard: int, asking: Asking
) -> Answers:
    """The answers of one shard with many parameters."""
    own = [taylors_about(each, centre) for centre in draws.centres]
    many = ManyParameters(each, own, draws, [shard], np.array([asking.share]), asking.exact)
    (made,) = answers_of_many(many)
    subposterior.passes += each.passes[0]
    return made


def taylors_about(each: Subposteriors, centre: Float[np.ndarray, " d"]) -> Taylors:
    """The expansion of every shard about one centre."""
    centres = np.tile(centre, (each.num_shards, 1))
    return Taylors(centres, *each.second_order(centres, np.arange(each.num_shards)))


def answers_of_many(many: ManyParameters) -> list[Answers]:
    """The answers of shards with many parameters."""
    each, draws, own = many.each, many.draws, many.own
    values, products = finite(many.values(draws.theta)), many.products()
    moments = many.moments() if len(draws.base) else [None] * each.num_shards
    moved = [one.moved(centre) for one, centre in zip(own, draws.centres, strict=True)]
    prior = each.prior_alone(moved[0].centre, np.arange(each.num_shards))[1]
    answers = []
    for b in range(each.num_shards):
        centres = Derivatives(*(np.stack([getattr(one, name)[b] for one in moved]) for name in Derivatives._fields))
        rows = Variation(moved[0].gradient[b] - prior[b], products[b])
        errors = np.full(len(draws.theta), many.errors[b])
        answers.append(checked(Answers(values[b], errors, centres, rows, moments[b], True)))
    return answers


def _by_all_rows(subposterior: Subposterior, draws: Draws, asking: Asking) -> Answers:
    """The answers with all rows at every draw."""
    values = finite(subposterior.value(draws.theta, at_once(subposterior)))
    centres = curve_at(subposterior, draws.centres, draws.form, asking.points_at_once)
    moments = None
    if len(draws.base):
        found = [average_curve(subposterior, points, draws.form, asking.points_at_once) for points in draws.points()]
        moments = Expected(*(np.stack([np.asarray(one[i]) for one in found]) for i in range(3)))
    rows = variation(subposterior, draws.centres[0], centres.gradient[0], subposterior, draws.form)
    return checked(Answers(values, np.zeros(len(values)), _derivatives(centres), rows, moments, True))


def _derivatives(curve: Curve) -> Derivatives:
    assert curve.hessian is not None
    return Derivatives(curve.value, curve.gradient, curve.hessian)
