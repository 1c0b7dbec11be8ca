"""Refuses posteriors that no shard, nor all of them together, bound in some direction.

Takes a posterior some of whose shards gave information instead of a density, and all shards' answers at the consensus.
Positive curvature at one point does not make a density proper. Two signs show that it is not:

- the summed Hessian is singular at the consensus, and the gradient vanishes along the same direction;
- after the rounds the log density neither falls nor bends downwards on one side of the approximation, along a direction
  in which its curvature at the centre is least: with separated labels it tends to a constant, while rounds run away.

A density that rises and bends is no such sign: its maximum is only not where the approximation is.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.ground.errors import EpviError
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered
from epvi.parameters.space import Space
from epvi.wire.answer import Derivatives

# Eigenvalues of the summed Hessian, scaled to a unit diagonal, below this fraction of the largest are zero; so is the
# gradient along the direction, relative to its length. Judgement: far above the rounding of float64 sums over rows.
_ZERO = 1e-9
# Draws farther than this from the centre along a direction, between both, and nearer than this, in sds, are compared.
_FAR, _NEAR = 1.5, 0.5
# The log density does not fall, or bend, if it does by less than this, in nats. A Gaussian falls by 1.8 from the near
# draws to the far ones, and those between are higher than halfway by 0.45, so that it bends by 0.9. Judgement.
_LITTLE = 0.2
# It has to be known, by so many standard errors, to be less than this: half of what a Gaussian falls, and all that it
# bends. Judgement: 16 sides are examined.
_STANDARD_ERRORS, _GAUSSIAN = 4.0, 0.9
# Standard error of a median over that of a mean of Gaussian numbers, and their sd over the median absolute deviation.
_OF_MEDIAN, _OF_DEVIATION = np.sqrt(np.pi / 2), 1.4826
# Directions of least curvature that are examined, and the fewest draws on a side. Judgement.
_DIRECTIONS, _FEWEST = 8, 5
# A direction is named by coordinates whose part of it is at least this large, relative to the largest. Judgement.
_NAMED, _MOST_NAMED = 0.3, 3


def rests_on_information(posterior: Approximation) -> bool:
    """Whether some shards gave information instead of a density, so that nothing shows yet that there is one."""
    return any(not fit.stands_alone for fit in posterior.fits)


def refuse_singular(posterior: Approximation, answered: Answered) -> None:
    """Refuse a posterior whose log density is flat in some direction at the consensus, to second order."""
    if not rests_on_information(posterior):
        return
    gradient, hessian = answered.centres.gradient[0], answered.centres.hessian[0]
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return
    found = form_of(hessian).smallest(-hessian, 1)
    direction = found.units * found.axes[0]
    direction = direction / np.linalg.norm(direction)
    # The largest eigenvalue of a matrix with a unit diagonal is at least 1.
    flat = abs(found.eigenvalues[0]) <= _ZERO or float(np.max(np.abs(hessian))) == 0
    if flat and abs(gradient @ direction) <= _ZERO * (1 + np.linalg.norm(gradient)):
        raise _improper(posterior.space, direction)


def refuse_runaway(posterior: Approximation, answered: Answered) -> None:
    """Refuse a posterior whose log density neither falls nor bends on one side of its approximation."""
    slopes, curvatures = answered.centres.gradient[0], answered.centres.hessian[0]
    if not (rests_on_information(posterior) and np.all(np.isfinite(slopes)) and np.all(np.isfinite(curvatures))):
        return
    theta, log_p, q = answered.proposal.theta, answered.log_p, answered.proposal.modes
    packing, root = q.structure.packing, np.asarray(q.roots)[0]
    along = packing.whiten(root, theta - np.asarray(q.means)[0])
    gradient, curvature, axes = _principal(answered.centres, packing, root)
    along = along @ axes
    # Of a Gaussian this leaves nothing: the scatter of log p by d coordinates would hide how it changes along one.
    left = log_p - (along @ gradient - 0.5 * along**2 @ curvature)
    for i in range(min(_DIRECTIONS, len(curvature))):
        t = along[:, i]
        own = left + gradient[i] * t - 0.5 * curvature[i] * t**2
        if _is_unbounded(t, own) or _is_unbounded(-t, own):
            # Lᵀ θ is white: a step along the axis moves θ by L⁻ᵀ times it.
            raise _improper(posterior.space, packing.unwhiten(root, axes[None, :, i])[0])


class _Middle(NamedTuple):
    """A median, with the square of its standard error."""

    value: float
    square: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " n"]) -> "_Middle":
        value = np.median(values)
        sd = _OF_DEVIATION * np.median(np.abs(values - value))
        return cls(float(value), float((_OF_MEDIAN * sd) ** 2 / len(values)))


def _is_unbounded(t: Float[np.ndarray, " n"], log_p: Float[np.ndarray, " n"]) -> bool:
    """Whether log p, at draws with coordinates t in sds, neither falls nor bends downwards for t > 0."""
    parts = [log_p[np.abs(t) < _NEAR], log_p[(t >= _NEAR) & (t <= _FAR)], log_p[t > _FAR]]
    if min(map(len, parts)) < _FEWEST or not all(np.isfinite(np.median(part)) for part in parts):
        return False
    near, between, far = map(_Middle.of, parts)
    falls = near.value - far.value, near.square + far.square
    bends = 2 * between.value - near.value - far.value, near.square + 4 * between.square + far.square
    return all(
        amount < _LITTLE and amount + _STANDARD_ERRORS * np.sqrt(square) < _GAUSSIAN
        for amount, square in (falls, bends)
    )


def _principal(
    centres: Derivatives, packing: Packing, root: np.ndarray
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Gradient and curvatures of the log density at the centre, along orthonormal axes in whitened coordinates.

    Those axes along which it is least curved come first.
    """
    hessian, d = centres.hessian[0], len(root)
    half = packing.unwhiten(root, np.eye(d))
    curvature, axes = np.linalg.eigh(half @ form_of(hessian).dense(-hessian, d) @ half.T)
    return axes.T @ half @ centres.gradient[0], curvature, axes


def _improper(space: Space, direction: Float[np.ndarray, " d"]) -> EpviError:
    order = np.argsort(-np.abs(direction), kind="stable")[:_MOST_NAMED]
    parts = [space.coordinate(int(i)) for i in order if abs(direction[i]) >= _NAMED * abs(direction[order[0]])]
    return EpviError(
        f"all shards together do not bound {' and '.join(parts)}{', moved together' if len(parts) > 1 else ''}, so that"
        " there is no posterior: give a proper prior, or leave out columns that others determine or that separate the"
        " labels."
    )
