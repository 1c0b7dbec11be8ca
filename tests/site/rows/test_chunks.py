"""Rows that come in chunks: the same table whatever the chunks, faults of whole files, and bounded memory."""

import gc
import gzip
import mmap
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from quick import quick_for
from sentences import refused

import epvi
from epvi import Rows
from epvi.cli.writing import check_apart
from epvi.models import logistic
from epvi.site.rows import chunks as reading
from epvi.site.rows import csv_file as csvfile
from epvi.site.rows import formats
from epvi.site.rows import spill as storage
from epvi.site.rows.column_stats import column_stats
from epvi.site.rows.complete_rows import AskedColumns, open_columns
from epvi.site.rows.locate import open_source
from epvi.site.rows.rows import read_rows

MODEL = epvi.Model(logistic)
QUICK = epvi.NVI(num_components=1)
N = 50
LEVELS = ["u", "v", "w"]


@pytest.fixture
def chunked(monkeypatch):
    """Sets how many rows a chunk has, how many bytes a block of a CSV file, and what may be in memory."""

    def chunks(rows, block=64, most=storage._MOST_IN_MEMORY):
        monkeypatch.setattr(reading, "BATCH_ROWS", rows)
        monkeypatch.setattr(formats, "_MOST_CSV", 0)
        monkeypatch.setattr(csvfile, "_BLOCK", block)
        monkeypatch.setattr(storage, "_MOST_IN_MEMORY", most)
        monkeypatch.setattr(storage, "_STEP_BYTES", 16 * rows)

    return chunks


