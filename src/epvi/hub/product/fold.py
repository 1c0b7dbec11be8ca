"""Shards with one component: they have no choice to make, so one Gaussian stands for all of them.

Takes M ≥ 2 mixtures of one structure; gives at least two, whose product is the same. Most shards of a well-behaved
posterior have one component, and this keeps them out of every table.
"""

from collections.abc import Sequence

import numpy as np

from epvi.float64 import to_numpy
from epvi.hub.product.blocks import in_blocks, select
from epvi.hub.product.stack import finish, stack
from epvi.mixture import GaussianMixture


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
    stacked = stack(singles)
    blocks = in_blocks(stacked, 1)
    first = np.zeros((1, blocks.log_mass[:, :, 0].size), int)
    log_w, gaussian = to_numpy(finish(stacked.structure, len(singles), select(blocks, first)))
    return GaussianMixture(log_w, gaussian.means, gaussian.roots, gaussian.structure)
