"""Combine posteriors that each contain the full prior, by dividing it out (Broderick et al. 2013; Campbell & How 2014).

For draws of p(θ) p(x_m|θ), with the full prior at every shard (the paper, equation 3):

    q(θ) ∝ Π_m q_m(θ) / p(θ)^(M−1);   of Gaussians:  Λ = Σ_m Λ_m − (M − 1) Λ_0,   η = Σ_m η_m − (M − 1) η_0

The Λ_m are estimates, so Λ need not be positive-definite; then the quotient is not a density.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structures import Full
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.layout import Layout, numbers
from epvi.hub.samples.method import METHODS, Combination, DrawsMethod, Remedies, Shards, generator
from epvi.hub.samples.moments import fit_gaussians, inflation
from epvi.hub.samples.shape import gaussian_status

# Least ratio of the quotient's smallest eigenvalue to its standard error. Judgement: at 5, that precision is known to
# about 20 %, and the sd along it to 10 %.
_STANDARD_ERRORS = 5


@METHODS.add
@dataclasses.dataclass(frozen=True, eq=False)
class ExponentialFamily(DrawsMethod):
    """The product of Gaussians fitted to the shards' posteriors, divided by the Gaussian prior M − 1 times.

    Broderick, Boyd, Wibisono, Wilson & Jordan, Streaming Variational Bayes (2013); Campbell & How, Approximate
    Decentralized Bayesian Inference (2014). `diagnostics` of the result is the Gaussian.

    Attributes:
        prior_mean: a number, d numbers, or a mapping of parameter names to values.
        prior_covariance: likewise for the variances, or a d x d matrix.
    """

    remedies: ClassVar[Remedies] = Remedies(
        shape="draw with the prior to the power 1/M and use Semiparametric()", dimensions="", few=""
    )
    full_prior: ClassVar[bool] = True
    prior_mean: Any
    prior_covariance: Any

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Independent draws of the quotient, which is a Gaussian."""
        count = min(shards.counts) if num_samples is None else num_samples
        prior = self._prior(shards.layout)
        fitted = fit_gaussians(shards, Full(), self.remedies)
        gaussians = [_unbiased(one, n) for one, n in zip(fitted, shards.counts, strict=True)]
        quotient = _divide(gaussians, prior, shards)
        status = gaussian_status(f"drawn: {count:,} draws", shards, Full(), 1.0, self.remedies)
        if status.ok and quotient.certainty < _STANDARD_ERRORS:
            status = Status(
                StatusCode.LITTLE_BEYOND_PRIOR,
                f"along {quotient.where} the shards add little to the prior (the remaining precision is"
                f" {quotient.certainty:.1f} standard errors above zero): draw more, or use subposteriors with the prior"
                " to the power 1/M and Parametric().",
            )
        theta = quotient.gaussian.sample(count, generator(key))
        return Combination(theta, status, quotient.gaussian.as_mixture())

    def _prior(self, layout: Layout) -> "_Prior":
        mean = layout.per_coordinate("prior_mean", self.prior_mean)
        if np.ndim(self.prior_covariance) == 2:
            covariance, d = numbers("prior_covariance", self.prior_covariance), layout.dim
            if covariance.shape != (d, d):
                raise EpviError(f"prior_covariance has shape {covariance.shape}: pass {(d, d)}, or {d} variances.")
        else:
            covariance = np.diag(layout.per_coordinate("prior_covariance", self.prior_covariance))
        return _Prior(mean, covariance, _root(covariance))


class _Prior(NamedTuple):
    """The Gaussian prior."""

    mean: np.ndarray
    covariance: np.ndarray  # Σ_0
    root: np.ndarray  # L with L Lᵀ = Σ_0


class _Quotient(NamedTuple):
    """The product of the shards over the priors."""

    gaussian: Gaussian
    where: str  # coordinate that dominates the direction of least precision
    certainty: float  # that precision over its standard error


def _unbiased(fitted: Gaussian, n: int) -> Gaussian:
    """The Gaussian with an unbiased precision: a bias of Σ_m Λ_m would remain whole after subtracting M − 1 priors."""
    return dataclasses.replace(fitted, precision=fitted.precision / inflation(n, len(fitted.mean), Full()))


def _root(covariance: np.ndarray) -> np.ndarray:
    # The tolerance admits rounding in how the matrix was computed. Judgement.
    if np.any(np.abs(covariance - covariance.T) > 1e-8 * np.max(np.abs(covariance))):
        raise EpviError("prior_covariance is not symmetric: use (C + C.T) / 2.")
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise EpviError(
            "prior_covariance is not positive-definite: pass variances above zero, or a covariance matrix."
        ) from None


def _divide(gaussians: list[Gaussian], prior: _Prior, shards: Shards) -> _Quotient:
    """Divide in coordinates where the prior is N(0, I): there Λ_0 = I, and eigenvalues have no units."""
    others, precisions = len(gaussians) - 1, np.stack([one.precision for one in gaussians])
    whitened = prior.root.T @ precisions @ prior.root
    values, vectors = np.linalg.eigh(np.sum(whitened, axis=0) - others * np.eye(shards.dim))
    least = vectors[:, 0]
    # A direction v in these coordinates is L v in θ; name it by its largest entry, in prior sds.
    moved = np.abs(prior.root @ least) / np.sqrt(np.diag(prior.covariance))
    where = shards.layout.labels[int(np.argmax(moved))]
    if values[0] <= 0:
        raise EpviError(
            f"the shards' precisions less {others} times the prior's are not positive-definite (smallest eigenvalue"
            f" {values[0]:.3g} prior precisions, mostly along {where}): check the prior, draw more per shard, or draw"
            " with the prior to the power 1/M and use Parametric()."
        )
    along = np.einsum("i,mij,j->m", least, whitened, least)
    error = np.sqrt(np.sum(2 * along**2 / np.asarray(shards.counts)))
    covariance = prior.root @ (vectors / values) @ vectors.T @ prior.root.T
    # Measured from the prior's mean, so that η_0 = 0.
    mean = prior.mean + covariance @ np.sum([one.precision @ (one.mean - prior.mean) for one in gaussians], axis=0)
    precision = np.linalg.inv(covariance)
    return _Quotient(Gaussian(mean, (precision + precision.T) / 2, Full()), where, float(values[0] / error))