def frame(seed=0):
    """Floats of both sizes, whole numbers and text; some rows lack a value, not all in one chunk."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(5, 2, N), "b": rng.normal(-1, 1, N).astype(np.float32)})
    table["i"] = np.concatenate([rng.integers(0, 2, N - 5), rng.integers(5, 9, 5)])
    table["y"] = rng.integers(0, 2, N)
    table["g"] = rng.choice(LEVELS, N)
    table.loc[[3, 4, 30], "a"] = np.nan
    table.loc[49, "g"] = None
    return table


def sources(folder, table):
    arrow = pa.Table.from_pandas(table)
    parquet.write_table(arrow, folder / "t.parquet", row_group_size=7)
    table.to_csv(folder / "t.csv", index=False)
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    table[:20].to_csv(folder / "p-1.csv", index=False)
    table[20:].to_csv(folder / "p-2.csv", index=False)
    numbers = table.dropna()
    np.savez(folder / "g.npz", **{name: numbers[name].to_numpy(str if name == "g" else None) for name in table})
    np.save(folder / "t.npy", numbers.astype({"g": object}).to_records(index=False, column_dtypes={"g": "U1"}))
    files = ["t.parquet", "t.csv", "t.csv.gz", "p-*.csv", "g.npz", "t.npy"]
    return {
        **{name: folder / name for name in files},
        "pandas": table,
        "Arrow": pa.concat_tables([arrow[:13], arrow[13:]]),
    }


OPTIONS = {
    "as they are": {},
    "units": {"standardise": {"a": (5, 2), "i": (1, 2), "y": (0.5, 0.5)}},
    "own units": {"standardise": True},
}


def same(made, expected, said):
    assert list(made.columns) == list(expected.columns), said
    for name, column in expected.columns.items():
        assert made.columns[name].dtype == column.dtype, said
        assert type(made.columns[name]) is np.ndarray, said
        assert made.columns[name].flags.c_contiguous, said
        tolerance = 1e-6 if column.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(made.columns[name], column, rtol=tolerance, atol=tolerance, err_msg=str(said))
    np.testing.assert_array_equal(made.extra["g"], expected.extra["g"], str(said))
    assert list(made.standardised) == list(expected.standardised), said
    for name, units in expected.standardised.items():
        assert made.standardised[name] == pytest.approx(units, rel=1e-12), said
    assert (made.sources, made.levels, made.num_rows) == (expected.sources, expected.levels, expected.num_rows), said


@pytest.mark.parametrize("options", quick_for(OPTIONS, ("own units",)))
def test_the_table_is_the_same_whatever_the_chunks_and_wherever_it_lies(tmp_path, chunked, options):
    table = frame()
    rest = {"levels": {"g": LEVELS}, "limits": {"a": (-50, None)}, "drop_missing": True, **OPTIONS[options]}
    made_of = {"x": ["a", "g", "i"], "z": ["b"], "i": "i", "y": "y", "h": "g"}
    rows = {name: Rows(source, **made_of, **rest) for name, source in sources(tmp_path, table).items()}
    expected = {name: one.read(also="g") for name, one in rows.items()}
    for size, most in ((1, 2**28), (7, 0), (1000, 0), (7, 2**28)):
        chunked(size, most=most)
        for name, one in rows.items():
            same(one.read(also="g"), expected[name], (name, size, most))
    for name, table in expected.items():
        assert table.num_rows == N - 4
        assert table.dropped == (0 if name in ("g.npz", "t.npy") else 4)


def test_the_table_is_what_pandas_makes(tmp_path, chunked):
    table, whole = frame(), frame().dropna()
    own = (whole["a"].mean(), whole["a"].std(ddof=0))
    indicators = [whole["g"] == level for level in LEVELS[1:]]
    expected = np.stack([(whole["a"] - own[0]) / own[1], *indicators], axis=1).astype(float)
    chunked(3, most=0)
    for name in ("t.parquet", "t.csv", "pandas"):
        source, levels = sources(tmp_path, table)[name], {"g": LEVELS}
        made = Rows(source, x=["a", "g"], y="y", levels=levels, drop_missing=True, standardise=True).read()
        np.testing.assert_allclose(made.columns["x"], expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(made.columns["y"], whole["y"])


@pytest.mark.parametrize("offset", [0, 1e6, -1e9])
@pytest.mark.parametrize("most", [0, 2**28])
def test_units_of_its_own_are_those_of_all_rows(chunked, offset, most):
    rng = np.random.default_rng(0)
    # The first chunks are constant or have two values: that says nothing of the rest.
    a = offset + np.concatenate([np.zeros(20), rng.normal(size=200)])
    two = np.repeat([1.0, 3.0], 110)
    whole = rng.integers(0, 9, 220)
    single = rng.normal(size=220).astype(np.float32)
    chunked(9, most=most)
    source = {"a": a, "two": two, "i": whole, "s": single}
    table = Rows(source, x=["a", "two", "i"], s=["s"], mixed=["s", "a"], i="i", two="two", standardise=True).read()
    assert list(table.standardised) == ["a", "i", "s"]
    for name in ("a", "i", "s"):
        column = source[name].astype(float)
        away = column - column[0]
        units = (column[0] + away.mean(), away.std())
        np.testing.assert_allclose(table.standardised[name], units, rtol=1e-12)
    shifted = (a - table.standardised["a"][0]) / table.standardised["a"][1]
    np.testing.assert_array_equal(table.columns["x"][:, 0], shifted)
    np.testing.assert_array_equal(table.columns["x"][:, 1], two)
    np.testing.assert_array_equal(table.columns["x"][:, 2], table.columns["i"])
    np.testing.assert_array_equal(table.columns["two"], two)
    assert [table.columns[name].dtype for name in ("i", "s", "mixed")] == [np.float64, np.float32, np.float64]
    # A column of single precision is rounded alike alone and beside doubles.
    np.testing.assert_array_equal(table.columns["mixed"][:, 0], table.columns["s"][:, 0])
    flat = {"a": np.full(50, 0.1)}
    refused(lambda: Rows(flat, x=["a"], standardise=True).read(), "'a' has the same value in all rows")


def test_numbers_that_units_make_too_large_are_refused(chunked):
    chunked(3, most=0)
    rows = Rows({"a": np.full(10, 1e300)}, x=["a"], standardise={"a": (0, 1e-300)})
    with np.errstate(over="ignore"):
        refused(rows.read, "column 'x' has 10 NaN or infinite values")


def faulty(fault):
    table = frame().dropna().reset_index(drop=True)
    table.loc[[0, 20, 44], "a"] = fault
    return table


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "pandas"])
def test_faults_are_counted_over_the_whole_file(tmp_path, chunked, name):
    chunked(4)

    def reading_of(fault, **options):
        source = sources(tmp_path, faulty(fault))[name]
        return lambda: Rows(source, **{"x": ["a"], "y": "y", **options}).read()

    refused(reading_of(np.nan), "column 'a' of .* has 3 missing values in 46 rows")
    refused(reading_of(np.inf), "column 'a'.* has 3 infinite values")
    refused(reading_of(99.0, limits={"a": (None, 50)}), "column 'a'.* has 3 values above 50")
    refused(reading_of(99.0, limits={"a": (50, 60)}), "column 'a'.* has 46 values outside 50 to 60")
    refused(reading_of(1.0, g="g", levels={"g": ["u", "v"]}), "'g' of .* has the value 'w', which is not among")
    refused(reading_of(1.0, g="g"), "'g'.* holds text: give its levels")
    assert Rows(sources(tmp_path, faulty(np.nan))[name], x=["a"], drop_missing=True).read().dropped == 3


def test_what_makes_text_of_a_column_is_counted_over_the_whole_file(tmp_path, chunked):
    chunked(4)
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(["1.5"] * 50 + ["<5"] + ["2"] * 50 + ["<5", "x"]))
    refused(lambda: read_rows(tmp_path / "a.csv"), "'a' of file .* holds text: 3 of its 103 values are no numbers")
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(["1.5"] * 50 + ['"1,5"'] * 3))
    refused(lambda: read_rows(tmp_path / "a.csv"), "'a' of file .* holds text: write numbers with a decimal point")


WORDS = {
    "whole then not": ["3"] * 40 + ["4.5"],
    "too large for whole": ["3"] * 40 + ["99999999999999999999"],
    "missing then numbers": ["NA"] * 40 + ["4.5"],
    "nothing": ["NA", "", "?"] * 20,
    "numbers then truths": ["1"] * 40 + ["true"],
    "truths then text": ["true"] * 40 + ["x"],
    "days then moments": ["2024-01-01"] * 40 + ["2024-01-01 10:00", "2024-01-01 10:00:00.5"],
    "zones": ["2024-01-01 10:00Z"] * 40 + ["2024-01-01 10:00:00.5Z"],
    "days then numbers": ["2024-01-01"] * 40 + ["7"],
    "times": ["10:00"] * 40 + ["10:00:01"],
    "text that is not UTF-8": ["x"] * 40 + ["\udce9"],
}


@pytest.mark.parametrize("words", WORDS)
def test_a_csv_in_blocks_has_the_kinds_of_one_read_at_once(tmp_path, chunked, words):
    path = tmp_path / "a.csv"
    lines = ["a,b", *(f"{word},{i}" for i, word in enumerate(WORDS[words]))]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    at_once = open_source(path)[0].read(["b", "a"], [])
    expected = arrow_csv.read_csv(
        path, convert_options=csvfile._Csv(path, "", ["a", "b"], 1).options(["a"], {}, True)[2]
    )
    chunked(4)
    in_blocks = open_source(path)[0].read(["b", "a"], [])
    kinds = [str(one.empty["a"].type).replace("large_", "") for one in (at_once, in_blocks)]
    assert kinds == [str(expected["a"].type).replace("large_", "")] * 2
    chunks = list(in_blocks.chunks())
    assert len(chunks) > 3
    assert in_blocks.num_rows == at_once.num_rows == len(WORDS[words])
    found = [value for chunk in chunks for value in chunk["a"].to_pylist()]
    assert found == expected["a"].to_pylist()


def test_faults_of_a_csv_in_blocks_have_the_same_sentences(tmp_path, chunked):
    path = tmp_path / "a.csv"
    chunked(4)
    path.write_text("a,b\n" + "1,2\n" * 60 + "3\n" + "1,2\n" * 60)
    refused(lambda: read_rows(path), "file '.*a.csv' has 1 fields instead of 2 in line 62")
    path.write_bytes(b"a,b\n" + b"1,x\n" * 60 + b"1,\xe9\n")
    refused(lambda: Rows(path, b="b", levels={"b": ["x", "y"]}).read(), "file '.*a.csv' cannot be read")
    assert read_rows(path, also="b").num_rows == 61
    path.write_text("a,b\n")
    refused(lambda: read_rows(path), "file '.*a.csv' has zero rows")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a\n" + b"1\n" * 5000)[:-20])
    refused(lambda: read_rows(tmp_path / "a.csv.gz"), "file '.*a.csv.gz' cannot be read")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, chunked):
    path = tmp_path / "a.csv"
    chunked(4)
    for text in ("a\n" + "1\n" * 50, "a\n" + "1\n" * 150):
        path.write_text("a\n" + "1\n" * 100)
        source = open_columns(open_source(path), ["a"], {})
        path.write_text(text)
        refused(
            lambda source=source: list(source.rows(AskedColumns(["a"], {}, {}, {}, False))), "changed while it was read"
        )


def test_a_damaged_parquet_file_is_refused_by_name(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": np.random.default_rng(0).normal(size=20_000)}), path, row_group_size=5000)
    damaged = bytearray(path.read_bytes())
    damaged[40_000:120_000] = b"\xff" * 80_000
    path.write_bytes(damaged)
    refused(lambda: read_rows(path), "file '.*a.parquet' cannot be read")


def test_statistics_do_not_depend_on_the_chunks(tmp_path, chunked):
    table = frame()
    table["big"] = 1e9 + np.random.default_rng(1).normal(size=N)
    source = sources(tmp_path, table)
    for drop in (False, True):
        expected = column_stats(Rows(table, drop_missing=drop))
        assert expected.columns["a"].missing == 3
        chunked(3)
        for name in ("t.parquet", "t.csv", "p-*.csv", "pandas"):
            made = column_stats(Rows(source[name], drop_missing=drop))
            assert list(made.columns) == ["a", "b", "i", "y", "big"]
            for column, stats in expected.columns.items():
                found = made.columns[column]
                assert (found.count, found.missing) == (stats.count, stats.missing)
                assert (found.mean, found.sd) == pytest.approx(
                    (stats.mean, stats.sd), rel=1e-6 if column == "b" else 1e-12
                )
    chunked(3)
    table.loc[[1, 40], "a"] = np.inf
    refused(lambda: column_stats(table), "column 'a' has 2 infinite values")
    refused(
        lambda: column_stats({"a": np.repeat([1e200, -1e200], 30)}), "column 'a' has numbers whose squares are too la"
    )


def map_of(array):
    """The map that keeps the array's memory, or None."""
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base if isinstance(base, mmap.mmap) else None


