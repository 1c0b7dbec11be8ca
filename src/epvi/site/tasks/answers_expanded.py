"""Answers by Taylor expansions about the centres, with the remainder estimated on subsamples of the rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.ground.seeds import SeedStream
from epvi.site.derivatives.expansion import PARTS, PILOTS, Around, Taylor, expand, taylors
from epvi.site.derivatives.fourth_order import FourthOrder
from epvi.site.derivatives.smooth_remainder import SmoothRemainder, higher_terms, moved_terms, pays
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subsamples import Subsamples, by_influence, without_pass
from epvi.site.rows.columns import generator
from epvi.site.tasks.answers import DRAWS_AT_ONCE, Answers, Asking, at_once, checked, curve_at, finite, variation
from epvi.site.tasks.score_many import MANY, few_pairs
from epvi.wire.answer import Derivatives, Expected
from epvi.wire.request import Draws, mapped

T = TypeVar("T", Around, SmoothRemainder)


class Estimates(NamedTuple):
    """Answers without the rows' score vectors; see `Answers`."""

    values: Float[np.ndarray, " S"]
    errors: Float[np.ndarray, " S"]
    centres: Derivatives
    moments: Expected | None
    # Rows that represent all rows.
    rows: Subposterior


def by_expansions(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers | None:
    """The answers by Taylor expansions about the centres; None if they are not accurate enough."""
    made = estimates(subposterior, draws, shard, asking)
    if made is None:
        return None
    rows = variation(subposterior, draws.centres[0], made.centres.gradient[0], made.rows, draws.form)
    return checked(Answers(made.values, made.errors, made.centres, rows, made.moments, False))


def estimates(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Estimates | None:
    """The same without the rows' score vectors."""
    sizes = asking.sizes(subposterior.num_rows, draws, subposterior.programs.target.bundle)
    is_smooth = draws.form.whole and pays(subposterior, len(draws.theta), sizes)
    if not sizes and not is_smooth:
        return None
    known = [_expansion(subposterior, centre, draws.form, asking) for centre in draws.centres]
    places, wholes = np.stack([place for place, _ in known]), [taylor for _, taylor in known]
    made = _by_smooth_remainders(subposterior, draws, places, wholes, asking) if is_smooth else None
    if made is not None or not sizes:
        return made
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(draws.asked.key, jnp.uint32)), SeedStream.PARTS)
    key = jax.random.fold_in(key, shard)
    for samples in _subsamples(subposterior, draws, places, wholes, key, asking):
        near = expand(places, wholes, samples)
        if not all(around.is_alike for around in near):
            continue
        dear = subposterior.dim > MANY or subposterior.programs.target.bundle > 1
        if dear and np.median(_scored(near, draws.theta[:DRAWS_AT_ONCE])[1]) > asking.certain:
            # All draws would cost as much as some Hessians.
            continue
        values, errors = _scored(near, draws.theta)
        # The median, because errors at far draws, which have little posterior weight, do not matter.
        if np.median(errors) <= asking.certain:
            moments = _expected(near, draws, asking) if len(draws.base) else None
            return Estimates(finite(values), errors, _moved(near, draws), moments, near[0].samples.together)
    return None


def _by_smooth_remainders(
    subposterior: Subposterior, draws: Draws, places: np.ndarray, wholes: list[Taylor], asking: Asking
) -> Estimates | None:
    """The answers by expansions with terms of higher order; None if these are not accurate enough.

    If terms from the first point are not accurate enough, they are computed at these.
    """
    about = list(zip(places, wholes, strict=True))
    for terms in (_terms_from_first, _terms):
        higher = [terms(subposterior, place, whole, asking) for place, whole in about]
        known = [one for one in higher if one is not None]
        if len(known) < len(about):
            continue
        near = [SmoothRemainder(*at, subposterior, one, asking.share) for at, one in zip(about, known, strict=True)]
        values, errors = _scored(near, draws.theta)
        if np.median(errors) <= asking.certain:
            return _smooth_estimates(near, values, errors, draws)
    return None


def _terms(subposterior: Subposterior, place: np.ndarray, whole: Taylor, asking: Asking) -> FourthOrder | None:
    """The terms of higher order at a point."""
    known = asking.memory.higher.get(place.tobytes())
    higher = higher_terms(subposterior, place, whole, asking.points_at_once) if known is None else known
    if higher is not None:
        asking.memory.higher[place.tobytes()] = higher
    return higher


