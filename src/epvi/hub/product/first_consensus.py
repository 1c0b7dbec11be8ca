"""Keeps the product of shards that do not all stand alone near the points at which their information was computed.

Takes the shards' mixtures and points; gives a Gaussian to multiply with them. Quadratic expansions about different
points say little far from these, and may leave directions unbounded that later rounds, which ask every shard at the
consensus, find bounded. So this Gaussian is centred on the points' information-weighted mean c, and has the least
precision ν ≥ 1 for which the product's mean is within a trust region about c: with Λ and η the sums over shards,

    c = (Σ_m Λ_m)⁻¹ Σ_m Λ_m θ₀_m,  s = (Λ + νI)⁻¹ (η − Λc),  |s| ≤ max(1, 2 rms |θ₀_m − c|)

Refinement rounds replace the product by densities of the rows, so that nothing of this Gaussian is left in the end.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure, common
from epvi.gaussian.structures import Diagonal

# A point counts at least with this fraction of its shard's average precision, and this precision, in every direction:
# where a shard has no information its point is a guess. Judgement.
_GUESS, _LEAST = 1e-3, 1e-6
# The trust region reaches so many times as far as the points are scattered, and at least one unit, as starts of fits
# are. Judgement.
_SCATTERS, _UNIT = 2.0, 1.0
# The least precision ν, and the factor by which it grows until the mean is within the trust region, at most so many
# times. Judgement: sds of the product are at most 1 then, and 4³⁰ is above 1e18.
_LEAST_PRECISION, _GROWTH, _MOST_GROWTHS = 1.0, 4.0, 30


def near_points(mixtures: Sequence[GaussianMixture], points: Float[np.ndarray, "M d"]) -> GaussianMixture:
    """The Gaussian that keeps the product of these mixtures near the points, one for each of them."""
    structure = common([Diagonal(), *(mixture.structure for mixture in mixtures)])
    packing, d = structure.packing, points.shape[1]
    shards = [_as_gaussian(mixture, structure) for mixture in mixtures]
    identity = packing.identity(d)
    known = [one.precision + (_GUESS * float(np.mean(one.information)) + _LEAST) * identity for one in shards]
    weighted = [packing.times(one, point) for one, point in zip(known, points, strict=True)]
    centre = packing.solve(packing.root(np.sum(known, axis=0)), np.sum(weighted, axis=0))
    precision = np.sum([one.precision for one in shards], axis=0)
    slope = np.sum([packing.times(one.precision, one.mean - centre) for one in shards], axis=0)
    scatter = float(np.sqrt(np.mean(np.sum((points - centre) ** 2, axis=1))))
    held = _LEAST_PRECISION
    for _ in range(_MOST_GROWTHS):
        step = packing.solve(packing.root(precision + held * identity), slope)
        if np.linalg.norm(step) <= max(_UNIT, _SCATTERS * scatter):
            break
        held *= _GROWTH
    return Gaussian(centre, held * identity, structure).as_mixture()


def _as_gaussian(mixture: GaussianMixture, structure: Structure) -> Gaussian:
    """A mixture as one Gaussian, by its moments."""
    if mixture.num_components > 1:
        mixture = mixture.reduce(1)
    packing = mixture.structure.packing
    precision = packing.precision(np.asarray(mixture.roots)[0])
    return Gaussian(np.asarray(mixture.means)[0], precision, mixture.structure).widened(structure)
