"""A site's answers in the later rounds: log p_m at the centre's draws, and its moments under the centre's Gaussians.

Takes a subposterior and `Draws`; gives `Scores`. Of a tall shard the answers come from expansions about the centres
over all rows, with the remainder on some of them and its standard error; all rows are scored when that is in doubt, or
on request.
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
from epvi.ground.seeds import SeedStream
from epvi.ground.verb import verb
from epvi.site.derivatives.expansion import TALL, Around, Taylor, expand, in_batches, sizes_of_parts, taylors
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
# Derivatives are taken at this many points at a time, as a fit with its usual settings does.
_POINTS_AT_ONCE = 4
# Scores that are less certain than this, in nats, are computed from more rows. It bounds by how many sds a mean moves.
_CERTAIN = 0.02
# The log density at a point where it cannot be computed.
_IMPOSSIBLE = -1e100


class Answers(NamedTuple):
    """All that is asked of one subposterior; see `Scores`."""

    values: Float[np.ndarray, " S"]
    errors: Float[np.ndarray, " S"]
    centres: Derivatives
    rows: Variation
    moments: Expected | None
    exact: bool


@verb("scoring the draws")
def score(model: Any, rows: Any, draws: Draws, shard: str, *, exact: bool = False) -> Scores:
    """The answer of shard "3/6" to the centre's draws: log p_m at each of them, and what else they ask for.

    `rows` are those that the shard was fitted to; its share of the prior is that of its fit. Of a tall shard the scores
    are estimates with standard errors, unless `exact` is True.
    """
    if not isinstance(draws, Draws):
        raise EpviError(f"draws is a {type(draws).__name__}: pass what posterior.ask() or epvi.load gives.")
    model = as_model(model)
    index, num_shards = parse_shard(shard)
    part = draws.share_of(index)
    if num_shards != part.num_shards:
        raise EpviError(f"shard is {shard!r}, but the draws are for {part.num_shards} shards: write 3/6 as it is.")
    table = read_rows(with_constants(rows, ONE_SITE), undeclared=Undeclared(fitted=draws.made_of.levels))
    programs = programs_of(model, table.columns)
    same_space(draws.space, programs.target.space)
    same_coding(draws.made_of, table)
    programs.target.check(table.columns)
    made_of = dataclasses.replace(
        provenance(model, programs, table), rows=hash_rows(table.columns, table.hash_key), study=draws.made_of.study
    )
    size = block_size(programs, table.columns, table.num_rows, _POINTS_AT_ONCE)
    return answer_columns(programs, table.columns, draws, part, Asking(size, made_of, exact))


@dataclasses.dataclass(frozen=True, eq=False)
class Asking:
    """How a shard is asked: blocks of so many rows, what its rows are made of, whether all rows are to be scored.

    `points_at_once` is at how many points derivatives are taken in one pass; `checked` rows have been fitted before.
    """

    rows_per_block: int
    made_of: Provenance
    exact: bool = False
    points_at_once: int = _POINTS_AT_ONCE
    checked: bool = False
    memory: ExpansionCache = dataclasses.field(default_factory=ExpansionCache)


def answer_columns(programs: Programs, columns: Columns, draws: Draws, part: Part, asking: Asking) -> Scores:
    """Answer for checked columns with compiled programs."""
    start = time.perf_counter()
    subposterior = Subposterior.of(programs, columns, part.prior, asking.rows_per_block)
    if not asking.checked:
        subposterior.refuse_outside()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        made = answer(subposterior, draws, part.shard, asking)
    return Scores(
        asked=draws.asked,
        **{field.name: getattr(part, field.name) for field in dataclasses.fields(part)},
        num_rows=subposterior.num_rows,
        made_of=asking.made_of,
        echo=draws.theta[-1],
        **made._asdict(),
        proper=programs.target.proper,
        passes=int(subposterior.passes),
        seconds=time.perf_counter() - start,
    )


def answer(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers:
    """Scores, derivatives and moments, by expansions where they are good enough."""
    tall = subposterior.num_rows >= TALL and not asking.exact
    made = _by_expansions(subposterior, draws, shard, asking) if tall else None
    return made if made is not None else _by_all_rows(subposterior, draws, asking)


def _by_all_rows(subposterior: Subposterior, draws: Draws, asking: Asking) -> Answers:
    """Every row at every draw."""
    values = _finite(subposterior.value(draws.theta, _DRAWS_AT_ONCE))
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
    return _checked(Answers(values, np.zeros(len(values)), _derivatives(centres), rows, moments, True))


def _by_expansions(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers | None:
    """The same from expansions about the centres; None where parts of the rows do not tell enough."""
    known = [_expansion(subposterior, centre, draws.form, asking) for centre in draws.centres]
    places, wholes = np.stack([place for place, _ in known]), [taylor for _, taylor in known]
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(draws.asked.key, jnp.uint32)), SeedStream.PARTS)
    for size in sizes_of_parts(subposterior.num_rows):
        rng = generator(jax.random.fold_in(key, shard))
        near = expand(subposterior, places, wholes, rng, size)
        if not all(around.is_alike for around in near):
            continue
        values, errors = _scored(near, draws.theta)
        # Half of the draws may be far out, where nothing depends on them.
        if np.median(errors) <= _CERTAIN:
            centres = Derivatives(
                *map(
                    np.stack,
                    zip(*(a.whole.moved(c - a.centre) for a, c in zip(near, draws.centres, strict=True)), strict=True),
                )
            )
            moments = _expected(near, draws, asking) if len(draws.base) else None
            rows = _variation(subposterior, draws.centres[0], centres.gradient[0], near[0].rows, draws.form)
            return _checked(Answers(_finite(values), errors, centres, rows, moments, False))
    return None


def _variation(
    subposterior: Subposterior, point: np.ndarray, gradient: np.ndarray, rows: Subposterior, form: Packing
) -> Variation:
    """How the rows vary at a point: the share of the prior is taken from the gradient; some rows may stand for all."""
    prior = subposterior.without_its_rows().gradient(point[None]).gradient[0]
    products = rows.spread(point)
    return Variation(gradient - prior, form.kept(products, WHOLE, len(point)))


def _expansion(
    subposterior: Subposterior, centre: np.ndarray, form: Packing, asking: Asking
) -> tuple[np.ndarray, Taylor]:
    """The expansion about a centre, or about a point near it that is known already."""
    known = asking.memory.near(centre)
    if known is None:
        known = centre, taylors(_curve(subposterior, centre[None], form, 1))[0]
        asking.memory.add(*known)
    return known


def _scored(near: list[Around], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every draw from the expansion about the centre that is nearest to it."""
    values, errors = np.empty(len(theta)), np.empty(len(theta))
    nearest = np.argmin([around.whole.distances(theta - around.centre) for around in near], axis=0)
    for i, around in enumerate(near):
        if np.any(nearest == i):
            values[nearest == i], errors[nearest == i] = around.near(theta[nearest == i], _DRAWS_AT_ONCE)
    return values, np.where(np.isfinite(errors), errors, 1e3)


