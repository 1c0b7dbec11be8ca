"""What every engine does: the same answers for the same fragments, refusals before anything is fitted, nothing left.

Answers are compared with those of two of epvi's own workers, to the last bit.
"""

import contextlib
import gc
import glob
import logging
import os
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from engine_faults import Interrupted, Meddling, make_deadly, make_slow, partner, process_of
from some_fragments import QUICK, described, fitted, line, same, table, written

import epvi
from epvi.engines import local as pool
from epvi.engines import performing
from epvi.ground.atomic import owner


@contextlib.contextmanager
def own_workers():
    yield epvi.engines.Local(2)


@contextlib.contextmanager
def dask_cluster():
    distributed = partner("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield epvi.engines.Dask(client)


@contextlib.contextmanager
def ray_cluster():
    ray = partner("ray")
    found = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with warnings.catch_warnings():
        # Of settings that its next versions change.
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": found})
    try:
        yield epvi.engines.Ray()
    finally:
        ray.shutdown()


CLUSTERS = [pytest.param(made, marks=pytest.mark.engines) for made in (dask_cluster, ray_cluster)]


@pytest.fixture(scope="module", params=[own_workers, *CLUSTERS])
def engine(request):
    with request.param() as made:
        yield made


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return written(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def expected(rows):
    return fitted(rows, epvi.engines.Local(2))


def pids(engine):
    """The processes of an engine's workers."""
    if isinstance(engine, epvi.engines.Local):
        return pool.workers(2).pids
    if isinstance(engine, epvi.engines.Dask):
        return list(engine._client.run(os.getpid).values())
    process = engine._ray.remote(process_of)
    return set(engine._ray.get([process.remote(0.5) for _ in range(2)]))


def kill_all(engine):
    for pid in pids(engine):
        os.kill(pid, signal.SIGKILL)


def nothing_left(engine):
    """Whether an engine has no rows and no tasks of this process."""
    if isinstance(engine, epvi.engines.Local):
        return not glob.glob(os.path.join(tempfile.gettempdir(), f"epvi-rows-{owner()}-*"))
    # A cluster takes a moment to hear of it.
    for _ in range(100):
        if not (tasks_of_dask(engine) if isinstance(engine, epvi.engines.Dask) else objects_of_ray(engine)):
            return True
        time.sleep(0.1)
    return False


def tasks_of_dask(engine):
    left = engine._client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    return [key for key in left if key.startswith("epvi-")]


def objects_of_ray(engine):
    gc.collect()
    return engine._ray._private.worker.global_worker.core_worker.get_all_reference_counts()


def test_the_answer_is_that_of_epvis_own_workers_to_the_last_bit(engine, rows, expected):
    assert same(fitted(rows, engine), expected)
    assert nothing_left(engine)


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_number_of_workers(rows, expected):
    assert same(fitted(rows, epvi.engines.Local(1)), expected)


def test_rows_and_answers_are_those_of_rows_in_memory(engine, rows, expected):
    held = fitted(rows, executor=2)
    assert held.fits[0].made_of.standardised.keys() == expected.fits[0].made_of.standardised.keys()
    for name, units in held.fits[0].made_of.standardised.items():
        np.testing.assert_allclose(expected.fits[0].made_of.standardised[name], units, rtol=1e-12)
    # Each posterior is that of the same rows, from other shards of them.
    np.testing.assert_allclose(expected.mixture.mean(), held.mixture.mean(), atol=0.01)
    assert expected.certificate.verdict == "trust"


@pytest.mark.slow
def test_a_work_folder_is_gone_on_with_on_another_engine(engine, rows, expected, tmp_path):
    fitted(rows, epvi.engines.Local(2), work=tmp_path)
    (tmp_path / "shard-3-of-4.epvi").unlink()
    seen = Meddling(engine, "")
    assert same(fitted(rows, seen, work=tmp_path), expected)
    assert seen.asked.count("fit") == 2  # The rows of what is there are hashed first.
    other = described(rows.source, limits={"label": (-50, 50)})
    assert same(fitted(other, engine, work=tmp_path), expected)
    with pytest.raises(epvi.EpviError, match="other constants to standardise with"):
        fitted(described(rows.source, standardise={}), engine, work=tmp_path)


def test_empty_fragments_are_left_out_and_small_ones_merged(engine, tmp_path, caplog):
    rows = written(tmp_path, (600, 0, 700, 1200, 100))
    with caplog.at_level(logging.INFO, "epvi"):
        made = fitted(rows, engine, None)
    assert [fit.num_rows for fit in made.fits] == [1300, 1300]
    assert [fit.label for fit in made.fits] == [
        "1 of 2 (part-0.parquet and 1 more)",
        "2 of 2 (part-3.parquet and 1 more)",
    ]
    assert "fragments without rows are left out: 1 of 5" in caplog.text


def test_shards_by_a_column_that_fragments_already_separate(engine, tmp_path):
    for i, hospital in enumerate(["north", "south", "north"]):
        parquet.write_table(table(30, i, hospital=[hospital] * 30), tmp_path / f"{i}.parquet")
    made = fitted(described(str(tmp_path)), engine, None, by="hospital")
    assert [(fit.label, fit.num_rows) for fit in made.fits] == [
        ("1 of 2 (hospital = north)", 60),
        ("2 of 2 (hospital = south)", 30),
    ]
    parquet.write_table(table(30, 4, hospital=["north", "south"] * 15), tmp_path / "4.parquet")
    with pytest.raises(
        epvi.EpviError, match=r"fragment 4 of 4 .*4.parquet.* has rows with hospital = north and hospital"
    ):
        fitted(described(str(tmp_path)), engine, None, by="hospital")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"b": None}, r"fragment 3 of 4: file '.*part-2.parquet' has no column 'b'"),
        (
            {"b": [np.nan] * 3 + [1.0] * 17},
            r"fragment 3 of 4: column 'b' of file '.*part-2.parquet' has 3 missing values",
        ),
        ({"label": ["low", "high"] * 10}, r"fragment 3 of 4: column 'label' of file '.*' holds text"),
        ({"label": [True, False] * 10}, r"column 'label' has other levels in fragment 3 of 4 \('.*part-2.parquet'\)"),
    ],
)
def test_fragments_that_differ_are_refused_before_anything_is_fitted(engine, tmp_path, changed, said):
    seen = Meddling(engine, "")
    with pytest.raises(epvi.EpviError, match=said):
        fitted(written(tmp_path, **changed), seen)
    assert seen.asked == ["look"]


