"""Categories become levels, whatever they are made of and wherever they come from; nothing that is one is a slope."""

import dataclasses
import inspect

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from commands import call
from sentences import refused

import epvi
from epvi import Rows
from epvi.site.rows.column_stats import column_stats
from epvi.site.rows.levels import OWN, Undeclared
from epvi.site.rows.rows import read_rows
from epvi.site.tasks.predictive import same_coding
from epvi.wire.shard_fit import plain_coding

QUICK = epvi.NVI(num_components=1)
# Categories in an order that is neither the alphabet's nor that of the rows; one has no row.
VALUES, ORDER, CODES = ["low", "high", "low", "mid"], ["mid", "low", "high", "none"], [1, 2, 1, 0]
NUMBERS = [3, 1, 3, 7]


def own(rows):
    return read_rows(rows, undeclared=OWN)


def dictionary(values, categories, ordered=False):
    return pa.DictionaryArray.from_arrays([categories.index(v) for v in values], pa.array(categories), ordered=ordered)


def frames():
    """The same categories in the types of pandas, polars and Arrow."""
    ordered = pd.Categorical(VALUES, ORDER, ordered=True)
    enum = pl.Series(VALUES, dtype=pl.Enum(ORDER))
    arrow = dictionary(VALUES, ORDER)
    return {
        "pandas": pd.DataFrame({"g": pd.Categorical(VALUES, ORDER)}),
        "pandas, ordered": pd.DataFrame({"g": ordered}, index=[5, 6, 7, 8]),
        "polars": pl.DataFrame({"g": enum}),
        "Arrow": pa.table({"g": arrow}),
        "Arrow, ordered": pa.table({"g": dictionary(VALUES, ORDER, ordered=True)}),
        "Arrow, in pieces": pa.table({"g": pa.chunked_array([arrow[:1], arrow[1:]])}),
        "a mapping of an array of pandas": {"g": ordered},
        "a mapping of a Series of pandas": {"g": pd.Series(ordered)},
        "a mapping of a Series of polars": {"g": enum},
        "a mapping of an array of Arrow": {"g": arrow},
    }


@pytest.mark.parametrize("name", frames())
def test_a_table_has_its_levels_in_its_own_type(name):
    frame = frames()[name]
    table = own(Rows(frame, x=["g"], g="g"))
    assert table.levels == {"g": tuple(ORDER)}
    assert table.sources == {"x": ("g=low", "g=high", "g=none"), "g": ("g",)}
    assert table.columns["g"].tolist() == CODES
    assert table.columns["g"].dtype == np.int64
    np.testing.assert_array_equal(table.columns["x"], np.eye(4)[CODES][:, 1:])
    assert own(frame).columns["g"].tolist() == CODES
    # A site alone is refused with what it has; levels that are declared are heeded.
    refused(
        lambda: read_rows(frame), r"column 'g' holds categories: give its levels.*\(3 found: 'mid', 'low', 'high'\)"
    )
    declared = Rows(frame, g="g", levels={"g": ["high", "low", "mid"]}).read()
    assert declared.columns["g"].tolist() == [1, 0, 1, 2]
    refused(lambda: Rows(frame, g="g", levels={"g": ["low", "mid"]}).read(), "the value 'high', which is not among its")


def numeric_frames():
    return {
        "pandas": pd.DataFrame({"g": pd.Categorical(NUMBERS)}),
        "pandas, of floats": pd.DataFrame({"g": pd.Categorical([float(one) for one in NUMBERS])}),
        "Arrow": pa.table({"g": dictionary(NUMBERS, [1, 3, 7])}),
        "a mapping": {"g": pd.Categorical(NUMBERS)},
    }


@pytest.mark.parametrize("name", numeric_frames())
def test_categories_of_numbers_are_no_slope(name):
    frame = numeric_frames()[name]
    table = own(Rows(frame, x=["g"], g="g"))
    np.testing.assert_array_equal(table.columns["x"], [[1, 0], [0, 0], [1, 0], [0, 1]])
    assert table.columns["g"].tolist() == [1, 0, 1, 2]
    assert table.levels == {"g": ("1", "3", "7")}
    refused(lambda: read_rows(frame), r"column 'g' holds categories: .*\(3 found: 1(.0)?, 3(.0)?, 7(.0)?\)")
    assert Rows(frame, g="g", levels={"g": [7, 3, 1]}).read().columns["g"].tolist() == [1, 2, 1, 0]


