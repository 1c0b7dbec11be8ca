"""Rows from files and data frames: what columns become, what is refused and how it is said."""

import gzip
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from sentences import refused

import epvi
from epvi import Rows
from epvi.site.rows.rows import read_rows

QUICK = epvi.NVI(num_components=1)

# Missing values are coded in several ways; spaces, quotes and a text column that is not used.
HEART = """age, sex,cp,chol,num,note
63,1,typical,233,0,"a, b"
67,1, asymptomatic ,286,1,
67,1,asymptomatic,229,1,"two
lines"
37,1,atypical,NA,0,x
41,0,atypical,204.5,0,x
"""
CP = ["typical", "atypical", "asymptomatic"]


@pytest.fixture
def heart(tmp_path):
    path = tmp_path / "heart.csv"
    path.write_text(HEART)
    return path


def table_of(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(5, 2, n),
        "b": rng.integers(0, 2, n),
        "g": np.array(["north", "south"])[np.arange(n) % 2],
        "y": rng.integers(0, 2, n),
    }


def frame_of(table):
    return pa.table({name: pa.array(column) for name, column in table.items()})


def write_csv(path, table):
    pd.DataFrame(table).to_csv(path, index=False)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def shifted(x, offset=None, y=None):
    logistic(x if offset is None else x + offset[:, None], y)


MODEL = epvi.Model(logistic)


def test_a_csv_becomes_matrices_codes_and_indicators(heart):
    rows = Rows(heart, x=["age", "cp", "sex"], y="num", where="cp", levels={"cp": CP})
    table = rows.read()
    np.testing.assert_array_equal(
        table.columns["x"], [[63, 0, 0, 1], [67, 0, 1, 1], [67, 0, 1, 1], [37, 1, 0, 1], [41, 1, 0, 0]]
    )
    assert table.columns["x"].dtype == np.float64
    assert table.columns["x"].flags.c_contiguous
    np.testing.assert_array_equal(table.columns["y"], [0, 1, 1, 0, 0])
    assert table.columns["y"].dtype == np.int64
    np.testing.assert_array_equal(table.columns["where"], [0, 2, 2, 1, 1])
    assert table.sources == {"x": ("age", "cp=atypical", "cp=asymptomatic", "sex"), "y": ("num",), "where": ("cp",)}
    assert table.levels == {"cp": tuple(CP)}
    assert (table.dropped, table.extra, table.standardised, table.num_rows) == (0, {}, {}, 5)


def test_rows_with_missing_values_are_refused_or_dropped_and_counted(heart):
    refused(
        lambda: Rows(heart, x=["age", "chol"]).read(), "column 'chol' of file '.*heart.csv' has 1 missing value in 5"
    )
    refused(lambda: Rows(heart, x=["age", "chol"]).read(), "drop_missing=True")
    table = Rows(heart, x=["age", "chol"], y="sex", drop_missing=True).read(also="cp")
    assert table.dropped == 1
    np.testing.assert_array_equal(table.columns["x"], [[63, 233], [67, 286], [67, 229], [41, 204.5]])
    np.testing.assert_array_equal(table.columns["y"], [1, 1, 1, 0])
    assert table.columns["y"].dtype == np.int64
    assert table.extra["cp"].tolist() == ["typical", "asymptomatic", "asymptomatic", "atypical"]


@pytest.mark.parametrize("word", ["", "NA", "NaN", "nan", "null", "?", " NA", '"NA"'])
def test_missing_values_have_many_names(tmp_path, word):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n1,2\n{word},3\n4.5,5\n")
    table = Rows(path, drop_missing=True).read()
    assert table.dropped == 1
    np.testing.assert_array_equal(table.columns["a"], [1, 4.5])
    np.testing.assert_array_equal(table.columns["b"], [2, 5])


