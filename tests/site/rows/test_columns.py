"""Rows as they come: what is taken, what is refused and how it is said, and how rows are split into shards."""

import collections
import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentences import refused

from epvi.site.rows.columns import as_columns, constant_columns, raw_columns
from epvi.site.rows.split import split_by, split_evenly

KEY = jax.random.key(0)


class Frame:
    """As much of a data frame as epvi needs: iterating over it, as over some, gives its rows."""

    def __init__(self, **columns):
        self._columns = columns

    def keys(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]

    def __iter__(self):
        return zip(*self._columns.values(), strict=True)


class Series:
    """A column that NumPy can read."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype)


TAKEN = {
    "list": ([1, 2, 3], np.int64),
    "list of floats": ([1.0, 2, 3], np.float64),
    "list of rows": ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float64),
    "tuple of truths": ((True, False, True), np.bool_),
    "bytes": (np.array([1, 2, 3], np.uint8), np.uint8),
    "float16": (np.array([1, 2, 3], np.float16), np.float32),
    "float32": (np.array([1, 2, 3], np.float32), np.float32),
    "float64": (np.array([[[1.0]], [[2.0]], [[3.0]]]), np.float64),
    "long double": (np.array([1, 2, 3], np.longdouble), np.float64),
    "the other byte order": (np.array([1, 2, 3], ">f8"), np.float64),
    "the other byte order of ints": (np.array([1, 2, 3], ">i4"), np.int32),
    "every second": (np.arange(6.0)[::2], np.float64),
    "JAX": (jnp.arange(3.0), np.float32),
    "series": (Series([1.5, 2, 3]), np.float64),
    "large numbers whose sum overflows": (np.full(3, 1.7e308), np.float64),
    "large float32 whose sum overflows": (np.full(3, 3e38, np.float32), np.float32),
    "large float16 whose sum overflows": (np.full(3, 6e4, np.float16), np.float32),
    "large of both signs": (np.array([1.7e308, 1.7e308, -1.7e308]), np.float64),
}


@pytest.mark.parametrize("name", TAKEN)
def test_numbers_of_all_kinds_are_taken(name):
    values, dtype = TAKEN[name]
    column = as_columns({"x": values})["x"]
    assert isinstance(column, np.ndarray)
    assert column.dtype == dtype
    np.testing.assert_array_equal(column, np.asarray(values).astype(dtype))


def test_data_frames_and_mappings_are_taken_in_their_order():
    for rows in (Frame(y=[1, 2], x=Series([3.0, 4.0])), collections.OrderedDict(y=[1, 2], x=np.array([3.0, 4.0]))):
        columns = as_columns(rows)
        assert list(columns) == ["y", "x"]
        assert [column.tolist() for column in columns.values()] == [[1, 2], [3.0, 4.0]]
    assert list(raw_columns(Frame(when=["a"]))) == ["when"]


def with_bad(num, size=2000):
    values = np.arange(float(size))
    values[:num] = np.resize([np.nan, np.inf, -np.inf], num)
    return values


REFUSED = {
    "text": ({"x": ["a", "b"]}, "column 'x' holds text or objects"),
    "new text": ({"x": np.array(["a"], np.dtypes.StringDType())}, "column 'x' holds text or objects"),
    "raw bytes": ({"x": [b"a", b"b"]}, "column 'x' holds text or objects"),
    "objects": ({"x": [1, None]}, "column 'x' holds text or objects"),
    "dates": ({"x": np.array(["2024-05-01"], "M8[D]")}, "column 'x' holds dates or durations"),
    "durations": ({"x": np.array([3], "m8[s]")}, "column 'x' holds dates or durations"),
    "Python's dates": ({"x": [datetime.date(2024, 5, 1)]}, "column 'x' holds text or objects"),
    "complex": ({"x": [1j]}, "column 'x' holds complex128 values: pass real numbers"),
    "records": ({"x": np.zeros(2, [("a", float)])}, "column 'x' holds .* values: pass real numbers"),
    "ragged": ({"x": [[1], [1, 2]]}, "column 'x' is not a rectangular array"),
    "NaN": ({"y": [1], "x": [np.nan]}, "column 'x' has 1 NaN or infinite values"),
    "infinities of both signs": ({"x": with_bad(3)}, "column 'x' has 3 NaN or infinite values: remove those rows"),
    "many": ({"x": with_bad(1234)}, "column 'x' has 1,234 NaN"),
    "among large numbers": ({"x": [1.7e308, 1.7e308, np.inf]}, "column 'x' has 1 NaN"),
    "in float16": ({"x": np.array([1, np.inf], np.float16)}, "column 'x' has 1 NaN"),
    "in a matrix": ({"x": with_bad(5).reshape(-1, 2)}, "column 'x' has 5 NaN"),
    "masked": ({"x": np.ma.masked_array([1.0, 2.0, 3.0], [True, True, False])}, "column 'x' has 2 masked"),
    "different lengths": ({"x": [1, 2], "y": np.ones(1500)}, r"different lengths \(x has 2, y has 1,500\)"),
    "zero rows": ({"x": []}, "rows has zero rows"),
    "zero rows in one": ({"x": [], "y": [1]}, r"different lengths \(x has 0, y has 1\)"),
    "single value": ({"x": [1], "n": 3}, r"column 'n' is a single value: .* Model\(..., n=...\)"),
    "no columns": ({}, "rows has no columns"),
    "numbers for names": ({0: [1]}, "a column of rows is named 0: columns need text"),
    "a list": ([1, 2], "rows is a list: pass a mapping of columns"),
    "an array": (np.ones((3, 2)), "rows is a ndarray: pass a mapping"),
    "nothing": (None, "rows is a NoneType: pass a mapping"),
    "text for rows": ("x", "rows is a str: pass a mapping"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_row_of_numbers_is_refused(name):
    rows, sentence = REFUSED[name]
    refused(lambda: as_columns(rows), sentence, most=200)


def test_the_sentence_says_which_rows_are_meant():
    refused(lambda: as_columns([1], "new_rows"), "new_rows is a list", most=200)
    refused(lambda: as_columns({"x": []}, "new_rows"), "new_rows has zero rows", most=200)


def test_constant_columns_are_named():
    columns = {
        "a": np.ones(3),
        "b": np.array([[1, 2, 1], [1, 3, 1], [1, 3, 1]]),
        "c": np.arange(3),
        "d": np.array([False] * 3),
    }
    assert constant_columns(columns) == ["a", "b[:, 0]", "b[:, 2]", "d"]
    assert constant_columns({"c": np.arange(3)}) == []


def parts(split, n):
    return [np.arange(n)[rows].tolist() for rows in split.shards]


@given(st.integers(1, 60), st.data(), st.booleans(), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_an_even_split_has_every_row_once(n, data, shuffle, seed):
    m = data.draw(st.integers(1, n))
    split = split_evenly(n, m, shuffle=shuffle, key=jax.random.key(seed))
    made = parts(split, n)
    sizes = [len(part) for part in made]
    assert split.num_shards == len(made) == len(split.labels) == m
    assert split.sizes.tolist() == sizes
    assert split.largest == max(sizes)
    assert max(sizes) - min(sizes) <= 1
    assert all(part == sorted(part) for part in made)
    listed = [row for part in made for row in part]
    assert sorted(listed) == list(range(n))
    assert split.labels[-1] == f"{m} of {m}"
    if not shuffle:
        assert listed == list(range(n))
    assert made == parts(split_evenly(n, m, shuffle=shuffle, key=jax.random.key(seed)), n)


def test_another_key_is_another_split_and_every_row_may_go_anywhere():
    splits = [parts(split_evenly(12, 3, shuffle=True, key=jax.random.key(seed)), 12) for seed in range(1000)]
    # Three shards can begin each of four rounds.
    assert len({str(split) for split in splits}) == 3**4
    where = np.array([[m for row in range(12) for m in range(3) if row in split[m]] for split in splits])
    counts = np.stack([np.sum(where == m, axis=0) for m in range(3)])
    # Each count is binomial with mean 1000/3; seven standard deviations for 36 of them.
    assert np.all(np.abs(counts - 1000 / 3) < 7 * np.sqrt(1000 * 2 / 9))


@pytest.mark.usefixtures("untyped")
def test_numbers_of_shards_are_checked():
    refused(lambda: split_evenly(3, 4, shuffle=True, key=KEY), "there are 4 shards for 3 rows: take at most one shard")
    for shards in (0, -1, 2.0, "2", True, None):
        refused(lambda shards=shards: split_evenly(3, shards, shuffle=True, key=KEY), "shards is .* at least 1")
    assert split_evenly(3, np.int64(3), shuffle=True, key=KEY).num_shards == 3


BY = {
    "numbers": ([3, 1, 3, 2, 1], [[1, 4], [3], [0, 2]], "1 of 3 (g = 1)"),
    "floats": ([0.5, -1.0, 0.5], [[1], [0, 2]], "1 of 2 (g = -1.0)"),
    "text": (["b", "a", "b"], [[1], [0, 2]], "1 of 2 (g = a)"),
    "text objects": (np.array(["b", "a", "b"], object), [[1], [0, 2]], "1 of 2 (g = a)"),
    "truths": ([True, False, True], [[1], [0, 2]], "1 of 2 (g = False)"),
    "dates": (np.array(["2024-05-02", "2024-05-01"], "M8[D]"), [[1], [0]], "1 of 2 (g = 2024-05-01)"),
    "Python's dates": ([datetime.date(2024, 5, 2), datetime.date(2024, 5, 1)], [[1], [0]], "1 of 2 (g = 2024-05-01)"),
    "series": (Series(["b", "a"]), [[1], [0]], "1 of 2 (g = a)"),
    "JAX": (jnp.array([2, 1]), [[1], [0]], "1 of 2 (g = 1)"),
    "empty text": (["", "a"], [[0], [1]], "1 of 2 (g = )"),
}


@pytest.mark.parametrize("name", BY)
def test_a_column_splits_into_its_values(name):
    column, made, label = BY[name]
    n = sum(map(len, made))
    split = split_by({"x": [0] * n, "g": column}, "g")
    assert parts(split, n) == made
    assert split.labels[0] == label
    assert split.largest == max(map(len, made))


BY_REFUSED = {
    "unknown": ([1, 2], "h", "there is no column 'h' to split by: the rows have x, g"),
    "constant": ([1, 1], "g", "column 'g' has one value in all rows"),
    "constant text": (["a", "a"], "g", "column 'g' has one value in all rows"),
    "a matrix": (np.ones((2, 2)), "g", r"column 'g' has shape \(2, 2\)"),
    "a single value": (3, "g", r"column 'g' has shape \(\)"),
    "NaN": ([1.0, np.nan, np.nan], "g", "column 'g' has 2 missing values: every row needs a shard"),
    "None": (["a", None, "b"], "g", "column 'g' has 1 missing values"),
    "NaN among text": (np.array(["a", float("nan")], object), "g", "column 'g' has 1 missing values"),
    "no date": (np.array(["2024-05-01", "NaT"], "M8[D]"), "g", "column 'g' has 1 missing values"),
    "masked": (np.ma.masked_array([1, 2, 3], [True, False, False]), "g", "column 'g' has 1 masked"),
    "ragged": ([[1], [1, 2]], "g", "column 'g' is not a rectangular array"),
    "no rows": ([], "g", "column 'g'"),
}


@pytest.mark.parametrize("name", BY_REFUSED)
def test_a_column_that_does_not_split_is_refused(name):
    column, by, sentence = BY_REFUSED[name]
    refused(lambda: split_by({"x": [0], "g": column}, by), sentence, most=200)
