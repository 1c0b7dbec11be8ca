"""A queue of tasks for numbered workers, each of which may be meant for one of them.

A worker that has done such a task before has its compiled programs, which other workers would have to make first. So a
free worker takes the tasks that are meant for it, then those for anybody, and those for another worker only while that
one is busy.
"""

import queue
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """The tasks that no worker has taken yet; its methods may be called from any thread."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._tasks: deque[tuple[int | None, T]] = deque()
        # Workers that do not wait for a task: at first all of them, which are not ready yet.
        self._busy = set(range(num_workers))
        self._open = True
        self._changed = threading.Condition()

    def put(self, task: T, worker: int | None = None) -> None:
        """Add a task, for a worker (modulo the number of workers) or for anybody."""
        with self._changed:
            self._tasks.append((None if worker is None else worker % self._num_workers, task))
            self._changed.notify_all()

    def close(self) -> list[T]:
        """Have workers end when no task is left; gives those that are left now."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
            return [task for _, task in self._tasks]

    def get(self, worker: int, timeout: float | None) -> T | None:
        """The next task of a worker that is free now; None if the queue is closed and empty.

        Raises `queue.Empty` if there is none for so many seconds.
        """
        with self._changed:
            self._busy.discard(worker)
            try:
                there = self._changed.wait_for(lambda: self._next(worker) is not None or self._over, timeout)
                if not there:
                    raise queue.Empty
                place = self._next(worker)
                if place is None:
                    return None
                task = self._tasks[place][1]
                del self._tasks[place]
                return task
            finally:
                self._busy.add(worker)
                # Tasks for this worker are anybody's now.
                self._changed.notify_all()

    @property
    def _over(self) -> bool:
        return not self._open and not self._tasks

    def _next(self, worker: int) -> int | None:
        """The place of the task that a free worker takes."""
        for wanted in ({worker}, {None}, self._busy):
            for place, (meant, _) in enumerate(self._tasks):
                if meant in wanted:
                    return place
        return None
