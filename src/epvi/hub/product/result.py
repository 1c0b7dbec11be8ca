"""The base class of product methods, `Product`, and their common result, `ProductMixture`."""

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

    Attributes:
        mixture: all components of the product, or a sample of them.
        log_normaliser: log ∫ Π q_m with its standard error (0 when exact); None if the method does not estimate it.
        diagnostics: the method's own record; None when nothing was sampled.
        status: whether the result can be used as it is, and what to do if not.
    """

    mixture: GaussianMixture
    log_normaliser: Estimate | None
    diagnostics: Any
    status: Status


@dataclasses.dataclass(frozen=True)
class Product(abc.ABC):
    """Base class of product methods: small immutable objects that hold their settings."""

    @abc.abstractmethod
    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """The product of two or more mixtures, already checked; called in float64. A method need not use `executor`."""


PRODUCTS: Registry[Product] = Registry("product")


def exactly(log_normaliser: AnyArray) -> Estimate:
    """A log normaliser without Monte Carlo error."""
    return Estimate(log_normaliser, np.asarray(0.0))
