"""What a site answers about group effects that were integrated out: moments given the other parameters φ, and an audit.

Takes nothing; these are records between `site/tasks/effects.py` and `run/grouping.py`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Audited(NamedTuple):
    """What wide nodes say about the effects of some levels at K draws of φ, and what their approximation says.

    Means and variances are those of constrained effects.
    """

    # Errors of the levels' log integrals, of which the posterior of φ is made; zero where they were not looked at.
    log_integral: Float[np.ndarray, "K L"]
    mean: Float[np.ndarray, "K L s"]
    variance: Float[np.ndarray, "K L s"]
    approximate_mean: Float[np.ndarray, "K L s"]
    approximate_variance: Float[np.ndarray, "K L s"]


class LevelMoments(NamedTuple):
    """Moments of the effects of L levels given φ; roots as in `site/derivatives/conditional.py`."""

    levels: Int[np.ndarray, " L"]
    mean: Float[np.ndarray, "S L s"]
    root: Float[np.ndarray, "S L t"]
    shape: Float[np.ndarray, "S L s 2"]
    # Derivatives in φ, if there is one support.
    slopes: tuple[Float[np.ndarray, "L s p"], Float[np.ndarray, "L t p"]] | None
    audited: Audited
