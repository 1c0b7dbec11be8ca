"""The whole job on an executor: the paper's Algorithm 1.

Takes a model and all rows; splits them, fits every shard apart, and combines the fits into the posterior.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np

from epvi import pool
from epvi.errors import EpviError
from epvi.handover import ShardFit
from epvi.hub.combine import multiplied
from epvi.hub.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.progress import ShardProgress
from epvi.seeds import Seed, as_key
from epvi.site.assembly import Table
from epvi.site.density import block_size
from epvi.site.inference import Inference
from epvi.site.model import Model
from epvi.site.recipe import read_rows
from epvi.site.rows import Columns
from epvi.site.shard import Part, Plan, as_inference, as_model, provenance
from epvi.site.split import Split, split_by, split_evenly
from epvi.store import reported, write_rows
from epvi.worker import HeldRows, Job, model_of, run_shard
from epvi.workfolder import WorkFolder, remove_dead

# Shard m uses the m-th key; the split's is out of their reach.
_SPLIT_KEY = 2**31
_POLL_SECONDS = 0.1


class ShardError(EpviError):
    """Some shards could not be fitted; `fits` holds those that could."""

    def __init__(self, message: str, fits: tuple[ShardFit, ...]) -> None:
        super().__init__(message)
        self.fits = fits


def fit(
    model: Model | Callable,
    rows: Any,
    shards: int | None = None,
    *,
    by: str | None = None,
    shuffle: bool = True,
    inference: Inference | None = None,
    product: Product | None = None,
    executor: Executor | int | None = None,
    work: str | os.PathLike | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Posterior:
    """The posterior of all rows, from `shards` parts that are fitted independently of each other.

    `rows` is a mapping of columns with one entry per row in each, a data frame, a path or glob, or `Rows`. They are
    dealt out at random, unless `shuffle=False` (then shards are runs of rows in their order) or `by` names a column
    with one value per shard. `inference` fits a shard (`NVI()`), `product` multiplies the fits (as in
    `multiply`). `executor` is any `concurrent.futures.Executor`, or a number of processes of epvi's own pool (all cores
    unless said). The same seed gives the same answer for any number of workers. `work` is a folder in which each
    shard's fit is kept as soon as it is finished: run again, only what is missing is done. `progress` shows a bar (on a
    terminal, unless said).
    """
    model, inference, key = as_model(model), as_inference(inference), as_key(seed)
    if executor is not None and not isinstance(executor, Executor | int):
        raise EpviError(f"executor is {executor!r}: pass a concurrent.futures.Executor or a number of processes.")
    table, split = _split(model, rows, shards, by, shuffle, key)
    if not isinstance(executor, Executor):
        # They start while the model is looked at.
        pool.workers(executor)
    sent = _as_bytes(model)
    model = model_of(sent)
    programs = model.programs(table.columns)
    programs.target.check(table.columns)
    size = block_size(programs, table.columns, split.largest, inference.points_at_once)
    key_data = np.asarray(jax.random.key_data(key))
    job = Job(sent, Plan(inference, size, key_data, provenance(model, programs, table), table.hash_key), None)
    with ShardProgress(split.num_shards, progress) as bar:
        fits = _fit_shards(job, table.columns, split, executor, bar, WorkFolder(Path(work)) if work else None)
        return _combined(fits, product, seed, bar)


def _fit_shards(
    job: Job,
    columns: Columns,
    split: Split,
    executor: Executor | int | None,
    bar: ShardProgress,
    work: WorkFolder | None,
) -> list[ShardFit]:
    """Fit all shards but those that the work folder has already, there or in this machine's processes."""
    m = split.num_shards
    parts = [Part(i, m, label, Fraction(1, m)) for i, label in enumerate(split.labels, start=1)]
    done = _already(work, job.plan, columns, parts, split)
    left = [part for part in parts if part.shard not in done]
    if isinstance(executor, Executor):
        tasks = [(part, HeldRows(_taken(columns, split, part))) for part in left]
        return _run(executor, job, tasks, done, bar, work)
    if not left:
        return [done[shard] for shard in sorted(done)]
    with pool.stopped_on_interrupt(), _folder(work) as folder:
        workers = pool.workers(executor)
        passes = folder / "passes.npy"
        with reported(folder.parent):
            np.save(passes, np.zeros(m, np.int32))
        bar.say("reading rows")
        mapped = write_rows(columns, split, folder, min(pool.size_of(executor), m))
        bar.say("fitting shards")
        tasks = [(part, mapped[part.shard - 1]) for part in left]
        bar.watch(passes)
        return _run(workers, dataclasses.replace(job, passes=passes), tasks, done, bar, work)


def _taken(columns: Columns, split: Split, part: Part) -> Columns:
    return {name: column[split.shards[part.shard - 1]] for name, column in columns.items()}


