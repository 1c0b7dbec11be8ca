"""What is known of a shard's rows from earlier rounds, and where it is used."""

import numpy as np

from epvi.site.derivatives.expansion import Taylor
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.expansions_cache import ExpansionsCache
from epvi.site.derivatives.subposteriors import Subposteriors

D = 3
AROUND = Taylor(0.0, np.zeros(D), -4 * np.eye(D))


def test_influence_is_found_by_other_processes_where_draws_would_be(tmp_path):
    file, centre, influence = tmp_path / "known.npz", np.arange(3.0), np.arange(5, dtype=np.float32)
    own = ExpansionCache(file)
    own.add(centre, AROUND)
    own.add_influence(centre, influence)
    other = ExpansionCache(file)
    # The squared distance is 4 |δ|², and that of draws is D on average.
    for away, is_near in ((0.0, True), (0.8, True), (0.9, False)):
        found = other.influence_near(centre + np.array([away, 0, 0]), AROUND)
        assert (found is not None) == is_near
        if found is not None:
            np.testing.assert_array_equal(found, influence)
            assert found.dtype == influence.dtype
    known = ExpansionCache(file).near(centre)
    assert known is not None
    np.testing.assert_array_equal(known[0], centre)


def test_nothing_is_known_at_first(tmp_path):
    assert ExpansionCache(tmp_path / "known.npz").influence_near(np.zeros(D), AROUND) is None


class Counted(Subposteriors):
    """Two shards, of which the second has a hundred times the information."""

    def __init__(self):
        self.points = []

    @property
    def num_shards(self):
        return 2

    @property
    def sizes(self):
        return np.array([10, 1000])

    def second_order(self, theta, owner):
        hessians = np.stack([-np.eye(D), -100 * np.eye(D)])
        return np.zeros(2), np.zeros((2, D)), hessians

    def spread(self, point):
        self.points.append(point)
        return np.tile(np.eye(D), (2, 1, 1))


def test_outer_products_are_those_of_a_point_that_is_near_for_every_shard(tmp_path):
    each, cache = Counted(), ExpansionsCache(tmp_path / "known.npz")
    first = cache.about(each, np.zeros(D))
    assert isinstance(first, Taylors)
    for away, times in ((0.0, 1), (0.04, 1), (0.06, 2)):
        there = Taylors(np.full((2, D), 0.0) + np.array([away, 0, 0]), first.value, first.gradient, first.hessian)
        cache.spread(each, there)
        assert len(each.points) == times
    np.testing.assert_array_equal(each.points[0], np.zeros(D))
    assert ExpansionsCache(tmp_path / "known.npz").about(each, np.zeros(D)).value.shape == (2,)