def sources(tmp_path):
    table = table_of()
    arrow = frame_of(table)
    write_csv(tmp_path / "t.csv", table)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    parquet.write_table(arrow, tmp_path / "t.parquet", row_group_size=7)
    np.savez(tmp_path / "t.npz", **table)
    records = np.rec.fromarrays(list(table.values()), names=list(table))
    np.save(tmp_path / "t.npy", np.asarray(records.view(np.ndarray)))
    return {
        "CSV": tmp_path / "t.csv",
        "CSV as text": str(tmp_path / "t.csv"),
        "CSV.GZ": tmp_path / "t.csv.gz",
        "Parquet": tmp_path / "t.parquet",
        "npz": tmp_path / "t.npz",
        "npy": tmp_path / "t.npy",
        "pandas": pd.DataFrame(table, index=np.arange(40) + 7),
        "pandas categories": pd.DataFrame({**table, "g": pd.Categorical(table["g"])}),
        "polars": pl.DataFrame(table),
        "polars categories": pl.DataFrame(table).with_columns(pl.col("g").cast(pl.Categorical)),
        "Arrow": arrow,
        "Arrow dictionaries": arrow.set_column(2, "g", arrow["g"].dictionary_encode()),
        "mapping": table,
        "mapping of new text": {**table, "g": table["g"].astype(np.dtypes.StringDType())},
        "mapping of bytes": {**table, "g": table["g"].astype("S5")},
        "mapping of objects": {**table, "g": table["g"].astype(object)},
        "mapping of Series": {name: pd.Series(column) for name, column in table.items()},
    }


def test_all_sources_give_the_same_rows(tmp_path):
    table = table_of()
    for name, source in sources(tmp_path).items():
        rows = Rows(source, x=["a", "b"], y="y", h="g", levels={"g": ["south", "north"]}, limits={"a": (None, 50)})
        made = rows.read(also="g")
        np.testing.assert_allclose(made.columns["x"], np.stack([table["a"], table["b"]], 1), rtol=1e-15, err_msg=name)
        np.testing.assert_array_equal(made.columns["y"], table["y"], err_msg=name)
        np.testing.assert_array_equal(made.columns["h"], np.arange(40) % 2 == 0, err_msg=name)
        np.testing.assert_array_equal(made.extra["g"], table["g"], err_msg=name)
        without = read_rows(source, also="g")
        assert list(without.columns) == ["a", "b", "y"], name
        refused(lambda source=source: read_rows(source), "column 'g'")


def test_files_of_a_glob_are_joined_in_sorted_order(tmp_path):
    for i in (2, 0, 1):
        write_csv(tmp_path / f"part-{i}.csv", {"x": [i + 0.5, i] if i else [0, 0], "y": [i, 10 * i]})
    for source in (tmp_path / "part-*.csv", str(tmp_path / "**/part-?.csv"), sorted(tmp_path.glob("*.csv"))):
        table = read_rows(source)
        np.testing.assert_array_equal(table.columns["x"], [0, 0, 1.5, 1, 2.5, 2])
        np.testing.assert_array_equal(table.columns["y"], [0, 0, 1, 10, 2, 20])
    (tmp_path / "part-3.csv").write_text("x,y\n")
    assert read_rows(tmp_path / "part-*.csv").num_rows == 6
    (tmp_path / "part-3.csv").write_text("x,z\n1,2\n")
    refused(
        lambda: read_rows(tmp_path / "part-*.csv"), "'.*part-3.csv' has a column 'z', which file '.*part-0.csv' has"
    )
    (tmp_path / "part-3.csv").write_text("x\n1\n")
    refused(lambda: read_rows(tmp_path / "part-*.csv"), "'.*part-3.csv' has no column 'y'")
    (tmp_path / "part-3.csv").write_text("x,y\na,2\n")
    refused(
        lambda: read_rows(tmp_path / "part-*.csv"), "'x' of file '.*part-3.csv' holds text and in .*part-0.csv' num"
    )
    (tmp_path / "part-3.csv").write_text("x,y\n1,2\n,3\n")
    refused(lambda: read_rows(tmp_path / "part-*.csv"), "'x' of file '.*part-3.csv' has 1 missing")
    assert Rows(tmp_path / "part-*.csv", drop_missing=True).read().num_rows == 7
    (tmp_path / "part-3.csv").write_text("x,y\n")
    coded = Rows(tmp_path / "part-*.csv", x=["x"], y="y", levels={"y": [0, 1, 2, 10, 20]}).read(also="y")
    assert coded.columns["y"].tolist() == [0, 0, 1, 3, 2, 4]
    assert coded.extra["y"].astype(int).tolist() == [0, 0, 1, 10, 2, 20]


