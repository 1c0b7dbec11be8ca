"""epvi's own workers: fresh processes with one XLA thread each, on a core of their own, warm from one call to the next.

Never forked, because a process that has used JAX cannot be. `NPROC` is what XLA sizes its thread pool by, and OpenBLAS
threads beside JAX's stall it; both must be set before the process starts. What one worker compiles, the others, and
those of the next run, take from the cache.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import loky
from loky.process_executor import ProcessPoolExecutor

from epvi.cache import cache_environment
from epvi.validation import at_least

_ENVIRONMENT = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Idle workers leave after this many seconds.
_IDLE_SECONDS = 300
# Workers look this often whether their parent still lives.
_LOOK_SECONDS = 1.0

_lock = threading.Lock()
# By their number of workers, so that a call with another number does not stop one that is under way.
_pools: dict[int, ProcessPoolExecutor] = {}


def size_of(number: int | None) -> int:
    """How many workers that is: one per core unless said."""
    return loky.cpu_count() if number is None else at_least("executor", number, 1)


def workers(number: int | None) -> ProcessPoolExecutor:
    """The pool of this many workers (one per core unless said), as the last call left it; a new one starts at once."""
    size = size_of(number)
    with _lock:
        if size not in _pools or not _takes_work(_pools[size]):
            _pools[size] = ProcessPoolExecutor(
                size,
                timeout=_IDLE_SECONDS,
                env=_ENVIRONMENT | cache_environment(),
                initializer=_begin,
                initargs=(os.getpid(), size),
            )
            _pools[size].submit(_warm)
        return _pools[size]


def _takes_work(pool: ProcessPoolExecutor) -> bool:
    """Whether the pool still stands: one whose idle worker was killed refuses everything from then on."""
    try:
        pool.submit(_warm)
    except RuntimeError:
        return False
    return True


def close() -> None:
    """Stop all workers at once, whatever they do."""
    with _lock:
        while _pools:
            _, pool = _pools.popitem()
            pool.shutdown(wait=True, kill_workers=True)


def _begin(parent: int, num_workers: int) -> None:
    """Make a new process ready: what a model prints is no result of the program, and without its parent it ends."""
    os.dup2(2, 1)
    _take_a_core(num_workers)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _warm()


def _take_a_core(num_workers: int) -> None:
    """Stay on one core that no other worker has, when there is one for each of this pool.

    A name that only one process can have, as long as it lives, says that a core is taken.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if num_workers > len(cores):
        return
    for core in cores:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # In Linux's own name space: no file, and free again when the process ends, however it does.
            name.bind(f"\0epvi core {core} of user {os.getuid()}")
            os.sched_setaffinity(0, {core})
        except OSError:
            name.close()
            continue
        name.detach()
        return


def _end_with(parent: int) -> None:
    """A parent that was killed cannot stop its workers, which would go on for nobody."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _warm() -> None:
    """Import what every task needs, before the first one comes."""
    import epvi.worker  # noqa: F401


@contextlib.contextmanager
def stopped_on_interrupt() -> Iterator[None]:
    """Leave no worker behind when the user interrupts."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            close()
        raise