def _already(
    work: WorkFolder | None, plan: Plan, columns: Columns, parts: list[Part], split: Split
) -> dict[int, ShardFit]:
    if work is None:
        return {}
    work.tidy()
    found = {part.shard: work.fit_of(part, plan, lambda part=part: _taken(columns, split, part)) for part in parts}
    return {shard: fit for shard, fit in found.items() if fit is not None}


def _combined(fits: list[ShardFit], product: Product | None, seed: Seed, bar: ShardProgress) -> Posterior:
    bad = [fit for fit in fits if not fit.status.ok]
    if bad:
        good = tuple(fit for fit in fits if fit.status.ok)
        others = f" So it was with {len(bad) - 1} more." if len(bad) > 1 else ""
        raise ShardError(f"shard {bad[0].label} did not end well: {bad[0].status}{others}{_kept(good)}", good)
    bar.say("multiplying")
    posterior = multiplied(fits, product, seed)
    bar.say("done")
    return posterior


def _split(
    model: Model, rows: Any, shards: int | None, by: str | None, shuffle: bool, key: jax.Array
) -> tuple[Table, Split]:
    """Checked columns for the model, and which rows go where."""
    if by is not None and not isinstance(by, str):
        raise EpviError(f"by is {by!r}: pass the name of one column.")
    if (by is None) == (shards is None):
        raise EpviError('pass either shards=8 or by="column": how many parts there are, or which column names them.')
    table = read_rows(rows, by, keep=by is not None and model.takes(by))
    if by is not None:
        return table, split_by(table.extra, by)
    assert shards is not None
    model.columns(list(table.columns))
    key = jax.random.fold_in(key, _SPLIT_KEY)
    return table, split_evenly(table.num_rows, shards, shuffle=shuffle, key=key)


def _as_bytes(model: Model) -> bytes:
    try:
        return cloudpickle.dumps(model)
    except Exception as error:
        raise EpviError(
            f"the model cannot be sent to workers ({type(error).__name__}: {error}): keep files, locks and connections"
            " out of what it refers to."
        ) from error


@contextlib.contextmanager
def _folder(work: WorkFolder | None) -> Iterator[Path]:
    if work is not None:
        with work.scratch() as folder:
            yield folder
        return
    with reported(tempfile.tempdir or "the temporary folder"):
        remove_dead(Path(tempfile.gettempdir()), "epvi-rows-")
        folder = Path(tempfile.mkdtemp(prefix=f"epvi-rows-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    executor: Executor,
    job: Job,
    tasks: list[tuple[Part, Any]],
    done_before: dict[int, ShardFit],
    bar: ShardProgress,
    work: WorkFolder | None,
) -> list[ShardFit]:
    """Fit all shards; when some fail, the others still finish."""
    futures: dict[Future, Part] = {}
    pending: set[Future] = set()
    fits = dict(done_before)
    failed: dict[int, Exception] = {}
    try:
        for part, rows in tasks:
            futures[_submit(executor, job, part, rows)] = part
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                shard = futures[future].shard
                error = future.exception()
                if error is None:
                    fits[shard] = future.result()
                    if work is not None:
                        work.keep(fits[shard])
                elif isinstance(error, Exception):
                    failed[shard] = error
                else:
                    raise error
            bar.update(set(fits) | set(failed))
    finally:
        for future in futures:
            future.cancel()
    if failed:
        raise _explained(failed, fits, {part.shard: part for part, _ in tasks}, job)
    return [fits[shard] for shard in sorted(fits)]


def _kept(fits: tuple[ShardFit, ...]) -> str:
    return f" The other {len(fits)} fits are in the error's `fits`." if fits else ""


def _submit(executor: Executor, job: Job, part: Part, rows: Any) -> Future:
    try:
        return executor.submit(run_shard, job, part, rows)
    except RuntimeError as error:
        said = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
        raise EpviError(f"the executor takes no work ({said}): pass one that is still open.") from error


def _explained(failed: dict[int, Exception], fits: dict[int, ShardFit], parts: dict[int, Part], job: Job) -> ShardError:
    """One sentence that names the shard, and the fits of the others."""
    kept = tuple(fits[shard] for shard in sorted(fits))
    rest = _kept(kept)
    if any(isinstance(error, BrokenProcessPool) for error in failed.values()):
        begun = sorted(failed)
        if job.passes is not None:
            pool.close()
            counts = np.load(job.passes)
            begun = [shard for shard in begun if counts[shard - 1] > 0] or begun
        which = " or ".join(parts[shard].label for shard in begun[:4])
        return ShardError(
            f"a worker process died while it fitted shard {which}: it was killed, or ran out of memory. Take more"
            f" shards or fewer workers (executor=1).{rest}",
            kept,
        )
    first = min(failed)
    error = failed[first]
    others = f" So it was with {len(failed) - 1} more." if len(failed) > 1 else ""
    said = str(error) if isinstance(error, EpviError) else f"{type(error).__name__}: {str(error).rstrip('.')}."
    return ShardError(f"shard {parts[first].label} could not be fitted: {said}{others}{rest}", kept)
