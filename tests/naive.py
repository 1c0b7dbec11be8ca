"""The formulas once more, written as they stand on paper: plain NumPy, loops, no cleverness."""

import itertools
import math

import numpy as np
from scipy.stats import multivariate_normal

from epvi import GaussianMixture

STRUCTURES = ["spherical", "diagonal", "full"]


def random_covariances(rng, structure, k, d, low=0.4, high=2.5):
    if structure == "spherical":
        return rng.uniform(low, high, k)
    if structure == "diagonal":
        return rng.uniform(low, high, (k, d))
    factors = rng.normal(size=(k, d, d + 3))
    return factors @ np.swapaxes(factors, 1, 2) / (d + 3) + low * np.eye(d)


def random_mixture(rng, structure, k, d, spread=1.0):
    means = spread * rng.normal(size=(k, d))
    weights = rng.dirichlet(np.full(k, 3.0))
    return GaussianMixture.from_covariances(means, random_covariances(rng, structure, k, d), weights)


def dense(mixture):
    """Weights, means and covariance matrices of a mixture."""
    d = mixture.dim
    covariances = []
    for root in mixture.roots:
        lower = np.diag(np.broadcast_to(root, (d,))) if root.ndim == 1 else root
        covariances.append(np.linalg.inv(lower @ lower.T))
    return np.exp(mixture.log_weights), np.asarray(mixture.means), np.asarray(covariances)


def log_density(mixture, theta):
    weights, means, covariances = dense(mixture)
    return math.log(
        sum(w * multivariate_normal.pdf(theta, m, c) for w, m, c in zip(weights, means, covariances, strict=True))
    )


def log_normal(x, mean, precision):
    return 0.5 * (math.log(np.linalg.det(precision / (2 * math.pi))) - (x - mean) @ precision @ (x - mean))


def moments(mixture):
    weights, means, covariances = dense(mixture)
    mean = sum(w * m for w, m in zip(weights, means, strict=True))
    second = sum(w * (c + np.outer(m, m)) for w, m, c in zip(weights, means, covariances, strict=True))
    return mean, second - np.outer(mean, mean)


def enumerate_product(mixtures):
    """The paper's equations 5-8 for every index vector: log W, μ, Σ, in the order of itertools.product."""
    parts = [dense(mixture) for mixture in mixtures]
    inverses = [np.linalg.inv(c) for _, _, c in parts]
    log_ws, means, covariances = [], [], []
    for index in itertools.product(*(range(mixture.num_components) for mixture in mixtures)):
        precisions = [p[k] for p, k in zip(inverses, index, strict=True)]
        centres = [m[k] for (_, m, _), k in zip(parts, index, strict=True)]
        total = sum(precisions)
        covariance = np.linalg.inv(total)
        mean = covariance @ sum(p @ m for p, m in zip(precisions, centres, strict=True))
        log_w = sum(math.log(w[k]) for (w, _, _), k in zip(parts, index, strict=True))
        for p, m in zip(precisions, centres, strict=True):
            log_w += log_normal(m, mean, p)
        log_w -= log_normal(mean, mean, total)
        log_ws.append(log_w)
        means.append(mean)
        covariances.append(covariance)
    return np.asarray(log_ws), np.asarray(means), np.asarray(covariances)


def product_moments(log_ws, means, covariances):
    weights = np.exp(log_ws - np.logaddexp.reduce(log_ws))
    mean = weights @ means
    second = np.tensordot(weights, covariances + means[:, :, None] * means[:, None, :], axes=1)
    return weights, mean, second - np.outer(mean, mean)
