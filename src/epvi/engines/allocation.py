"""Has glibc keep freed blocks of memory while a worker of Dask's has rows, and return them when it has none any more.

Dask starts workers with MALLOC_TRIM_THRESHOLD_=65536, so that memory is returned at once. That also ends glibc's own
adaptation of the size from which on blocks are mapped one by one: every array of a pass over rows is then mapped,
cleared and unmapped by the kernel, which takes as long as the pass itself.
"""

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

# Parameters of mallopt (malloc.h), the variables that set them when a process starts, and glibc's defaults (128 KiB).
_TRIM, _MAP = (-1, "MALLOC_TRIM_THRESHOLD_"), (-3, "MALLOC_MMAP_THRESHOLD_")
_DEFAULT = 2**17  # 128 KiB
# Where glibc's adaptation ends on 64 bits: blocks up to 32 MiB are kept, and twice as much free memory.
_LARGEST = 2**25
# A finalizer may run while the same thread counts.
_lock = threading.RLock()
_num_held = 0


@contextlib.contextmanager
def kept_blocks() -> Iterator[Callable[[Any], None]]:
    """A context in which freed blocks are kept, if this process returns them at once; gives a function of an object.

    Called with an object that can be weakly referenced, it has them kept as long as the object exists.
    """
    if _TRIM[1] not in os.environ or not hasattr(ctypes.CDLL(None), "mallopt"):
        yield lambda rows: None
        return
    _count(1)
    try:
        yield _keep_for
    finally:
        _count(-1)


def _keep_for(rows: Any) -> None:
    _count(1)
    weakref.finalize(rows, _count, -1).atexit = False


def _count(change: int) -> None:
    global _num_held
    library = ctypes.CDLL(None)
    with _lock:
        _num_held += change
        if (_num_held, change) == (1, 1):
            library.mallopt(_MAP[0], _LARGEST)
            library.mallopt(_TRIM[0], 2 * _LARGEST)
        elif not _num_held:
            for parameter, variable in (_TRIM, _MAP):
                library.mallopt(parameter, _set(variable))
            library.malloc_trim(0)


def _set(variable: str) -> int:
    """What a variable of the environment sets, or the default."""
    with contextlib.suppress(ValueError):
        return int(os.environ.get(variable, _DEFAULT))
    return _DEFAULT
