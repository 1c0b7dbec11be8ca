"""epvi's own workers: what they run, what becomes of one that dies, and that no other call notices."""

import os
import signal
import threading
import time
from concurrent.futures import CancelledError, wait

import pytest
from commands import in_a_process

import epvi
from epvi.engines import local as pool
from epvi.engines import process
from epvi.engines.process import WorkerDied, WorkerProcess


@pytest.fixture(scope="module")
def two():
    """A pool of its own, so that nobody else's work is disturbed."""
    made = pool.Pool(2)
    yield made
    made.shutdown(cancel_futures=True)


class UnreadableError(Exception):
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise TypeError("cannot be made again")


def number_of_process():
    return os.getpid()


def end_badly(how):
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def raise_this(error):
    raise error


def unreadable():
    raise UnreadableError("why it failed")


def wait_for(file, started):
    """Say that it began, and wait until a file is there."""
    open(started, "w").close()
    while not os.path.exists(file):
        time.sleep(0.01)
    return os.getpid()


def until(condition, seconds=120):
    """Wait for what must come; generous, because machines can be busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def test_results_and_errors_come_back_and_the_worker_stays(two):
    one = two.submit(divmod, 7, 2)
    assert one.result() == (3, 1)
    with pytest.raises(KeyError, match="missing"):
        two.submit(raise_this, KeyError("missing")).result()
    with pytest.raises(RuntimeError, match="SystemExit: 4"):
        two.submit(raise_this, SystemExit(4)).result()
    with pytest.raises(RuntimeError, match="UnreadableError: why it failed"):
        two.submit(unreadable).result()
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        two.submit(raise_this, KeyboardInterrupt()).result()
    with pytest.raises(TypeError, match="pickle"):
        two.submit(len, threading.Lock()).result()
    pids = {two.submit(number_of_process).result() for _ in range(4)}
    assert pids <= set(two.pids)


def test_a_large_task_and_a_large_result_pass(two):
    assert two.submit(bytes.upper, b"a" * 3_000_000).result() == b"A" * 3_000_000


@pytest.mark.parametrize(
    ("how", "said"), [("signal", "signal 9"), pytest.param("exit", "exit code 3", marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_ends_its_own_task_alone(two, tmp_path, how, said):
    busy = two.submit(wait_for, str(tmp_path / "go"), str(tmp_path / "began"))
    until(lambda: (tmp_path / "began").exists())
    with pytest.raises(WorkerDied, match=said):
        two.submit(end_badly, how).result()
    assert not busy.done()
    # The other one is replaced, while this one works.
    other = two.submit(number_of_process).result()
    (tmp_path / "go").touch()
    assert busy.result() != other
    assert sorted(two.pids) == sorted([busy.result(), other])


def test_a_worker_that_was_killed_while_it_idled_is_replaced(two):
    old = two.submit(number_of_process).result()
    for pid in two.pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, [old])))
    assert two.submit(number_of_process).result() != old


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split(")")[1].split()[0] != "Z"


def test_what_is_abandoned_stops_and_what_others_asked_for_goes_on(two, tmp_path):
    mine = two.submit(wait_for, str(tmp_path / "never"), str(tmp_path / "mine"))
    yours = two.submit(wait_for, str(tmp_path / "go"), str(tmp_path / "yours"))
    until(lambda: (tmp_path / "mine").exists() and (tmp_path / "yours").exists())
    queued, next_one = two.submit(number_of_process), two.submit(number_of_process)
    two.abandon([mine, queued])
    assert isinstance(mine.exception(), WorkerDied)
    with pytest.raises(CancelledError):
        queued.result()
    assert next_one.result() in two.pids
    (tmp_path / "go").touch()
    assert yours.exception() is None


def test_many_threads_may_use_one_pool(two):
    results = []

    def use(start):
        futures = [two.submit(pow, start + i, 2) for i in range(20)]
        wait(futures)
        results.extend((start + i, future.result()) for i, future in enumerate(futures))

    threads = [threading.Thread(target=use, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted((n, n * n) for start in (0, 100, 200, 300) for n in range(start, start + 20))


def test_a_closed_pool_takes_nothing_and_leaves_no_process(tmp_path):
    one = pool.Pool(1)
    running = one.submit(wait_for, str(tmp_path / "never"), str(tmp_path / "began"))
    queued = one.submit(number_of_process)
    until(lambda: (tmp_path / "began").exists())
    pids = one.pids
    one.shutdown(cancel_futures=True)
    assert isinstance(running.exception(), WorkerDied)
    assert queued.cancelled()
    assert not any(map(alive, pids))
    assert one.pids == []
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(number_of_process)


@pytest.mark.parametrize(
    ("program", "said"), [("/nowhere/python", "No such file"), ("/bin/false", "exit code 1; see its message")]
)
def test_workers_that_cannot_start_are_said_with_the_remedy(program, said, monkeypatch):
    monkeypatch.setattr(process.sys, "executable", program)
    one = pool.Pool(1)
    with pytest.raises(epvi.EpviError, match=rf"cannot be started here \({said}.*ThreadPoolExecutor"):
        one.submit(number_of_process).result()
    one.shutdown()


def test_a_new_worker_that_is_killed_at_once_has_died():
    one = WorkerProcess(1)
    one.kill()
    with pytest.raises(WorkerDied, match="signal 9"):
        one.run(b"")


def test_idle_workers_leave(monkeypatch):
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.01)
    one = pool.Pool(1)
    first = one.submit(number_of_process).result()
    until(lambda: not one.pids)
    until(lambda: not alive(first))
    assert one.submit(number_of_process).result() != first
    one.shutdown()


def test_warnings_that_the_user_made_errors_stay_out_of_workers(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    one = pool.Pool(1)
    assert one.submit(exec, "import warnings; warnings.warn('a library says something')").exception() is None
    one.shutdown()


def test_workers_start_in_a_program_that_has_closed_its_standard_streams():
    code = "import os; [os.close(n) for n in (0, 2)]\nfrom epvi.engines import local as pool\n"
    assert in_a_process(code + "print(pool.Pool(1).submit(exec, 'print(7, flush=True)').exception())") == "None\n"


def test_a_worker_of_another_pool_takes_one_worker_unless_told(monkeypatch):
    monkeypatch.setattr(pool.multiprocessing, "parent_process", lambda: object())
    assert pool.size_of(None) == 1
    assert pool.size_of(3) == 3
