"""Answers of a site in later rounds: log p_m at the hub's draws, and expectations under the hub's Gaussians.

Takes a subposterior and `Draws`; returns `Scores`. On a shard with many rows ("tall") the answers come from Taylor
expansions about the centres, with the remainder and its standard error estimated on subsamples of the rows; all rows
are used if that is not accurate enough, or on request.
"""

import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import WHOLE
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import SeedStream
from epvi.ground.verb import verb
from epvi.site.derivatives.expansion import Around, Taylor, expand, in_batches, is_tall, sizes_of_parts, taylors
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.derivatives.subposterior import Curve, Subposterior, block_size
from epvi.site.rows.columns import Columns, generator
from epvi.site.rows.levels import Undeclared
from epvi.site.rows.rows import read_rows, with_constants
from epvi.site.tasks.fingerprint import hash_rows
from epvi.site.tasks.fit_shard import ONE_SITE, as_model, parse_shard, provenance
from epvi.site.tasks.predictive import same_coding, same_space
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, Provenance

# Draws at which log p_m is evaluated in one pass over the rows, as in a fit. Judgement: it bounds a block's memory.
_DRAWS_AT_ONCE = 64
# The same for bundles of groups, each with several nodes for the effects.
_DRAWS_OF_BUNDLES = 16
# Derivatives are computed at this many points in one pass, the same number as in a fit with default settings, so that
# compiled programs are shared.
_POINTS_AT_ONCE = 4
# Scores with a median standard error above this, in nats, are computed from more rows. Judgement: an error of the log
# density of this size moves a posterior mean by at most so many sds.
CERTAIN = 0.02
# The log density at a centre where it cannot be computed: below any other, and finite, so that sums are. Judgement.
_IMPOSSIBLE = -1e100


class Answers(NamedTuple):
    """The computed answers for one subposterior; see `Scores`."""

    # log p_m at the draws.
    values: Float[np.ndarray, " S"]
    # Standard errors of these values; zero if all rows were used.
    errors: Float[np.ndarray, " S"]
    # Value, gradient and Hessian at the centres.
    centres: Derivatives
    # Sum and outer products of the rows' score vectors at the first centre.
    rows: Variation
    # Expectations under the hub's Gaussians, if it asked for them and they are finite.
    moments: Expected | None
    # Whether all rows were used.
    exact: bool


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
    table = read_rows(with_constants(rows, ONE_SITE), undeclared=Undeclared(fitted=draws.made_of.levels))
    programs = programs_of(model, table.columns)
    same_space(draws.space, programs.target.space)
    same_coding(draws.made_of, table)
    programs.target.check(table.columns)
    made_of = dataclasses.replace(
        provenance(model, programs, table), rows=hash_rows(table.columns, table.hash_key), study=draws.made_of.study
    )
    size = block_size(programs, table.columns, table.num_rows, _POINTS_AT_ONCE)
    made = answer_columns(programs, table.columns, draws, part, Asking(size, made_of, exact))
    logger.info("%s", made.account)
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class Asking:
    """How the answers of a shard are computed."""

    # Rows per block of a pass.
    rows_per_block: int
    # Provenance of the model and the rows.
    made_of: Provenance
    # Whether to use all rows for every draw.
    exact: bool = False
    # At how many points derivatives are computed in one pass.
    points_at_once: int = _POINTS_AT_ONCE
    # Whether the rows have been checked against the support before.
    checked: bool = False
    # Scores with a larger median standard error, in nats, are computed from more rows.
    certain: float = CERTAIN
    # The part of all shards' rows that these are.
    share: float = 1.0
    # Taylor expansions from earlier rounds.
    memory: ExpansionCache = dataclasses.field(default_factory=ExpansionCache)


