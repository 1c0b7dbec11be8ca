"""Points as rows (1, x, products x_i x_j): squared distances from many means, and second moments, are matrix products.

Differences of large numbers lose digits: points should be white, or nearly so.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Powers(NamedTuple):
    """Points, with all products of two of their coordinates, of which (i, j) are the pairs."""

    rows: Float[np.ndarray, "n p"]
    i: Int[np.ndarray, " t"]
    j: Int[np.ndarray, " t"]

    @classmethod
    def of(cls, x: Float[np.ndarray, "n d"]) -> "Powers":
        """Of these points."""
        i, j = np.triu_indices(x.shape[1])
        return cls(np.concatenate([np.ones((len(x), 1)), x, x[:, i] * x[:, j]], axis=1), i, j)

    def squares(
        self, precisions: Float[np.ndarray, "K d d"], means: Float[np.ndarray, "K d"]
    ) -> Float[np.ndarray, "n K"]:
        """(x − μ_k)ᵀ Λ_k (x − μ_k) at every point."""
        slopes = np.einsum("kij,kj->ki", precisions, means)
        own = np.einsum("ki,ki->k", slopes, means)
        products = precisions[:, self.i, self.j] * np.where(self.i == self.j, 1.0, 2.0)
        return self.rows @ np.concatenate([own[:, None], -2 * slopes, products], axis=1).T

    def moments(self, weights: Float[np.ndarray, "K n"]) -> tuple[Float[np.ndarray, "K d"], Float[np.ndarray, "K d d"]]:
        """The weighted means, and the weighted sums of products of deviations from these."""
        sums, d = weights @ self.rows, int(self.i[-1]) + 1
        total = sums[:, :1] + 1e-300
        means, seconds = sums[:, 1 : d + 1] / total, np.empty((len(weights), d, d))
        seconds[:, self.i, self.j] = seconds[:, self.j, self.i] = sums[:, d + 1 :]
        return means, seconds - total[..., None] * means[:, :, None] * means[:, None]
