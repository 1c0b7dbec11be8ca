"""Whether two runs of adaptive rounds agree, from the weighted draws of each.

Even weights show that a mixture is right wherever it has draws. Where it has none, as along the arms of a thin, curved
ridge that rounds creep along, weights show nothing. A second run begins with a wide Gaussian and comes from outside.

Parameters with a support, such as scales, are compared as they are told: the sd of the logarithm of a scale that may be
zero hangs on its left tail, where few draws are, and whose scales hardly differ.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from epvi.gaussian.mixture import GaussianMixture
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.trust.certify import Certificate
from epvi.parameters.space import Space

# Means (in sds), sds (relative) and log evidences (in nats) may differ by this and two standard errors. Judgement: as
# far as weights may move them for "trust".
_SMALL, _ERRORS = 0.05, 2.0
# The second run begins with sds larger by exp(6/d), at most 3: the density of a Gaussian at its mean is then lower by 6
# nats. Judgement: wide enough to come from outside, near enough that some draws count.
_NATS, _WIDEST = 6.0, 3.0


class _Found(NamedTuple):
    """Corrected means and sds of one run, with standard errors; those of sds are relative.

    First those of all coordinates of θ, where sds of parameters with a support have an infinite standard error; then
    those of the values of these parameters.
    """

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    mean_error: Float[np.ndarray, " d"]
    sd_error: Float[np.ndarray, " d"]


def disagreement(
    a: tuple[GaussianMixture, Certificate],
    b: tuple[GaussianMixture, Certificate],
    pool: ScoredDraws,
    space: Space,
) -> str | None:
    """In what two posteriors differ from each other or from all scored draws, as a clause; None if they agree.

    The pool holds what single rounds have found farther out, and their mixtures have lost again.
    """
    one, other, whole = _found(*a, space), _found(*b, space), _found_in(pool, space)
    pairs = [("two runs of adaptive rounds", one, other)]
    pairs += [("a run of adaptive rounds and all draws together", each, whole) for each in (one, other)]
    apart = next((said for said in (_apart(*pair) for pair in pairs) if said is not None), None)
    if apart is not None:
        return apart
    first, second = a[1].log_evidence, b[1].log_evidence
    if first is None or second is None:
        return None
    apart = abs(float(first.value) - float(second.value))
    if apart > _SMALL + _ERRORS * float(np.hypot(first.standard_error, second.standard_error)):
        return f"two runs of adaptive rounds differ by {apart:.2f} nats in the log evidence"
    return None


def missed(a: tuple[GaussianMixture, Certificate], pool: ScoredDraws, space: Space) -> str | None:
    """In what a posterior differs from all draws, with those around the heaviest ones, as a clause; None in nothing."""
    found = _found(*a, space), _found_in(pool, space)
    return _apart("a run of adaptive rounds and draws around its heaviest ones", *found)


def wide(certificate: Certificate) -> GaussianMixture:
    """One Gaussian around the weighted draws, with larger sds."""
    theta, weights = certificate.theta, certificate.weights
    mean = weights @ theta
    away = theta - mean
    scale = min(_WIDEST, float(np.exp(_NATS / len(mean))))
    covariance = scale**2 * (weights[:, None] * away).T @ away
    return GaussianMixture.from_covariances(mean[None], 0.5 * (covariance + covariance.T)[None])


def _apart(who: str, these: _Found, those: _Found) -> str | None:
    """In what means or sds differ, as a clause; None if they agree."""
    sd = np.sqrt(these.sd * those.sd)
    away = np.abs(these.mean - those.mean) / sd
    if np.any(away > _SMALL + _ERRORS * np.hypot(these.mean_error, those.mean_error) / sd):
        return f"{who} differ by {np.max(away):.2f} sds in a mean"
    factor = np.abs(np.log(these.sd / those.sd))
    if np.any(factor > _SMALL + _ERRORS * np.hypot(these.sd_error, those.sd_error)):
        return f"{who} differ by {np.expm1(np.max(factor)):.0%} in an sd"
    return None


def _found(mixture: GaussianMixture, certificate: Certificate, space: Space) -> _Found:
    """Of θ from the control variates of `importance`: E_q h + Σ (w − v) h."""
    centre, unit = np.asarray(mixture.mean()), np.asarray(mixture.sd())
    z, difference = (certificate.theta - centre) / unit, certificate.weights - certificate.own
    shift = difference @ z
    variance = np.maximum(1 + difference @ z**2 - shift**2, 1e-12)
    mean_error = np.sqrt(difference**2 @ (z - shift) ** 2)
    variance_error = np.sqrt(difference**2 @ ((z - shift) ** 2 - variance) ** 2)
    found = _Found(centre + unit * shift, unit * np.sqrt(variance), unit * mean_error, variance_error / (2 * variance))
    return _with_values(found, certificate.theta, certificate.weights, space)


def _found_in(pool: ScoredDraws, space: Space) -> _Found:
    weights = softmax(pool.log_weights())
    return _with_values(_weighted(pool.theta, weights), pool.theta, weights, space)


def _with_values(
    found: _Found, theta: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], space: Space
) -> _Found:
    """With the values of parameters that have a support."""
    names = [parameter.name for parameter in space.parameters if not parameter.is_real]
    if not names:
        return found
    sd_error = found.sd_error.copy()
    for name in names:
        sd_error[space.slices[name]] = np.inf
    values = space.constrain(theta)
    of_values = _weighted(np.concatenate([values[name].reshape(len(theta), -1) for name in names], axis=1), weights)
    together = (np.concatenate(pair) for pair in zip(found._replace(sd_error=sd_error), of_values, strict=True))
    return _Found(*together)


def _weighted(x: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]) -> _Found:
    mean = weights @ x
    away = x - mean
    variance = np.maximum(weights @ away**2, 1e-300)
    variance_error = np.sqrt(weights**2 @ (away**2 - variance) ** 2)
    return _Found(mean, np.sqrt(variance), np.sqrt(weights**2 @ away**2), variance_error / (2 * variance))
