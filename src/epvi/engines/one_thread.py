"""One thread for XLA in a worker process of somebody else's, as epvi's own workers have.

Workers of a cluster share the cores of a machine; and sums that several threads divide among themselves have other last
digits. XLA reads the number of threads when JAX is first used in a process, from the environment.
"""

import os
import threading

import jax

# What XLA takes the number of its threads from.
_VARIABLE = "NPROC"
_lock = threading.Lock()
_is_done = False


def with_one_thread() -> None:
    """Have JAX start with one thread, unless it has started already; the environment is as before afterwards."""
    global _is_done
    with _lock:
        if _is_done:
            return
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = "1"
        try:
            jax.devices()
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before
        _is_done = True
