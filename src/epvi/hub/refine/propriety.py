"""Refuses posteriors that no shard, nor all of them together, bound in some direction.

Takes a posterior some of whose shards gave information instead of a density, and all shards' answers at the consensus.
Positive curvature at one point does not make a density proper. Two signs show that it is not:

- the summed Hessian is singular at the consensus, and the gradient vanishes along the same direction;
- after the rounds the log density still does not fall on one side of the approximation, along the direction in which
  its curvature at the centre is least: with separated labels it tends to a constant, while rounds run away.
"""

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import form_of
from epvi.ground.errors import EpviError
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.collect import Answered
from epvi.parameters.space import Space

# Eigenvalues of the summed Hessian, scaled to a unit diagonal, below this fraction of the largest are zero; so is the
# gradient along the direction, relative to its length. Judgement: far above the rounding of float64 sums over rows.
_ZERO = 1e-9
# Draws farther than this from the centre along a direction, and nearer than this, in sds, are compared.
_FAR, _NEAR = 1.5, 0.5
# The log density does not fall along a direction if it is lower by less than this at the far draws, in nats. A Gaussian
# is lower by 2. Judgement.
_FALLS = 0.2
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
    """Refuse a posterior whose log density does not fall on one side of its approximation."""
    if not rests_on_information(posterior):
        return
    theta, log_p, q = answered.proposal.theta, answered.log_p, answered.proposal.modes
    packing, root = q.structure.packing, np.asarray(q.roots)[0]
    white = packing.whiten(root, theta - np.asarray(q.means)[0])
    for axis in _least_curved(answered.centres.hessian[0], packing, root):
        along = white @ axis
        near = log_p[np.abs(along) < _NEAR]
        for side in (along, -along):
            far = log_p[side > _FAR]
            if min(len(far), len(near)) >= _FEWEST and abs(np.median(far) - np.median(near)) < _FALLS:
                # Lᵀ θ is white: a step along the axis moves θ by L⁻ᵀ times it.
                raise _improper(posterior.space, packing.unwhiten(root, axis[None])[0])


def _least_curved(hessian: np.ndarray, packing: Packing, root: np.ndarray) -> Float[np.ndarray, "n d"]:
    """Unit vectors in whitened coordinates along which the log density is least curved at the centre."""
    d = len(root)
    dense = form_of(hessian).dense(-hessian, d)
    half = packing.unwhiten(root, np.eye(d))
    _, vectors = np.linalg.eigh(half @ dense @ half.T)
    return vectors.T[:_DIRECTIONS]


def _improper(space: Space, direction: Float[np.ndarray, " d"]) -> EpviError:
    order = np.argsort(-np.abs(direction), kind="stable")[:_MOST_NAMED]
    parts = [space.coordinate(int(i)) for i in order if abs(direction[i]) >= _NAMED * abs(direction[order[0]])]
    return EpviError(
        f"all shards together do not bound {' and '.join(parts)}{', moved together' if len(parts) > 1 else ''}, so that"
        " there is no posterior: give a proper prior, or leave out columns that others determine or that separate the"
        " labels."
    )