def test_matrices_of_an_archive_are_taken_as_they_are(tmp_path):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(6, 3)), np.arange(6)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    for source in (tmp_path / "a.npz", {"X": X, "y": y}):
        table = Rows(source, x="X", z=["y"]).read()
        np.testing.assert_array_equal(table.columns["x"], X)
        np.testing.assert_array_equal(table.columns["z"], y[:, None])
        refused(lambda source=source: Rows(source, x=["X", "y"]).read(), "column 'X' is a matrix already")
        refused(lambda source=source: Rows(source, x="X", standardise={"X": (0, 1)}).read(), "column 'X' is a matrix")
    assert list(read_rows(tmp_path / "a.npz").columns) == ["X", "y"]
    table = Rows([tmp_path / "a.npz"], x="X").read()
    np.testing.assert_array_equal(table.columns["x"], X)
    table = Rows(tmp_path / "x.npy", x="arr_0").read()
    np.testing.assert_array_equal(table.columns["x"], X)
    assert table.columns["x"].flags.c_contiguous
    X[2, 1] = np.nan
    assert Rows({"X": X, "y": y}, x="X", y="y", drop_missing=True).read().columns["y"].tolist() == [0, 1, 3, 4, 5]


def test_plain_mappings_stay_as_they_were():
    X = np.ones((3, 2), np.float32)
    table = read_rows({"x": X, "y": [1, 2, 3]})
    assert table.columns["x"] is X
    assert table.sources == {}
    refused(lambda: read_rows({"x": X, "g": [1, 2]}, also="g"), "column 'g' has 2 entries and the others 3")
    refused(lambda: read_rows([1, 2]), "rows is a list: pass a mapping")
    refused(lambda: read_rows([]), "rows is a list: pass a mapping")


def test_matrices_are_float32_when_all_their_columns_are():
    f4 = np.arange(3, dtype=np.float32)
    source = {"a": f4, "b": f4.astype(np.float16), "c": f4.astype(np.float64), "i": np.arange(3), "g": ["u", "v", "u"]}
    rows = Rows(source, x=["a", "b", "g"], z=["a", "c"], i=["a", "i"], g=["g"], levels={"g": ["u", "v"]})
    columns = rows.read().columns
    assert [columns[name].dtype.itemsize for name in "xzig"] == [4, 8, 8, 8]
    np.testing.assert_array_equal(columns["x"], [[0, 0, 0], [1, 1, 1], [2, 2, 0]])
    one = Rows(frame_of({"a": f4, "b": f4}), x=["a", "b"], standardise={"a": (1, 2)}).read().columns["x"]
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one[:, 0], [-0.5, 0, 0.5])


def test_numbers_are_levels_too():
    source = {
        "cp": [1, 2, 4, 2],
        "thal": np.array([3.0, 6.0, 7.0, 3.0]),
        "t": ["1", " 2.0", "1", "2"],
        "b": [True, False] * 2,
    }
    levels = {"cp": [1.0, 2, 4], "thal": (7, 3, 6), "t": [1, 2], "b": [False, True]}
    table = Rows(source, levels=levels).read()
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        "cp": [0, 1, 2, 1],
        "thal": [1, 2, 0, 1],
        "t": [0, 1, 0, 1],
        "b": [1, 0, 1, 0],
    }
    assert table.levels["cp"] == ("1", "2", "4")
    assert Rows(source, x=["cp", "thal"], levels={"cp": [1, 2, 4], "thal": [3, 6, 7]}).read().sources["x"] == (
        "cp=2",
        "cp=4",
        "thal=6",
        "thal=7",
    )


def test_an_indicator_keeps_its_place_beside_a_column_of_its_name():
    source = {"cp": [1, 2], "cp=2": [7.0, 8.0]}
    for x, expected in ((["cp=2", "cp"], [[7, 0], [8, 1]]), (["cp", "cp=2"], [[0, 7], [1, 8]])):
        np.testing.assert_array_equal(Rows(source, x=x, levels={"cp": [1, 2]}).read().columns["x"], expected)


def test_text_levels_are_found_in_a_csv_of_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("site,y\n01,1\n1,2\n")
    assert Rows(tmp_path / "a.csv", levels={"site": ["1", "01"]}).read().columns["site"].tolist() == [1, 0]


