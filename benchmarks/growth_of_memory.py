"""Memory over many fits of different shapes in one process: that of the caller and of each worker must level off.

`python benchmarks/growth_of_memory.py --fits 500 --workers 2` fits in worker processes; `--workers 0` fits in this
process, by fit_shard, combine, score and certify. Reads /proc, so it needs Linux.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

import epvi
from epvi.ground.compiled import num_held
from epvi.models import logistic, simulate_logistic

MB = 1e6
_PAGE = 4096
# Numbers of columns and of rows: 10 x 50 shapes, fitted in turn.
_COLUMNS, _ROWS = range(1, 11), range(40, 140, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args()
    print(f"{'fits':>6s}{'programs':>10s}{'caller, MB':>12s}  workers, MB")
    shapes = itertools.cycle(itertools.product(_ROWS, _COLUMNS))
    caller = []
    for number, (num_rows, num_columns) in zip(range(1, chosen.fits + 1), shapes, strict=False):
        rows, _ = simulate_logistic(num_rows, num_columns, seed=number)
        _fit_here(rows) if chosen.workers == 0 else epvi.fit(logistic, rows, 2, executor=chosen.workers, refine=0)
        if number % chosen.every == 0:
            caller.append(_resident("self"))
            workers = "  ".join(f"{_resident(pid):6.0f}" for pid in _children())
            print(f"{number:6d}{num_held():10d}{caller[-1]:12.0f}  {workers}", flush=True)
    half = len(caller) // 2
    if half:
        print(
            f"the caller's most in the first half {max(caller[:half]):.0f} MB, in the second {max(caller[half:]):.0f}"
        )


def _fit_here(rows: dict[str, np.ndarray]) -> None:
    halves = [{name: column[m::2] for name, column in rows.items()} for m in range(2)]
    posterior = epvi.combine([epvi.fit_shard(logistic, half, f"{m}/2") for m, half in enumerate(halves, 1)])
    draws = posterior.ask(64)
    scores = [epvi.score(logistic, half, draws, f"{m}/2") for m, half in enumerate(halves, 1)]
    posterior.with_certificate(epvi.certify(posterior, scores)).summary(num_samples=100)


def _resident(process: str) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE / MB


def _children() -> list[str]:
    """Process ids of the workers (children of this process), largest first."""
    listed = Path("/proc/self/task").glob("*/children")
    pids = [pid for path in listed for pid in path.read_text().split()]
    return sorted(pids, key=_resident, reverse=True)


if __name__ == "__main__":
    main()
