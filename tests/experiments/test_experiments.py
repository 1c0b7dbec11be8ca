"""The study's tables go on where they stopped, SUSY's file is streamed whole or not at all, what is sent is counted."""

import gzip
import importlib
import os
import sys

import lab
from lab.experiment import Experiment, run
from lab.look import BLUE, Mark, panels
from lab.results import Results, by_strategy
from lab.susy import LABEL, as_parquet, from_file

import numpy as np
import pyarrow.parquet as pq
import pytest
from communication import counted, numbers_in
from complexity import Line, Stopwatch
from susy import COLUMNS

import epvi
from epvi.models import logistic, simulate_logistic


def test_who_has_jax_already_keeps_the_environment(monkeypatch):
    for name in ("NPROC", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "2")  # so that it is put back as it was, even if it was not there
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.reload(lab)
    assert not {"NPROC", "OPENBLAS_NUM_THREADS"} & set(os.environ)
    # Who has not yet is given one core.
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "jax")
        importlib.reload(lab)
        assert os.environ["NPROC"] == os.environ["OPENBLAS_NUM_THREADS"] == "1"


def test_a_table_is_read_again_as_it_was_written(tmp_path):
    file = tmp_path / "deeper" / "table.csv"
    written = Results(file)
    case = {"M": 2, "way": 'a, "quoted" word'}
    written.add(case, [{"nll": 0.1 + 0.2, "wall": 1e-300, "count": 10**12}, {"text": "1/2"}])
    written.add({"M": 3, "way": "other"}, [{"nll": 2.0}])
    rows = Results(file).of([case])
    assert rows == [
        {**case, "nll": 0.1 + 0.2, "wall": 1e-300, "count": 10**12},
        {**case, "text": "1/2"},
    ]
    assert [type(rows[0][name]) for name in ("M", "nll", "count", "way")] == [int, float, int, str]
    # What a row has no value for is not in it, rather than an empty word.
    assert Results(file).of([{"M": 3}]) == [{"M": 3, "way": "other", "nll": 2.0}]
    assert [path.name for path in file.parent.iterdir()] == ["table.csv"]


def test_rows_come_in_the_order_of_the_cases_whatever_the_order_of_measuring(tmp_path):
    results = Results(tmp_path / "table.csv")
    for m in (3, 1, 2):
        results.add({"M": m}, [{"strategy": "b", "x": m}, {"strategy": "a", "x": -m}])
    assert [row["x"] for row in Results(tmp_path / "table.csv").of([{"M": m} for m in (1, 2, 3)])] == [
        1,
        -1,
        2,
        -2,
        3,
        -3,
    ]
    found = by_strategy(results.of([{"M": 2}, {"M": 3}]))
    assert list(found) == ["b", "a"]
    assert [row["x"] for row in found["a"]] == [-2, -3]


def test_a_case_is_known_by_all_of_its_settings(tmp_path):
    results = Results(tmp_path / "table.csv")
    results.add({"M": 2, "K": 4, "seed": 0}, [{"x": 1}])
    for table in (results, Results(tmp_path / "table.csv")):
        assert {"M": 2, "K": 4, "seed": 0} in table
        assert {"M": 2, "K": 4, "seed": 1} not in table
        assert {"M": 2, "K": 4, "seed": 0, "rows": "file"} not in table


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path):
    file = tmp_path / "table.csv"
    Results(file).add({"M": 1}, [{"x": 1}])
    before = file.read_bytes()

    class Unwritable:
        def __str__(self):
            raise RuntimeError("no word for it")

    with pytest.raises(RuntimeError, match="no word"):
        Results(file).add({"M": 2}, [{"x": Unwritable()}])
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    Results(file).add({"M": 2}, [{"x": 2}])
    assert [row["x"] for row in Results(file).of([{"M": 1}, {"M": 2}])] == [1, 2]


