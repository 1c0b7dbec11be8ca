"""Squared distances from many means at once, against one at a time."""

import numpy as np
import pytest

from epvi.gaussian.packing import Packing
from epvi.gaussian.structures import WHOLE


@pytest.mark.parametrize("d", [1, 3, 20, 40])
@pytest.mark.parametrize("thin", [1.0, 1e-4, 1e-9])
def test_squared_distances_are_those_of_one_mean_at_a_time(d, thin):
    rng = np.random.default_rng(d)
    shapes = rng.normal(size=(6, d, d)) / np.sqrt(d) + np.eye(d)
    # Axes of very different lengths, in directions of their own, far from the origin.
    shapes *= np.geomspace(1.0, thin, d)[:, None]
    roots = np.linalg.cholesky(np.linalg.inv(shapes @ shapes.swapaxes(1, 2)))
    means = 1e3 + rng.normal(size=(6, d))
    x = 1e3 + 3 * rng.normal(size=(500, d))
    made = WHOLE.squares(roots, means, x)
    each = Packing.squares(WHOLE, roots, means, x)
    naive = [(x[7] - m) @ root @ root.T @ (x[7] - m) for root, m in zip(roots, means, strict=True)]
    np.testing.assert_allclose(each[7], naive, rtol=1e-8)
    np.testing.assert_allclose(made, each, rtol=1e-7, atol=1e-7)
    assert made.shape == (500, 6)
