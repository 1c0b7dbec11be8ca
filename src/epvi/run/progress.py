"""A progress bar on the terminal: how many shards are done, and how many passes the others have made."""

import sys
from pathlib import Path
from types import TracebackType

import numpy as np


class ShardProgress:
    """A progress bar over shards on stderr; with `show=None` only if stderr is a terminal."""

    def __init__(self, num_shards: int, show: bool | None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._num_shards = num_shards
        self._counts: np.ndarray | None = None

    def watch(self, passes: Path) -> None:
        """Also show the passes over the rows, which workers count in this memory-mapped file."""
        self._counts = np.load(passes, mmap_mode="r")

    def __enter__(self) -> "ShardProgress":
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(
                *columns, TextColumn("{task.fields[doing]}", markup=False), console=Console(stderr=True)
            )
            self._bar.start()
            self._task = self._bar.add_task("fitting shards", total=self._num_shards, doing="")
        return self

    def begin(self, what: str) -> None:
        """Restart the bar for another kind of work on all shards."""
        if self._show:
            self._bar.reset(self._task, description=what, completed=0, doing="")

    def update(self, done: set[int]) -> None:
        """Set which shards (numbered from 1) are done."""
        if not self._show:
            return
        doing = ""
        if self._counts is not None:
            busy = [m for m in range(1, self._num_shards + 1) if self._counts[m - 1] > 0 and m not in done]
            doing = ", ".join(f"shard {m}: pass {self._counts[m - 1]}" for m in busy[:4])
            doing += ", ..." if len(busy) > 4 else ""
            doing = doing or ("starting workers" if not done else "")
        self._bar.update(self._task, completed=len(done), doing=doing)

    def say(self, what: str) -> None:
        """Set the description of the bar."""
        if self._show:
            self._bar.update(self._task, description=what, doing="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show:
            self._bar.stop()