@pytest.mark.slow
def test_a_fragment_that_cannot_be_fitted_is_named_and_the_other_fits_are_kept(engine, tmp_path):
    rows = written(tmp_path, (30, 40, 20, 30), label=np.full(20, 1e200))
    with pytest.raises(epvi.ShardError, match=r"shard 3 of 4 \(part-2.parquet\)") as error:
        fitted(described(rows.source, standardise=False), engine)
    assert [fit.shard for fit in error.value.fits] == [1, 2, 4]
    assert nothing_left(engine)


@pytest.mark.parametrize("how", ["changed", "deleted"])
def test_a_fragment_that_changes_after_it_was_looked_at_is_refused(engine, tmp_path, how):
    rows, file = written(tmp_path), tmp_path / "part-2.parquet"
    happens = file.unlink if how == "deleted" else lambda: parquet.write_table(table(20, 77), file)
    said = (
        "there is no file" if how == "deleted" else r"fragment 3 of 4 \(.*\) has other rows than when it was first read"
    )
    with pytest.raises(epvi.EpviError, match=said):
        fitted(rows, Meddling(engine, "look", after=happens))


def test_a_fragment_with_its_rows_in_another_order_is_the_same(engine, tmp_path):
    rows, file = written(tmp_path), tmp_path / "part-2.parquet"
    turned = parquet.read_table(file).take(list(range(19, -1, -1)))
    made = fitted(rows, Meddling(engine, "look", after=lambda: parquet.write_table(turned, file)))
    np.testing.assert_allclose(made.mixture.mean(), fitted(rows, engine).mixture.mean(), atol=1e-6)


