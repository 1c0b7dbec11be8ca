"""Quasi-random (Sobol) draws from normals and mixtures, and log densities of mixtures at many points, in plain NumPy.

Takes sizes and the words of a random key; the same key gives the same points on every machine.
"""

import importlib
import math
import threading

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtri

from epvi.gaussian.matrices import lower_solved
from epvi.gaussian.mixture import LOG_2PI, GaussianMixture

# Most numbers (points x components) of a block of log densities: 32 MB in float64. Judgement.
_BLOCK = 2**22
# Largest dimension of SciPy's Sobol sequence (scipy.stats.qmc.Sobol.MAXDIM).
_MOST_DIMENSIONS = 21_201


def get_ready() -> None:
    """Import what points are made with, which takes a third of a second, in a thread while the caller goes on."""
    threading.Thread(target=importlib.import_module, args=("scipy.stats",), daemon=True).start()


def uniform_points(n: int, d: int, key: tuple[int, ...]) -> Float[np.ndarray, "n d"]:
    """Points of a scrambled Sobol sequence strictly inside the unit cube; independent draws if d is too large."""
    # Imported here because it takes a third of a second, and only certificates and rounds need it.
    from scipy.stats import qmc

    rng = np.random.default_rng(key)
    if d > _MOST_DIMENSIONS:
        return rng.uniform(2.0**-53, 1.0, (n, d))
    made = qmc.Sobol(d, scramble=True, rng=rng).random_base2(max(math.ceil(math.log2(n)), 0))[:n]
    return np.clip(made, 2.0**-53, 1 - 2.0**-53)


def base_draws(n: int, d: int, key: tuple[int, ...]) -> Float[np.ndarray, "n d"]:
    """n standard normal points in antithetic pairs z, −z, whitened to unit covariance if there are enough of them.

    Averages over whitened points are exact for polynomials up to the third degree; otherwise only variances are exact.
    """
    half = ndtri(uniform_points(n // 2, d, key))
    if 2 * d <= len(half):
        # With fewer points the sample covariance is close to singular, and whitening would produce outliers.
        half = lower_solved(np.linalg.cholesky(half.T @ half / len(half)), half.T).T
    else:
        half = half / np.sqrt(np.mean(half**2, axis=0))
    return np.concatenate([half, -half])


def draw(mixture: GaussianMixture, u: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """Map points (n, 1 + d) of the unit cube to draws of a mixture: the first coordinate selects the component."""
    edges = np.cumsum(np.exp(np.asarray(mixture.log_weights)))
    which = np.minimum(np.searchsorted(edges, u[:, 0] * edges[-1]), len(edges) - 1)
    z, means, roots = ndtri(u[:, 1:]), np.asarray(mixture.means), np.asarray(mixture.roots)
    made = np.empty_like(z)
    for k in np.unique(which):
        own, root = which == k, roots[k]
        made[own] = means[k] + mixture.structure.packing.unwhiten(root, z[own])
    return made


def log_components(mixture: GaussianMixture, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n K"]:
    """Log w_k + log N(θ | μ_k, Λ_k⁻¹) at every point, for every k."""
    d, packing = mixture.dim, mixture.structure.packing
    log_weights, means, roots = map(np.asarray, (mixture.log_weights, mixture.means, mixture.roots))
    heights = log_weights + packing.half_log_det(roots, d) - 0.5 * d * LOG_2PI
    return heights - 0.5 * packing.squares(roots, means, theta)


def log_density(mixture: GaussianMixture, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """log q at every point, in blocks."""
    size = max(_BLOCK // mixture.num_components, 1)
    parts = [theta[start : start + size] for start in range(0, len(theta), size)]
    return np.concatenate([np.asarray(logsumexp(log_components(mixture, part), axis=1)) for part in parts])
