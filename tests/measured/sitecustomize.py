"""Runs at the start of every process while `make coverage` measures: workers save what they have run after each task.

Coverage saves when a process ends, and epvi's workers are ended by a signal that leaves no time for it.
"""

import os

# Only workers have it, until they have read it.
if "EPVI_WORKER_PATH" in os.environ:
    import coverage

    from epvi.engines import serving

    _measured, _answer = coverage.Coverage.current(), serving._answer

    def _saved(task: bytes) -> bytes:
        answer = _answer(task)
        if _measured is not None:
            _measured.save()
        return answer

    serving._answer = _saved
