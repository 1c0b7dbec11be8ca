"""Divide shards into batches, the units of work that are fitted and scored together.

Takes the shards' sizes alone, so that batches are the same for any number of workers.
"""

import numpy as np
from jaxtyping import Int

# Least and most rows of a batch of shards that are fitted together, and the usual number of batches. Judgement: the
# calls of a batch, about 0.1 s, cost as much as a few passes over 262,144 rows; two batches keep two workers busy even
# with fewer rows, and eight batches up to eight; with more rows there are more of them.
_ROWS_PER_BATCH, _MOST_ROWS_PER_BATCH, _FEWEST_BATCHES, _USUAL_BATCHES = 2**18, 2**19, 2, 8


def batch_of(sizes: Int[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """The number of the batch of each shard: batches are consecutive shards with about equally many rows in all."""
    total = int(np.sum(sizes))
    few, many = total // _ROWS_PER_BATCH, total // _MOST_ROWS_PER_BATCH
    count = max(min(2 ** int(np.log2(max(few, _FEWEST_BATCHES))), _USUAL_BATCHES), many)
    middle = np.cumsum(sizes) - 0.5 * sizes
    return (middle * count / total).astype(np.int64)
