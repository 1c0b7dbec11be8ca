"""Resolves label switching: permutes exchangeable parameters so that all shards' components agree on one labelling.

L exchangeable units (such as the sources of a source analysis) have L! equivalent labellings, and the product of
subposteriors with different labellings would have no mass. Takes θ and a reference with its precisions; gives the
permutation of coordinates that brings θ nearest to the reference, group by group, by optimal assignment.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.space import Space

# Largest cost of an assignment, in squared standard deviations. Optimal assignment needs finite costs, and sums of up
# to 1e8 of these are still finite in float64 (below 1.8e308).
_MOST_COST = 1e300


def order_like(space: Space, theta: np.ndarray, reference: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Indices i such that theta[i] is the relabelling of θ nearest to `reference`, weighting by `precision` (d,)."""
    order = np.arange(space.dim)
    for group in space.exchangeable:
        blocks = space.blocks(group)
        away = theta[blocks][:, None] - reference[blocks][None, :]
        with np.errstate(over="ignore"):
            cost = np.sum(precision[blocks][None, :] * away**2, axis=-1)
        cost = np.minimum(cost, _MOST_COST)
        chosen, place = linear_sum_assignment(cost)
        order[blocks[place]] = blocks[chosen]
    return order


def relabelled(mixture: GaussianMixture, orders: Sequence[np.ndarray]) -> GaussianMixture:
    """The mixture with the coordinates of component k permuted by `orders[k]`."""
    means = np.stack([mean[order] for mean, order in zip(np.asarray(mixture.means), orders, strict=True)])
    covariances = mixture.covariances()
    if mixture.structure.rank == 1:
        covariances = np.stack([c[order] for c, order in zip(covariances, orders, strict=True)])
    elif mixture.structure.rank == 2:
        covariances = np.stack([c[np.ix_(order, order)] for c, order in zip(covariances, orders, strict=True)])
    return GaussianMixture.from_covariances(means, covariances, mixture.weights)


def aligned(space: Space, mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """The shards' mixtures, every component relabelled to be nearest to a common reference.

    The reference is the precision-weighted mean of the heaviest components of the shards before.
    """
    if not space.exchangeable:
        return list(mixtures)
    mean, precision = None, np.zeros(space.dim)
    made = []
    for mixture in mixtures:
        means = np.asarray(mixture.means)
        precisions = 1 / np.broadcast_to(_variances(mixture), means.shape)
        heaviest = int(np.argmax(mixture.log_weights))
        if mean is None:
            mean, precision = means[heaviest], precisions[heaviest]
        orders = [order_like(space, theta, mean, precision) for theta in means]
        if made:
            order = orders[heaviest]
            total = precision + precisions[heaviest][order]
            mean = mean + (precisions[heaviest][order] / total) * (means[heaviest][order] - mean)
            precision = total
        made.append(relabelled(mixture, orders))
    return made


def _variances(mixture: GaussianMixture) -> np.ndarray:
    covariances = np.asarray(mixture.covariances())
    if covariances.ndim == 3:
        return np.diagonal(covariances, axis1=1, axis2=2)
    return covariances[:, None] if covariances.ndim == 1 else covariances
