"""The parametric density product (Neiswanger, Wang & Xing 2013): the product of Gaussians fitted to the shards."""

import dataclasses
from typing import ClassVar

import jax

from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Full
from epvi.hub.samples.method import METHODS, Combination, DrawsMethod, Remedies, Shards, check_covariance, generator
from epvi.hub.samples.moments import fit_gaussians, inflation, product
from epvi.hub.samples.shape import gaussian_status


@METHODS.add
@dataclasses.dataclass(frozen=True)
class Parametric(DrawsMethod):
    """Draws of the product of Gaussians with the shards' sample means and covariances.

    Neiswanger, Wang & Xing, Asymptotically Exact, Embarrassingly Parallel MCMC (2013; UAI 2014), section 3.1. Nearly
    exact if every shard has many rows, by the Bernstein-von Mises theorem. `diagnostics` of the result is the Gaussian.
    """

    remedies: ClassVar[Remedies] = Remedies(few="")
    covariance: Structure = dataclasses.field(default_factory=Full)

    def __post_init__(self) -> None:
        check_covariance(self.covariance)

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Independent draws of the product, which is a Gaussian."""
        count = min(shards.counts) if num_samples is None else num_samples
        gaussian = product(fit_gaussians(shards, self.covariance))
        theta = gaussian.sample(count, generator(key))
        inflated = inflation(min(shards.counts), shards.dim, self.covariance)
        status = gaussian_status(f"drawn: {count:,} draws", shards, self.covariance, inflated, self.remedies)
        return Combination(theta, status, gaussian.as_mixture())
