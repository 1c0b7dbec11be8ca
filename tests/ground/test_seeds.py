"""Streams of a seed: no two of one key are the same, and none that has a name is met by one that has a number."""

import enum
import inspect

import jax
import numpy as np
import pytest

from epvi.ground import seeds
from epvi.ground.seeds import FIRST_NAMED, ProductStream, RequestStream, SeedStream, request_words
from epvi.wire.shard_fit import MOST_SHARDS

STREAMS = [one for _, one in inspect.getmembers(seeds, inspect.isclass) if issubclass(one, enum.IntEnum)]


@pytest.mark.parametrize("streams", STREAMS)
def test_all_streams_of_a_key_are_different(streams):
    # Members that are equal would be one member with two names.
    assert len(streams) == len(streams.__members__) == len({int(one) for one in streams})
    assert all(0 <= one < 2**32 for one in streams)


def test_no_shard_has_a_stream_with_a_name():
    assert MOST_SHARDS < FIRST_NAMED
    assert all(one == 0 or one >= FIRST_NAMED for one in [*SeedStream, *ProductStream])


def test_the_numbers_are_those_that_seeds_always_had():
    assert [int(one) for one in SeedStream] == [0, *range(2**31, 2**31 + 6)]
    key = jax.random.key(7)
    for one in SeedStream:
        folded = (jax.random.key_data(jax.random.fold_in(key, number)) for number in (one, int(one)))
        np.testing.assert_array_equal(*folded)
    assert request_words((3, 4), RequestStream.DRAWS) == (3, 4, 0)
    assert request_words((3, 4), RequestStream.BASE) == (3, 4, 1)


def test_keys_of_streams_and_shards_are_different():
    key = jax.random.key(0)
    numbers = [*map(int, SeedStream), *range(1, 200)]
    keys = {tuple(np.asarray(jax.random.key_data(jax.random.fold_in(key, number))).tolist()) for number in numbers}
    assert len(keys) == len(numbers)
