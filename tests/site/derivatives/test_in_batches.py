import numpy as np
import pytest

from epvi.site.derivatives.in_batches import in_batches


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 24, 25, 40])
def test_batches_have_the_given_sizes_and_give_what_single_points_give(count):
    rng, seen = np.random.default_rng(count), []
    points, shares = rng.normal(size=(count, 2)), rng.random(count)

    def program(parts, share):
        seen.append(len(share))
        return share * np.sum(parts["x"], axis=1), parts["x"] ** 2

    one, two = in_batches(program, ({"x": points}, shares), [(), (2,)], [1, 4, 16])
    np.testing.assert_allclose(one, shares * (points[:, 0] + points[:, 1]))
    np.testing.assert_allclose(two, points**2)
    assert set(seen) <= {1, 4, 16}
    assert sum(seen) >= count