def test_pieces_with_different_dictionaries_are_one_column():
    pieces = [dictionary(["b", "a"], ["b", "a"]), dictionary(["c", "a"], ["a", "c"])]
    table = own(Rows(pa.table({"g": pa.chunked_array(pieces)}), g="g"))
    assert (table.levels["g"], table.columns["g"].tolist()) == (("b", "a", "c"), [0, 1, 2, 1])
    # Two orders are none.
    ordered = pa.chunked_array([dictionary(["b", "a"], order, ordered=True) for order in (["a", "b"], ["b", "a"])])
    refused(lambda: own(pa.table({"g": ordered})), r"column 'g' holds categories: give its levels.*\(2 found")


def test_truth_values_are_two_levels_whose_indicator_they_are():
    truths = [True, False, True]
    for frame in (
        pd.DataFrame({"b": truths}),
        pd.DataFrame({"b": pd.array(truths, "boolean")}),
        pl.DataFrame({"b": truths}),
        pa.table({"b": truths}),
    ):
        table = Rows(frame, x=["b"], y="b").read()
        assert table.levels == {"b": ("0", "1")}
        assert table.sources == {"x": ("b=1",), "y": ("b",)}
        np.testing.assert_array_equal(table.columns["x"], [[1], [0], [1]])
        assert table.columns["y"].dtype == bool
        assert table.columns["y"].tolist() == truths
    # They have no unit of their own, unless one is given.
    source = {"a": [1.0, 2.0, 6.0], "b": [True] * 3}
    table = Rows(source, x=["a", "b"], standardise=True).read()
    assert list(table.standardised) == ["a"]
    given = Rows({"b": truths}, x=["b"], standardise={"b": (0.5, 0.5)}).read()
    np.testing.assert_array_equal(given.columns["x"], [[1], [-1], [1]])
    assert given.levels == {}
    assert list(column_stats({"a": np.arange(20), "b": np.arange(20) % 2 == 0}).columns) == ["a"]


def test_levels_0_and_1_are_the_numbers_0_and_1_to_those_who_compare():
    truths = Rows(pa.table({"b": [True, False]}), x=["b"], y="b").read()
    numbers = Rows(pa.table({"b": [1, 0]}), x=["b"], y="b").read()
    assert truths.sources != numbers.sources
    assert plain_coding(truths.sources, truths.levels) == plain_coding(numbers.sources, numbers.levels)
    made_of = dataclasses.replace(epvi.wire.shard_fit.Provenance(), columns=numbers.sources)
    same_coding(made_of, truths)
    other = dataclasses.replace(made_of, levels={"b": ("1", "0")}, columns={"x": ("b=0",), "y": ("b",)})
    refused(lambda: same_coding(other, truths), "x is made of b, and where the posterior was fitted of b=0")


def odd_categories():
    return {
        "dates": (pd.Categorical(pd.to_datetime(["2024-01-01", "2024-02-01"])), "neither text nor plain numbers"),
        "intervals": (
            pd.cut([1.0, 5.0], [0, 4, 10]),
            "neither text nor plain numbers: convert them to text first, as in",
        ),
        "one": (pd.Categorical(["a", "a"]), "column 'g' has fewer than two categories: leave it out"),
        "spaces": (pd.Categorical(["a", "a "]), "categories of column 'g' name one level twice"),
        "a word for missing": (pd.Categorical(["a", "NA"]), "categories of column 'g' have one of NA"),
        "missing": (pd.Categorical(["a", None]), "column 'g' of the data has 1 missing value in 2 rows"),
    }


@pytest.mark.parametrize("name", odd_categories())
def test_odd_categories_are_refused_in_a_sentence(name):
    categories, sentence = odd_categories()[name]
    if name == "missing":
        categories = categories.add_categories("b")
    refused(lambda: own(pd.DataFrame({"g": categories})), sentence)
    refused(lambda: read_rows(pd.DataFrame({"g": categories})), "column 'g'")


def test_objects_of_several_kinds_are_refused_by_name():
    mixed = pd.Categorical([1, "a"])
    refused(lambda: own({"a": [1, 2], "g": mixed}), "column 'g' holds objects of several kinds")
    refused(lambda: own(pd.DataFrame({"a": [1, 2], "g": mixed})), "give column 'g' plain values of one kind")
    lazy = pl.DataFrame({"g": VALUES}).lazy()
    refused(lambda: own(lazy), r"rows is a LazyFrame: pass what its collect\(\) gives")


