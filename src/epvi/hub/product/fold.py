"""Shards with one component: they have no choice to make, so one Gaussian stands for all of them.

Takes M ≥ 2 mixtures of one structure; gives at least two, whose product is the same. Most shards of a well-behaved
posterior have one component, and this keeps them out of every table.
"""

from collections.abc import Sequence

import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.hub.product.stack import constant


def fold_singles(mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """The same product from fewer factors; the folded one comes first and carries its mass as a weight.

    The last mixture stays as it is, so the order of the product's components does not change.
    """
    singles = [mixture for mixture in mixtures[:-1] if len(mixture.log_weights) == 1]
    if len(singles) < 2:
        return list(mixtures)
    several = [mixture for mixture in mixtures[:-1] if len(mixture.log_weights) > 1]
    return [_one_gaussian(singles), *several, mixtures[-1]]


def _one_gaussian(singles: list[GaussianMixture]) -> GaussianMixture:
    """Their product in NumPy: a compiled program would be another one for each number of shards."""
    structure, packing = singles[0].structure, singles[0].structure.packing
    means = np.concatenate([np.asarray(mixture.means) for mixture in singles])
    roots = np.concatenate([np.asarray(mixture.roots) for mixture in singles])
    d = means.shape[1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        precisions = packing.precision(roots)
        root = _root(structure, np.sum(precisions, axis=0))
        # From one of the means, and then from near the product's, so that no digits are lost far from the origin.
        mean = means[0]
        for _ in range(2):
            mean = mean + packing.solve(root, np.sum(packing.times(precisions, means - mean), axis=0))
        away = means - mean
        squares = np.sum(away * packing.times(precisions, away))
        log_mass = sum(float(np.asarray(mixture.log_weights)[0]) for mixture in singles)
        log_w = log_mass + np.sum(packing.half_log_det(roots, d)) - packing.half_log_det(root, d) - 0.5 * squares
    return GaussianMixture(np.asarray([log_w + constant(len(singles), d)]), mean[None], root[None], structure)


def _root(structure: Structure, precision: np.ndarray) -> np.ndarray:
    """L with L Lᵀ = Λ; NaN where there is none, which the product refuses."""
    try:
        return structure.packing.root(precision)
    except np.linalg.LinAlgError:
        return np.full_like(precision, np.nan)
