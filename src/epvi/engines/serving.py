"""The main loop of a worker process: run tasks for the parent process, and end when the parent does.

Tasks arrive on the standard input and results leave on the standard output. What a model prints is redirected to the
standard error, so that it does not mix with the results.
"""

import gc
import importlib
import os
import queue
import socket
import threading
from io import FileIO

import cloudpickle

from epvi.engines.frames import receive, send


def serve(num_workers: int, preloaded: str) -> None:
    """Run tasks until the standard input is closed.

    `num_workers` is the number of processes that share the cores, `preloaded` a module that every task needs.
    """
    # If the parent has closed its standard error, this takes descriptor 2, and what is printed is discarded.
    nothing = os.open(os.devnull, os.O_RDWR)
    incoming = FileIO(os.dup(0), "rb")
    outgoing = FileIO(os.dup(1), "wb")
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    take_a_core(num_workers)
    # The garbage collector need not look at the modules again and again, neither while they are imported, which takes a
    # tenth longer with it, nor later, when each time takes as long as a small task.
    gc.disable()
    if preloaded:
        importlib.import_module(preloaded)
    gc.freeze()
    gc.enable()
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, tasks), daemon=True).start()
    while True:
        task = tasks.get()
        send(outgoing, b"begun")
        send(outgoing, _answer(task))


def _listen(incoming: FileIO, tasks: "queue.SimpleQueue[bytes]") -> None:
    """Queue tasks as they arrive; end this process, even in the middle of a task, when the parent has ended."""
    while True:
        try:
            tasks.put(receive(incoming))
        except (EOFError, OSError):
            os._exit(1)


def _answer(task: bytes) -> bytes:
    """Run a pickled task: the pickled pair of its result and None, or of None and the exception it raised."""
    try:
        function, arguments = cloudpickle.loads(task)
        return cloudpickle.dumps((function(*arguments), None))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
    """A pickled exception that the parent can load: a RuntimeError with its text if the original cannot be pickled."""
    plain = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    try:
        message = cloudpickle.dumps((None, plain))
        cloudpickle.loads(message)
    except Exception:
        return cloudpickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return message


def take_a_core(num_workers: int) -> None:
    """Pin this process to a core that no other worker has taken, if there is a core for every worker of the pool.

    A core is taken by binding a socket name, which only one process at a time can hold.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if num_workers > len(cores):
        return
    for core in cores:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # Linux's abstract namespace: no file is made, and the name is free again when the process ends.
            name.bind(f"\0epvi core {core} of user {os.getuid()}")
            os.sched_setaffinity(0, {core})
        except OSError:
            name.close()
            continue
        name.detach()
        return