def answer_columns(programs: Programs, columns: Columns, draws: Draws, part: Part, asking: Asking) -> Scores:
    """Answer for checked columns with compiled programs."""
    start = time.perf_counter()
    subposterior = Subposterior.of(programs, columns, part.prior, asking.rows_per_block)
    if not asking.checked:
        subposterior.refuse_outside()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        made = answer(subposterior, draws, part.shard, asking)
    effort = int(subposterior.passes), time.perf_counter() - start
    return scores_of(programs, programs.target.num_rows(columns), draws, part, asking, made, effort)


def scores_of(
    programs: Programs,
    num_rows: int,
    draws: Draws,
    part: Part,
    asking: Asking,
    made: Answers,
    effort: tuple[int, float],
) -> Scores:
    """The answers of one shard as they are sent; `effort` is its passes over the rows and seconds."""
    return Scores(
        asked=draws.asked,
        **{field.name: getattr(part, field.name) for field in dataclasses.fields(part)},
        num_rows=num_rows,
        made_of=asking.made_of,
        echo=draws.theta[-1],
        **made._asdict(),
        proper=programs.target.proper,
        passes=effort[0],
        seconds=effort[1],
    )


def answer(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers:
    """Scores, derivatives and moments, by Taylor expansions where they are accurate enough."""
    tall = is_tall(subposterior.num_rows, subposterior.programs.target.bundle) and not asking.exact
    made = by_expansions(subposterior, draws, shard, asking) if tall else None
    return made if made is not None else _by_all_rows(subposterior, draws, asking)


def _by_all_rows(subposterior: Subposterior, draws: Draws, asking: Asking) -> Answers:
    """The answers with all rows at every draw."""
    if len(draws.centres) == 1:
        subposterior = subposterior.prepared(draws.centres[0])
    values = _finite(subposterior.value(draws.theta, _at_once(subposterior)))
    centres = _curve(subposterior, draws.centres, draws.form, asking.points_at_once)
    moments = None
    if len(draws.base):
        found = [_curve(subposterior, points, draws.form, asking.points_at_once) for points in draws.points()]
        moments = Expected(
            np.stack([one.value for one in found]),
            np.stack([np.mean(one.gradient, axis=0) for one in found]),
            np.stack([np.mean(np.asarray(one.hessian), axis=0) for one in found]),
        )
    rows = _variation(subposterior, draws.centres[0], centres.gradient[0], subposterior, draws.form)
    return checked(Answers(values, np.zeros(len(values)), _derivatives(centres), rows, moments, True))


def by_expansions(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers | None:
    """The answers by Taylor expansions about the centres; None if no size of subsamples is accurate enough."""
    known = [_expansion(subposterior, centre, draws.form, asking) for centre in draws.centres]
    places, wholes = np.stack([place for place, _ in known]), [taylor for _, taylor in known]
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(draws.asked.key, jnp.uint32)), SeedStream.PARTS)
    for size in sizes_of_parts(subposterior.num_rows, asking.share, subposterior.programs.target.bundle):
        rng = generator(jax.random.fold_in(key, shard))
        near = expand(subposterior, places, wholes, rng, size)
        if not all(around.is_alike for around in near):
            continue
        values, errors = _scored(near, draws.theta)
        # The median, because errors at far draws, which have little posterior weight, do not matter.
        if np.median(errors) <= asking.certain:
            centres = Derivatives(
                *map(
                    np.stack,
                    zip(*(a.whole.moved(c - a.centre) for a, c in zip(near, draws.centres, strict=True)), strict=True),
                )
            )
            moments = _expected(near, draws, asking) if len(draws.base) else None
            rows = _variation(subposterior, draws.centres[0], centres.gradient[0], near[0].rows, draws.form)
            return checked(Answers(_finite(values), errors, centres, rows, moments, False))
    return None


def _variation(
    subposterior: Subposterior, point: np.ndarray, gradient: np.ndarray, rows: Subposterior, form: Packing
) -> Variation:
    """Sum and outer products of the rows' score vectors at a point; `rows` may be a subsample.

    The sum is the gradient of log p_m minus that of the prior's share.
    """
    prior = subposterior.without_its_rows().gradient(point[None]).gradient[0]
    products = rows.spread(point)
    return Variation(gradient - prior, form.kept(products, WHOLE, len(point)))