class Toy:
    """An experiment that knows how often it was asked, and can be told to die."""

    def __init__(self, dies_at=None):
        self.measured, self.prepared, self.drawn, self.dies_at = [], 0, [], dies_at

    def of(self, cases):
        def measuring(said):
            self.prepared += 1

            def measure(case):
                if case["M"] == self.dies_at:
                    raise KeyboardInterrupt
                self.measured.append(case["M"])
                return [{"square": case["M"] ** 2, "seed": said.seed}]

            return measure

        def draw(rows, said):
            self.drawn = [row["square"] for row in rows]
            figure, axes = panels(1, 1, (2.0, 2.0))
            axes[0, 0].plot(self.drawn)
            return figure

        def report(rows):
            return [f"{len(rows)} rows [not markup]"]

        return Experiment("toy", None, lambda said: [{"M": m} for m in cases], measuring, draw, report)


def test_an_experiment_measures_draws_and_says_where_everything_is(tmp_path, capsys):
    toy = Toy()
    run(toy.of([1, 2, 3]), ["--out", str(tmp_path)])
    assert toy.measured == [1, 2, 3]
    assert toy.drawn == [1, 4, 9]
    said = capsys.readouterr().out
    assert "3 rows [not markup]" in said
    assert f"3 of 3 cases measured now; {tmp_path / 'toy'}.csv, .svg, .png" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.csv", "toy.png", "toy.svg"]


def test_a_second_run_measures_nothing_and_draws_the_same_bytes(tmp_path, capsys):
    run(Toy().of([1, 2]), ["--out", str(tmp_path)])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = Toy()
    run(again.of([1, 2]), ["--out", str(tmp_path)])
    assert (again.measured, again.prepared, again.drawn) == ([], 0, [1, 4])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "0 of 2 cases" in capsys.readouterr().out


