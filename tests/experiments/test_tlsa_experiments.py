"""The source analysis experiments, at a tiny size: what their tables say, and that they go on where they stopped."""

import csv
import dataclasses

from lab.experiment import run

import figure5
import pytest
from matplotlib.figure import Figure


@pytest.fixture
def tiny(monkeypatch):
    """One set of 60 rows in two shards, one source, and one component."""
    monkeypatch.setattr(figure5, "NUM_COLUMNS", 9)
    monkeypatch.setattr(figure5, "NUM_COVARIATES", 1)
    monkeypatch.setattr(figure5, "BASE", {"M": 2, "K": 1, "L": 1})
    monkeypatch.setattr(figure5, "QUICK_REPLICATES", 1)
    monkeypatch.setattr(figure5, "WAYS", ("EPVI_sample", "EPVI_exact"))
    sizes = {"M": [(2, 1, 1)], "K": [(2, 1, 1)], "L": [(2, 1, 1)]}
    monkeypatch.setattr(figure5, "varied", lambda said: sizes)


def table(folder):
    with (folder / "figure5.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_figure_5_has_a_row_for_each_strategy_and_measures_nothing_twice(tiny, tmp_path, capsys):
    words = ["--out", str(tmp_path), "--num-rows", "60"]
    run(figure5.FIGURE5, words)
    rows = table(tmp_path)
    assert [row["strategy"] for row in rows] == [
        "NVI", "Subposteriors", "EPVI_sample", "EPVI_exact", "not aligned", "own starts", "own starts, not aligned",
    ]  # fmt: skip
    # One component and one source: every way of multiplying gives the same product.
    losses = [float(row["nll"]) for row in rows[2:5]]
    assert max(losses) - min(losses) < 0.1
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert (tmp_path / "figure5.png").stat().st_size > 10_000
    assert "1 of 1 cases measured now" in capsys.readouterr().out
    before = (tmp_path / "figure5.csv").read_bytes()
    run(dataclasses.replace(figure5.FIGURE5, draw=lambda rows, said: Figure()), words)
    assert "0 of 1 cases measured now" in capsys.readouterr().out
    assert (tmp_path / "figure5.csv").read_bytes() == before
