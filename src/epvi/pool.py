"""epvi's own workers: fresh processes with one XLA thread each, kept warm from one call to the next.

Never forked, because a process that has used JAX cannot be. `NPROC` is what XLA sizes its thread pool by, and OpenBLAS
threads beside JAX's stall it; both must be set before the process starts.
"""

import contextlib
import threading
from collections.abc import Iterator

import loky
from loky.process_executor import ProcessPoolExecutor

from epvi.validation import at_least

_ENVIRONMENT = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Idle workers leave after this many seconds.
_IDLE_SECONDS = 300

_lock = threading.Lock()
_pool: ProcessPoolExecutor | None = None
_size = 0


def workers(number: int | None) -> ProcessPoolExecutor:
    """The pool, as it was left by the call before when the number of workers is the same."""
    global _pool, _size
    size = loky.cpu_count() if number is None else at_least("executor", number, 1)
    with _lock:
        if _pool is None or size != _size:
            _close()
            _pool = ProcessPoolExecutor(size, timeout=_IDLE_SECONDS, env=_ENVIRONMENT, initializer=_warm)
            _size = size
        return _pool


def close() -> None:
    """Stop the workers at once, whatever they do."""
    with _lock:
        _close()


def _close() -> None:
    global _pool
    if _pool is not None:
        _pool.shutdown(wait=True, kill_workers=True)
        _pool = None


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
