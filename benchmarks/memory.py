"""Memory of a process and its children together, counting shared pages once.

Reads the proportional set size (PSS) from Linux's /proc/PID/smaps_rollup, by private, file-mapped and shared memory.
"""

import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

_EVERY_SECONDS = 0.05
GB = 1e9


class Memory(NamedTuple):
    """Memory of all processes together, in bytes."""

    anonymous: int = 0  # private
    file: int = 0  # mapped files
    shared: int = 0  # shared memory
    largest_child: int = 0  # resident set size of the largest child

    @property
    def total(self) -> int:
        return self.anonymous + self.file + self.shared

    def __str__(self) -> str:
        parts = f"{self.anonymous / GB:.2f} private, {self.file / GB:.2f} of files, {self.shared / GB:.2f} shared"
        return f"{self.total / GB:.2f} GB ({parts})"


def taken(pid: int) -> Memory:
    """The current memory of the process and all its children."""
    try:
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return Memory()
    looks = {one: _rollup(one) for one in [pid, *children]}
    anonymous, file, shared = (
        sum(look.get(name, 0) for look in looks.values()) for name in ("Pss_Anon", "Pss_File", "Pss_Shmem")
    )
    return Memory(anonymous, file, shared, max((looks[child].get("Rss", 0) for child in children), default=0))


class Watch:
    """`with Watch(pid) as watch:` samples memory about twenty times a second; `watch.peak` is the largest sample."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.peak = Memory()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            now = taken(self._pid)
            most = max(self.peak, now, key=lambda memory: memory.total)
            self.peak = most._replace(largest_child=max(self.peak.largest_child, now.largest_child))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def _rollup(pid: int) -> dict[str, int]:
    """Bytes by name; empty if the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name.rstrip(":"): 1024 * int(amount) for name, amount, *_ in map(str.split, lines)}
