"""epvi's process pool: an executor whose worker processes stay alive between calls.

Each worker process has a thread in this process that sends it one task at a time. A worker that dies therefore fails
only its own task, and is replaced for the next one. Workers share compiled programs through the compilation cache.
"""

import atexit
import dataclasses
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any

import cloudpickle
import loky

from epvi.engines.process import WorkerDied, WorkerGone, WorkerProcess
from epvi.engines.task_queue import TaskQueue
from epvi.ground.validation import at_least

# Seconds without a task after which a worker process ends. Judgement: long enough for a pause between calls in a
# notebook, short enough to free its memory.
_IDLE_SECONDS = 300.0
# Processes started for one task if each ends before it begins the task; then the task fails. Judgement.
_STARTS = 3


@dataclasses.dataclass(eq=False)
class _Submitted:
    """A task."""

    future: Future
    function: Callable
    arguments: tuple
    process: WorkerProcess | None = None  # the worker that runs it, while it does
    abandoned: bool = False  # whether its result is no longer wanted


class Pool(Executor):
    """An executor with at most `size` worker processes; its methods may be called from any thread.

    A new worker imports the module `preloaded` while it waits for its first task.
    """

    def __init__(self, size: int, preloaded: str = "") -> None:
        self._size = size
        self._preloaded = preloaded
        self._lock = threading.Lock()
        self._waiting: TaskQueue[_Submitted] = TaskQueue(size)
        self._processes: set[WorkerProcess] = set()
        self._running: dict[Future, _Submitted] = {}
        self._open = True
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name="epvi worker", daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the current workers."""
        with self._lock:
            return sorted(process.pid for process in self._processes)

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Queue a function call for the next free worker."""
        if kwargs:
            raise TypeError("workers take positional arguments only: bind keyword arguments with functools.partial")
        return self.submit_near(None, fn, *args)

    def submit_near(self, worker: int | None, fn: Callable, /, *args: Any) -> Future:
        """Queue a function call for a worker by its number (modulo `size`), or for another one while that is busy."""
        future: Future = Future()
        with self._lock:
            if not self._open:
                raise RuntimeError("the pool is closed: make a new one")
            self._waiting.put(_Submitted(future, fn, args), worker)
        return future

    def abandon(self, futures: Iterable[Future]) -> None:
        """Cancel pending tasks and kill the workers that run the others; tasks of other calls go on."""
        for future in futures:
            if future.cancel():
                continue
            # The lock ensures that the worker has not gone on to another task.
            with self._lock:
                task = self._running.get(future)
                if task is not None:
                    task.abandoned = True
                    if task.process is not None:
                        task.process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks; stop workers after the queued ones, or at once with `cancel_futures`."""
        with self._lock:
            self._open = False
            waiting = [task.future for task in self._waiting.close()]
            running = list(self._running)
        if cancel_futures:
            self.abandon([*waiting, *running])
        for thread in self._threads if wait else ():
            thread.join()

    def disown(self) -> None:
        """Close the pipes to all workers, in a forked process: the workers belong to its parent."""
        for process in self._processes:
            process.disown()

    def _work(self, number: int) -> None:
        """The thread of one worker: start its process, run tasks on it, and replace it when it has ended."""
        process = self._started(None, quiet=True)
        while True:
            try:
                task = self._waiting.get(number, None if process is None else _IDLE_SECONDS)
            except queue.Empty:
                process = self._ended(process)
                continue
            if task is None:
                self._ended(process)
                return
            if task.future.set_running_or_notify_cancel():
                with self._lock:
                    self._running[task.future] = task
                process = self._run(task, process)
                with self._lock:
                    del self._running[task.future]
            # Do not keep the result alive while waiting for the next task.
            del task

    def _run(self, task: _Submitted, process: WorkerProcess | None) -> WorkerProcess | None:
        """Run a task on the process, or on a new one; return the process, or None if it has ended."""
        result = error = None
        try:
            message = cloudpickle.dumps((task.function, task.arguments))
            for left in reversed(range(_STARTS)):
                process = self._started(process)
                assert process is not None
                try:
                    result, error = cloudpickle.loads(self._watched(task, process, message))
                    break
                except WorkerGone:
                    if left == 0:
                        raise
        except Exception as raised:
            error = raised
        if error is None:
            task.future.set_result(result)
        else:
            task.future.set_exception(error)
        return process if process is not None and process.is_alive() else self._ended(process)

    def _watched(self, task: _Submitted, process: WorkerProcess, message: bytes) -> bytes:
        """Run a task, with its process recorded so that `abandon` can kill it."""
        with self._lock:
            if task.abandoned:
                raise WorkerDied("abandoned")
            task.process = process
        try:
            return process.run(message)
        finally:
            with self._lock:
                task.process = None

    def _started(self, process: WorkerProcess | None, quiet: bool = False) -> WorkerProcess | None:
        """`process` if it is alive, else a new one; with `quiet`, None if none can be started."""
        if process is not None and process.is_alive():
            return process
        self._ended(process)
        try:
            process = WorkerProcess(self._size, self._preloaded)
        except Exception:
            if quiet:
                return None
            raise
        with self._lock:
            self._processes.add(process)
        return process

    def _ended(self, process: WorkerProcess | None) -> None:
        """End the process and forget it."""
        if process is not None:
            with self._lock:
                self._processes.discard(process)
            process.end()


_lock = threading.Lock()
# Pools by number of workers, so that a call with another number does not disturb a running one.
_pools: dict[int, Pool] = {}


def size_of(number: int | None) -> int:
    """Number of workers: `number`, or one per core, or one if this process is itself a multiprocessing worker."""
    if number is not None:
        return at_least("executor", number, 1)
    return loky.cpu_count() if multiprocessing.parent_process() is None else 1


def workers(number: int | None, preloaded: str = "") -> Pool:
    """The pool with this many workers; a new pool starts its processes at once."""
    size = size_of(number)
    with _lock:
        if size not in _pools:
            _pools[size] = Pool(size, preloaded)
        return _pools[size]


def close() -> None:
    """Stop all pools and their workers at once."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.shutdown(cancel_futures=True)


def _forget() -> None:
    """Drop all pools in a forked process, which has none of its parent's threads and must leave its workers alone."""
    global _lock
    _lock = threading.Lock()
    while _pools:
        _, pool = _pools.popitem()
        pool.disown()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
