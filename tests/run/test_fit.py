"""The whole job: workers, executors, progress, failures; in real processes."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.ground import compiled
from epvi.ground.status import Status, StatusCode
from epvi.models import logistic, simulate_logistic
from epvi.site.derivatives import subposteriors
from epvi.site.tasks import sent_model

ROWS, _ = simulate_logistic(600, 3, condition=10.0, seed=0)
QUICK = epvi.NVI(2, num_starts=4, num_draws=64)
# One object, so that what this process compiles for it is compiled once.
LOGISTIC = epvi.Model(logistic)


def same(a, b):
    """Whether two posteriors are the same to the last bit."""
    return all(
        np.array_equal(x, y)
        for p, q in zip((a, *a.fits), (b, *b.fits), strict=True)
        for x, y in (
            (p.mixture.means, q.mixture.means),
            (p.mixture.roots, q.mixture.roots),
            (p.mixture.log_weights, q.mixture.log_weights),
        )
    )


@pytest.mark.parametrize(
    ("num_shards", "numbers"),
    [(3, (1, 2)), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, (1, 2, 4)), (5, (1, 2, 8))))],
)
def test_any_number_of_workers_gives_the_same_bits(num_shards, numbers):
    settings = {"inference": QUICK, "certify": False}
    one, *others = (epvi.fit(LOGISTIC, ROWS, num_shards, executor=n, seed=3, **settings) for n in numbers)
    assert all(same(one, more) for more in others)
    other = epvi.fit(LOGISTIC, ROWS, num_shards, executor=numbers[-1], seed=4, **settings)
    assert not same(one, other)


@contextlib.contextmanager
def dask(num_workers):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=num_workers, threads_per_worker=1, dashboard_address=":0")
    with cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


@pytest.mark.parametrize(
    ("kind", "number"),
    [(ThreadPoolExecutor, 2), *(pytest.param(dask, number, marks=pytest.mark.engines) for number in (1, 2))],
)
def test_other_executors_agree_to_ten_digits(kind, number):
    ours = epvi.fit(LOGISTIC, ROWS, 3, inference=QUICK, executor=2)
    with kind(number) as executor:
        theirs = epvi.fit(LOGISTIC, ROWS, 3, inference=QUICK, executor=executor)
    np.testing.assert_allclose(theirs.mixture.mean(), ours.mixture.mean(), rtol=1e-10)
    np.testing.assert_allclose(theirs.mixture.covariance(), ours.mixture.covariance(), rtol=1e-9, atol=1e-14)


def plain_logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.slow
def test_many_shards_agree_on_another_executor_and_after_an_interruption(tmp_path, monkeypatch):
    """They are fitted and scored in batches everywhere, also those that are left of a batch."""
    model, rows = epvi.Model(plain_logistic), simulate_logistic(13_000, 3, condition=10.0, seed=1)[0]
    ours = epvi.fit(model, rows, 130, executor=2, work=tmp_path)
    alone = []
    monkeypatch.setattr(worker, "fit_columns", lambda *given, **settings: alone.append(given))
    monkeypatch.setattr(worker, "answer_columns", lambda *given: alone.append(given))
    with ThreadPoolExecutor(2) as executor:
        theirs = epvi.fit(model, rows, 130, executor=executor)
        for file in sorted(tmp_path.glob("*.epvi"))[::3]:
            file.unlink()
        resumed = epvi.fit(model, rows, 130, executor=executor, work=tmp_path)
    assert not alone
    sds = np.sqrt(np.diag(ours.mixture.covariance()))
    np.testing.assert_allclose(theirs.mixture.mean(), ours.mixture.mean(), rtol=1e-10)
    np.testing.assert_allclose(float(theirs.certificate.elbo.value), float(ours.certificate.elbo.value), rtol=1e-9)
    np.testing.assert_array_less(np.abs(resumed.mixture.mean() - ours.mixture.mean()) / sds, 1e-6)


@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_thread_pool_runs_a_new_model_in_all_its_threads(attempt):
    """NumPyro's handlers are one stack for all threads, which must not see each other's models."""

    def fresh(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0 + attempt).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with ThreadPoolExecutor(4) as threads:
        posterior = epvi.fit(fresh, ROWS, 8, inference=QUICK, certify=False, executor=threads)
    x = ROWS["x"]
    truth = np.linalg.inv(x.T @ x + np.eye(3) / (1.0 + attempt) ** 2)
    np.testing.assert_allclose(posterior.mixture.covariance(), truth, rtol=1e-6)


TRACES = []


def counting(x, y=None):
    TRACES.append(1)
    logistic(x, y)


@pytest.mark.slow
def test_a_process_traces_the_model_as_often_for_many_shards_as_for_few(monkeypatch):
    counts = []
    for num_shards in (4, 40):
        TRACES.clear()
        sent_model.model_of.cache_clear()
        monkeypatch.setattr(compiled, "_held", OrderedDict())
        with ThreadPoolExecutor(1) as executor:
            # Full shards only, so that both jobs have blocks of one size.
            rows = {name: column[: 15 * num_shards] for name, column in ROWS.items()}
            epvi.fit(counting, rows, num_shards, inference=QUICK, certify=False, executor=executor)
        counts.append(len(TRACES))
    # The prior is compiled for a few numbers of points, of which few shards need not have all.
    assert 0 < counts[1] <= counts[0] + len(subposteriors._TOGETHER)


def test_a_model_that_is_fitted_again_is_not_traced_again():
    with ThreadPoolExecutor(1) as executor:
        epvi.fit(counting, ROWS, 2, inference=QUICK, certify=False, executor=executor)
        TRACES.clear()
        epvi.fit(counting, ROWS, 2, inference=QUICK, certify=False, executor=executor)
    assert not TRACES


def test_six_shards_agree_with_the_fit_of_all_rows():
    rows, _ = simulate_logistic(3600, 3, condition=10.0, seed=0)
    train, held_out = (
        {name: column[part] for name, column in rows.items()} for part in (slice(3000), slice(3000, None))
    )
    six, one = (epvi.fit(LOGISTIC, train, m, certify=False) for m in (6, 1))
    # In posterior standard deviations, of the coefficients (a share of the prior says little of α).
    away = (six.mixture.mean() - one.mixture.mean()) / one.mixture.sd()
    assert np.max(np.abs(away[1:])) < 0.5
    np.testing.assert_allclose((six.mixture.sd() / one.mixture.sd())[1:], 1.0, atol=0.15)
    gap = epvi.log_predictive(LOGISTIC, six, held_out) - epvi.log_predictive(LOGISTIC, one, held_out)
    assert abs(gap) < 0.001


def test_rows_can_be_split_by_a_column_that_the_model_does_not_take():
    hospital = np.array(["north", "south", "west"])[np.arange(600) % 3]
    posterior = epvi.fit(logistic, {**ROWS, "hospital": hospital}, by="hospital", inference=QUICK, certify=False)
    assert [fit.label for fit in posterior.fits] == [
        "1 of 3 (hospital = north)",
        "2 of 3 (hospital = south)",
        "3 of 3 (hospital = west)",
    ]
    by_hand = [
        epvi.fit_shard(LOGISTIC, {k: v[m::3] for k, v in ROWS.items()}, f"{m + 1}/3", inference=QUICK) for m in range(3)
    ]
    np.testing.assert_allclose(posterior.mixture.mean(), epvi.combine(by_hand).mixture.mean(), rtol=1e-8)


def test_rows_in_their_order_are_runs_of_rows():
    posterior = epvi.fit(logistic, ROWS, 3, shuffle=False, inference=QUICK, certify=False)
    second = epvi.fit_shard(LOGISTIC, {k: v[200:400] for k, v in ROWS.items()}, "2/3", inference=QUICK)
    np.testing.assert_allclose(posterior.fits[1].mixture.means, second.mixture.means, rtol=1e-8)


def test_a_failing_shard_names_itself_and_keeps_the_others():
    rows = {name: column.copy() for name, column in ROWS.items()}
    rows["y"] = rows["y"].astype(int)
    rows["y"][450:453] = 2
    with pytest.raises(epvi.ShardError, match=r"shard 4 of 4 .* column 'y' has 3 values outside") as error:
        epvi.fit(logistic, rows, 4, shuffle=False, inference=QUICK, certify=False)
    assert [fit.shard for fit in error.value.fits] == [1, 2, 3]
    mended = epvi.fit_shard(LOGISTIC, {k: v[450:] for k, v in ROWS.items()}, "4/4", inference=QUICK)
    posterior = epvi.combine([*error.value.fits, mended])
    np.testing.assert_allclose(
        posterior.mixture.mean(),
        epvi.fit(logistic, ROWS, 4, shuffle=False, inference=QUICK, certify=False).mixture.mean(),
        rtol=1e-8,
    )


def flat(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (x.shape[1],)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_a_shard_whose_labels_are_separated_needs_the_others():
    rows = {name: column.copy() for name, column in ROWS.items()}
    rows["y"][:150] = rows["x"][:150, 0] > 0  # the first shard's labels are separable
    posterior = epvi.fit(flat, rows, 4, shuffle=False, inference=QUICK, certify=False)
    assert [fit.stands_alone for fit in posterior.fits] == [False, True, True, True]
    assert posterior.status.code is StatusCode.NEEDS_ROUNDS


def test_a_shard_that_ends_badly_names_itself_and_keeps_the_others(monkeypatch):
    fits = [epvi.fit_shard(LOGISTIC, ROWS, f"{m}/2", inference=QUICK) for m in (1, 2)]
    bad = dataclasses.replace(fits[0], status=Status(StatusCode.RISING, "stopped early: raise max_sweeps."))
    monkeypatch.setattr("epvi.run.shards.RunningShards.fit", lambda self: [bad, fits[1]])
    with pytest.raises(epvi.ShardError, match="shard 1 of 2 did not end well: stopped early") as error:
        epvi.fit(LOGISTIC, ROWS, 2, inference=QUICK, certify=False)
    assert [fit.shard for fit in error.value.fits] == [2]


def unpicklable():
    lock = __import__("threading").Lock()

    def model(x, y=None):
        with lock:
            logistic(x, y)

    return model


def test_a_model_that_cannot_travel_is_refused():
    with pytest.raises(epvi.EpviError, match="the model cannot be sent to workers"):
        epvi.fit(unpicklable(), ROWS, 2)


def test_an_executor_that_was_closed_is_said():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(epvi.EpviError, match="the executor takes no work"):
        epvi.fit(logistic, ROWS, 2, inference=QUICK, certify=False, executor=executor)


SCRIPT = """
import numpy as np, numpyro, numpyro.distributions as dist, epvi
scale = 2.0
def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 2))
rows = {"x": x, "y": x @ np.ones(2) + rng.normal(size=200)}
quick = epvi.NVI(1, num_starts=2, num_draws=8)
posterior = epvi.fit(model, rows, shards=4, inference=quick, certify=False, progress=True)
truth = np.linalg.inv(x.T @ x + np.eye(2) / scale**2)
assert np.allclose(posterior.mixture.covariance(), truth, rtol=1e-6)
print("fitted", posterior.summary()["w[0]"]["mean"])
"""


@pytest.mark.parametrize("way", ["script", pytest.param("stdin", marks=pytest.mark.slow)])
def test_models_of_a_script_without_a_guard_and_of_a_prompt_work(way, tmp_path):
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    arguments, given = ([str(script)], None) if way == "script" else (["-"], SCRIPT)
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fitted")
    assert "4/4" in done.stderr  # the progress bar is on stderr


SLOW = """
import time, numpy as np, numpyro, numpyro.distributions as dist, epvi, os
def model(x):
    if os.environ.get("NPROC") == "1":
        open(FOLDER + "/" + str(os.getpid()), "w").close()
        time.sleep(600)
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)
epvi.fit(model, {"x": np.arange(2.0**16)}, 4, executor=2)
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_an_interrupt_leaves_no_process_and_no_file_behind(tmp_path):
    started, folder = tmp_path / "started", tmp_path / "tmp"
    started.mkdir()
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", f"FOLDER = {str(started)!r}\n{SLOW}"],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while len(os.listdir(started)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = [int(name) for name in os.listdir(started)]
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert b"KeyboardInterrupt" in said
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, workers))
    assert not [name for name in os.listdir(folder) if name.startswith("epvi-")]