def _expansion(
    subposterior: Subposterior, centre: np.ndarray, form: Packing, asking: Asking
) -> tuple[np.ndarray, Taylor]:
    """The Taylor expansion about a centre, or a cached one about a point near it."""
    known = asking.memory.near(centre)
    if known is None:
        known = centre, taylors(_curve(subposterior, centre[None], form, 1))[0]
        asking.memory.add(*known)
    return known


def _scored(near: list[Around], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and standard errors at the draws, each by the expansion about the nearest centre."""
    values, errors = np.empty(len(theta)), np.empty(len(theta))
    nearest = np.argmin([around.whole.distances(theta - around.centre) for around in near], axis=0)
    for i, around in enumerate(near):
        if np.any(nearest == i):
            values[nearest == i], errors[nearest == i] = around.near(theta[nearest == i], _at_once(around.rows))
    return values, np.where(np.isfinite(errors), errors, 1e3)


def _at_once(subposterior: Subposterior) -> int:
    return _DRAWS_AT_ONCE if subposterior.programs.target.bundle == 1 else _DRAWS_OF_BUNDLES


def _expected(near: list[Around], draws: Draws, asking: Asking) -> Expected:
    values, gradients, hessians = [], [], []
    for points in draws.points():
        nearest = near[int(np.argmin([np.mean(around.whole.distances(points - around.centre)) for around in near]))]
        values.append(nearest.near(points, _at_once(nearest.rows)).value)
        gradient, hessian = nearest.derivatives(points, asking.points_at_once)
        gradients.append(gradient)
        hessians.append(hessian)
    return Expected(np.stack(values), np.stack(gradients), np.stack(hessians))


def _curve(subposterior: Subposterior, points: np.ndarray, form: Packing, batch: int) -> Curve:
    """Value, gradient and Hessian at any number of points, `batch` at a time."""
    found = [subposterior.curve(some, form) for some in in_batches(points, batch)]
    return Curve(*(np.concatenate([np.asarray(one[i]) for one in found])[: len(points)] for i in range(3)), form=form)


def _derivatives(curve: Curve) -> Derivatives:
    assert curve.hessian is not None
    return Derivatives(curve.value, curve.gradient, curve.hessian)


def _finite(values: np.ndarray) -> np.ndarray:
    """Log densities with minus infinity in place of NaN and infinities."""
    return np.where(np.isfinite(values), values, -math.inf)


def checked(made: Answers) -> Answers:
    """Replace answers that are not finite: no moments, and a centre gets a very low log density and zero derivatives.

    Refuses if the derivatives at the first centre are not finite.
    """
    finite = np.isfinite(made.centres.value) & np.all(np.isfinite(made.centres.gradient), axis=1)
    finite &= np.all(np.isfinite(made.centres.hessian.reshape(len(finite), -1)), axis=1)
    if not finite[0] or not all(np.all(np.isfinite(array)) for array in made.rows):
        raise EpviError(
            "the log density has no finite derivatives where the posterior is: guard square roots, logarithms and"
            " divisions in the model (jnp.where on their arguments, not on their results)."
        )
    value, gradient, hessian = made.centres
    nothing = (np.zeros_like(array) for array in (gradient, hessian))
    centres = Derivatives(
        np.where(finite, value, _IMPOSSIBLE),
        *(
            np.where(_along(finite, array), array, zero)
            for array, zero in zip((gradient, hessian), nothing, strict=True)
        ),
    )
    moments = made.moments
    if moments is not None and not all(np.all(np.isfinite(array)) for array in moments):
        moments = None
    return made._replace(centres=centres, moments=moments)


def _along(finite: np.ndarray, array: np.ndarray) -> np.ndarray:
    return finite.reshape(-1, *[1] * (array.ndim - 1))