def test_values_outside_their_levels_or_limits_are_refused(heart):
    def reading(**options):
        return lambda: Rows(heart, x=["age", "cp"], **options).read()

    refused(
        reading(levels={"cp": ["typical", "atypical"]}),
        r"'cp' of file '.*' has the value 'asymptomatic', which is not among its levels \('typical', 'atypical'\)",
    )
    refused(reading(levels={"cp": [1, 2]}), r"has the value 'typical', which is not among its levels \(1, 2\)")
    refused(reading(levels={"cp": CP}, limits={"age": (50, 66)}), "'age' of file .* has 4 values outside 50 to 66")
    refused(reading(levels={"cp": CP}, limits={"age": (None, 66)}), "'age' of file .* has 2 values above 66")
    refused(reading(levels={"cp": CP}, limits={"age": (41, None)}), "'age' of file .* has 1 value below 41")
    assert reading(levels={"cp": CP}, limits={"age": (37, 67)})().num_rows == 5
    refused(reading(), r"column 'cp' of file '.*heart.csv' holds text: give its levels, as in levels={\"cp\"")


def test_columns_are_standardised_with_given_constants_or_with_their_own():
    table = table_of()
    given = Rows(table, x=["a", "b"], y="y", standardise={"a": (5, 2), "y": (0.5, 0.5)}).read()
    np.testing.assert_allclose(given.columns["x"][:, 0], (table["a"] - 5) / 2, rtol=1e-14)
    np.testing.assert_array_equal(given.columns["x"][:, 1], table["b"])
    np.testing.assert_array_equal(given.columns["y"], 2 * table["y"] - 1)
    own = Rows(table, x=["a", "b", "g"], y="y", standardise=True, levels={"g": ["north", "south"]}).read()
    assert list(own.standardised) == ["a"]
    np.testing.assert_allclose(own.standardised["a"], (table["a"].mean(), table["a"].std()), rtol=1e-14)
    assert abs(own.columns["x"][:, 0].mean()) < 1e-14
    assert own.columns["x"][:, 0].std() == pytest.approx(1, rel=1e-14)
    np.testing.assert_array_equal(own.columns["x"][:, 1], table["b"])
    again = Rows(table, x=["a", "b"], standardise=own.standardised).read()
    np.testing.assert_array_equal(again.columns["x"], own.columns["x"][:, :2])
    refused(lambda: Rows({"a": [2.0, 2.0]}, x=["a"], standardise=True).read(), "'a' has the same value in all rows")
    refused(lambda: Rows({"a": [1.0]}, x="a", standardise=True), "standardise=True is for columns in lists")


