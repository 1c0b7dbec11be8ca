"""Fits a mixture of Gaussians by nonparametric variational inference (Gershman, Hoffman & Blei 2012), as in the paper.

Takes a subposterior with log density f; returns q = Σ_k w_k N(μ_k, Σ_k). With q_k = (1/K) Σ_j N(μ_k; μ_j, Σ_k + Σ_j):

    L1 = (1/K) Σ_k [ f(μ_k) − log q_k ]
    L2 = (1/K) Σ_k [ f(μ_k) + ½ tr Σ_k ∇²f(μ_k) − log q_k ]

A sweep maximises L1 over all means, computes the Hessians there, and maximises L2 over all covariances. The entropy
lower bound in L2 rewards splitting one Gaussian into several, and the product of many shards amplifies the error. So by
default a component is kept only if it raises the Monte Carlo estimate of the ELBO, and the weights are optimised.
`merge=False` is the method of the paper.
"""

import dataclasses

import jax
import numpy as np

from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Diagonal, Full
from epvi.ground.errors import EpviError
from epvi.ground.validation import check_settings
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.fit.inference import INFERENCES, Inference, LocalFit
from epvi.site.fit.newton import Tolerances
from epvi.site.fit.nvi_run import Fitting, worth
from epvi.site.fit.regular import RegularShards
from epvi.site.fit.sweeps import Sweeps
from epvi.site.rows.columns import Columns, generator, generators

# By default covariances are full while those of all shards, M·K·d² numbers of 8 bytes, take at most 4 GB (10⁹ bytes)
# at the hub, the budget of a product (`MAX_GIGABYTES` in hub/product/stack.py), and those of one shard at most 0.5 GB,
# because a site holds several such arrays. With K = 4 that is up to 3,952 parameters, and 353 in 1,000 shards.
# Judgement.
_MOST_GIGABYTES, _MOST_GIGABYTES_OF_SHARD = 4.0, 0.5
# Up to this many parameters covariances are full by default in any number of shards. Judgement: they take 80 kB each.
_FULL_UP_TO = 100


@INFERENCES.add
@dataclasses.dataclass(frozen=True)
class NVI(Inference):
    """Nonparametric variational inference with at most `num_components` Gaussians.

    `covariance` is `Spherical()` (as in the paper), `Diagonal()` or `Full()`; by default full up to 100 parameters, and
    above while the covariances of all components of all shards take at most 4 GB (thousands of parameters in a few
    shards), and otherwise diagonal. Sweeps stop when the variational bound changes by less than `tolerance` nats. With
    `merge` (the default) modes are searched for from `num_starts` starts, each gets one Gaussian, and weights are
    optimised; more components than modes are used only if they raise the ELBO, estimated from `num_draws` draws, by
    half a nat. Without `merge` all components are kept with equal weights, as in the paper.
    """

    # Most components of a shard. Judgement: each costs a Hessian in every pass, and most shards need one.
    num_components: int = 4
    covariance: Structure | None = None
    merge: bool = True
    # Starts of the search for modes. Judgement: four batches of the default number of components.
    num_starts: int = 16
    # Draws of the Monte Carlo bound, over all components. Judgement: of one Gaussian near the subposterior, whose
    # log ratios vary by less than a nat, they give the bound a standard error below 0.1 nats.
    num_draws: int = 256
    # Most sweeps. Judgement, after Gershman, Hoffman & Blei (2012).
    max_sweeps: int = 20
    # The change of L2, in nats, below which sweeps stop: the stopping rule of Gershman, Hoffman & Blei (2012).
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_settings(self, num_components=1, num_starts=1, num_draws=8, max_sweeps=1)
        if self.covariance is not None and not isinstance(self.covariance, Structure):
            raise EpviError(f"covariance is {self.covariance!r}: pass Spherical(), Diagonal() or Full().")
        if not isinstance(self.merge, bool):
            raise EpviError(f"merge is {self.merge!r}: pass True or False.")
        if not isinstance(self.tolerance, int | float) or not 0 < self.tolerance < 1:
            raise EpviError(f"tolerance is {self.tolerance!r}: pass a number of nats between 0 and 1.")

    @property
    def points_at_once(self) -> int:
        """The number of components: their means are optimised together."""
        return self.num_components

    @property
    def fits_together(self) -> bool:
        """Whether shards with one mode get one Gaussian, which takes starts to compare and full covariances."""
        whole = self.covariance is None or self.covariance.packing.whole
        return self.merge and self.num_components > 1 and whole

    def settled(self, dim: int, num_shards: int) -> "NVI":
        """With the covariance structure that these numbers of parameters and shards have by default."""
        if self.covariance is not None:
            return self
        one = 8e-9 * self.num_components * dim**2
        affordable = one <= _MOST_GIGABYTES_OF_SHARD and num_shards * one <= _MOST_GIGABYTES
        return dataclasses.replace(self, covariance=Full() if dim <= _FULL_UP_TO or affordable else Diagonal())

    def fit(self, subposterior: Subposterior, columns: Columns, *, common: jax.Array, key: jax.Array) -> LocalFit:
        """Fit the mixture."""
        d = subposterior.dim
        precision, structure = _tolerances(columns), self._structure(d)
        sweeps = Sweeps(subposterior, structure, precision, self.max_sweeps, self.tolerance)
        work = Fitting(self.num_components, self.num_draws, subposterior, columns, structure, precision, sweeps)
        starts = self._starts(common, d)
        # Overflow is checked for explicitly where it matters, so NumPy need not warn.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                return work.merged(starts, generator(key)) if self.merge else work.plain(starts, generator(key))
            except np.linalg.LinAlgError as error:
                raise EpviError(
                    f"the curvature of the log density cannot be factored ({str(error).lower().rstrip('.')}): take"
                    " fewer shards or a simpler covariance, or standardise columns."
                ) from error

    def fit_together(
        self, subposteriors: Subposteriors, *, common: jax.Array, keys: jax.Array
    ) -> list[LocalFit | None]:
        """Fit the shards that have one mode and are close to Gaussian there; see `regular.py`."""
        structure = self._structure(subposteriors.dim)
        if not (self.fits_together and structure.packing.whole):
            return [None] * subposteriors.num_shards
        tolerable = np.array([worth(share) for share in subposteriors.shares])
        precision = _tolerances(subposteriors.rows)
        starts = self._starts(common, subposteriors.dim)
        work = RegularShards(
            subposteriors, structure, precision, starts, self.num_components, self.num_draws, tolerable
        )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                return work.fit(generators(keys))
            except np.linalg.LinAlgError:
                return [None] * subposteriors.num_shards

    def _structure(self, d: int) -> Structure:
        # `settled` has decided unless the caller did not say how many shards there are.
        return self.settled(d, 1).covariance or Full()

    def _starts(self, common: jax.Array, d: int) -> np.ndarray:
        return generator(common).standard_normal((max(self.num_starts, self.num_components), d))


def _tolerances(columns: Columns) -> Tolerances:
    """Decrement in nats, least relative eigenvalue and rounding: float32 has 7 digits, float64 16."""
    floats = [column.dtype for column in columns.values() if column.dtype.kind == "f"]
    single = bool(floats) and all(dtype == np.float32 for dtype in floats)
    # Judgement.
    return Tolerances(1e-6, 1e-6, 1e-9) if single else Tolerances(1e-9, 1e-12)
