"""`epvi combine *.epvi` in a folder that has other files beside the fits."""

import dataclasses
import os
from fractions import Fraction

import numpy as np
import pytest
from commands import call
from some_fits import some_fit

import epvi
from epvi.files import save_stats
from epvi.wire.column_stats import ColumnStats, Stats


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for shard in (1, 2):
        rows = dataclasses.replace(some_fit().made_of, rows=f"{shard}" * 32)
        fit = dataclasses.replace(some_fit(k=1, shard=shard), num_shards=2, prior=Fraction(1, 2), made_of=rows)
        fit.save(tmp_path / f"site-{shard}.epvi")
        column = ColumnStats(count=20 + shard, missing=0, mean=1.0, rest=0.0, sd=3.0)
        save_stats(tmp_path / f"site-{shard}.stats.epvi", Stats({"age": column}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_statistics_of_columns_are_left_out_with_a_note(folder):
    everything = sorted(path.name for path in folder.glob("*.epvi"))
    said = call("combine", *everything, "-o", "all.epvi")
    assert said.stderr.splitlines() == [
        "epvi: left out 2 files of statistics of columns, no shards' fits: site-1.stats.epvi, site-2.stats.epvi."
    ]
    assert "in 2 shards" in said.stdout
    found, expected = epvi.load("all.epvi"), epvi.combine([epvi.load(f"site-{m}.epvi") for m in (1, 2)])
    np.testing.assert_array_equal(found.mixture.means, expected.mixture.means)


def test_statistics_alone_are_refused(folder):
    said = call("combine", "site-1.stats.epvi", "-o", "new.epvi", code=1).stderr
    assert (
        said == "epvi: site-1.stats.epvi holds statistics of columns (epvi pool takes them): name the shards' fits.\n"
    )


def test_draws_are_refused_with_the_verb_that_takes_them(folder):
    call("combine", "site-1.epvi", "site-2.epvi", "-o", "posterior.epvi")
    epvi.load("posterior.epvi").ask(64, moments=False).save("draws.epvi")
    said = call("combine", "site-1.epvi", "site-2.epvi", "draws.epvi", "-o", "new.epvi", code=1).stderr
    assert said == "epvi: draws.epvi holds draws to score, no shard's fit: leave it out here; epvi score takes it.\n"
    assert "new.epvi" not in os.listdir(folder)
