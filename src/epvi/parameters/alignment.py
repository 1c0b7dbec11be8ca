"""Exchangeable things in one order: components that differ only by a relabelling are brought together.

Sources of a source analysis have no order of their own, so the same fit comes back as any of L! relabellings, and
shards that chose different ones would multiply to nothing. Takes θ and a reference with its precisions; gives the order
of coordinates in which θ is nearest to the reference, group by group, by optimal assignment.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.space import Space

_FAR = 1e300


def order_like(space: Space, theta: np.ndarray, reference: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Coordinates i such that theta[i] is the relabelling of θ nearest to `reference`, in units of precisions (d,)."""
    order = np.arange(space.dim)
    for group in space.exchangeable:
        blocks = space.blocks(group)
        away = theta[blocks][:, None] - reference[blocks][None, :]
        with np.errstate(over="ignore"):
            cost = np.sum(precision[blocks][None, :] * away**2, axis=-1)
        # An assignment needs finite costs: what is beyond this is far away, however far.
        cost = np.minimum(cost, _FAR)
        chosen, place = linear_sum_assignment(cost)
        order[blocks[place]] = blocks[chosen]
    return order


def relabelled(mixture: GaussianMixture, orders: Sequence[np.ndarray]) -> GaussianMixture:
    """The mixture with every component's coordinates in an order of its own."""
    means = np.stack([mean[order] for mean, order in zip(np.asarray(mixture.means), orders, strict=True)])
    structure, covariances = mixture.structure, np.asarray(mixture.covariances())
    packed = covariances.reshape(len(means), *structure.packed_shape(mixture.dim))
    moved = [structure.packing.reordered(c, order) for c, order in zip(packed, orders, strict=True)]
    return GaussianMixture.from_covariances(
        means, np.stack(moved).reshape(covariances.shape), mixture.weights, structure
    )


def aligned(space: Space, mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """The shards' mixtures, every component relabelled to be nearest to what the shards before it agreed on."""
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
