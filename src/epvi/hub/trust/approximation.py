"""The protocol of a posterior approximation, as certificates and refinements use it.

With it these modules need not import `Posterior`, which lies in a layer above them.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit


@runtime_checkable
class Approximation(Protocol):
    """A mixture q(θ) over unconstrained θ, combined from shard fits; `epvi.Posterior` is one."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def mixture(self) -> GaussianMixture:
        """The approximation q(θ)."""
        ...

    @property
    def space(self) -> Space:
        """The parameters and their supports."""
        ...

    @property
    def fits(self) -> tuple[ShardFit, ...]:
        """The shard fits, sorted by shard."""
        ...

    @property
    def step(self) -> Any:
        """The state of its refinement; None before the first step."""
        ...
