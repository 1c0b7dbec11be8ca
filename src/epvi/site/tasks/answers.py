"""What a shard answers to draws, how it is asked to compute it, and how it is checked before it is sent."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import WHOLE
from epvi.ground.errors import EpviError
from epvi.site.derivatives.averages import in_batches
from epvi.site.derivatives.expansion import sizes_of_parts
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.gradients_at import gradients_at
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, Provenance

# Draws at which log p_m is evaluated in one pass over the rows, as in a fit. Judgement: it bounds a block's memory.
DRAWS_AT_ONCE = 64
# The same for bundles of groups, each with several nodes for the effects.
_DRAWS_OF_BUNDLES = 16
# Derivatives are computed at this many points in one pass, the same number as in a fit with default settings, so that
# compiled programs are shared.
POINTS_AT_ONCE = 4
# Scores with a median standard error above this, in nats and for the sum over shards, are computed from more rows.
# Judgement: an error of the log density of this size moves a posterior mean by at most so many sds.
_CERTAIN = 0.02
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
    points_at_once: int = POINTS_AT_ONCE
    # Whether the rows have been checked against the support before.
    checked: bool = False
    # The part of all shards' rows that these are, as far as it is known.
    share: float = 1.0
    # Taylor expansions from earlier rounds.
    memory: ExpansionCache = dataclasses.field(default_factory=ExpansionCache)

    @property
    def certain(self) -> float:
        """Scores with a larger median standard error, in nats, are computed from more rows."""
        return _CERTAIN * math.sqrt(self.share)

    def sizes(self, num_rows: int, draws: Draws, bundle: int) -> list[int]:
        """The sizes of subsamples to try; `bundle` is that of the target."""
        # Twice the share: half of all rows get the usual subsample.
        return sizes_of_parts(num_rows, min(2 * self.share, 1.0), draws.space.dim if draws.form.whole else 1, bundle)


def scores_of(
    programs: Programs,
    num_rows: int,
    draws: Draws,
    part: Part,
    asking: Asking,
    made: Answers,
    effort: tuple[int, float],
    slopes: Float[np.ndarray, "R d"] | None = None,
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
        slopes=slopes,
    )


def variation(
    subposterior: Subposterior, point: np.ndarray, gradient: np.ndarray, rows: Subposterior, form: Packing
) -> Variation:
    """Sum and outer products of the rows' score vectors at a point; `rows` may be a subsample.

    The sum is the gradient of log p_m minus that of the prior's share.
    """
    prior = subposterior.without_its_rows().gradient(point[None]).gradient[0]
    products = rows.spread(point)
    return Variation(gradient - prior, form.kept(products, WHOLE, len(point)))


def curve_at(subposterior: Subposterior, points: np.ndarray, form: Packing, batch: int) -> Curve:
    """Value, gradient and Hessian at any number of points, `batch` at a time."""
    found = [subposterior.curve(some, form) for some in in_batches(points, batch)]
    return Curve(*(np.concatenate([np.asarray(one[i]) for one in found])[: len(points)] for i in range(3)), form=form)


def at_once(subposterior: Subposterior) -> int:
    """At how many draws log p_m is evaluated in one pass."""
    return DRAWS_AT_ONCE if subposterior.programs.target.bundle == 1 else _DRAWS_OF_BUNDLES


def finite(values: np.ndarray) -> np.ndarray:
    """Log densities with minus infinity in place of NaN and infinities."""
    return np.where(np.isfinite(values), values, -math.inf)


def slopes_asked(each: Subposteriors, draws: Draws) -> list[np.ndarray | None]:
    """The gradients of every shard at the base draws of the first Gaussian, if asked for, and if they are finite."""
    if not draws.asked.slopes:
        return [None] * each.num_shards
    found = gradients_at(each, draws.points()[0])
    return [one if np.all(np.isfinite(one)) else None for one in found]


def each_checked(answers: list[Answers]) -> list[Answers]:
    """The answers of several shards, each `checked` where one of them is not finite."""
    arrays = zip(*((*one.centres, *one.rows, *(one.moments or ())) for one in answers), strict=False)
    complete = len({one.moments is None for one in answers}) == 1
    if complete and all(math.isfinite(np.sum(np.concatenate(some))) for some in arrays):
        return answers
    return [checked(one) for one in answers]


def checked(made: Answers) -> Answers:
    """Replace answers that are not finite: no moments, and a centre gets a very low log density and zero derivatives.

    Refuses if the derivatives at the first centre are not finite.
    """
    if all(math.isfinite(np.sum(array)) for part in (made.centres, made.rows, made.moments or ()) for array in part):
        return made
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
