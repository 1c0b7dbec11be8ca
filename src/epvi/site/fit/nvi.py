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
from epvi.gaussian.structures import Full
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

# By default covariances are full while what is held of them at once, in numbers of 8 bytes, takes at most so many GB
# (10⁹ bytes): at the hub four matrices per Gaussian of every shard (its root, and two Hessians and outer products of
# scores in its answers), and at a site eight in its fit. That is up to 7,905 parameters in four shards or fewer, 3,535
# in 20 and 500 in 1,000. Judgement: it suits machines with 16 GB, and does not depend on the machine.
_MOST_GIGABYTES_AT_HUB, _MOST_GIGABYTES_AT_SITE, _HELD_AT_HUB, _HELD_AT_SITE = 8.0, 4.0, 4, 8
# Up to this many parameters covariances are full by default in any number of shards. Judgement: they take 80 kB each.
_FULL_UP_TO = 100


@INFERENCES.add
@dataclasses.dataclass(frozen=True)
class NVI(Inference):
    """Nonparametric variational inference with at most `num_components` Gaussians.

    `covariance` is `Spherical()` (as in the paper), `Diagonal()` or `Full()`; by default full. More than 100 parameters
    for which the matrices of all shards would take more than 8 GB (7,905 in four shards, 500 in 1,000) are refused
    unless it is given. Sweeps stop when the variational bound changes by less than `tolerance` nats. With
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
        if dim > _FULL_UP_TO:
            self._check_affordable(dim, num_shards)
        return dataclasses.replace(self, covariance=Full())

    def _check_affordable(self, dim: int, num_shards: int) -> None:
        """Refuse full covariances that take too much memory: with others sds would be wrong wherever columns correlate.

        With `merge` nearly all shards with many parameters get one Gaussian.
        """
        one = 8e-9 * dim**2 * (1 if self.merge else self.num_components)
        hub, site = _HELD_AT_HUB * num_shards * one, _HELD_AT_SITE * one
        if hub <= _MOST_GIGABYTES_AT_HUB and site <= _MOST_GIGABYTES_AT_SITE:
            return
        fewer = int(_MOST_GIGABYTES_AT_HUB / (_HELD_AT_HUB * one)) if site <= _MOST_GIGABYTES_AT_SITE else 0
        shards = f"take at most {fewer:,} shard{'s' if fewer != 1 else ''}, or " if fewer else ""
        raise EpviError(
            f"full covariances of {dim:,} parameters in {num_shards:,} shard{'s' if num_shards != 1 else ''} take about"
            f" {hub:,.0f} GB at the hub and {site:,.1f} GB at a site, over the budget of {_MOST_GIGABYTES_AT_HUB:g} and"
            f" {_MOST_GIGABYTES_AT_SITE:g} GB: {shards}pass inference=epvi.NVI(covariance=epvi.Full()) if there is so"
            " much memory, or epvi.Diagonal() for means alone, whose sds leave correlations out and are too small."
        )

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
