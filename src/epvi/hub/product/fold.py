"""Replace all single-component mixtures by their product, which is one Gaussian.

Takes M ≥ 2 mixtures of one structure; returns at least two with the same product. Most shards of a well-behaved
posterior have one component, and folding keeps them out of every table over components.
"""

from collections.abc import Sequence

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.hub.product.stack import constant


def fold_singles(mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """Mixtures with the same product; the folded Gaussian comes first, and its weight is its (unnormalised) mass.

    The last mixture is never folded, so the order of the product's components does not change.
    """
    singles = [mixture for mixture in mixtures[:-1] if len(mixture.log_weights) == 1]
    if len(singles) < 2:
        return list(mixtures)
    several = [mixture for mixture in mixtures[:-1] if len(mixture.log_weights) > 1]
    return [_one_gaussian(singles), *several, mixtures[-1]]


def _one_gaussian(singles: list[GaussianMixture]) -> GaussianMixture:
    """Their product, in NumPy because JAX would recompile for every number of shards."""
    structure, packing = singles[0].structure, singles[0].structure.packing
    means = np.concatenate([np.asarray(mixture.means) for mixture in singles])
    roots = np.concatenate([np.asarray(mixture.roots) for mixture in singles])
    d = means.shape[1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        precisions = packing.precision(roots)
        root = _root(structure, np.sum(precisions, axis=0))
        # Measure from one of the means, then from the product's mean, so that no digits are lost far from the origin.
        mean = means[0]
        for _ in range(2):
            mean = mean + packing.solve(root, np.sum(packing.times(precisions, means - mean), axis=0))
        away = means - mean
        squares = np.sum(away * packing.times(precisions, away))
        log_mass = sum(float(np.asarray(mixture.log_weights)[0]) for mixture in singles)
        log_w = log_mass + np.sum(packing.half_log_det(roots, d)) - packing.half_log_det(root, d) - 0.5 * squares
    return GaussianMixture(np.asarray([log_w + constant(len(singles), d)]), mean[None], root[None], structure)


def _root(structure: Structure, precision: np.ndarray) -> np.ndarray:
    """L with L Lᵀ = Λ; NaN if Λ is not positive-definite, which `multiply` refuses."""
    try:
        return structure.packing.root(precision)
    except np.linalg.LinAlgError:
        return np.full_like(precision, np.nan)