def test_byte_order_marks_and_windows_lines_do_no_harm(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffage,y\r\n1,2\r\n3,4\r\n".encode())
    assert {k: v.tolist() for k, v in read_rows(tmp_path / "a.csv").columns.items()} == {"age": [1, 3], "y": [2, 4]}
    (tmp_path / "a.csv").write_text("\n\n0,1\n5,6\n")
    assert {k: v.tolist() for k, v in read_rows(tmp_path / "a.csv").columns.items()} == {"0": [5], "1": [6]}


BAD_FILES = {
    "empty.csv": ("", "file '.*empty.csv' is empty"),
    "header.csv": ("a,b\n", "file '.*header.csv' has zero rows: it needs at least one"),
    "blank.csv": ("\n\n", "file '.*blank.csv' has no columns"),
    "semicolons.csv": ("a;b\n1;2\n", "file '.*semicolons.csv' has semicolons between its columns: save it with commas"),
    "tabs.csv": ("a\tb\n1\t2\n", "has tabs between"),
    "twice.csv": ("a,b, a\n1,2,3\n", "file '.*twice.csv' has two columns named 'a'"),
    "ragged.csv": ("a,b\n1,2\n3\n", "file '.*ragged.csv' has 1 fields instead of 2 in line 3"),
    "nameless.csv": ("63,1.5,1e3\n1,2,3\n", "file '.*nameless.csv' has numbers where its columns' names"),
    "latin.csv": ("a,b\n1,é\n".encode("latin1"), "column 'b' of file '.*latin.csv' holds text that is not UTF-8"),
    "utf16.csv": ("a,b\n1,2\n".encode("utf-16"), "file '.*utf16.csv' is not UTF-8 text"),
    "thousands.csv": (
        'a\n"1,234"\n5\n',
        "'a' of file .* holds text: write numbers with a decimal point and without tho",
    ),
    "commas.csv": ('a\n"1,5"\n"2,25"\n', "write numbers with a decimal point"),
    "strange.csv": ("a\n1\n2\n3\n<5\n", "'a' of file .* holds text: 1 of its 4 values are no numbers"),
    "dates.csv": ("a\n2024-05-01\n", "'a' of file .* holds dates or times"),
    "infinite.csv": ("a\n1.5\ninf\n", "'a' of file .* has 1 infinite values"),
    "broken.csv.gz": (b"\x1f\x8b\x08junk", "file '.*broken.csv.gz' cannot be read"),
    "plain.csv.gz": ("a,b\n1,2\n", "file '.*plain.csv.gz' cannot be read"),
    "broken.parquet": ("PAR1junk", "file '.*broken.parquet' cannot be read"),
    "broken.npz": ("junk", "file '.*broken.npz' holds Python objects|file '.*broken.npz' cannot be read"),
    "broken.npy": (b"\x93NUMPY\x01\x00", "file '.*broken.npy' cannot be read"),
    "rows.xlsx": ("junk", "file '.*rows.xlsx' is of no format that can be read: pass .csv, .csv.gz, .parquet"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_hold_no_rows_are_refused_by_name(tmp_path, name):
    content, sentence = BAD_FILES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: read_rows(tmp_path / name), sentence)


def test_paths_that_lead_nowhere_are_refused(tmp_path):
    refused(lambda: read_rows("nowhere.csv"), "there is no file 'nowhere.csv'")
    refused(lambda: read_rows("a" * 5000 + ".csv"), "'aaa.*' cannot be looked up")
    refused(lambda: read_rows("nowhere-*.csv"), "no file matches 'nowhere-\\*.csv'")
    refused(lambda: read_rows(tmp_path), "is a directory: name its files, as in '.*/\\*.parquet'")
    (tmp_path / "a.csv").write_text("a\n1\n")
    refused(lambda: read_rows([tmp_path / "a.csv", str(tmp_path / "*.csv")]), "a.csv' is named twice")
    (tmp_path / ("b" * 200 + ".csv")).write_text("")
    refused(lambda: read_rows(tmp_path / ("b" * 200 + ".csv")), "file '.*bbb.csv' is empty")
    (tmp_path / "[a].csv").write_text("a\n7\n")
    assert read_rows(tmp_path / "[a].csv").columns["a"].tolist() == [7]


def test_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "o.npz", a=np.array([{}, None], object), allow_pickle=True)
    np.save(tmp_path / "o.npy", np.array([{}, None], object), allow_pickle=True)
    for name in ("o.npz", "o.npy"):
        refused(lambda name=name: read_rows(tmp_path / name), f"{name}' holds Python objects, which are never loaded")


def test_archives_with_odd_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3), y=np.ones(2), n=3.0)
    refused(
        lambda: Rows(tmp_path / "a.npz", x="x", y="y").read(), r"a.npz' have different lengths \(x has 3, y has 2\)"
    )
    refused(lambda: Rows(tmp_path / "a.npz", x="x", y="n").read(), "column 'n' of file '.*a.npz' is a single value")


def test_unknown_columns_are_refused_with_the_nearest_names(heart):
    refused(
        lambda: Rows(heart, x=["Age", "chol"]).read(),
        "heart.csv' has no column 'Age': its columns are age, sex, cp, chol, num, note. Did you mean 'age'",
    )
    refused(lambda: Rows(heart, y="num").read(also="hospital"), "heart.csv' has no column 'hospital'")
    many = {f"column number {i} with a long name": [1] for i in range(300)}
    refused(lambda: Rows(many, x="other").read(), "the data has no column 'other': .* and 292 more")
    refused(lambda: Rows({"a\nb": [1]}, x="other").read(), "the data has no column 'other': its columns are a b")
    refused(lambda: Rows({"a": [1]}, limits={"b": (0, 1)}).read(), "the data has no column 'b'")