def _expected(near: list[Around], draws: Draws, asking: Asking) -> Expected:
    values, gradients, hessians = [], [], []
    for points in draws.points():
        nearest = near[int(np.argmin([np.mean(around.whole.distances(points - around.centre)) for around in near]))]
        values.append(nearest.near(points, _DRAWS_AT_ONCE).value)
        gradient, hessian = nearest.derivatives(points, asking.points_at_once)
        gradients.append(gradient)
        hessians.append(hessian)
    return Expected(np.stack(values), np.stack(gradients), np.stack(hessians))


def _curve(subposterior: Subposterior, points: np.ndarray, form: Packing, batch: int) -> Curve:
    """Value, gradient and curvature at any number of points, `batch` at a time."""
    found = [subposterior.curve(some, form) for some in in_batches(points, batch)]
    return Curve(*(np.concatenate([np.asarray(one[i]) for one in found])[: len(points)] for i in range(3)), form=form)


def _derivatives(curve: Curve) -> Derivatives:
    assert curve.hessian is not None
    return Derivatives(curve.value, curve.gradient, curve.hessian)


def _finite(values: np.ndarray) -> np.ndarray:
    """A draw at which the density cannot be computed is one that cannot be: its logarithm is minus infinity."""
    return np.where(np.isfinite(values), values, -math.inf)


def _checked(made: Answers) -> Answers:
    """Without what is not finite: moments that cannot be had are not given, an impossible centre is one.

    Where all of the posterior's own centres are impossible there is nothing to go by.
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
