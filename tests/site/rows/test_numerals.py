"""Numbers that would lose their meaning, or their digits, are refused where they are; and work that grows linearly."""

import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sentences import refused

from epvi import Rows
from epvi.cli import parsing
from epvi.site.rows import csv_file as csvfile
from epvi.site.rows import formats
from epvi.site.rows.chunks import TablePart
from epvi.site.rows.column_stats import column_stats
from epvi.site.rows.levels import as_levels
from epvi.site.rows.rows import read_rows

LARGE = 2**53 + 1

ODD = {
    "hexadecimal": ("0x1A", "which is hexadecimal: write it in decimal"),
    "capitals": ("0XFF", "which is hexadecimal"),
    "large": (str(LARGE), "of which float64 would lose digits"),
    "large and negative": (f"-{LARGE}", "of which float64 would lose digits"),
    "large, with a sign": (f"+{LARGE}", "of which float64 would lose digits"),
    "large, with a point": (f"{LARGE}.0", "of which float64 would lose digits"),
    "larger than int64": ("18446744073709551615", "of which float64 would lose digits"),
}


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_numbers_that_a_csv_says_in_another_way_are_refused_with_their_line(tmp_path, monkeypatch, name, in_blocks):
    if in_blocks:
        monkeypatch.setattr(formats, "_MOST_CSV", 0)
        monkeypatch.setattr(csvfile, "_BLOCK", 64)
    value, sentence = ODD[name]
    path = tmp_path / "a.csv"
    # Before it: a row of two lines, an empty line, and more than a block of rows.
    path.write_text('b,a\n"x\ny",1\n\n' + "z,2\n" * 40 + f'z, "{value}"\n'.replace(' "', '"') + f"z,{value}\n")
    place = rf"column 'a' of file '.*a.csv' has '{value.replace('+', chr(92) + '+')}' in line 45, "
    refused(lambda: Rows(path, x=["a"]).read(), place + sentence)
    refused(lambda: column_stats(Rows(path, a="a")), place + sentence)
    # It may be a level, or name a shard, and what is not used is not looked at.
    levels = {"a": ["1", "2", value]}
    assert Rows(path, a="a", levels=levels).read().columns["a"].tolist() == [0, *[1] * 40, 2, 2]
    path.write_text(
        path.read_text().replace("b,a\n", "b,a,c\n", 1).replace(",1\n", ",1,5\n").replace("2\n", "2,5\n", 40)
    )
    path.write_text(path.read_text().replace(f'"{value}"\n', f"{value},5\n").replace(f"z,{value}\n", f"z,{value},5\n"))
    assert Rows(path, c="c").read(also="a").num_rows == 43


PLAIN = [
    "0",
    "-0",
    "0.5",
    "00.5",
    "007",
    "-07",
    "00",
    "-0.25",
    "+5",
    "1e20",
    "1E-3",
    ".5",
    "5.",
    " 7 ",
    "20240501",
    "1700000000000000",
]


@pytest.mark.parametrize("value", [*PLAIN, str(2**53)])
def test_plain_numbers_are_read(tmp_path, value):
    (tmp_path / "a.csv").write_text(f"a\n{value}\n3\n")
    assert read_rows(tmp_path / "a.csv").columns["a"].tolist() == [float(value), 3]


TEXT = {
    "underscores": (["1_000", "2"], "write numbers with a decimal point and without thousands separators"),
    "percent": (["5%", "7.5 %", "3"], "write numbers without percent signs"),
    "hexadecimal among others": (["0x1A", "1.5"], "write hexadecimal numbers in decimal"),
    "below detection": (["<5", "1", "2"], r"1 of its 3 values are no numbers \(as '<5'\)"),
    "digits of another script": (["٣", "1", "2"], "1 of its 3 values are no numbers"),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_that_was_to_be_numbers_is_refused_with_the_remedy(tmp_path, name):
    values, sentence = TEXT[name]
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(values) + "\n", encoding="utf-8")
    refused(lambda: read_rows(tmp_path / "a.csv"), "column 'a' of file '.*a.csv' holds text: " + sentence)


