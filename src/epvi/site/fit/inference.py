"""The interface of a local inference: a settings object that fits a mixture of Gaussians to a subposterior."""

import abc
import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.ground.registry import Registry
from epvi.ground.status import Status
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.rows.columns import Columns


class Lack(NamedTuple):
    """Why a subposterior is no density of its own: as a status with remedies, and as a clause without."""

    status: Status
    finding: str


class Information(NamedTuple):
    """Says that a fit is no density: its natural parameters are slope and curvature at a point (`information.py`)."""

    # θ₀.
    point: Float[np.ndarray, " d"]
    # Why, as a clause: "these rows and their share of the prior do not bound w[3]".
    finding: str


@dataclasses.dataclass(frozen=True)
class LocalFit:
    """The fitted mixture of one shard, with diagnostics."""

    # The approximation q of the subposterior.
    mixture: GaussianMixture
    # Whether the fit converged, and what to do if it did not.
    status: Status
    # The variational bound L2 after each sweep, in nats.
    history: tuple[float, ...]
    # Monte Carlo estimate of the ELBO of `mixture`.
    elbo: Estimate
    # KL(q ‖ subposterior) in nats: log evidence, by importance sampling with the same draws, minus `elbo`.
    gap: float
    # Passes over all rows.
    passes: int
    # Time spent in these passes.
    pass_seconds: float = 0.0
    # Given if the subposterior has no density of its own; then `status` says why.
    information: Information | None = None


@dataclasses.dataclass(frozen=True)
class Inference(abc.ABC):
    """A way to fit a mixture to a subposterior."""

    @property
    @abc.abstractmethod
    def points_at_once(self) -> int:
        """At how many points derivatives are computed in one pass over the rows."""

    @abc.abstractmethod
    def fit(self, subposterior: Subposterior, columns: Columns, *, common: jax.Array, key: jax.Array) -> LocalFit:
        """Fit. All shards share the random key `common`, used for starts; `key` is the shard's own."""

    def settled(self, dim: int, num_shards: int) -> "Inference":
        """The same with what depends on the numbers of parameters and shards decided; by default nothing does."""
        return self

    @property
    def fits_together(self) -> bool:
        """Whether `fit_together` is worth a try."""
        return False

    def fit_together(
        self, subposteriors: Subposteriors, *, common: jax.Array, keys: jax.Array
    ) -> list[LocalFit | None]:
        """Fit several shards at once; None for each shard that `fit` is to fit alone, by default all of them.

        What a shard gets must not depend on the others.
        """
        return [None] * subposteriors.num_shards


INFERENCES: Registry[Inference] = Registry("inference")
