"""Which worker takes which task."""

import queue
import threading

import pytest

from epvi.engines.task_queue import TaskQueue


def waiting(tasks, worker):
    """A thread in which a worker waits for a task, and the list to which it adds what it took."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(tasks.get(worker, 10.0)), daemon=True)
    thread.start()
    return thread, taken


def test_a_worker_takes_its_own_tasks_first():
    tasks = TaskQueue(2)
    for task, worker in (("theirs", 0), ("anybody's", None), ("mine", 1)):
        tasks.put(task, worker)
    # Worker 0 is busy: it has not asked yet.
    assert [tasks.get(1, 0.0) for _ in range(3)] == ["mine", "anybody's", "theirs"]


def test_a_task_for_a_free_worker_is_left_to_it():
    tasks = TaskQueue(2)
    thread, taken = waiting(tasks, 1)
    while tasks._busy != {0}:
        pass
    tasks.put("for 3, which is 1 of two workers", 3)
    thread.join(10.0)
    assert taken == ["for 3, which is 1 of two workers"]


def test_a_task_for_a_busy_worker_is_anybodys():
    tasks = TaskQueue(2)
    tasks.put("a", 0)
    tasks.put("b", 0)
    assert tasks.get(0, 0.0) == "a"
    assert tasks.get(1, 0.0) == "b"


def test_without_a_task_it_waits_and_a_closed_queue_is_emptied_first():
    tasks = TaskQueue(1)
    with pytest.raises(queue.Empty):
        tasks.get(0, 0.01)
    tasks.put("last", 0)
    assert tasks.close() == ["last"]
    assert tasks.get(0, 1.0) == "last"
    assert tasks.get(0, 1.0) is None
