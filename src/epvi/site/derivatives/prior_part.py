"""What a subposterior has besides its rows: a share of the prior, or precisions in its place.

Both are trees of numbers, so that a compiled program takes them as arguments, one program for each of the two.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.site.model.target import Target


class PriorShare(NamedTuple):
    """f log p(θ): the share f of the log prior, which holds the log Jacobian of the constraints."""

    fraction: float

    def log_density(self, target: Target, point: Any) -> Any:
        """At one point θ."""
        return self.fraction * target.log_prior(point)


class Precisions(NamedTuple):
    """−½ Σ_i λ_i θ_i²: a Gaussian about the origin with precision λ_i in coordinate i, and none where that is 0."""

    values: Float[np.ndarray, " d"]

    def log_density(self, target: Target, point: Any) -> Any:
        """At one point θ, up to a constant."""
        return -0.5 * jnp.sum(self.values * point**2)


PriorPart = PriorShare | Precisions