def _terms_from_first(
    subposterior: Subposterior, place: np.ndarray, whole: Taylor, asking: Asking
) -> FourthOrder | None:
    """The same from those at the first point, if there is one that is near and not this one."""
    first = asking.memory.first
    if first is None or first[0].tobytes() == place.tobytes():
        return None
    known = _terms(subposterior, *first, asking)
    return None if known is None else moved_terms(known, first, (place, whole))


def _smooth_estimates(near: list[SmoothRemainder], values: np.ndarray, errors: np.ndarray, draws: Draws) -> Estimates:
    moments = None
    if len(draws.base):
        found = [_nearest(near, points).expected(points) for points in draws.points()]
        moments = Expected(*map(np.stack, zip(*found, strict=True)))
    return Estimates(finite(values), errors, _moved(near, draws), moments, near[0].rows)


def _moved(near: Sequence[Around | SmoothRemainder], draws: Draws) -> Derivatives:
    """The derivatives at the centres of the draws, by expansions about points near them."""
    moved = [one.whole.moved(centre - one.centre) for one, centre in zip(near, draws.centres, strict=True)]
    return Derivatives(*map(np.stack, zip(*moved, strict=True)))


def _nearest(near: Sequence[T], points: np.ndarray) -> T:
    """The expansion about the centre that is nearest to the points."""
    return near[int(np.argmin([np.mean(one.whole.distances(points - one.centre)) for one in near]))]


def _subsamples(
    subposterior: Subposterior, draws: Draws, centres: np.ndarray, wholes: list[Taylor], key: jax.Array, asking: Asking
) -> Iterator[Subsamples]:
    """Subsamples to be tried in this order: one without a pass; where that is not enough, larger ones by influence."""
    sizes, memory = asking.sizes(subposterior.num_rows, draws, subposterior.programs.target.bundle), asking.memory
    influence = memory.influence_near(centres[0], wholes[0]) if len(centres) == 1 else None
    if influence is None:
        yield without_pass(subposterior, sizes[0], PARTS, generator(key))
    rng = generator(jax.random.fold_in(key, SeedStream.PARTS))
    pilots = mapped(draws.gaussians, rng.standard_normal((PILOTS, draws.space.dim)))
    if influence is None:
        means = np.asarray(draws.gaussians.means)
        near = [pilots[np.argmin(np.sum((means - centre) ** 2, axis=1))] for centre in centres]
        each = [subposterior.influence(centre, some) for centre, some in zip(centres, near, strict=True)]
        # Rounded as it is stored, so that a task that is run again gives the same.
        influence = np.mean(each, axis=0).astype(np.float32)
        if len(centres) == 1:
            memory.add_influence(centres[0], influence)
    for size in sizes:
        yield by_influence(subposterior, influence.astype(np.float64), size, PARTS, rng)


def _expansion(
    subposterior: Subposterior, centre: np.ndarray, form: Packing, asking: Asking
) -> tuple[np.ndarray, Taylor]:
    """The Taylor expansion about a centre, or a cached one about a point near it."""
    known = asking.memory.near(centre)
    if known is None:
        known = centre, taylors(curve_at(subposterior, centre[None], form, 1))[0]
        asking.memory.add(*known)
    return known


def _scored(near: Sequence[Around | SmoothRemainder], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and standard errors at the draws, each by the expansion about the nearest centre."""
    values, errors = np.empty(len(theta)), np.empty(len(theta))
    nearest = np.argmin([around.whole.distances(theta - around.centre) for around in near], axis=0)
    for i, around in enumerate(near):
        if np.any(nearest == i):
            rows = around.rows if isinstance(around, SmoothRemainder) else around.samples.together
            values[nearest == i], errors[nearest == i] = around.near(theta[nearest == i], at_once(rows))
    return values, np.where(np.isfinite(errors), errors, 1e3)


def _expected(near: list[Around], draws: Draws, asking: Asking) -> Expected:
    values, gradients, hessians = [], [], []
    for points in draws.points():
        nearest = _nearest(near, points)
        few = few_pairs(points) if draws.form.whole and points.shape[1] > MANY else None
        value, gradient, hessian = nearest.expected(points, asking.points_at_once, few)
        values.append(value)
        gradients.append(gradient)
        hessians.append(hessian)
    return Expected(np.stack(values), np.stack(gradients), np.stack(hessians))