def gaussian(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_float32_rows_give_the_same_posterior_within_their_accuracy():
    rows = {name: column.astype(np.float32) for name, column in ROWS.items()}
    double, single = (
        epvi.fit(gaussian, given, 3, inference=QUICK, certify=False, executor=2) for given in (ROWS, rows)
    )
    assert single.mixture.means.dtype == np.float64
    away = (single.mixture.mean() - double.mixture.mean()) / double.mixture.sd()
    assert np.max(np.abs(away)) < 1e-2
    np.testing.assert_allclose(single.mixture.sd(), double.mixture.sd(), rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shards": 0}, "shards is 0"),
        ({"shards": 601}, "601 shards for 600 rows"),
        ({}, "pass either shards=8 or by="),
        ({"shards": 2, "by": "y"}, "pass either shards=8 or by="),
        ({"by": "hospital"}, "there is no column 'hospital'"),
        ({"shards": 2, "executor": "dask"}, "executor is 'dask'"),
        ({"shards": 2, "executor": 0}, "executor is 0"),
        ({"shards": 2, "inference": "nvi"}, "inference is 'nvi'"),
        ({"shards": 2, "product": epvi.Exact}, "product is"),
        ({"shards": 2, "seed": -1}, "seed is -1"),
        ({"by": ["y"]}, "pass the name of one column"),
        ({"shards": 2, "seed": jax.random.key(0, impl="rbg")}, "seed is a key of kind"),
    ],
)
def test_bad_settings_are_refused(settings, said, untyped):
    with pytest.raises(epvi.EpviError, match=said):
        epvi.fit(logistic, ROWS, **{"inference": QUICK, **settings})


def test_shards_of_one_table_may_hold_the_same_values():
    rows = {"x": np.ones((8, 1)), "y": np.tile([0.0, 1.0], 4)}
    posterior = epvi.fit(logistic, rows, 4, shuffle=False, executor=1, inference=QUICK, certify=False)
    assert len({fit.made_of.rows for fit in posterior.fits}) == 1
    assert posterior.num_rows == 8
    with pytest.raises(epvi.EpviError, match="were fitted to the same rows"):
        epvi.combine(posterior.fits)
