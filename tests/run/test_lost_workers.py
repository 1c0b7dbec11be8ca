"""Workers that die in the middle of a fit, or of a later round: shards are run again, and the answer is the same."""

import contextlib
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from commands import in_a_process
from deadly_workers import QUICK, ROWS, Losing, fitted, line, make_deadly, same

import epvi
from epvi.engines import local as pool


@pytest.fixture(scope="module")
def undisturbed():
    return fitted()


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_worker_killed_while_it_fits_and_again_while_it_scores_changes_nothing(
    when, undisturbed, tmp_path, monkeypatch
):
    make_deadly(monkeypatch, tmp_path, when)
    assert same(fitted(), undisturbed)
    assert sorted(os.listdir(tmp_path)) == ["answer_batch-0", "run_shard-0"]


@pytest.mark.slow
def test_a_worker_killed_while_it_fits_a_batch_changes_nothing(tmp_path, monkeypatch):
    together = epvi.NVI(2, num_starts=2, num_draws=32)
    made = epvi.fit(line, ROWS, 3, inference=together, executor=2)
    make_deadly(monkeypatch, tmp_path)
    assert same(epvi.fit(line, ROWS, 3, inference=together, executor=2), made)
    assert sorted(os.listdir(tmp_path)) == ["answer_batch-0", "run_batch-0"]


@pytest.mark.slow
def test_the_only_worker_is_replaced(undisturbed, tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, scoring=False)
    assert same(fitted(executor=1), undisturbed)


def test_a_shard_that_loses_two_workers_is_named_and_the_other_fits_are_kept(tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, times=9)
    with pytest.raises(epvi.ShardError, match=r"shard 2 of 3 lost .* twice while it was fitted") as error:
        fitted()
    assert "signal 9" in str(error.value)
    assert "The other 2 fits are in the error's `fits`." in str(error.value)
    assert [fit.shard for fit in error.value.fits] == [1, 3]
    assert sorted(os.listdir(tmp_path)) == ["run_shard-0", "run_shard-1"]


@pytest.mark.slow
def test_in_a_later_round_all_fits_are_kept(tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, times=9, fitting=False)
    with pytest.raises(epvi.ShardError, match=r"shard 2 of 3 lost .* twice while it was scored") as error:
        fitted()
    assert [fit.shard for fit in error.value.fits] == [1, 2, 3]


def test_workers_killed_while_they_idle_are_replaced(undisturbed):
    for pid in pool.workers(2).pids:
        os.kill(pid, signal.SIGKILL)
    assert same(fitted(), undisturbed)


@pytest.mark.slow
def test_workers_killed_at_any_moment_change_no_answer(undisturbed):
    """A fit ends with the same answer or, when a shard was hit twice, with its name; never with another answer."""
    rng = np.random.default_rng(0)
    stop = threading.Event()

    def kill_now_and_then():
        while not stop.wait(rng.uniform(0.1, 3.0)):
            pids = pool.workers(2).pids
            # One that is gone already is as good.
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(rng.choice(pids), signal.SIGKILL)

    thread = threading.Thread(target=kill_now_and_then)
    thread.start()
    outcomes = []
    try:
        for _ in range(20):
            try:
                outcomes.append(same(fitted(), undisturbed))
            except epvi.ShardError as error:
                outcomes.append("lost its worker process twice" in str(error))
    finally:
        stop.set()
        thread.join()
    assert all(outcomes)
    assert same(fitted(), undisturbed)


@pytest.mark.parametrize("losses", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_on_another_executor_that_survives_shards_are_run_again(losses, undisturbed):
    posterior = fitted(Losing(True, losses))
    np.testing.assert_allclose(posterior.mixture.mean(), undisturbed.mixture.mean(), rtol=1e-10)


def test_on_one_that_does_not_survive_all_is_said():
    with pytest.raises(epvi.ShardError, match="died while it fitted shard 1 of 3 or 2 of 3 or 3 of 3") as error:
        fitted(Losing(False, 3))
    assert "the executor takes no more work" in str(error.value)


@pytest.mark.slow
def test_a_thread_whose_shard_kills_workers_does_not_disturb_another(undisturbed, tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path, times=9)
    failed = []

    def fails():
        try:
            fitted()
        except epvi.ShardError as error:
            failed.append(error)

    thread = threading.Thread(target=fails)
    thread.start()
    # It has no second shard, which is the one that kills.
    other = epvi.fit(line, ROWS, 1, inference=QUICK, certify=False, executor=2)
    thread.join()
    assert len(failed) == 1
    np.testing.assert_allclose(other.mixture.mean(), undisturbed.mixture.mean(), atol=0.05)


_TWO_THREADS = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import numpy as np, epvi
from deadly_workers import fitted, line, ROWS, QUICK, same

def patient(x, y=None):
    if os.environ.get("NPROC") == "1":
        open({folder!r} + "/" + str(os.getpid()), "w").close()
        while True:
            time.sleep(0.1)
    line(x, y)

before = fitted()
got = []
def go_on():
    while not stop.is_set():
        got.append(fitted())
stop = threading.Event()
other = threading.Thread(target=go_on)

def interrupt():
    while not os.listdir({folder!r}):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
other.start()
try:
    epvi.fit(patient, ROWS, 1, inference=QUICK, certify=False, executor=2)
except KeyboardInterrupt:
    print("interrupted")
stop.set()
other.join()
print("all the same", all(same(before, one) for one in got), len(got) > 0)
"""


@pytest.mark.slow
def test_an_interrupt_in_one_thread_leaves_the_fit_of_another_alone(tmp_path):
    code = _TWO_THREADS.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    assert in_a_process(code).splitlines() == ["interrupted", "all the same True True"]
    # The worker that was in the middle of a shard is gone, with its program.
    for pid in os.listdir(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
