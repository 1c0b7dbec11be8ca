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
    structure, covariances = mixture.structure, np.asarray(mixture.covariances())
    packed = covariances.reshape(len(means), *structure.packed_shape(mixture.dim))
    moved = [structure.packing.reordered(c, order) for c, order in zip(packed, orders, strict=True)]
    return GaussianMixture.from_covariances(
        means, np.stack(moved).reshape(covariances.shape), mixture.weights, structure
    )


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
        precisions = 1 / _variances(mixture)
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
    shape = (mixture.num_components, *mixture.structure.packed_shape(mixture.dim))
    return mixture.structure.packing.diagonal(np.asarray(mixture.covariances()).reshape(shape), mixture.dim)
