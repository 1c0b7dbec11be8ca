"""Approximates log p_m near a point by its Taylor expansion and a smooth remainder, with the error measured at draws.

Takes a subposterior whose rows are bundles of groups. There a value costs as much as it costs to integrate over the
effects of all groups, and the sum over groups is a smooth function of few parameters: 2d + 1 Hessians near the point
give its terms of third and fourth order (`fourth_order.py`), in float32 and with nodes about known effects. The log
density itself is computed at a few of the draws, the farthest among them; by how much it differs there says how large
the error is at all of them, whatever its cause.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from epvi.gaussian.matrices import positive_definite
from epvi.gaussian.structures import WHOLE
from epvi.site.derivatives.expansion import PARTS, Near, Taylor
from epvi.site.derivatives.fourth_order import FourthOrder, from_hessians, places
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.prior_part import PriorShare
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows

# Most parameters. Judgement: of 32 parameters, 65 Hessians with 528 entries are computed.
_MOST_PARAMETERS = 32
# Draws at which the error is measured, and in rounds with fewer draws, which a last one follows. Judgement: the root
# mean square of 8 errors is known to a quarter.
_MEASURED, _MEASURED_BEFORE = 8, 4
# Points at which the prior is evaluated in one call. Judgement: it bounds the memory.
_PRIOR_AT_ONCE = 1024
# Draws of a last round, unless said: rounds with fewer draws are followed by one with so many, for which what was
# computed for them serves too.
_USUAL_DRAWS = 2**11
# Largest squared distance, in sds of all rows that are answered for together, from which terms of higher order are
# taken over. Judgement: only those of the fifth order change then, and the error is measured.
_NEAR_ENOUGH = 1.0
# The cost of a value where the modes of the groups' effects are searched for, in values with known nodes. Judgement.
_OF_SEARCH = 3
# The cost of choosing subsamples by influence, in values of all rows. Judgement: 8 points, with two derivatives each.
_OF_CHOICE = 16


@dataclasses.dataclass(frozen=True, eq=False)
class SmoothRemainder:
    """The expansion about one point c, of all rows, and the terms of higher order."""

    # c.
    centre: Float[np.ndarray, " d"]
    # The Taylor expansion of log p_m, with its share of the prior.
    whole: Taylor
    # All rows.
    rows: Subposterior
    # The terms of third and fourth order of the log likelihood, in coordinates u.
    higher: FourthOrder
    # The part of all shards' rows that these are.
    share: float

    def near(self, theta: Float[np.ndarray, "S d"], batch: int) -> Near:
        """Estimated values at points near the centre.

        The error is one of the expansion, which grows like the fourth power of the distance, and is taken to have the
        same sign in all shards: standard errors are such that those of the sum over shards are the sum of errors.
        """
        u = self._whitened(theta)
        distances = np.sqrt(np.sum(u**2, axis=1))
        values = self._approximate(theta, u)
        count = min(_MEASURED if len(theta) >= _USUAL_DRAWS else _MEASURED_BEFORE, len(theta))
        which = np.round(np.linspace(0, len(theta) - 1, count)).astype(int)
        chosen = np.argsort(distances, kind="stable")[which]
        exact = _values(self.rows, theta[chosen])
        growth = (distances / np.median(distances)) ** 2
        growth = (1 + growth) ** 2 / 4
        scale = np.sqrt(np.mean(((exact - values[chosen]) / growth[chosen]) ** 2))
        values[chosen] = exact
        return Near(values, scale * growth / math.sqrt(self.share))

    def expected(self, theta: Float[np.ndarray, "R d"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values at points near the centre, and gradient and Hessian averaged over them."""
        delta, prior, at = theta - self.centre, self._prior, self._prior.curve(theta, WHOLE)
        own = _taylor(prior, self.centre)
        assert at.hessian is not None
        slope, bend = self.higher.averages(self._whitened(theta))
        to_u = np.linalg.cholesky(-self.whole.hessian)
        rest = self.whole.hessian - own.hessian
        gradient = self.whole.gradient - own.gradient + rest @ np.mean(delta, axis=0) + to_u @ slope
        hessian = rest + to_u @ bend @ to_u.T
        values = self._approximate(theta, self._whitened(theta))
        return values, gradient + np.mean(at.gradient, axis=0), hessian + np.mean(at.hessian, axis=0)

    @property
    def _prior(self) -> Subposterior:
        return self.rows.without_its_rows()

    def _whitened(self, theta: np.ndarray) -> np.ndarray:
        """The coordinates u, in which the Hessian of the expansion is minus the identity."""
        return (theta - self.centre) @ np.linalg.cholesky(-self.whole.hessian)

    def _approximate(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The expansion with its higher terms, and the prior's part as it is."""
        delta, prior = theta - self.centre, self._prior
        left = prior.value(theta, _PRIOR_AT_ONCE) - _taylor(prior, self.centre).at(delta)
        return self.whole.at(delta) + left + self.higher.at(u)


def pays(subposterior: Subposterior, num_draws: int, sizes: Sequence[int]) -> bool:
    """Whether this costs less than values at so many draws, of subsamples of such sizes or, without them, of all rows.

    Which size is enough is not known before: the one in the middle is taken for it.
    """
    d, number = subposterior.dim, subposterior.num_rows
    if subposterior.programs.target.bundle == 1 or d > _MOST_PARAMETERS or not number:
        return False
    block = next(iter(subposterior.blocks()))[0]
    if subposterior.programs.linked(block, Order.FULL) is None:
        return False
    draws = max(num_draws, _USUAL_DRAWS)
    other = draws * PARTS * sizes[len(sizes) // 2] + _OF_CHOICE * number if sizes else draws * number
    return (2 * d + 1 + _OF_SEARCH * _MEASURED) * number < other


def higher_terms(
    subposterior: Subposterior, centre: Float[np.ndarray, " d"], whole: Taylor, batch: int
) -> FourthOrder | None:
    """The terms of higher order, from Hessians at `batch` points at a time; None if the expansion has no maximum."""
    if not positive_definite(-whole.hessian[None])[0]:
        return None
    from_u = np.linalg.inv(np.linalg.cholesky(-whole.hessian)).T
    points = centre + places(len(centre)) @ from_u.T
    filled = np.concatenate([points, np.repeat(points[-1:], -len(points) % batch, axis=0)])
    rows = {name: in_float32(column) for name, column in subposterior.prepared(centre, few=True).rows.items()}
    fast = dataclasses.replace(subposterior, rows=rows)
    found = [fast.second_order(some)[2] for some in np.split(filled, len(filled) // batch)]
    prior = subposterior.without_its_rows().second_order(points)[2]
    hessians = from_u.T @ (np.concatenate(found)[: len(points)] - prior) @ from_u
    return from_hessians(hessians) if np.all(np.isfinite(hessians)) else None


def moved_terms(
    higher: FourthOrder, start: tuple[np.ndarray, Taylor], end: tuple[np.ndarray, Taylor]
) -> FourthOrder | None:
    """The terms about the point `start`, with its expansion, as such about `end`; None if that is too far."""
    if not positive_definite(-np.stack([start[1].hessian, end[1].hessian])).all():
        return None
    before, after = (np.linalg.cholesky(-one[1].hessian) for one in (start, end))
    by = (end[0] - start[0]) @ before
    return higher.moved(by, np.linalg.solve(after, before).T) if by @ by <= _NEAR_ENOUGH else None


def _values(rows: Subposterior, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """The log density at points, by the same program as that of several shards."""
    assert isinstance(rows.prior, PriorShare)
    window = block_size(rows.programs, rows.rows, rows.num_rows, 1)
    windows = Windows.of(np.array([rows.num_rows]), window, rows.num_rows, rows.programs.target.bundle)
    share, weight = np.array([rows.prior.fraction]), np.array([rows.weight])
    each = Subposteriors(rows.programs, rows.rows, windows, share, weight, rows.by_row)
    found = each.value(theta[None], np.zeros(1, int))[0]
    rows.count(1, each.seconds)
    return found


def _taylor(prior: Subposterior, centre: np.ndarray) -> Taylor:
    at = prior.full(centre[None])
    assert at.hessian is not None
    return Taylor(float(at.value[0]), at.gradient[0], at.hessian[0])


def in_float32(column: np.ndarray) -> np.ndarray:
    """The column, in float32 if it was in float64."""
    return column.astype(np.float32) if column.dtype == np.float64 else column
