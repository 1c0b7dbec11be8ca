"""The fields of a posterior as a plain tuple, for the modules that combine, write and read it."""

import dataclasses
from typing import NamedTuple

from epvi.hub.posterior.effects import Effects
from epvi.hub.product.result import Product, ProductMixture
from epvi.hub.refine.step import Step
from epvi.hub.trust.certify import Certificate
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit


@dataclasses.dataclass(frozen=True)
class Choices:
    """How a posterior was combined."""

    # The product method; None: chosen by the size of the problem.
    product: Product | None = None
    # The two words of the JAX key of the seed.
    key: tuple[int, ...] = (0, 0)


class Parts(NamedTuple):
    """The fields of a `Posterior`, in its order and with its meanings."""

    product: ProductMixture
    space: Space
    fits: tuple[ShardFit, ...]
    choices: Choices = Choices()
    certificate: Certificate | None = None
    step: Step | None = None
    traffic: int = 0
    effects: Effects | None = None