BAD_OPTIONS = {
    "a number for a column": ({"x": 3}, "x is '3': pass a column's name"),
    "no columns": ({"x": []}, r"x is '\[\]': pass a column's name"),
    "twice": ({"x": ["a", "a"]}, "x lists column 'a' twice"),
    "a scale of zero": (
        {"x": "a", "standardise": {"a": (0, 0)}},
        r"standardise of column 'a' is \(0, 0\): pass \(centre",
    ),
    "an infinite centre": ({"x": "a", "standardise": {"a": (np.inf, 1)}}, "standardise of column 'a'"),
    "one constant": ({"x": "a", "standardise": {"a": 1}}, "standardise of column 'a' is 1: pass"),
    "a list of columns": ({"x": "a", "standardise": ["a"]}, "standardise is a list: pass a mapping"),
    "constants of what is not used": (
        {"x": "a", "standardise": {"b": (0, 1)}},
        "standardise names 'b', of which no arg",
    ),
    "one level": ({"x": "a", "levels": {"a": ["u"]}}, "levels of column 'a': pass a list of at least two"),
    "text for levels": ({"x": "a", "levels": {"a": "uv"}}, "levels of column 'a': pass a list"),
    "mixed levels": ({"x": "a", "levels": {"a": [1, "v"]}}, "levels of column 'a': .* all of them text or all numbers"),
    "a level twice": ({"x": "a", "levels": {"a": ["u", "u "]}}, "levels of column 'a' name one level twice"),
    "a number twice": ({"x": "a", "levels": {"a": [1, 2, 1.0]}}, "levels of column 'a' name one level twice"),
    "missing": (
        {"x": "a", "levels": {"a": ["EU", "NA"]}},
        "levels of column 'a' have one of NA, .* which mean missing",
    ),
    "no number": ({"x": "a", "levels": {"a": [1, np.nan]}}, "levels of column 'a' have one that is not finite"),
    "limits the wrong way": ({"x": "a", "limits": {"a": (2, 1)}}, r"limits of column 'a' are \(2, 1\): pass \(lowest"),
    "no limits": ({"x": "a", "limits": {"a": (None, None)}}, "limits of column 'a'"),
    "limits of levels": (
        {"x": "a", "levels": {"a": [1, 2]}, "limits": {"a": (0, 1)}},
        "'a' has levels, so it cannot be",
    ),
    "dropping": ({"x": "a", "drop_missing": 1}, "drop_missing is 1: pass True or False"),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_are_checked_before_anything_is_read(name):
    options, sentence = BAD_OPTIONS[name]
    refused(lambda: Rows("nowhere.csv", **options), sentence, most=200)


def test_data_frames_with_missing_values_and_odd_columns():
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0], "b": pd.array([1, 2, None], "Int64"), "y": [1, 0, 1]})
    refused(lambda: read_rows(frame), "column 'a' of the data has 1 missing value in 3 rows")
    for source in (frame, pl.DataFrame(frame), {name: frame[name] for name in frame}):
        table = Rows(source, drop_missing=True).read()
        assert {name: column.tolist() for name, column in table.columns.items()} == {"a": [1.0], "b": [1], "y": [1]}
        assert table.dropped == 2
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    refused(lambda: read_rows(frame), "the data has two columns named 'a'")
    refused(lambda: read_rows(pd.DataFrame({0: [1]})), "a column of the data is named 0")
    refused(
        lambda: read_rows(pd.DataFrame({"a": [1, "b"]})),
        "the DataFrame cannot be read as a table .* plain values of one kind",
    )
    refused(lambda: read_rows(pl.Series("a", [1])), "the Series cannot be read as a table")
    refused(
        lambda: Rows({"a": [None, None]}, drop_missing=True).read(),
        "no row of the data is left: all 2 lack a value",
    )
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    assert Rows({"a": masked}, drop_missing=True).read().columns["a"].tolist() == [1, 3]
    assert Rows({"a": np.ma.masked_array(np.ones((2, 2)))}, x="a").read().columns["x"].tolist() == [[1, 1], [1, 1]]
    assert read_rows(pa.table({"a": [1, 2]}).to_reader()).columns["a"].tolist() == [1, 2]


