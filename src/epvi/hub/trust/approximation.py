"""What the certificate and the refinement need of a posterior, so that they lie below it and do not import it."""

from typing import Any, ClassVar, Protocol, runtime_checkable

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit


@runtime_checkable
class Approximation(Protocol):
    """A mixture over unconstrained θ, made of the fits of shards; `epvi.Posterior` is one.

    `step` is where its refinement is, or None before the first step.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def mixture(self) -> GaussianMixture:
        """q(θ)."""
        ...

    @property
    def space(self) -> Space:
        """The parameters."""
        ...

    @property
    def fits(self) -> tuple[ShardFit, ...]:
        """The shards' fits, in the order of shards."""
        ...

    @property
    def step(self) -> Any:
        """Where the refinement is."""
        ...
