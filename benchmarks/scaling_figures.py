"""Figures of scaling.py other than the time of a fit: passes of two workers, the paper's clock, first calls, memory.

Every function takes a work and a number of shards and gives figures by name; it runs in a process of its own.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scaling_data import Work
from susy import susy_like

import epvi
from epvi.engines import local as pool

# Rounds of which figures are medians, after one that warms up.
_ROUNDS = 3
# Makes the rows of a work, and fits them once.
_FIT = """
import sys, time, epvi
from scaling_data import Work
kind, num_rows, size, seed, num_shards = sys.argv[1:]
work = Work(kind, int(num_rows), int(size), int(seed))
rows, model = work.rows(), work.model()
start = time.perf_counter()
epvi.fit(model, rows, int(num_shards), seed=work.seed, progress=False)
print(time.perf_counter() - start)
"""


def passes(work: Work, num_shards: int) -> Mapping[str, float]:
    """Speed-up by a second worker, of a fit's passes over its rows and of a bare pass over as many rows."""
    model, rows = work.model(), work.rows()
    found = []
    for _ in range(1 + _ROUNDS):
        one, two = (_pass_seconds(model, rows, work.seed, workers) for workers in (1, 2))
        alone = pool.workers(2).submit(_bare, work.num_rows // 2, work.seed).result()
        pair = [pool.workers(2).submit(_bare, work.num_rows // 2, work.seed) for _ in range(2)]
        both = max(future.result() for future in pair)
        found.append((one / two, 2 * alone / both))
    passed, bare = np.median(found[1:], axis=0)
    return {"fit": float(passed), "bare": float(bare)}


def _pass_seconds(model: epvi.Model, rows: dict[str, np.ndarray], seed: int, workers: int) -> float:
    """Time of the passes of a fit of two shards: of both in turn by one worker, of the slower one by two."""
    made = epvi.fit(model, rows, 2, executor=workers, seed=seed, certify=False, progress=False)
    seconds = [fit.pass_seconds for fit in made.fits]
    return sum(seconds) if workers == 1 else max(seconds)


def _bare(num_rows: int, seed: int) -> float:
    """Seconds of a pass for XᵀDX, in a worker."""
    from stages import pass_by_hand

    return pass_by_hand(susy_like(num_rows, seed))


def papers_clock(work: Work, num_shards: int) -> Mapping[str, float]:
    """Seconds of a fit of all rows, and of the slowest shard with transfer and product; each alone on one core."""
    # XLA sizes its threads when it is first used, which is below.
    os.environ["NPROC"] = "1"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from tall import by_the_papers_clock

    model, rows = work.model(), work.rows()
    order = np.random.default_rng(work.seed).permutation(work.num_rows)
    parts = [{name: column[at] for name, column in rows.items()} for at in np.array_split(order, num_shards)]
    found = []
    for _ in range(1 + _ROUNDS):
        full = epvi.fit_shard(model, rows, "1/1", seed=work.seed).seconds
        fits = [epvi.fit_shard(model, part, f"{m}/{num_shards}", seed=work.seed) for m, part in enumerate(parts, 1)]
        found.append((full, *by_the_papers_clock(fits)))
    full, slowest, transfer, product = np.median(found[1:], axis=0)
    return {"full": float(full), "shards": float(slowest + transfer + product), "slowest": float(slowest)}


def fresh(work: Work, num_shards: int) -> Mapping[str, float]:
    """Seconds of the first call in a fresh process, whose compilation cache is empty or filled."""
    from cold import environment_with

    with tempfile.TemporaryDirectory() as folder:
        environment = environment_with(Path(folder) / "cache")

        def first_call() -> float:
            done = subprocess.run(
                _command(work, num_shards), check=True, capture_output=True, text=True, env=environment
            )
            return float(done.stdout)

        empty = first_call()
        return {"empty": empty, "filled": float(np.median([first_call() for _ in range(_ROUNDS)]))}


def memory(work: Work, num_shards: int) -> Mapping[str, float]:
    """Peak memory in bytes of the caller and its workers, shared pages counted once, rows included."""
    from cold import environment_with, peak_of

    with tempfile.TemporaryDirectory() as folder:
        return {"peak": float(peak_of(_command(work, num_shards), environment_with(Path(folder) / "cache")).total)}


def _command(work: Work, num_shards: int) -> list[str]:
    return [sys.executable, "-c", _FIT, *map(str, (*work, num_shards))]
