"""How far a Gaussian posterior is from the highest ELBO: what one step of refinement would change.

Takes the expected gradient g and Hessian H of log p under the posterior N(μ, Λ⁻¹), summed over all shards. At the
highest ELBO g = 0 and −H = Λ. Otherwise (−H)⁻¹g is by how much the mean is off, and the diagonal of (−H)⁻¹ has the
variances that it should have, both to first order. Averages of derivatives have far smaller errors than cumulants of
log ratios with a single parameter: they show a single wrong mean or sd among thousands of right ones.
"""

from typing import NamedTuple

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structures import WHOLE
from epvi.wire.answer import Expected


class Moves(NamedTuple):
    """The largest changes by one step: of a mean, in sds, and of an sd, relative to it; infinite if −H is improper."""

    shift: float
    change: float


def step_of(gaussian: GaussianMixture, expected: Expected) -> Moves:
    """The step from one Gaussian, with full Hessians."""
    try:
        half = WHOLE.inverse_root(WHOLE.symmetrised(-expected.hessian[0]))
    except np.linalg.LinAlgError:
        return Moves(np.inf, np.inf)
    sd, wanted = np.asarray(gaussian.sd()), np.sqrt(np.sum(half**2, axis=0))
    away = half.T @ (half @ expected.gradient[0])
    return Moves(float(np.max(np.abs(away) / sd)), float(np.max(np.abs(wanted / sd - 1))))