def test_rows_without_a_category_can_be_left_out():
    gone = pa.DictionaryArray.from_arrays([0, 1, None, 2, 0], pa.array(["a", None, "b"]))
    floats = pa.DictionaryArray.from_arrays([1, 0, 0, 2, 2], pa.array([2.0, float("nan"), 1.0]))
    refused(lambda: own(pa.table({"g": gone})), "column 'g' of the data has 2 missing values in 5 rows")
    refused(lambda: own(pa.table({"f": floats})), "column 'f' of the data has 1 missing value in 5 rows")
    table = own(Rows(pa.table({"g": gone, "f": floats}), drop_missing=True))
    assert (table.dropped, table.levels) == (3, {"g": ("a", "b"), "f": ("2", "1")})
    assert (table.columns["g"].tolist(), table.columns["f"].tolist()) == ([1, 0], [1, 1])


def test_a_category_may_name_the_shards():
    frame = pd.DataFrame({"g": pd.Categorical(NUMBERS), "h": pd.Categorical(VALUES, ORDER), "y": np.arange(4)})
    assert read_rows(frame[["g", "y"]], also="g").extra["g"].tolist() == NUMBERS
    made = read_rows(frame[["h", "y"]], also="h")
    assert (made.extra["h"].tolist(), list(made.columns)) == (VALUES, ["y"])


@pytest.fixture
def files(tmp_path):
    frame = pd.DataFrame({"n": pd.Categorical(NUMBERS), "o": pd.Categorical(VALUES, ORDER, ordered=True), "y": 1.0})
    frame.to_parquet(tmp_path / "pandas.parquet")
    pl.DataFrame({"n": NUMBERS, "o": pl.Series(VALUES, dtype=pl.Enum(ORDER)), "y": [1.0] * 4}).with_columns(
        pl.col("n").cast(pl.String).cast(pl.Categorical)
    ).write_parquet(tmp_path / "polars.parquet")
    arrow = pa.table({"n": dictionary(NUMBERS, [1, 3, 7]), "o": dictionary(VALUES, ORDER), "y": [1.0] * 4})
    parquet.write_table(arrow, tmp_path / "arrow.parquet", row_group_size=1)
    return tmp_path


@pytest.mark.parametrize("name", ["pandas", "polars", "arrow"])
def test_parquet_files_of_categories_need_levels(files, name):
    path = files / f"{name}.parquet"
    for column, levels in (("n", ["'?1'?", "'?3'?", "'?7'?"]), ("o", ["'mid'", "'low'", "'high'"])):
        for read in (own, read_rows):
            refused(lambda read=read, c=column: read(Rows(path, x=[c])), f"column '{column}' of .*holds categories")
            for level in levels:
                refused(lambda read=read, c=column: read(Rows(path, x=[c])), rf"\(3 found: .*{level}")
    table = Rows(path, x=["n", "o"], o="o", levels={"n": [1, 3, 7], "o": ORDER}).read()
    assert table.columns["o"].tolist() == CODES
    np.testing.assert_array_equal(table.columns["x"][:, :2], [[1, 0], [0, 0], [1, 0], [0, 1]])


def test_files_of_a_folder_may_have_their_dictionaries_in_any_order(tmp_path):
    for i, values in enumerate((["a", "b"], ["c", "a"])):
        parquet.write_table(pa.table({"g": pa.array(values).dictionary_encode()}), tmp_path / f"{i}.parquet")
    parquet.write_table(pa.table({"g": ["b", "c"]}), tmp_path / "2.parquet")
    table = Rows(tmp_path, g="g", levels={"g": ["a", "b", "c"]}).read()
    assert table.columns["g"].tolist() == [0, 1, 2, 0, 1, 2]
    refused(lambda: own(tmp_path), "'g' of .*2.parquet' holds text and in .* categories: .* same kind, or give its lev")
    (tmp_path / "2.parquet").unlink()
    refused(lambda: own(tmp_path), r"column 'g' of file '.*0.parquet' holds categories.*\(3 found: 'a', 'b', 'c'\)")


def test_text_is_refused_with_the_levels_that_were_found():
    refused(lambda: own({"s": ["u", "w", " v", "u"]}), r"column 's' holds text: give .*\(3 found: 'u', 'v', 'w'\)")
    many = {"s": [f"name {i:05}" for i in range(12_000)]}
    refused(lambda: own(many), r"\(more than 10,000 found: 'name 00000', .*'name 00005' and [\d,]+ more\)")
    for text in (np.array(["u", "v"]), np.array(["u", "v"], object), pd.Series(["u", "v"]), pl.Series(["u", "v"])):
        refused(lambda text=text: own({"s": text}), r"column 's' holds text: .*\(2 found: 'u', 'v'\)")
    refused(lambda: own({"s": ["1", "2"]}), "holds text: its values are numbers, so turn them into numbers; or give")
    refused(lambda: column_stats(pa.table({"g": pa.array(["u"] * 20).dictionary_encode()})), "has no column of numbers")


