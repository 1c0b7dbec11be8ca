"""A site's answer about group effects that were integrated out: their moments given the other parameters φ.

Takes bundles of groups and points φ, the supports; gives mean and covariance of each group's effects at each of them,
and at a single one also their derivatives in φ.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from epvi.site.derivatives.conditional import conditional_moments, conditional_values, with_levels
from epvi.site.model.target import Target
from epvi.site.rows.bundles import LEVELS
from epvi.site.rows.columns import Columns


class LevelMoments(NamedTuple):
    """Moments of the effects of L levels given φ; roots as in `site/derivatives/conditional.py`."""

    levels: Int[np.ndarray, " L"]
    mean: Float[np.ndarray, "S L s"]
    root: Float[np.ndarray, "S L t"]
    # Derivatives in φ, if there is one support.
    slopes: tuple[Float[np.ndarray, "L s p"], Float[np.ndarray, "L t p"]] | None


def effects_given(
    target: Target, columns: Columns, phi: Float[np.ndarray, "S p"], empty: Int[np.ndarray, " n"]
) -> LevelMoments:
    """The moments of the effects of all groups in these bundles, and of levels without rows."""
    columns = with_levels(columns, empty)
    levels = columns[LEVELS].ravel()
    there = levels >= 0
    if len(phi) > 1:
        mean, root = conditional_values(target, columns, phi)
        return LevelMoments(levels[there], mean[:, there], root[:, there], None)
    found = conditional_moments(target, columns, phi[0])
    mean, root, *slopes = (part[there] for part in found)
    return LevelMoments(levels[there], mean[None], root[None], (slopes[0], slopes[1]))
