"""Dask's own: data frames and their partitions, clusters that lose all workers, clients, and what dashboards show.

Quick tests run Dask in this process; what needs processes is marked.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest
from engine_faults import Meddling
from some_fragments import described, fitted, line, same, table, written

import epvi
from epvi.engines import dask, dask_worker

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
frames = pytest.importorskip("dask.dataframe", reason="Dask is not installed")


def cluster_of(num_workers, processes):
    return distributed.LocalCluster(
        n_workers=num_workers, threads_per_worker=1, processes=processes, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module")
def client():
    with cluster_of(1, processes=False) as cluster, distributed.Client(cluster) as made:
        yield made


@pytest.fixture
def processes():
    with cluster_of(2, processes=True) as cluster, distributed.Client(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return written(tmp_path_factory.mktemp("rows"))


def frame_of(sizes=(30, 40, 20, 30), **changed):
    """A Dask data frame with these numbers of rows in its partitions; the changed columns are those of the third."""
    parts = [table(n, i, **(changed if i == 2 else {})).to_pandas() for i, n in enumerate(sizes)]
    return frames.from_map(lambda part: part, parts, meta=parts[0])


def tasks_of(client):
    return client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])


def test_partitions_of_a_data_frame_are_fragments_and_its_client_is_known(client, rows):
    made, of_files = fitted(described(frame_of()), shards=None), fitted(rows, epvi.engines.Dask(client), None)
    assert [fit.num_rows for fit in made.fits] == [fit.num_rows for fit in of_files.fits] == [120]
    assert same(fitted(described(frame_of())), fitted(rows, epvi.engines.Dask(client)))
    again = fitted(described(frame_of().persist()), epvi.engines.Dask(client))
    assert same(again, fitted(rows, epvi.engines.Dask(client)))


def test_errors_name_the_partition(client):
    with pytest.raises(
        epvi.EpviError, match=r"partition 3 of 4: column 'b' of the data has 1 missing value in 20 rows"
    ):
        fitted(described(frame_of(b=[np.nan] + [1.0] * 19)))
    with pytest.raises(
        epvi.EpviError, match="the Dask data frame has no column 'lable': its columns are a, b, c, label"
    ):
        fitted(epvi.Rows(frame_of(), x=["a", "b"], y="lable"))
    broken = frame_of().map_partitions(raises, meta=frame_of()._meta)
    with pytest.raises(epvi.EpviError, match=r"partition 1 of 4 could not be read: ZeroDivisionError: no rows today"):
        fitted(described(broken))


def raises(part):
    raise ZeroDivisionError("no rows today")


def test_empty_partitions_are_left_out(client):
    assert [fit.num_rows for fit in fitted(described(frame_of((30, 0, 20, 30))), shards=2).fits] == [30, 50]


def test_categories_of_partitions_are_levels_if_all_have_the_same(client):
    kinds = [pd.Categorical(["low", "high"] * 10, ["low", "mid", "high"]), pd.Categorical(["low", "high"] * 10)]
    parts = [
        table(20, i, c=pd.array([0.0] * 20)).to_pandas().assign(c=kind) for i, kind in enumerate([kinds[0], *kinds])
    ]
    alike = frames.from_map(lambda part: part, parts[:2], meta=parts[0])
    made = fitted(described(alike), shards=2)
    assert made.fits[0].made_of.columns["x"] == ("a", "b", "c=mid", "c=high")
    other = frames.from_map(lambda part: part, parts, meta=parts[0])
    with pytest.raises(
        epvi.EpviError, match=r"'c' has other levels in partition 3 of 3 \(high, low\) than in partition 1"
    ):
        fitted(described(other), shards=2)


def test_a_client_in_the_place_of_an_executor_is_told_where_it_belongs(client, rows, untyped):
    with pytest.raises(epvi.EpviError, match=r"executor is a Dask Client: pass engine=epvi.engines.Dask\(client\)"):
        fitted(rows, executor=client)


def test_what_works_at_one_place_refuses_a_data_frame_of_many(client):
    with pytest.raises(epvi.EpviError, match="rows is a Dask DataFrame, whose rows are on its cluster"):
        epvi.fit_shard(line, described(frame_of(), standardise={}), "1/2")


def test_what_is_no_client_is_refused(client, untyped):
    with pytest.raises(epvi.EpviError, match=r"client is 3: pass a dask.distributed.Client"):
        epvi.engines.Dask(3)
    with pytest.raises(epvi.EpviError, match=r"engine is <class .*: pass epvi.engines.Local"):
        fitted(described(frame_of()), epvi.engines.Dask)
    by_address = epvi.engines.Dask(client.scheduler.address)
    assert repr(by_address) == repr(epvi.engines.Dask(client))
    by_address._client.close()


def test_without_dask_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(epvi.EpviError, match=r"epvi.engines.Dask needs Dask: pip install 'epvi\[dask\]'."):
        epvi.engines.Dask()


def test_without_a_client_one_sentence_says_so(monkeypatch):
    def none():
        raise ValueError("no clients found")

    monkeypatch.setattr(distributed, "default_client", none)
    with pytest.raises(epvi.EpviError, match="there is no Dask client: make one first"):
        epvi.engines.Dask()


def test_a_worker_without_epvi_is_said(client):
    def lacks(parts, rows, each):
        raise ModuleNotFoundError("No module named 'epvi'")

    future = client.submit(lacks, 0, 0, 0)
    distributed.wait(future)
    with pytest.raises(epvi.EpviError, match="a Dask worker has no epvi, or another version of it"):
        raise epvi.engines.performing.result_of(dask._result(future))


def test_large_tasks_are_carried_in_parts(client, rows, monkeypatch):
    expected = fitted(rows, epvi.engines.Dask(client))
    monkeypatch.setattr(dask, "_PART", 1000)
    assert same(fitted(rows, epvi.engines.Dask(client)), expected)


def test_what_dasks_scheduler_reads_imports_nothing_large():
    told = (
        "import sys, epvi.engines.dask_worker, epvi.wire.fragment; print('jax' in sys.modules, 'numpy' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", told], text=True).split() == ["False", "False"]
    assert dask_worker.carried(b"a") == b"a"


def test_tasks_have_names_on_the_dashboard(client, rows):
    fitted(rows, epvi.engines.Dask(client))
    named = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes))
    assert {"epvi-rows", "epvi-look", "epvi-settle", "epvi-fit", "epvi-score"} <= set(named)


@pytest.mark.engines
def test_all_workers_gone_and_new_ones_joined(processes, rows):
    expected = fitted(rows, epvi.engines.Local(1))

    def leave():
        processes.cluster.scale(0)
        while processes.nthreads():
            time.sleep(0.05)
        threading.Timer(2.0, processes.cluster.scale, [2]).start()

    for name in ("fit", "score"):
        assert same(fitted(rows, Meddling(epvi.engines.Dask(processes), name, before=leave)), expected)


@pytest.mark.engines
def test_a_partition_that_was_lost_with_its_worker_is_made_again(processes, rows):
    def die():
        for pid in processes.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)

    engine = Meddling(epvi.engines.Dask(processes), "fit", before=die)
    assert same(fitted(described(frame_of()), engine), fitted(rows, epvi.engines.Local(1)))


@pytest.mark.engines
def test_a_caller_that_is_killed_leaves_no_tasks(processes, rows, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})\n"
        "import epvi, some_fragments\n"
        "if __name__ == '__main__':\n"
        f"    engine = epvi.engines.Dask({processes.scheduler.address!r})\n"
        f"    rows = some_fragments.described({rows.source!r})\n"
        "    while True: some_fragments.fitted(rows, engine)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 120
        while not any(key.startswith("epvi-fit") for key in tasks_of(processes)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        caller.kill()
        caller.wait()
    while any(key.startswith("epvi-") for key in tasks_of(processes)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