def test_the_levels_of_a_fit_code_new_rows():
    fitted = Undeclared(fitted={"g": ("mid", "low", "high"), "n": ("1", "3"), "b": ("0", "1"), "t": ("01", "1")})
    frame = pd.DataFrame(
        {"g": pd.Categorical(["high", "low"]), "n": [3, 1], "b": [False, True], "t": ["1", "01"], "z": [1, 0]}
    )
    table = Rows(frame, g="g", n="n", b="b", t="t", z="z").read(undeclared=fitted)
    assert table.levels == dict(fitted.fitted)
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        **{"g": [2, 1], "n": [1, 0], "b": [False, True], "t": [1, 0], "z": [1, 0]}
    }
    strange = pd.DataFrame({"g": pd.Categorical(["low", "huge"])})
    refused(
        lambda: read_rows(strange, undeclared=fitted), "'g' of the data has the value 'huge', which is not among its"
    )
    # Of a fit that had no levels for truth values they are numbers.
    assert read_rows(frame[["b"]], undeclared=Undeclared(fitted={})).levels == {}


def counties(county, x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[county] + x @ w), obs=y)


MODEL = epvi.Model(counties)


def patients(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "county": pd.Categorical(rng.choice([27, 35, 53], n)),
            "stage": pd.Categorical(rng.choice(["I", "II", "III"], n), ["I", "II", "III"], ordered=True),
            "smoker": rng.uniform(size=n) < 0.5,
            "ill": rng.uniform(size=n) < 0.5,
        }
    )


def test_a_frame_of_categories_is_fitted_and_predicted_by_its_levels(tmp_path):
    frame = patients()
    columns = {"county": "county", "x": ["stage", "smoker"], "y": "ill"}
    codes, stage = frame["county"].cat.codes.to_numpy(np.int64), frame["stage"].cat.codes.to_numpy()
    plain = {
        "county": codes,
        "x": np.stack([stage == 1, stage == 2, frame["smoker"]], 1).astype(float),
        "y": frame["ill"].to_numpy(),
    }
    table = own(Rows(frame, **columns))
    for name, column in plain.items():
        np.testing.assert_array_equal(table.columns[name], column)
    made = epvi.fit(MODEL, Rows(frame, **columns), 1, inference=QUICK, certify=False, executor=1)
    levels = {"county": ("27", "35", "53"), "stage": ("I", "II", "III"), "smoker": ("0", "1"), "ill": ("0", "1")}
    assert dict(made.fits[0].made_of.levels) == levels
    # New rows in other types, without some categories and with others in the type.
    new = frame[frame["stage"] != "I"].astype({"county": int, "stage": str})
    new["stage"] = pd.Categorical(new["stage"], ["III", "II"])
    drawn = epvi.predict(MODEL, made, Rows(new, **columns), num_samples=5)["y"]
    kept = {name: column[stage > 0] for name, column in plain.items()}
    np.testing.assert_array_equal(drawn, epvi.predict(MODEL, made, kept, num_samples=5)["y"])
    path = made.save(tmp_path / "p.epvi")
    new.to_parquet(tmp_path / "new.parquet")
    imports = "import numpyro\nimport numpyro.distributions as dist\n\n\n"
    (tmp_path / "model.py").write_text(imports + inspect.getsource(counties))
    asked = ("--x", "stage,smoker", "--y", "ill", "--column", "county=county", "--draws", "5")
    said = call("predict", f"{tmp_path}/model.py:counties", str(path), "--rows", f"{tmp_path}/new.parquet", *asked)
    assert "log predictive density" in said.stdout
    # A site cannot know the others' levels.
    refused(
        lambda: epvi.fit_shard(MODEL, Rows(frame, **columns), "1/2"), r"column 'county' holds .*\(3 found: 27, 35, 53"
    )
    shard = (
        "shard",
        f"{tmp_path}/model.py:counties",
        "--rows",
        f"{tmp_path}/new.parquet",
        *asked[:-2],
        "--shard",
        "1/2",
    )
    assert "column 'stage' of file" in call(*shard, "--levels", "county=27,35,53", code=1).stderr
