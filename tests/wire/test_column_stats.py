"""What sites tell of their columns: pooled, it is what NumPy says of all rows in one place."""

import json

import numpy as np
import pandas as pd
import pytest
from sentences import refused

from epvi import Rows
from epvi.site.rows.column_stats import column_stats
from epvi.wire.column_stats import ColumnStats, Stats, pool


def sites(offset, scale, sizes=(10, 1000, 33, 4000), seed=0):
    rng = np.random.default_rng(seed)
    # The sites differ in mean and spread, as sites do.
    return [offset + scale * (rng.normal() + rng.uniform(0.5, 2) * rng.normal(size=n)) for n in sizes]


@pytest.mark.parametrize(
    ("offset", "scale"), [(0, 1), (120, 15), (1e9, 1), (-1e9, 1e-3), (0, 1e-120), (0, 1e120), (1e15, 1)]
)
def test_pooled_statistics_are_those_of_all_rows(offset, scale):
    columns = sites(offset, scale)
    together = np.concatenate(columns)
    pooled = pool([column_stats({"a": column}) for column in columns]).columns["a"]
    # About a reference inside the data, NumPy loses nothing to the offset.
    about = together - columns[0][0]
    assert pooled.count == len(together)
    assert pooled.mean == pytest.approx(columns[0][0] + about.mean(), rel=1e-12)
    assert pooled.sd == pytest.approx(np.std(about), rel=1e-12)
    one = column_stats({"a": together}).columns["a"]
    assert (pooled.mean, pooled.sd) == pytest.approx((one.mean, one.sd), rel=1e-12)


def test_pooling_does_not_depend_on_how_rows_are_grouped():
    parts = [column_stats({"a": column}) for column in sites(1e9, 1)]
    nested = pool([pool(parts[:2]), pool(parts[2:])]).columns["a"]
    flat = pool(parts[::-1]).columns["a"]
    assert nested.sd == pytest.approx(flat.sd, rel=1e-12)
    assert nested.mean == flat.mean
    assert pool(parts[:1]).columns["a"].sd == pytest.approx(parts[0].columns["a"].sd, rel=1e-15)


def test_one_constant_site_is_no_harm_and_one_of_all_sites_has_no_unit():
    flat = [column_stats({"a": np.full(20, 0.1)}), column_stats({"a": np.full(10, 0.1)})]
    assert pool(flat).columns["a"].sd < 1e-17
    assert column_stats({"a": np.full(20, 3)}).columns["a"] == ColumnStats(20, 0, 3.0, 0.0, 0.0)
    refused(column_stats({"a": np.full(20, 3)}).constants, "column 'a' has the same value in all rows")
    other = column_stats({"a": np.full(20, 5)})
    assert pool([column_stats({"a": np.full(20, 3)}), other]).constants() == {"a": (4.0, 1.0)}


def frame(n=30):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"age": rng.normal(60, 9, n), "chol": rng.normal(240, 50, n), "sex": rng.integers(0, 2, n)})
    table["cp"] = np.where(rng.uniform(size=n) < 0.5, "yes", "no")
    table.loc[2, "chol"] = np.nan
    table.loc[5:6, "age"] = np.nan
    return table


def test_missing_values_are_counted_and_left_out():
    table = frame()
    made = column_stats(table)
    assert list(made.columns) == ["age", "chol", "sex"]
    assert [column.missing for column in made.columns.values()] == [2, 1, 0]
    assert [column.count for column in made.columns.values()] == [28, 29, 30]
    assert made.columns["age"].sd == pytest.approx(np.nanstd(table["age"]), rel=1e-14)
    assert list(column_stats(table, ["chol"]).columns) == ["chol"]


def test_constants_are_those_that_the_rows_standardise_themselves_with(tmp_path):
    table = frame()
    for i in range(2):
        table[i::2].to_csv(tmp_path / f"{i}.csv", index=False)
    rows = {"x": ["age", "chol", "cp"], "levels": {"cp": ["no", "yes"]}, "drop_missing": True}
    own = Rows(tmp_path / "*.csv", standardise=True, **rows).read()
    parts = [column_stats(Rows(tmp_path / f"{i}.csv", **rows)) for i in range(2)]
    for stats in (pool(parts), column_stats(Rows(tmp_path / "*.csv", **rows))):
        assert stats.columns["age"].count == 27
        assert [column.missing for column in stats.columns.values()] == [2, 1]
        constants = stats.constants()
        assert list(constants) == ["age", "chol"]
        for name, units in own.standardised.items():
            assert constants[name] == pytest.approx(units, rel=1e-12)
    given = Rows(tmp_path / "*.csv", standardise=pool(parts).constants(), **rows).read()
    np.testing.assert_allclose(given.columns["x"], own.columns["x"], rtol=1e-10, atol=1e-12)


