"""What a worker process does: it runs one task after another for the process that started it, and ends with it.

Tasks come through the standard input and results leave through the standard output; what a model prints goes to the
standard error instead, because it is no result of the program.
"""

import importlib
import os
import queue
import socket
import threading
from io import FileIO

import cloudpickle

from epvi.engines.frames import receive, send


def serve(num_workers: int, preloaded: str) -> None:
    """Run tasks until the input ends.

    `num_workers` is how many processes share the cores, `preloaded` the module that every task needs.
    """
    # In a program that has closed its standard error this takes its number, and prints go nowhere.
    nothing = os.open(os.devnull, os.O_RDWR)
    incoming = FileIO(os.dup(0), "rb")
    outgoing = FileIO(os.dup(1), "wb")
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    take_a_core(num_workers)
    if preloaded:
        importlib.import_module(preloaded)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, tasks), daemon=True).start()
    while True:
        task = tasks.get()
        send(outgoing, b"begun")
        send(outgoing, _answer(task))


def _listen(incoming: FileIO, tasks: "queue.SimpleQueue[bytes]") -> None:
    """Take tasks as they come; without the process that sends them, what is being computed is for nobody."""
    while True:
        try:
            tasks.put(receive(incoming))
        except (EOFError, OSError):
            os._exit(1)


def _answer(task: bytes) -> bytes:
    """The result of a task, or the exception that it ended with."""
    try:
        function, arguments = cloudpickle.loads(task)
        return cloudpickle.dumps((function(*arguments), None))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
    """An exception that the other process can read, whatever this one holds."""
    plain = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    try:
        message = cloudpickle.dumps((None, plain))
        cloudpickle.loads(message)
    except Exception:
        return cloudpickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return message


def take_a_core(num_workers: int) -> None:
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