def test_a_plain_array_in_a_file_is_mapped_and_not_copied(tmp_path, chunked):
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    chunked(7)
    for rows in (tmp_path / "x.npy", Rows(tmp_path / "x.npy", arr_0="arr_0", limits={"arr_0": (-9, 9)})):
        column = read_rows(rows).columns["arr_0"]
        assert map_of(column) is not None
        assert type(column) is np.ndarray
        assert not column.flags.writeable
        np.testing.assert_array_equal(column, X)
    X[33, 1] = np.nan
    np.save(tmp_path / "x.npy", X)
    refused(lambda: read_rows(tmp_path / "x.npy"), "column 'arr_0' of file '.*x.npy' has 1 missing value in 40 rows")
    assert Rows(tmp_path / "x.npy", drop_missing=True).read().columns["arr_0"].shape == (39, 3)
    np.save(tmp_path / "big.npy", X[:33].astype(">f4"))
    np.testing.assert_array_equal(read_rows(tmp_path / "big.npy").columns["arr_0"], X[:33])
    assert read_rows(tmp_path / "big.npy").columns["arr_0"].dtype == np.float32


def open_files(folder):
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(str(folder) in os.readlink(link) for link in links if link.is_symlink())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
def test_rows_that_are_many_lie_in_a_nameless_file_that_goes_with_them(tmp_path, chunked, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = Rows(frame().dropna(), x=["a", "b"], y="y")
    chunked(7, most=46 * 16)
    inside = rows.read()
    assert map_of(inside.columns["x"]) is None
    assert inside.columns["x"].flags.writeable
    chunked(7, most=46 * 16 - 1)
    mapped = rows.read()
    assert os.listdir(tmp_path) == []
    assert open_files(tmp_path) == 1
    assert map_of(mapped.columns["x"]) is not None
    with pytest.raises(ValueError, match="read-only"):
        mapped.columns["x"][0] = 1
    np.testing.assert_array_equal(mapped.columns["x"], inside.columns["x"])
    x = mapped.columns["x"][3:]
    del mapped
    np.testing.assert_array_equal(x, inside.columns["x"][3:])
    del x
    gc.collect()
    assert open_files(tmp_path) == 0


def test_a_full_disk_and_a_missing_folder_are_said(tmp_path, chunked, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chunked(1000, most=0)
    rows = Rows({"a": np.arange(20_000.0)}, x=["a"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(rows.read, r"the rows take 0 MB, .* cannot be put into .* \(File too large\): set TMPDIR to a folder")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    refused(rows.read, r"cannot be put into .*nowhere \(No such file or directory\): set TMPDIR to a folder")


def test_a_folder_of_parquet_files_is_a_source(tmp_path):
    for i in (2, 0, 1):
        parquet.write_table(pa.table({"a": [i, 10 * i]}), tmp_path / f"part-{i}.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.csv").write_text("b\n1\n")
    for source in (tmp_path, str(tmp_path) + "/", [tmp_path], str(tmp_path.parent / (tmp_path.name[:-1] + "?"))):
        assert read_rows(source).columns["a"].tolist() == [0, 0, 1, 10, 2, 20]
    refused(lambda: read_rows([tmp_path, tmp_path / "part-1.parquet"]), "part-1.parquet' is named twice")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.csv").write_text("a\n1\n")
    refused(lambda: read_rows(other), r"'.*other' is a directory: name its files, as in 'other/\*.parquet'")
    refused(lambda: check_apart(tmp_path / "part-1.parquet", [str(tmp_path)]), "part-1.parquet is read from")


def test_a_fit_of_mapped_rows_is_that_of_rows_in_memory(chunked):
    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=300), "b": rng.normal(size=300), "y": rng.integers(0, 2, 300)}
    rows = Rows(table, x=["a", "b"], y="y")
    with ThreadPoolExecutor(1) as threads:
        expected = epvi.fit(MODEL, rows, 2, inference=QUICK, certify=False, executor=threads)
        chunked(64, most=0)
        made = epvi.fit(MODEL, rows, 2, inference=QUICK, certify=False, executor=threads)
    np.testing.assert_array_equal(made.mixture.means, expected.mixture.means)


# Anonymous memory is what this process alone must hold: pages of mapped files can go.
PEAK = """
import sys
from epvi import Rows
from epvi.site.rows import spill as storage

def held():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return int(next(line for line in lines if line.startswith("Pss_Anon")).split()[1]) / 1024

peaks = []
storage._MOST_IN_MEMORY = 2**23
keep = storage.OnDisk.keep
storage.OnDisk.keep = lambda store, block: (keep(store, block), peaks.append(held()))
names = [f"x{i}" for i in range(12)]
small, large = sys.argv[1:]
Rows(small, x=names).read()
before = held()
table = Rows(large, x=names, standardise=True).read()
print(max(peaks) - before, held() - before, len(peaks), abs(table.columns["x"][:1000].mean()) < 0.1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux for the memory")
def test_memory_stays_bounded_when_rows_are_many(tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 2_000_000)).astype(np.float32)
    table = pa.table({f"x{i}": column for i, column in enumerate(values)})
    parquet.write_table(table[:1000], tmp_path / "small.parquet", use_dictionary=False)
    parquet.write_table(table, tmp_path / "large.parquet", use_dictionary=False)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "small.parquet"), str(tmp_path / "large.parquet")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak, after, chunks, is_standardised = done.stdout.split()
    assert int(chunks) > 20
    # The values take 96 MB, and in a row group of a million rows 48 MB.
    assert float(peak) < 60
    assert float(after) < 60
    assert is_standardised == "True"