def test_limits_hold_for_statistics_too():
    table = {"a": np.arange(20), "g": ["u"] * 20, "m": np.ones((20, 2))}
    refused(lambda: column_stats(Rows(table, a="a", limits={"a": (1, None)})), "column 'a' has 1 value below 1")
    assert list(column_stats(table).columns) == ["a"]
    refused(lambda: column_stats(table, ["g"]), "column 'g' holds text")
    refused(lambda: column_stats(table, ["m"]), "column 'm' of the data is a matrix")
    refused(lambda: column_stats(table, ["b"]), "the data has no column 'b'")
    refused(lambda: column_stats({"g": ["u"] * 20}), "the data has no column of numbers: its columns are g")
    refused(lambda: column_stats({"a": [1.0, np.inf] * 10}), "column 'a' has 10 infinite values")
    refused(lambda: column_stats({"a": [1e200, -1e200] * 10}), "column 'a' has numbers whose squares are too large")


@pytest.mark.usefixtures("untyped")
def test_few_rows_tell_nothing():
    refused(lambda: column_stats({"a": np.arange(9)}), "column 'a' has 9 values, fewer than 10")
    refused(lambda: column_stats({"a": [1.0] * 9 + [np.nan] * 9}), "column 'a' has 9 values, fewer than 10")
    refused(lambda: column_stats({"a": [np.nan] * 9}), "column 'a' has 0 values, fewer than 10")
    assert column_stats({"a": np.arange(9)}, min_rows=9).columns["a"].count == 9
    refused(lambda: column_stats({"a": np.arange(9)}, min_rows=1), "min_rows is 1: .* at least 2")
    refused(lambda: column_stats({"a": np.arange(90)}, "a"), r"names is 'a': pass a list of columns, as in \['a'\]")


def test_statistics_travel_as_json_to_the_last_bit():
    made = column_stats({"a": 1e9 + np.random.default_rng(0).normal(size=50), "b": np.arange(50)})
    said = made.as_json()
    assert set(said["a"]) == {"count", "missing", "mean", "rest", "sd"}
    assert Stats.from_json(json.loads(json.dumps(said))) == made


GOOD = {"count": 20, "missing": 0, "mean": 1.0, "rest": 0.0, "sd": 2.0}
BAD = {
    "nothing": ({}, "site.json have no columns"),
    "a list": ([1], "site.json have no columns"),
    "a number": ({"a": 1}, "column 'a' of site.json does not have count"),
    "more": ({"a": {**GOOD, "max": 3}}, "column 'a' of site.json does not have count"),
    "less": ({"a": {"count": 3}}, "column 'a' of site.json does not have count"),
    "no rows": ({"a": {**GOOD, "count": 0}}, "no whole number for its count"),
    "half a row": ({"a": {**GOOD, "count": 2.5}}, "no whole number for its count"),
    "less than none": ({"a": {**GOOD, "missing": -1}}, "no whole number for its missing"),
    "a truth": ({"a": {**GOOD, "mean": True}}, "no finite number for its mean"),
    "no number": ({"a": {**GOOD, "mean": float("nan")}}, "no finite number for its mean"),
    "text": ({"a": {**GOOD, "sd": "2"}}, "no finite number for its sd"),
    "infinite": ({"a": {**GOOD, "sd": float("inf")}}, "no finite number for its sd"),
    "negative": ({"a": {**GOOD, "sd": -1.0}}, "negative sd"),
    "a large rest": ({"a": {**GOOD, "rest": 0.5}}, "a rest that is no rounding"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_stranger_says_is_checked(name):
    said, sentence = BAD[name]
    refused(lambda: Stats.from_json(said, "site.json"), sentence, most=200)


def test_sites_must_tell_of_the_same_columns():
    a, b = column_stats({"a": np.arange(20)}), column_stats({"a": np.arange(20), "b": np.arange(20)})
    refused(lambda: pool([a, a, b]), r"column 'b' is not in all of the statistics \(the 1st and number 3 differ\)")
    refused(lambda: pool([]), "there are no statistics to pool")
