"""Answers by Taylor expansions about the centres, with the remainder estimated on subsamples of the rows."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from epvi.gaussian.packing import Packing
from epvi.ground.seeds import SeedStream
from epvi.site.derivatives.expansion import PARTS, PILOTS, Around, Taylor, expand, taylors
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subsamples import Subsamples, by_influence, uniform
from epvi.site.rows.columns import generator
from epvi.site.tasks.answers import DRAWS_AT_ONCE, Answers, Asking, at_once, checked, curve_at, finite, variation
from epvi.site.tasks.score_many import MANY, few_pairs
from epvi.wire.answer import Derivatives, Expected
from epvi.wire.request import Draws, mapped


def by_expansions(subposterior: Subposterior, draws: Draws, shard: int, asking: Asking) -> Answers | None:
    """The answers by Taylor expansions about the centres; None if no size of subsamples is accurate enough."""
    if not asking.sizes(subposterior.num_rows, draws, subposterior.programs.target.bundle):
        return None
    known = [_expansion(subposterior, centre, draws.form, asking) for centre in draws.centres]
    places, wholes = np.stack([place for place, _ in known]), [taylor for _, taylor in known]
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(draws.asked.key, jnp.uint32)), SeedStream.PARTS)
    key = jax.random.fold_in(key, shard)
    for samples in _subsamples(subposterior, draws, places, key, asking):
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
            centres = Derivatives(
                *map(
                    np.stack,
                    zip(*(a.whole.moved(c - a.centre) for a, c in zip(near, draws.centres, strict=True)), strict=True),
                )
            )
            moments = _expected(near, draws, asking) if len(draws.base) else None
            rows = variation(subposterior, draws.centres[0], centres.gradient[0], near[0].samples.together, draws.form)
            return checked(Answers(finite(values), errors, centres, rows, moments, False))
    return None


def _subsamples(
    subposterior: Subposterior, draws: Draws, centres: np.ndarray, key: jax.Array, asking: Asking
) -> Iterator[Subsamples]:
    """Subsamples to be tried in this order: a uniform one, and where it is not enough, larger ones by influence."""
    sizes = asking.sizes(subposterior.num_rows, draws, subposterior.programs.target.bundle)
    yield uniform(subposterior, sizes[0], PARTS, generator(key))
    rng = generator(jax.random.fold_in(key, SeedStream.PARTS))
    pilots = mapped(draws.gaussians, rng.standard_normal((PILOTS, draws.space.dim)))
    means = np.asarray(draws.gaussians.means)
    near = [pilots[np.argmin(np.sum((means - centre) ** 2, axis=1))] for centre in centres]
    each = [subposterior.influence(centre, some) for centre, some in zip(centres, near, strict=True)]
    for size in sizes:
        yield by_influence(subposterior, np.mean(each, axis=0), size, PARTS, rng)


def _expansion(
    subposterior: Subposterior, centre: np.ndarray, form: Packing, asking: Asking
) -> tuple[np.ndarray, Taylor]:
    """The Taylor expansion about a centre, or a cached one about a point near it."""
    known = asking.memory.near(centre)
    if known is None:
        known = centre, taylors(curve_at(subposterior, centre[None], form, 1))[0]
        asking.memory.add(*known)
    return known


def _scored(near: list[Around], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and standard errors at the draws, each by the expansion about the nearest centre."""
    values, errors = np.empty(len(theta)), np.empty(len(theta))
    nearest = np.argmin([around.whole.distances(theta - around.centre) for around in near], axis=0)
    for i, around in enumerate(near):
        if np.any(nearest == i):
            values[nearest == i], errors[nearest == i] = around.near(
                theta[nearest == i], at_once(around.samples.together)
            )
    return values, np.where(np.isfinite(errors), errors, 1e3)


def _expected(near: list[Around], draws: Draws, asking: Asking) -> Expected:
    values, gradients, hessians = [], [], []
    for points in draws.points():
        nearest = near[int(np.argmin([np.mean(around.whole.distances(points - around.centre)) for around in near]))]
        few = few_pairs(points) if draws.form.whole and points.shape[1] > MANY else None
        value, gradient, hessian = nearest.expected(points, asking.points_at_once, few)
        values.append(value)
        gradients.append(gradient)
        hessians.append(hessian)
    return Expected(np.stack(values), np.stack(gradients), np.stack(hessians))
