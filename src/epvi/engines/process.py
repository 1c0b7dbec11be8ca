"""One worker process as its owner sees it: a fresh interpreter with one XLA thread that runs one task at a time.

Started as a plain program and spoken to through its standard input and output: it needs no semaphores and no shared
memory, may be started from threads and from daemonic processes, and is never forked, because a process that has used
JAX cannot be. It ends when its input does, so that nothing is left behind by a process that was killed.
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

# `NPROC` is what XLA sizes its thread pool by, and OpenBLAS threads beside JAX's stall it; both must be set before the
# process starts.
_ENVIRONMENT = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Interrupts are its owner's business, and modules are found where its owner finds them.
_BEGIN = (
    "import json,os,signal,sys;signal.signal(signal.SIGINT,signal.SIG_IGN);"
    "sys.path[:]=json.loads(os.environ.pop('EPVI_WORKER_PATH'));"
    "from epvi.engines.serving import serve;serve(int(sys.argv[1]),sys.argv[2])"
)


class WorkerDied(BrokenExecutor):
    """A worker process ended in the middle of a task."""


class WorkerGone(WorkerDied):
    """A worker process had ended before it began the task, which can have nothing to do with it."""


class WorkerProcess:
    """A worker; `run` and `end` are for one thread, `kill` for any."""

    def __init__(self, num_workers: int, preloaded: str = "") -> None:
        environment = dict(os.environ) | _ENVIRONMENT | cache_environment()
        environment["EPVI_WORKER_PATH"] = json.dumps(sys.path)
        # A user who turns warnings into errors does so for the program, not for what libraries say in its workers.
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
        # Whether it has begun a task, and can therefore be started here.
        self._served = False

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can take a task."""
        return self._process.poll() is None

    def run(self, task: bytes) -> bytes:
        """Run a task and wait for its result; raises `WorkerDied` when the process ends before that."""
        began = False
        try:
            send(self._tasks, task)
            receive(self._answers)
            began = self._served = True
            return receive(self._answers)
        except (EOFError, OSError):
            raise self._ended(began) from None

    def _ended(self, began: bool) -> Exception:
        """Why it is gone."""
        self.end()
        code = self._process.returncode
        if code > 0 and not self._served:
            return _cannot_start(f"exit code {code}; what it said is on the standard error")
        kind = WorkerDied if began else WorkerGone
        return kind(f"signal {-code}" if code < 0 else f"exit code {code}")

    def kill(self) -> None:
        """Stop it at once, whatever it does; its owner's thread notices."""
        self._process.kill()

    def end(self) -> None:
        """Stop it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self.disown()

    def disown(self) -> None:
        """Let go of the pipes; in a forked process that is all there is to do, because the worker is another's."""
        self._tasks.close()
        self._answers.close()
        if self._process.returncode is None:
            # Nobody is to wait for it here.
            self._process.returncode = 0


def _cannot_start(why: str) -> EpviError:
    return EpviError(
        f"worker processes cannot be started here ({why}): pass executor=concurrent.futures.ThreadPoolExecutor(1) to"
        " fit in this process."
    )
