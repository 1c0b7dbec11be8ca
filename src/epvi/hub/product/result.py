"""What a product of mixtures gives, whichever way it was computed: `ProductMixture`; and what a way is: `Product`."""

import abc
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.ground.float64 import AnyArray
from epvi.ground.registry import Registry
from epvi.ground.status import Status


@dataclasses.dataclass(frozen=True)
class ProductMixture:
    """The normalised product q*(θ) ∝ Π_m q_m(θ).

    `mixture` holds all components or a sample of them, `log_normaliser` is log ∫ Π q_m with its standard error (0 when
    exact, None when this way does not give one), `diagnostics` is the way's own record, None when nothing was sampled.
    """

    mixture: GaussianMixture
    log_normaliser: Estimate | None
    diagnostics: Any
    status: Status


@dataclasses.dataclass(frozen=True)
class Product(abc.ABC):
    """A way to multiply mixtures: a small object that holds its settings."""

    @abc.abstractmethod
    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """The product of two or more checked mixtures, inside the float64 context. `executor` may be left unused."""


PRODUCTS: Registry[Product] = Registry("product")


def exactly(log_normaliser: AnyArray) -> Estimate:
    """A log normaliser without Monte Carlo error."""
    return Estimate(log_normaliser, np.asarray(0.0))
