"""Fit a mixture of Gaussians with heavy tails to weighted draws, by expectation-maximisation.

Every component is a Gaussian at several scales, which share mean and shape: N(μ_k, c² Σ_k) with weights π_kc, as a
Student-t is a Gaussian whose scale is random. The weights of the scales are fitted too, so that tails are as heavy as
the draws show. The number of components is chosen by the BIC.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import LOG_2PI, GaussianMixture
from epvi.gaussian.powers import Powers
from epvi.gaussian.structures import Full

# Scales of a component, as factors of its sds. Judgement: a Student-t of five degrees of freedom is close to a mixture
# of such scales out to six sds.
_SCALES = np.array([1.0, 1.7, 3.0])
# Numbers of components to choose from. Judgement: bananas and corners of a simplex need some.
_SIZES = (1, 2, 4, 8)
# Draws for each number of a component that is tried: with fewer, covariances are hardly determined. Judgement.
_DRAWS_EACH = 4
# Steps end when the log likelihood of a draw rises by less (in nats), or after so many. Judgement: far below the
# difference that weights show, and enough for components that overlap.
_SETTLED, _MOST_STEPS = 1e-4, 60
# Covariances are shrunk towards that of all draws, as by so many draws of it for each parameter. Judgement.
_SHRUNK = 1.0
# Weights of the scales to begin with, and what is left of those of no use: it is dropped in the end.
_AT_FIRST, _USELESS = np.array([0.8, 0.15, 0.05]), 1e-3


class _Fitted(NamedTuple):
    means: Float[np.ndarray, "K d"]
    covariances: Float[np.ndarray, "K d d"]
    weights: Float[np.ndarray, "K C"]
    log_likelihood: float  # of a draw, in nats


def scale_mixture(
    theta: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], rng: np.random.Generator
) -> GaussianMixture:
    """The mixture fitted to draws with these weights, which sum to 1."""
    d, mean = theta.shape[1], weights @ theta
    spread = (weights[:, None] * (theta - mean)).T @ (theta - mean)
    # If few draws count they may lie in a plane.
    root = np.linalg.cholesky(spread + np.diag(1e-9 * np.diagonal(spread) + 1e-300))
    white = np.linalg.solve(root, (theta - mean).T).T
    effective = 1 / float(np.sum(weights**2))
    best, best_score = None, -np.inf
    for size in _SIZES:
        numbers = _num_numbers(size, d)
        if best is not None and _DRAWS_EACH * numbers > effective:
            break
        made = _fitted(white, weights, size, effective, rng)
        score = effective * made.log_likelihood - 0.5 * np.log(effective) * numbers
        if score < best_score:
            break
        best, best_score = made, score
    assert best is not None
    return _as_mixture(best, mean, root)


def _num_numbers(size: int, d: int) -> int:
    return size * (d + d * (d + 1) // 2 + len(_SCALES)) - 1


def _fitted(theta: np.ndarray, weights: np.ndarray, size: int, effective: float, rng: np.random.Generator) -> _Fitted:
    d = theta.shape[1]
    covariances = np.tile(_shape(size, d), (size, 1, 1))
    found = _Fitted(_spread_out(theta, weights, size, rng), covariances, np.tile(_AT_FIRST / size, (size, 1)), -np.inf)
    powers = Powers.of(theta)
    for _ in range(_MOST_STEPS):
        before, found = found.log_likelihood, _step(powers, weights, _SHRUNK * d / effective, found)
        if found.log_likelihood - before < _SETTLED:
            break
    return found


def _shape(size: int, d: int) -> np.ndarray:
    """The covariance of one of several components that share the space of white draws."""
    return np.eye(d) * size ** (-2 / d)


def _spread_out(theta: np.ndarray, weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Centres among the draws, far from each other: k-means++ (Arthur & Vassilvitskii 2007)."""
    chosen = [int(rng.choice(len(theta), p=weights))]
    nearest = np.full(len(theta), np.inf)
    for _ in range(size - 1):
        nearest = np.minimum(nearest, np.sum((theta - theta[chosen[-1]]) ** 2, axis=1))
        chances = weights * nearest
        chosen.append(int(rng.choice(len(theta), p=chances / np.sum(chances))))
    return theta[chosen]


def _step(powers: Powers, weights: np.ndarray, pull: float, found: _Fitted) -> _Fitted:
    """One step of expectation-maximisation; its log likelihood is that before the step.

    `pull` is the weight of the covariance of all draws in those of the components.
    """
    size, d = found.means.shape
    log_dets = 0.5 * np.linalg.slogdet(found.covariances)[1]
    heights = np.log(found.weights) - log_dets[:, None] - d * (np.log(_SCALES) + 0.5 * LOG_2PI)
    squares = powers.squares(np.linalg.inv(found.covariances), found.means).T
    logs = heights[..., None] - 0.5 * squares[:, None] / _SCALES[:, None] ** 2
    highest = np.max(logs, axis=(0, 1))
    shares = np.exp(logs - highest)
    total = np.sum(shares, axis=(0, 1))
    shares *= weights / total
    masses = np.sum(shares, axis=2) + 1e-300
    means, inside = powers.moments(np.einsum("kcn,c->kn", shares, _SCALES**-2.0))
    covariances = (inside + pull * _shape(size, d)) / (np.sum(masses, axis=1)[:, None, None] + pull)
    return _Fitted(means, covariances, masses / np.sum(masses), float(weights @ (highest + np.log(total))))


def _as_mixture(found: _Fitted, mean: np.ndarray, root: np.ndarray) -> GaussianMixture:
    d = len(mean)
    means = np.repeat(mean + found.means @ root.T, len(_SCALES), axis=0)
    covariances = ((root @ found.covariances @ root.T)[:, None] * _SCALES[:, None, None] ** 2).reshape(-1, d, d)
    weights = found.weights.ravel()
    kept = weights > _USELESS
    covariances = 0.5 * (covariances + np.swapaxes(covariances, 1, 2))[kept]
    return GaussianMixture.from_covariances(means[kept], covariances, weights[kept] / np.sum(weights[kept]), Full())
