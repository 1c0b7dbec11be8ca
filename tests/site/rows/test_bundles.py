"""Bundles of whole groups: every row is in one, and no group is divided."""

import numpy as np
import pytest

from epvi.site.rows.bundles import COUNT, LEVELS, LOCAL, bundle, size_of_bundles

RNG = np.random.default_rng(0)
CASES = {
    "even": RNG.integers(0, 30, 500),
    "heavy": np.concatenate([np.zeros(300, int), RNG.integers(1, 200, 300)]),
    "single": np.arange(40),
    "one": np.full(10, 7),
}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_in_one_bundle_with_its_group(name):
    codes = CASES[name]
    counts = np.bincount(codes)
    size = size_of_bundles(counts[counts > 0])
    made = bundle(codes, np.arange(len(codes)), size)
    columns = made.columns({"g": codes, "x": RNG.normal(size=(len(codes), 2))})
    used = np.arange(size) < columns[COUNT][:, None]
    np.testing.assert_array_equal(np.sort(made.rows[used]), np.arange(len(codes)))
    levels = np.take_along_axis(columns[LEVELS], columns[LOCAL].astype(int), axis=1)
    np.testing.assert_array_equal(levels, columns["g"])
    present = columns[LEVELS][columns[LEVELS] >= 0]
    np.testing.assert_array_equal(np.sort(present), np.unique(codes))


@pytest.mark.parametrize("name", ["even", "heavy", "single"])
def test_few_places_are_left_over(name):
    counts = np.bincount(CASES[name])
    counts = counts[counts > 0]
    size = size_of_bundles(counts)
    made = bundle(CASES[name], np.arange(len(CASES[name])), size)
    assert made.rows.size <= 1.5 * len(CASES[name])
