"""What is compared of exchangeable units: their coordinates, and the logarithms of their weights on a simplex.

Takes points θ and a reference with its precisions; gives features of units, and squared distances between them.
"""

import numpy as np
from jaxtyping import Float

from epvi.parameters.space import Space
from epvi.parameters.stick_breaking import log_weights, slopes

# Largest cost of an assignment, in squared standard deviations. Optimal assignment needs finite costs, and sums of up
# to 1e8 of these are still finite in float64 (below 1.8e308).
_MOST_COST = 1e300


def features(space: Space, group: tuple[str, ...], theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n L F"]:
    """What is compared of every unit: its coordinates, and the logarithms of its weights."""
    blocks = space.blocks(group)
    logs = [log_weights(theta[:, part])[:, :, None] for part in space.simplexes(group)]
    return np.concatenate([theta[:, blocks], *logs], axis=2)


def scaled(
    space: Space, group: tuple[str, ...], reference: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The features of the reference, and their precisions from those of coordinates, (L, features) each."""
    blocks = space.blocks(group)
    logs = []
    for part in space.simplexes(group):
        with np.errstate(divide="ignore"):
            logs.append(1 / (slopes(reference[part]) ** 2 @ (1 / precision[part]))[:, None])
    return features(space, group, reference[None])[0], np.concatenate([precision[blocks], *logs], axis=1)


def costs(values: np.ndarray, reference: np.ndarray, precision: np.ndarray) -> Float[np.ndarray, "n L L"]:
    """Squared distances of every unit of n points from every unit of the reference."""
    with np.errstate(over="ignore", invalid="ignore"):
        # One unit of the reference at a time, which bounds the memory.
        each = [np.sum(scale * (values - unit) ** 2, axis=-1) for unit, scale in zip(reference, precision, strict=True)]
    return np.nan_to_num(np.minimum(np.stack(each, axis=-1), _MOST_COST), nan=_MOST_COST)
