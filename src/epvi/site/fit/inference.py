"""What a local inference is: a small object with settings that turns a subposterior into a mixture of Gaussians."""

import abc
import dataclasses

import jax

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.ground.registry import Registry
from epvi.ground.status import Status
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.rows.columns import Columns


@dataclasses.dataclass(frozen=True)
class LocalFit:
    """A shard's mixture, how it came about, and how good its own inference thinks it is.

    `history` is the variational bound after each sweep, `elbo` the Monte Carlo bound of the mixture as it is, `gap` how
    far that is below the evidence (the divergence of the mixture from the subposterior), by its own draws.
    """

    mixture: GaussianMixture
    status: Status
    history: tuple[float, ...]
    elbo: Estimate
    gap: float
    passes: int
    pass_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Inference(abc.ABC):
    """A way to fit a mixture to a subposterior."""

    @property
    @abc.abstractmethod
    def points_at_once(self) -> int:
        """At how many points derivatives are asked for in one pass."""

    @abc.abstractmethod
    def fit(self, subposterior: Subposterior, columns: Columns, *, common: jax.Array, key: jax.Array) -> LocalFit:
        """Fit. `common` is a key that all shards share (starts), `key` the shard's own."""


INFERENCES: Registry[Inference] = Registry("inference")
