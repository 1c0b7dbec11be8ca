"""Profile of a warm fit: the stages of the caller, and those of a shard in its worker."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from susy import Rows

import epvi
from epvi.engines import local as pool
from epvi.models import logistic
from epvi.run.row_files import write_rows
from epvi.run.worker import Job, run_shard
from epvi.site.derivatives.expansion import Around
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.rows.columns import as_columns
from epvi.site.rows.split import split_evenly
from epvi.site.rows.table import Table
from epvi.site.tasks import fit_shard as site_shard
from epvi.site.tasks.fit_shard import FitPlan
from epvi.site.tasks.prepared import provenance
from epvi.site.tasks.sent_model import packed
from epvi.wire.shard_fit import Part

# A shard's stages in the order in which they are shown.
_STAGES = ("support of the labels", "rows taken for parts", "passes over parts", "passes over all rows",
           "values around the mode", "hash of the rows")  # fmt: skip


@contextlib.contextmanager
def _counted(owner: Any, name: str, stage: Callable[[Any], str], spent: dict[str, float]) -> Iterator[None]:
    """Add the time of a function to the stage that `stage` names from its first argument."""
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = inner(*args, **kwargs)
        which = stage(args[0])
        spent[which] = spent.get(which, 0.0) + time.perf_counter() - start
        return result

    setattr(owner, name, outer)
    try:
        yield
    finally:
        setattr(owner, name, inner)


def _staged(job: Job, part: Part, rows: Any) -> tuple[dict[str, float], float, int]:
    """Fit a shard in a worker: seconds by stage, total seconds, and number of passes."""
    spent: dict[str, float] = {}
    whole = len(next(iter(rows.columns().values())))

    def passes(sub: Subposterior) -> str:
        return "passes over all rows" if sub.num_rows == whole else "passes over parts"

    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        for owner, name, stage in (
            (Subposterior, "refuse_outside", lambda _: "support of the labels"),
            (Subposterior, "_taken", lambda _: "rows taken for parts"),
            (Subposterior, "_sweep", passes),
            (Around, "near", lambda _: "values around the mode"),
            (site_shard, "hash_rows", lambda _: "hash of the rows"),
        ):
            stack.enter_context(_counted(owner, name, stage, spent))
        fit = run_shard(job, part, rows)
    return spent, time.perf_counter() - start, fit.passes


def _by_hand(rows: Any) -> float:
    return pass_by_hand(rows.columns())


def pass_by_hand(columns: Mapping[str, np.ndarray]) -> float:
    """Seconds of one pass over rows (value, gradient, Hessian), written by hand for logistic regression."""
    size = 2**14

    @jax.jit
    def block(w: Any, x: Any, y: Any) -> Any:
        odds, labels = x @ w, y.astype(jnp.float32)
        p = jax.nn.sigmoid(odds)
        value = jnp.sum((labels * odds - jax.nn.softplus(odds)).astype(jnp.float64))
        return value, (labels - p) @ x, (x * (p * (1 - p))[:, None]).T @ x

    taken = []
    w = np.full(columns["x"].shape[1], 0.1, np.float32)
    with jax.enable_x64(True):
        for _ in range(4):
            start, made = time.perf_counter(), []
            for i in range(0, len(columns["x"]) - size, size):
                made.append(block(w, columns["x"][i : i + size], columns["y"][i : i + size]))
            jax.block_until_ready(made)
            taken.append(time.perf_counter() - start)
    return min(taken)


def stages(rows: Rows, seed: int) -> None:
    """Print the profile of a fit with two workers; each stage is the fastest of three runs."""
    model, inference = epvi.Model(logistic), epvi.NVI()
    runs: list[tuple[dict[str, float], tuple]] = []
    by_hand: list[float] = []
    for _ in range(4):
        caller: dict[str, float] = {}
        with _timed(caller, "numbers checked"):
            columns = as_columns(rows)
        key = jax.random.key(seed)
        with _timed(caller, "rows dealt out"):
            split = split_evenly(len(columns["y"]), 2, shuffle=True, key=key)
        programs = programs_of(model, columns)
        size = block_size(programs, columns, split.largest, inference.points_at_once)
        made_of = provenance(model, programs, Table(columns))
        job = Job(packed(model), FitPlan(inference, size, np.asarray(jax.random.key_data(key)), made_of), None)
        folder = Path(tempfile.mkdtemp())
        try:
            with _timed(caller, "rows written for workers"):
                mapped = write_rows(columns, split, folder, 2)
            with _timed(caller, "both shards, in two workers"):
                parts = [Part(i, 2, f"{i} of 2", Fraction(1, 2)) for i in (1, 2)]
                futures = [
                    pool.workers(2).submit(_staged, job, part, part_rows)
                    for part, part_rows in zip(parts, mapped, strict=True)
                ]
                found = [future.result() for future in futures]
            by_hand = [future.result() for future in [pool.workers(2).submit(_by_hand, its) for its in mapped]]
        finally:
            with _timed(caller, "files removed"):
                shutil.rmtree(folder)
        runs.append((caller, tuple(found)))
    _show(runs[1:], rows, sum(by_hand))


@contextlib.contextmanager
def _timed(spent: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    spent[stage] = time.perf_counter() - start


def _show(runs: list, rows: Rows, by_hand: float) -> None:
    sums = []
    for _ in range(5):
        start = time.perf_counter()
        np.sum(rows["x"])
        sums.append(time.perf_counter() - start)
    one = min(sums)
    print(
        f"Where the time goes: {len(rows['y']):,} rows, two workers, warm; a plain sum over the rows takes {one:.4f} s"
    )
    for stage in runs[0][0]:
        least = min(caller[stage] for caller, _ in runs)
        print(f"{stage:32s}{least:9.3f} s{least / one:8.1f} sums")
    shards = min((found for _, found in runs), key=lambda found: max(total for _, total, _ in found))
    print(f"of a shard, both together ({max(passes for _, _, passes in shards)} passes over all its rows):")
    for stage in _STAGES:
        seconds = sum(spent.get(stage, 0.0) for spent, _, _ in shards)
        print(f"  {stage:30s}{seconds:9.3f} s{seconds / one:8.1f} sums")
    rest = sum(total - sum(spent.values()) for spent, total, _ in shards)
    print(f"  {'the rest, on the host':30s}{rest:9.3f} s{rest / one:8.1f} sums")
    print(f"a pass over all rows, written by hand: {by_hand / one:.1f} sums")
