"""The prior factor of a subposterior: a fractional power of the prior, or a Gaussian in its place.

Both are pytrees, so that compiled programs take them as arguments: one program for each of the two types.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.site.derivatives.order import Order
from epvi.site.model.target import Target

# Numbers of points at which the prior alone is evaluated, where rows are bundles of groups. Judgement.
_NUMBERS = (4, 64, 1024)


class PriorShare(NamedTuple):
    """f log p(θ), where log p includes the log Jacobian of the transform to unconstrained coordinates."""

    fraction: float

    def log_density(self, target: Target, point: Any) -> Any:
        """The log density at one point θ."""
        return self.fraction * target.log_prior(point)


class Precisions(NamedTuple):
    """−½ Σ_i λ_i θ_i²: a Gaussian about the origin with precision λ_i in coordinate i; flat where λ_i = 0."""

    values: Float[np.ndarray, " d"]

    def log_density(self, target: Target, point: Any) -> Any:
        """The log density at one point θ, up to a constant."""
        return -0.5 * jnp.sum(self.values * point**2)


PriorPart = PriorShare | Precisions


def few_numbers(theta: Float[np.ndarray, "n d"], bundle: int) -> Float[np.ndarray, "m d"]:
    """Points at which the prior alone is evaluated, with the last one repeated up to one of few numbers of points.

    Where rows are bundles of groups, because there is enough to compile without it.
    """
    number = next((some for some in _NUMBERS if some >= len(theta)), len(theta)) if bundle > 1 else len(theta)
    return np.concatenate([theta, np.repeat(theta[-1:], number - len(theta), axis=0)])


def share_at(target: Target, order: Order, share: Any, point: Any) -> Any:
    """A share of the log prior with its derivatives at a point."""
    return order.derived(lambda theta: share * target.log_prior(theta))(point)