def test_log_predictive_densities_and_predictions_are_those_of_rows_in_one_place(engine, rows, expected, tmp_path):
    units = dict(expected.fits[0].made_of.standardised)
    new = described(written(tmp_path, (15, 0, 25)).source, standardise=units)
    held = epvi.log_predictive(line, expected, new)
    np.testing.assert_allclose(epvi.log_predictive(line, expected, new, engine=engine), held, rtol=1e-12)
    made, own = epvi.predict(line, expected, new, engine=engine), epvi.predict(line, expected, new)
    assert made.keys() == own.keys()
    assert made["y"].shape == own["y"].shape == (1000, 40)
    # The draws of a fragment have random numbers of their own: means over draws are compared, to six standard errors
    # of their difference.
    tolerance = 6 * np.sqrt(2 / 1000) * np.std(own["y"], axis=0)
    assert np.all(np.abs(np.mean(made["y"], axis=0) - np.mean(own["y"], axis=0)) < tolerance)
    again = epvi.predict(line, expected, new, engine=epvi.engines.Local(2))
    np.testing.assert_array_equal(made["y"], again["y"])
    with pytest.raises(epvi.EpviError, match="standardise=True computes constants from these rows alone"):
        epvi.log_predictive(line, expected, rows, engine=engine)
    with pytest.raises(epvi.EpviError, match="column 'a' has the constants none, and where the posterior was fitted"):
        epvi.log_predictive(line, expected, described(rows.source, standardise={}), engine=engine)
    assert nothing_left(engine)


@pytest.mark.slow
def test_two_fits_at_once_do_not_disturb_each_other(engine, rows, expected):
    made = {}
    threads = [threading.Thread(target=lambda i=i: made.update({i: fitted(rows, engine)})) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [same(made[i], expected) for i in range(2)] == [True, True]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("look", "score")] + ["fit"])
def test_an_interrupted_caller_leaves_neither_tasks_nor_rows(engine, rows, name):
    with pytest.raises(KeyboardInterrupt):
        fitted(rows, Interrupted(engine, name))
    assert nothing_left(engine)


def test_other_versions_are_refused_before_the_model_is_read(engine, rows, monkeypatch):
    monkeypatch.setattr(performing, "versions", lambda: {"epvi": "0.0.7", "Python": "3.99"})
    with pytest.raises(epvi.EpviError, match=r"has epvi .* and Python .*, and the caller epvi 0.0.7 and Python 3.99"):
        fitted(rows, engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fit_batch", "answer_placed"])
def test_a_worker_killed_in_the_middle_changes_nothing(engine, rows, expected, name, tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, name)
    assert same(fitted(rows, engine), expected)
    assert os.listdir(tmp_path) == ["0"]


@pytest.mark.slow
def test_all_workers_killed_between_rounds_change_nothing(engine, rows, expected):
    assert same(fitted(rows, Meddling(engine, "score", lambda: kill_all(engine))), expected)


@pytest.mark.slow
def test_shards_that_kill_every_worker_are_named(engine, rows, tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, "fit_batch", times=99)
    with pytest.raises(epvi.ShardError, match=r"shard 1 of 4 .*lost its worker process") as error:
        fitted(rows, engine)
    assert [fit.shard for fit in error.value.fits] == [3, 4]


@pytest.mark.slow
def test_a_straggler_is_waited_for(engine, rows, expected, monkeypatch):
    make_slow(monkeypatch, 5.0)
    assert same(fitted(rows, engine), expected)


def test_what_an_engine_cannot_do_is_refused(engine, rows):
    with pytest.raises(epvi.EpviError, match="5 shards for 4 fragments with rows"):
        fitted(rows, engine, 5)
    with pytest.raises(epvi.EpviError, match="the model has groups='g', whose rows an engine cannot bring together"):
        epvi.fit(epvi.Model(grouped, groups="g"), rows, engine=engine)
    with pytest.raises(epvi.EpviError, match="there is an engine and an executor"):
        fitted(rows, engine, executor=2)
    with pytest.raises(epvi.EpviError, match="fallback samples from all rows in one place"):
        fitted(rows, engine, fallback=epvi.NUTS())
    with pytest.raises(epvi.EpviError, match="rows are a dict"):
        epvi.fit(line, {"x": np.zeros((3, 2)), "y": np.zeros(3)}, 1, inference=QUICK, engine=engine)
    with pytest.raises(epvi.EpviError, match="no file matches"):
        fitted(described("nowhere/*.parquet"), engine)


def grouped(x, g, num_g, y=None):
    raise AssertionError
