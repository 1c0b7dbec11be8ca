"""Shards of fragments: which are merged, which are grouped, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epvi
from epvi.fragments.looking import Looked
from epvi.fragments.shards import LEAST_ROWS, shards_of_fragments
from epvi.wire.fragment import Contents, Description, Fragment, Piece

SIZES = st.lists(st.integers(1, 3 * LEAST_ROWS), min_size=1, max_size=30)


def looked(sizes, values=None, path="rows/part.parquet"):
    fragments = [
        Fragment((Piece(f"fragment {i}", path),), Description({}, {}, {}), None, (Contents(n, str(i)),))
        for i, n in enumerate(sizes)
    ]
    return Looked(tuple(fragments), tuple(values or [None] * len(sizes)), {}, 0, 0)


def order(shards):
    return [piece.name for fragment in shards.fragments for piece in fragment.pieces]


@given(SIZES)
def test_by_default_small_fragments_are_merged_and_no_others(sizes):
    made = shards_of_fragments(looked(sizes), None, None)
    assert order(made) == [f"fragment {i}" for i in range(len(sizes))]
    assert np.sum(made.sizes) == sum(sizes)
    if sum(sizes) >= LEAST_ROWS:
        assert np.all(made.sizes >= LEAST_ROWS)
    else:
        assert len(made.sizes) == 1
    for fragment in made.fragments[:-1]:
        # Without its last fragment a shard would be small.
        assert sum(one.num_rows for one in fragment.contents[:-1]) < LEAST_ROWS


@given(SIZES, st.data())
def test_any_number_of_shards_up_to_that_of_fragments_can_be_had(sizes, data):
    m = data.draw(st.integers(1, len(sizes)))
    made = shards_of_fragments(looked(sizes), m, None)
    assert len(made.sizes) == m == len(made.labels)
    assert order(made) == [f"fragment {i}" for i in range(len(sizes))]
    assert np.all(made.sizes > 0)


@given(st.lists(st.integers(900, 1100), min_size=40, max_size=60), st.integers(1, 8))
def test_shards_have_about_equally_many_rows(sizes, m):
    made = shards_of_fragments(looked(sizes), m, None)
    assert np.max(np.abs(made.sizes - sum(sizes) / m)) <= max(sizes)


def test_more_shards_than_fragments_are_refused():
    with pytest.raises(
        epvi.EpviError, match="there are 4 shards for 3 fragments with rows, and fragments are not divided"
    ):
        shards_of_fragments(looked([5, 6, 7]), 4, None)
    with pytest.raises(epvi.EpviError, match="shards"):
        shards_of_fragments(looked([5, 6, 7]), 0, None)


def test_one_shard_for_each_value_wherever_its_fragments_are():
    made = shards_of_fragments(looked([5, 6, 7], ["b", "a", "b"]), None, "site")
    assert made.labels == ("1 of 2 (site = a)", "2 of 2 (site = b)")
    assert made.sizes.tolist() == [6, 12]
    with pytest.raises(epvi.EpviError, match="column 'site' has one value in all rows"):
        shards_of_fragments(looked([5, 6], ["a", "a"]), None, "site")


def test_partitions_have_no_file_in_their_labels():
    assert shards_of_fragments(looked([2000, 2000], path=""), None, None).labels == ("1 of 2", "2 of 2")
