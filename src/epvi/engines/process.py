"""A worker process, seen from its parent: a new Python interpreter with one XLA thread that runs one task at a time.

It is started as a subprocess and receives tasks and returns results through pipes on its standard input and output. So
it needs no semaphores and no shared memory, can be started from threads and from daemonic processes, and is never
forked: a process that has used JAX cannot be forked safely. It ends when its standard input is closed, so that no
worker outlives a parent that was killed.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import BrokenExecutor
from io import FileIO

from epvi.engines.compile_cache import cache_environment
from epvi.engines.frames import receive, send
from epvi.ground.errors import EpviError

# One thread per worker: XLA sizes its thread pool by `NPROC`, and threads of OpenBLAS beside those of JAX stall for
# seconds. The variables are read when a process starts.
_ENVIRONMENT = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# The worker ignores SIGINT, which its parent handles, and imports modules from its parent's sys.path.
_BEGIN = (
    "import json,os,signal,sys;signal.signal(signal.SIGINT,signal.SIG_IGN);"
    "sys.path[:]=json.loads(os.environ.pop('EPVI_WORKER_PATH'));"
    "from epvi.engines.serving import serve;serve(int(sys.argv[1]),sys.argv[2])"
)


class WorkerDied(BrokenExecutor):
    """A worker process ended in the middle of a task."""


class WorkerGone(WorkerDied):
    """A worker process ended before it began the task, so the task cannot be the cause."""


class WorkerProcess:
    """A worker process. One thread calls `run` and `end`; any thread may call `kill`."""

    def __init__(self, num_workers: int, preloaded: str = "") -> None:
        environment = dict(os.environ) | _ENVIRONMENT | cache_environment()
        environment["EPVI_WORKER_PATH"] = json.dumps(sys.path)
        # Warnings of libraries in workers must not become errors because the user's program turns its own into errors.
        environment.pop("PYTHONWARNINGS", None)
        command = [sys.executable or "python", "-c", _BEGIN, str(num_workers), preloaded]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, env=environment)
        except OSError as error:
            raise _cannot_start(error.strerror or str(error)) from error
        assert isinstance(self._process.stdin, FileIO)
        assert isinstance(self._process.stdout, FileIO)
        self._tasks, self._answers = self._process.stdin, self._process.stdout
        # Whether it has begun a task, which shows that workers can be started on this machine.
        self._served = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def run(self, task: bytes) -> bytes:
        """Run a pickled task and return the pickled result; raises `WorkerDied` if the process ends first."""
        began = False
        try:
            send(self._tasks, task)
            receive(self._answers)
            began = self._served = True
            return receive(self._answers)
        except (EOFError, OSError):
            raise self._ended(began) from None

    def _ended(self, began: bool) -> Exception:
        """The exception that says why the process ended."""
        self.end()
        code = self._process.returncode
        if code > 0 and not self._served:
            return _cannot_start(f"exit code {code}; see its message on the standard error")
        kind = WorkerDied if began else WorkerGone
        return kind(f"signal {-code}" if code < 0 else f"exit code {code}")

    def kill(self) -> None:
        """Kill the process; the thread that waits in `run` gets a `WorkerDied`."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self.disown()

    def disown(self) -> None:
        """Close the pipes. A forked process does only this, because the worker belongs to its parent."""
        self._tasks.close()
        self._answers.close()
        if self._process.returncode is None:
            # Keep subprocess from waiting for a process that is not a child of this one.
            self._process.returncode = 0


def _cannot_start(why: str) -> EpviError:
    return EpviError(
        f"worker processes cannot be started here ({why}): pass executor=concurrent.futures.ThreadPoolExecutor(1) to"
        " fit in this process."
    )
