"""`epvi fit --engine`: files are read where the engine's workers are, and each is a shard."""

import numpy as np
import pytest
from commands import MODEL, call, call_json
from some_fragments import written

import epvi

OPTIONS = ("--x", "a,b,c", "--y", "label", "--standardise", "--components", 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    written(tmp_path / "rows", (1000, 1200, 300))
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_shards_of_epvis_own_workers(folder):
    fit = ("fit", "model.py:linear", "--rows", "rows/*.parquet", *OPTIONS)
    said = call_json(*fit, "--engine", "local=2", "-o", "posterior.epvi")
    assert said["file"] == "posterior.epvi"
    assert [one.num_rows for one in epvi.load("posterior.epvi").fits] == [1000, 1500]
    call(*fit, "--engine", "local=2", "--shards", 1, "-o", "one.epvi")
    here, one = epvi.load("posterior.epvi"), epvi.load("one.epvi")
    np.testing.assert_allclose(here.mixture.mean(), one.mixture.mean(), atol=0.01)


def test_a_dask_cluster_is_named_by_its_address(folder):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp", silence_logs=50
    )
    with cluster:
        fit = ("fit", "model.py:linear", "--rows", "rows/*.parquet", *OPTIONS)
        call(*fit, "--engine", f"dask={cluster.scheduler_address}", "-o", "posterior.epvi")
        distributed.default_client().close()
    assert [one.num_rows for one in epvi.load("posterior.epvi").fits] == [1000, 1500]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--engine", "spork"),
            "there is no engine 'spork': write local, local=4 (workers), dask=tcp://host:8786, or ray.",
        ),
        (("--engine", "local=0"), "there is no engine 'local=0'"),
        (("--engine", "dask=nowhere"), "there is no Dask scheduler at 'nowhere'"),
        (("--engine", "local", "--fallback", "nuts"), "fallback samples from all rows in one place"),
        (("--engine", "local", "--workers", 2), "there is an engine and an executor"),
    ],
)
def test_mistakes_are_sentences(folder, options, said):
    result = call("fit", "model.py:linear", "--rows", "rows/*.parquet", *OPTIONS, *options, "-o", "p.epvi", code=1)
    assert said in " ".join(result.stderr.split())
    assert not (folder / "p.epvi").exists()


def test_shards_and_a_column_at_once_are_refused(folder):
    options = ("--engine", "local", "--shards", 2, "--by", "a", "-o", "p.epvi")
    result = call("fit", "model.py:linear", "--rows", "rows/*.parquet", *OPTIONS, *options, code=2)
    assert "Give either --shards 8 or --by COLUMN" in result.stderr
