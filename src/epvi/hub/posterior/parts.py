"""What a posterior consists of, as it is combined, written and read."""

import dataclasses
from typing import NamedTuple

from epvi.hub.product.result import Product, ProductMixture
from epvi.hub.refine.refine import Step
from epvi.hub.trust.certify import Certificate
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit


@dataclasses.dataclass(frozen=True)
class Choices:
    """How a posterior was combined."""

    # The way to multiply; None: chosen by size.
    product: Product | None = None
    # The data of the seed's key.
    key: tuple[int, ...] = (0, 0)


class Parts(NamedTuple):
    """The fields of a `Posterior`, in its order."""

    product: ProductMixture
    space: Space
    fits: tuple[ShardFit, ...]
    choices: Choices = Choices()
    certificate: Certificate | None = None
    step: Step | None = None
    traffic: int = 0