def test_a_fit_reads_files(tmp_path):
    table = table_of(400)
    for i in range(4):
        part = {name: column[i::4] for name, column in table.items()}
        parquet.write_table(frame_of(part), tmp_path / f"{i}.parquet")
    ordered = {name: np.concatenate([column[i::4] for i in range(4)]) for name, column in table.items()}
    units = {"a": (5.0, 2.0)}
    rows = Rows(str(tmp_path / "*.parquet"), x=["a", "b"], y="y", standardise=units)
    plain = {"x": np.stack([(ordered["a"] - 5) / 2, ordered["b"].astype(float)], 1), "y": ordered["y"]}
    with ThreadPoolExecutor(1) as threads:
        made, expected = (
            epvi.fit(MODEL, one, 2, inference=QUICK, certify=False, executor=threads) for one in (rows, plain)
        )
        np.testing.assert_array_equal(made.mixture.means, expected.mixture.means)
        made = epvi.fit(MODEL, rows, by="g", inference=QUICK, certify=False, executor=threads)
    assert [fit.label for fit in made.fits] == ["1 of 2 (g = north)", "2 of 2 (g = south)"]
    assert [fit.num_rows for fit in made.fits] == [200, 200]
    shard = epvi.fit_shard(MODEL, rows, "1/1", inference=QUICK)
    assert shard.num_rows == 400
    own = Rows(table, x=["a", "b"], y="y", standardise=True)
    refused(lambda: epvi.fit_shard(MODEL, own, "1/1"), "standardise=True .* same at every site, and epvi stats")
    refused(lambda: epvi.predict(MODEL, made, own), "standardise=True .* those that the model was fitted with")
    assert epvi.log_predictive(MODEL, made, rows) == pytest.approx(epvi.log_predictive(MODEL, made, plain))


def test_rows_to_predict_need_no_observed_column(tmp_path):
    table = table_of(50)
    posterior = epvi.combine([epvi.fit_shard(MODEL, Rows(table, x=["a", "b"], y="y"), "1/1", inference=QUICK)])
    (tmp_path / "new.csv").write_text("b,a\n1,5.5\n0,2\n")
    draws = epvi.predict(MODEL, posterior, Rows(tmp_path / "new.csv", x=["a", "b"], y="y"), num_samples=7)
    assert draws["y"].shape == (7, 2)
    expected = epvi.predict(MODEL, posterior, {"x": np.array([[5.5, 1], [2, 0]])}, num_samples=7)
    np.testing.assert_array_equal(draws["y"], expected["y"])
    new = Rows(tmp_path / "new.csv", x=["a", "c"], y="y")
    refused(lambda: epvi.predict(MODEL, posterior, new), "new.csv' has no column 'c'")
    new = Rows(tmp_path / "new.csv", x=["a", "b"], offset="days", y="y")
    refused(lambda: epvi.predict(shifted, posterior, new), "the rows have no column 'days', of which offset is made")
    refused(lambda: epvi.log_predictive(MODEL, posterior, Rows(tmp_path / "new.csv", x=["a"], y="y")), "no column 'y'")


def test_a_column_that_names_the_shards_may_be_an_argument_too():
    table = table_of()
    rows = Rows(table, x=["a"], site="g", levels={"g": ["north", "south"]})
    for also in ("g", "site"):
        made = rows.read(also=also)
        assert list(made.extra) == [also]
        assert made.extra[also].tolist() == table["g"].tolist()
        assert made.columns["site"].tolist() == [0, 1] * 20
    numbers = {name: column for name, column in table.items() if name != "g"}
    assert list(read_rows(numbers, also="b", keep=True).columns) == ["a", "b", "y"]
    assert list(read_rows(numbers, also="b").columns) == ["a", "y"]


def test_a_description_shows_no_values():
    assert "63" not in repr(Rows({"a": [63]}, x="a"))


def test_a_column_is_read_apart_and_not_made_an_argument(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("g,h,y\na,1,2\nb,2,3\n")
    for rows in (Rows(path, hospital="g", y="y"), Rows({"g": ["a", "b"], "y": [2, 3]}, hospital="g", y="y")):
        made = read_rows(rows, apart="hospital")
        assert list(made.columns) == ["y"]
        assert made.extra["hospital"].tolist() == ["a", "b"]
    both = read_rows(path, also="h", apart="g")
    assert (list(both.columns), both.extra["g"].tolist(), both.extra["h"].tolist()) == (["y"], ["a", "b"], [1, 2])
    # Rows whose only column is this one, as for predictions.
    alone = read_rows(Rows(path, hospital="g"), apart="hospital")
    assert (alone.num_rows, alone.columns) == (2, {})
    plain = read_rows({"g": np.array(["a", "b"])}, apart="g")
    assert (plain.num_rows, plain.columns) == (2, {})
    refused(lambda: read_rows({"y": [1.0]}, apart="g"), "there is no column 'g' to group by: the rows have y")
