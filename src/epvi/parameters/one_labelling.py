"""The part of parameter space with one of the equivalent labellings of exchangeable units.

A density that does not change when L units are permuted has L! copies of everything. Its restriction to the labelling
that is nearest to a reference holds all there is to know, and is what a posterior in one labelling approximates.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.alignment import variances
from epvi.parameters.space import Space
from epvi.parameters.units import costs, features, scaled

# Units of a reference whose features all differ by less than this many standard deviations count as one. Judgement: as
# far apart as optimisations that ended in the same mode (`SAME_MODE`).
_COINCIDE = 0.5
# Relative difference below which two costs are equal. Judgement: far above the rounding of sums.
_TIE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class OneLabelling:
    """The region of θ that holds one of all equivalent labellings: that which is nearest to a reference.

    Units that coincide in the reference are not told apart: the region has all their labellings.

    Attributes:
        space: the parameters.
        reference: for each group, the features of its units, (L, features).
        precision: their precisions.
        log_count: log of the number of such regions, of which each is the image of any other.
    """

    space: Space
    reference: tuple[np.ndarray, ...]
    precision: tuple[np.ndarray, ...]
    log_count: float

    @classmethod
    def around(cls, mixture: GaussianMixture, space: Space) -> "OneLabelling":
        """The region around the heaviest component of a mixture."""
        heaviest = int(np.argmax(mixture.log_weights))
        mean, precision = np.asarray(mixture.means)[heaviest], 1 / variances(mixture)[heaviest]
        found, log_count = [], 0.0
        for group in space.exchangeable:
            parts = scaled(space, group, mean, precision)
            classes = _coinciding(*parts)
            found.append([_averaged(part, classes) for part in parts])
            log_count += gammaln(len(classes) + 1) - np.sum(gammaln(np.bincount(classes) + 1))
        return cls(space, tuple(one for one, _ in found), tuple(one for _, one in found), float(log_count))

    def has(self, theta: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        """Which points are in it: those that no relabelling brings nearer to the reference."""
        inside = np.ones(len(theta), bool)
        for group, reference, precision in zip(self.space.exchangeable, self.reference, self.precision, strict=True):
            away = costs(features(self.space, group, theta), reference, precision)
            own = np.einsum("nkk->nk", away)
            # If every unit is nearest to its own place, the assignment is optimal.
            for i in np.flatnonzero(inside & np.any(own > np.min(away, axis=2), axis=1)):
                best = away[i][linear_sum_assignment(away[i])].sum()
                inside[i] = own[i].sum() <= best * (1 + _TIE)
        return inside


def _coinciding(values: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The class of each unit: units that coincide, directly or through others, share one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = np.sqrt(1 / precision[:, None] + 1 / precision[None])
        near = np.all(np.abs(values[:, None] - values[None]) <= _COINCIDE * widths, axis=2)
    classes = np.arange(len(values))
    for i, j in zip(*np.nonzero(near), strict=True):
        classes[classes == classes[j]] = classes[i]
    return classes


def _averaged(part: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return np.stack([part[classes == one].mean(axis=0) for one in classes])
