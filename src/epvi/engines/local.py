"""epvi's own workers: an executor of fresh processes that stay warm from one call to the next.

Each worker has a thread that gives it one task after another, so that a worker that dies ends its own task alone and is
replaced for the next. What one worker compiles, the others, and those of the next run, take from the cache.
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
from epvi.ground.validation import at_least

# Idle workers leave after this many seconds.
_IDLE_SECONDS = 300
# So many processes are started for a task before it is given up, when all end before they begin it.
_STARTS = 3


@dataclasses.dataclass(eq=False)
class _Submitted:
    """A call for a worker, the process that runs it, and whether nobody wants it any more."""

    future: Future
    function: Callable
    arguments: tuple
    process: WorkerProcess | None = None
    abandoned: bool = False


class Pool(Executor):
    """At most `size` worker processes, which any number of threads may give work.

    A new process imports the module `preloaded` while it waits for its first task.
    """

    def __init__(self, size: int, preloaded: str = "") -> None:
        self._size = size
        self._preloaded = preloaded
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._processes: set[WorkerProcess] = set()
        self._running: dict[Future, _Submitted] = {}
        self._open = True
        self._threads = [threading.Thread(target=self._work, name="epvi worker", daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that are there now."""
        with self._lock:
            return sorted(process.pid for process in self._processes)

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Have the next free worker call the function."""
        if kwargs:
            raise TypeError("a worker is given positional arguments only")
        future: Future = Future()
        with self._lock:
            if not self._open:
                raise RuntimeError("the pool is closed")
            self._waiting.put(_Submitted(future, fn, args))
        return future

    def abandon(self, futures: Iterable[Future]) -> None:
        """Cancel what has not begun, and stop the workers that run the rest; work of other calls goes on."""
        for future in futures:
            if future.cancel():
                continue
            # Under the lock: its worker cannot have gone on to the next task.
            with self._lock:
                task = self._running.get(future)
                if task is not None:
                    task.abandoned = True
                    if task.process is not None:
                        task.process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and stop the workers when they have done, or at once, what they were given."""
        with self._lock:
            self._open = False
            waiting = []
            while cancel_futures and not self._waiting.empty():
                task = self._waiting.get()
                waiting += [] if task is None else [task.future]
            running = list(self._running) if cancel_futures else []
            for _ in self._threads:
                self._waiting.put(None)
        self.abandon([*waiting, *running])
        for thread in self._threads if wait else ():
            thread.join()

    def disown(self) -> None:
        """In a process that was forked: let go of workers that are another's."""
        for process in self._processes:
            process.disown()

    def _work(self) -> None:
        """One worker's thread: start its process, and a new one for the next task when that is gone."""
        process = self._started(None, quiet=True)
        while True:
            try:
                task = self._waiting.get(timeout=None if process is None else _IDLE_SECONDS)
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
            # A result must not live as long as the wait for the next task.
            del task

    def _run(self, task: _Submitted, process: WorkerProcess | None) -> WorkerProcess | None:
        """Run a task on the process, or on a new one; gives the process while it lives."""
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
        """Run a task where `abandon` finds it."""
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
        """A process that lives; when none can be started, the next task says so."""
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
        if process is not None:
            with self._lock:
                self._processes.discard(process)
            process.end()


_lock = threading.Lock()
# By their number of workers, so that a call with another number does not stop one that is under way.
_pools: dict[int, Pool] = {}


def size_of(number: int | None) -> int:
    """How many workers that is: unless said, one per core, or one where this process is itself a worker of a pool."""
    if number is not None:
        return at_least("executor", number, 1)
    return loky.cpu_count() if multiprocessing.parent_process() is None else 1


def workers(number: int | None, preloaded: str = "") -> Pool:
    """The pool of this many workers, as the last call left it; the processes of a new one start at once."""
    size = size_of(number)
    with _lock:
        if size not in _pools:
            _pools[size] = Pool(size, preloaded)
        return _pools[size]


def close() -> None:
    """Stop all workers at once, whatever they do."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.shutdown(cancel_futures=True)


def _forget() -> None:
    """A process that was forked has none of its parent's threads, and its parent's workers are not its own."""
    global _lock
    _lock = threading.Lock()
    while _pools:
        _, pool = _pools.popitem()
        pool.disown()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