def test_whole_numbers_that_float64_cannot_hold_are_refused_wherever_they_are():
    ids = [1, LARGE]
    for source in (
        {"a": np.array(ids)},
        {"a": np.array(ids, np.uint64)},
        {"a": np.array([[1, 2], [3, -LARGE]])},
        pd.DataFrame({"a": ids}),
        pd.DataFrame({"a": pd.array([*ids], "Int64")}),
        pl.DataFrame({"a": pl.Series(ids, dtype=pl.UInt64)}),
        pa.table({"a": ids}),
        pa.table({"a": pa.array([decimal.Decimal(one) for one in ids], pa.decimal128(20, 0))}),
    ):
        refused(
            lambda source=source: read_rows(source), rf"column 'a' has the number -?{LARGE}, of which float64 would"
        )
    assert read_rows(pa.table({"a": [2**53, -(2**53)]})).columns["a"].tolist() == [2**53, -(2**53)]
    # They can name shards, and be levels as text.
    assert read_rows(pa.table({"a": ids, "y": [1, 2]}), also="a").extra["a"].tolist() == ids
    text = Rows({"a": list(map(str, ids))}, a="a", levels={"a": list(map(str, ids))}).read()
    assert text.columns["a"].tolist() == [0, 1]
    refused(lambda: as_levels("a", ids), "levels of column 'a': pass a list of at least two, all of them text")


def test_decimals_are_numbers_as_long_as_they_keep_their_whole_digits():
    def table(*texts, kind=None):
        return pa.table({"a": pa.array(list(map(decimal.Decimal, texts)), kind or pa.decimal128(38, 18))})

    np.testing.assert_array_equal(
        read_rows(table("1.1", "-2.25", "123456789012345")).columns["a"], [1.1, -2.25, 123456789012345]
    )
    assert Rows(table("1.5", "2"), a="a", levels={"a": [2, 1.5]}).read().columns["a"].tolist() == [1, 0]
    # The last digits of a measurement are rounded; whole numbers are not.
    rounded = read_rows(table("1", "0.123456789012345678")).columns["a"]
    np.testing.assert_allclose(rounded, [1, 0.123456789012345678], rtol=1e-15)
    large = str(LARGE)
    refused(lambda: read_rows(table("1", large)), f"'a' has the number {large}.*, of which float64 would lose digits")
    ids = ["12345678901234567890", "12345678901234567891"]
    wide = table(*ids, kind=pa.decimal256(50, 0)).append_column("y", pa.array([1, 2]))
    assert [str(one) for one in read_rows(wide, also="a").extra["a"]] == ids
    assert read_rows(table("1.5", "2").append_column("y", pa.array([1, 2])), also="a").extra["a"].tolist() == [1.5, 2]


def test_levels_on_the_command_line_are_numbers_only_where_they_are_written_so():
    said = parsing.levels
    assert said("1,2.5,-3") == [1.0, 2.5, -3.0]
    for text in ("01,02", "1_000,2", "nan,1", "inf,1", "0x1,2", "a,1"):
        assert said(text) == text.split(",")


class Counted(str):
    """A name that counts how often it is compared with another one."""

    __slots__ = ()
    times = 0

    def __eq__(self, other):
        Counted.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_columns_are_found_in_linear_time():
    n = 1000
    names = [Counted(f"c{i}") for i in range(n)]

    def nothing(wanted, text):
        raise AssertionError

    Counted.times = 0
    TablePart("", tuple(names), nothing)
    refused(lambda: TablePart("", (*names, Counted("c7")), nothing), "the data has two columns named 'c7'")
    # n²/2 comparisons would be 500,000; a table's own few are for equal hashes.
    assert Counted.times < 5 * n
    Counted.times = 0
    refused(lambda: Rows({}, x=[*names, Counted("c7")]), "x lists column 'c7' twice")
    rows = Rows(
        {name: np.arange(3.0) for name in names},
        x=names,
        standardise=True,
        limits=dict.fromkeys(map(Counted, names[:n:2]), (0, 9)),
        levels=dict.fromkeys(map(Counted, names[1 : n // 2 : 2]), (0, 1, 2)),
    )
    table = rows.read()
    assert table.columns["x"].shape == (3, n + n // 4)
    column_stats(rows, names[:n:2], min_rows=3)
    assert Counted.times < 50 * n
