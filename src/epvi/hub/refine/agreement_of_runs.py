"""Whether two runs of adaptive rounds agree, from the weighted draws of each.

Even weights show that a mixture is right wherever it has draws. Where it has none, as along the arms of a thin, curved
ridge that rounds creep along, weights show nothing. A second run begins with a wide Gaussian and comes from outside.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.trust.certify import Certificate

# Means (in sds), sds (relative) and log evidences (in nats) may differ by this and two standard errors. Judgement: as
# far as weights may move them for "trust".
_SMALL, _ERRORS = 0.05, 2.0
# The second run begins with sds larger by exp(6/d), at most 3: the density of a Gaussian at its mean is then lower by 6
# nats. Judgement: wide enough to come from outside, near enough that some draws count.
_NATS, _WIDEST = 6.0, 3.0


class _Found(NamedTuple):
    """Corrected means and sds of one run, with standard errors; those of sds are relative."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    mean_error: Float[np.ndarray, " d"]
    sd_error: Float[np.ndarray, " d"]


def disagreement(a: tuple[GaussianMixture, Certificate], b: tuple[GaussianMixture, Certificate]) -> str | None:
    """In what two posteriors with their weighted draws differ, as a clause; None if they agree."""
    one, other = _found(*a), _found(*b)
    sd = np.sqrt(one.sd * other.sd)
    away = np.abs(one.mean - other.mean) / sd
    if np.any(away > _SMALL + _ERRORS * np.hypot(one.mean_error, other.mean_error) / sd):
        return f"two runs of adaptive rounds differ by {np.max(away):.2f} sds in a mean"
    factor = np.abs(np.log(one.sd / other.sd))
    if np.any(factor > _SMALL + _ERRORS * np.hypot(one.sd_error, other.sd_error)):
        return f"two runs of adaptive rounds differ by {np.expm1(np.max(factor)):.0%} in an sd"
    first, second = a[1].log_evidence, b[1].log_evidence
    if first is None or second is None:
        return None
    apart = abs(float(first.value) - float(second.value))
    if apart > _SMALL + _ERRORS * float(np.hypot(first.standard_error, second.standard_error)):
        return f"two runs of adaptive rounds differ by {apart:.2f} nats in the log evidence"
    return None


def wide(certificate: Certificate) -> GaussianMixture:
    """One Gaussian around the weighted draws, with larger sds."""
    theta, weights = certificate.theta, certificate.weights
    mean = weights @ theta
    away = theta - mean
    scale = min(_WIDEST, float(np.exp(_NATS / len(mean))))
    covariance = scale**2 * (weights[:, None] * away).T @ away
    return GaussianMixture.from_covariances(mean[None], 0.5 * (covariance + covariance.T)[None])


def _found(mixture: GaussianMixture, certificate: Certificate) -> _Found:
    """From the control variates of `importance`: E_q h + Σ (w − v) h."""
    centre, unit = np.asarray(mixture.mean()), np.asarray(mixture.sd())
    z, difference = (certificate.theta - centre) / unit, certificate.weights - certificate.own
    shift = difference @ z
    variance = np.maximum(1 + difference @ z**2 - shift**2, 1e-12)
    mean_error = np.sqrt(difference**2 @ (z - shift) ** 2)
    variance_error = np.sqrt(difference**2 @ ((z - shift) ** 2 - variance) ** 2)
    sd = np.sqrt(variance)
    return _Found(centre + unit * shift, unit * sd, unit * mean_error, variance_error / (2 * variance))