def test_a_run_that_died_half_way_goes_on_where_it_stopped(tmp_path):
    dying = Toy(dies_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(dying.of([1, 2, 3, 4]), ["--out", str(tmp_path)])
    assert dying.measured == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.csv"]
    again = Toy()
    run(again.of([1, 2, 3, 4]), ["--out", str(tmp_path)])
    assert again.measured == [3, 4]
    assert again.drawn == [1, 4, 9, 16]


def test_a_drawing_of_nothing_that_is_measured_has_no_table(tmp_path, capsys):
    toy = Toy()
    run(toy.of([]), ["--out", str(tmp_path)])
    assert toy.prepared == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.png", "toy.svg"]
    said = capsys.readouterr().out
    assert f"{tmp_path / 'toy'}.svg, .png" in said
    assert "csv" not in said


@pytest.fixture(scope="module")
def table():
    """40 rows as UCI writes them: a label and 18 numbers."""
    rng = np.random.default_rng(0)
    return np.column_stack([rng.integers(0, 2, 40), rng.normal(size=(40, len(COLUMNS)))])


def gzipped(file, rows):
    with gzip.open(file, "wt") as lines:
        lines.writelines(",".join(f"{number:.18e}" for number in row) + "\n" for row in rows)
    return file


def test_susys_file_becomes_parquet_with_named_columns(tmp_path, table):
    made = as_parquet(gzipped(tmp_path / "SUSY.csv.gz", table), tmp_path / "out")
    found = pq.read_table(made)
    assert found.column_names == [LABEL, *COLUMNS]
    np.testing.assert_array_equal(found[LABEL].to_numpy(), table[:, 0])
    numbers = np.stack([found[name].to_numpy() for name in COLUMNS], axis=1)
    np.testing.assert_array_equal(numbers, table[:, 1:].astype(np.float32))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["susy.parquet"]


def test_susys_file_is_streamed_once(tmp_path, table):
    file = gzipped(tmp_path / "SUSY.csv.gz", table)
    made = as_parquet(file, tmp_path)
    before = made.stat().st_mtime_ns
    gzipped(file, table[:2])
    assert as_parquet(file, tmp_path) == made
    assert made.stat().st_mtime_ns == before


def test_susys_rows_are_standardised_by_those_that_are_fitted(tmp_path, table):
    fitted, held_out = from_file(gzipped(tmp_path / "SUSY.csv.gz", table), tmp_path)
    assert (fitted["x"].shape, held_out["x"].shape) == ((36, 19), (4, 19))
    np.testing.assert_array_equal(fitted["x"][:, 0], 1)
    np.testing.assert_allclose(fitted["x"][:, 1:].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(fitted["x"][:, 1:].std(axis=0), 1, atol=1e-5)
    mean, sd = table[:36, 1:].mean(axis=0), table[:36, 1:].std(axis=0)
    np.testing.assert_allclose(held_out["x"][:, 1:], (table[36:, 1:] - mean) / sd, atol=1e-4)
    np.testing.assert_array_equal(np.concatenate([fitted["y"], held_out["y"]]), table[:, 0])


def test_a_file_that_is_missing_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(SystemExit, match=r"SUSY.csv.gz is not there: --susy names"):
        as_parquet(tmp_path / "SUSY.csv.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("spoil", ["a column too few", "a column too many", "words", "half a file"])
def test_a_file_of_another_kind_is_refused_and_nothing_half_written_stays(tmp_path, table, spoil):
    file, out = tmp_path / "SUSY.csv.gz", tmp_path / "out"
    if spoil == "a column too few":
        gzipped(file, table[:, :-1])
    elif spoil == "a column too many":
        gzipped(file, np.column_stack([table, table[:, :1]]))
    elif spoil == "words":
        with gzip.open(file, "wt") as lines:
            lines.write(",".join([LABEL, *COLUMNS]) + "\n")
    else:
        whole = gzipped(file, table).read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
    sentence = "Truncated.*Fetch it again" if spoil == "half a file" else "SUSY.csv.gz is not UCI's"
    with pytest.raises(SystemExit, match=sentence):
        as_parquet(file, out)
    assert list(out.iterdir()) == []


def test_shards_send_as_many_numbers_as_the_paper_counts(tmp_path):
    model, k, d = epvi.Model(logistic), 3, 4
    rows, _ = simulate_logistic(60, d - 1, seed=0)
    fit = epvi.fit_shard(model, rows, "1/2", inference=epvi.NVI(k, epvi.Spherical(), merge=False, max_sweeps=1), seed=0)
    found = counted(fit)
    assert {name: count for name, count in found.items() if name.startswith("array")} == {
        "array log_weights": k,
        "array means": k * d,
        "array roots": k,
    }
    file = fit.save(tmp_path / "one.epvi")
    assert found["bytes"] == file.stat().st_size
    # The header has numbers of its own, but none for a component or a coordinate.
    assert 0 < found["header"] < 60


def test_numbers_in_json_are_counted_and_nothing_else():
    assert numbers_in({"a": [1, 2.5, None, "3"], "b": {"c": True, "d": -4e9}, "e": []}) == 3


def test_the_stopwatch_adds_the_slowest_group_of_every_round_and_changes_no_product():
    rng = np.random.default_rng(0)
    mixtures = [epvi.GaussianMixture.from_covariances(rng.normal(size=(2, 2)), [1.0, 2.0]) for _ in range(5)]
    clock, way = Stopwatch(), epvi.Subset(num_samples=4)
    timed, plain = (epvi.multiply(mixtures, way, seed=0, executor=one) for one in (clock, None))
    np.testing.assert_array_equal(timed.mixture.means, plain.mixture.means)
    path = clock.path()
    # Five, three (one waits), two, one.
    assert path["rounds"] == len(plain.diagnostics.groups) == 3
    assert path["longest"] > 0
    assert Stopwatch().path() == {}


def test_slopes_are_those_of_the_upper_end():
    x = np.array([1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6])
    assert Line("M", "", Mark(BLUE, "o"), x, 5 + x**1.5).slope == pytest.approx(1.5, abs=0.01)
    assert Line("M", "", Mark(BLUE, "o"), x[:2], x[:2] ** 2).slope == pytest.approx(2)
