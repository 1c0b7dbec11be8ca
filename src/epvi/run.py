"""The whole job on an executor: the paper's Algorithm 1.

Takes a model and all rows; splits them, fits every shard apart, and combines the fits into the posterior.
"""

import contextlib
import dataclasses
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
from epvi.hub.combine import combine
from epvi.hub.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.progress import ShardProgress
from epvi.seeds import Seed, as_key
from epvi.site.density import block_size
from epvi.site.inference import Inference
from epvi.site.model import Model
from epvi.site.rows import Columns, Split, as_columns, raw_columns, split_by, split_evenly
from epvi.site.shard import Part, Plan, as_inference, as_model, provenance
from epvi.worker import HeldRows, Job, MappedRows, run_shard

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
    seed: Seed = 0,
    progress: bool | None = None,
) -> Posterior:
    """The posterior of all rows, from `shards` parts that are fitted independently of each other.

    `rows` is a mapping of columns, one entry per row in each. They are shuffled before they are split, unless
    `shuffle=False` (then shards are runs of rows in their order) or `by` names a column with one value per shard.
    `inference` fits a shard (`NVI()`), `product` multiplies the fits (as in `multiply`). `executor` is any
    `concurrent.futures.Executor`, or a number of processes of epvi's own pool (all cores unless said). The same seed
    gives the same answer for any number of workers. `progress` shows a bar (on a terminal, unless said).
    """
    model, inference, key = as_model(model), as_inference(inference), as_key(seed)
    columns, split = _split(model, rows, shards, by, shuffle, key)
    programs = model.programs(columns)
    programs.target.check(columns)
    size = block_size(programs.target, columns, split.largest, inference.points_at_once)
    plan = Plan(inference, size, np.asarray(jax.random.key_data(key)), provenance(model, programs, columns))
    job = Job(_as_bytes(model), plan, None)
    parts = [
        Part(m, split.num_shards, label, Fraction(1, split.num_shards)) for m, label in enumerate(split.labels, start=1)
    ]
    if isinstance(executor, Executor):
        ordered = {name: column[split.order] for name, column in columns.items()}
        tasks = [(part, HeldRows({n: c[s] for n, c in ordered.items()})) for part, s in zip(parts, split, strict=True)]
        with ShardProgress(len(parts), progress, None) as bar:
            fits = _run(executor, job, tasks, bar)
            return _combined(fits, product, seed, bar)
    if executor is not None and not isinstance(executor, int):
        raise EpviError(f"executor is {executor!r}: pass a concurrent.futures.Executor or a number of processes.")
    with pool.stopped_on_interrupt(), _folder() as folder:
        names = tuple(columns)
        job = dataclasses.replace(job, sweeps=_share(columns, split, folder))
        tasks = [(part, MappedRows(folder, names, s)) for part, s in zip(parts, split, strict=True)]
        with ShardProgress(len(parts), progress, job.sweeps) as bar:
            fits = _run(pool.workers(executor), job, tasks, bar)
            return _combined(fits, product, seed, bar)


def _combined(fits: list[ShardFit], product: Product | None, seed: Seed, bar: ShardProgress) -> Posterior:
    bad = [fit for fit in fits if not fit.status.ok]
    if bad:
        good = tuple(fit for fit in fits if fit.status.ok)
        others = f" So it was with {len(bad) - 1} more." if len(bad) > 1 else ""
        raise ShardError(f"shard {bad[0].label} did not end well: {bad[0].status}{others}{_kept(good)}", good)
    bar.say("multiplying")
    posterior = combine(fits, product, seed=seed)
    bar.say("done")
    return posterior


def _split(
    model: Model, rows: Any, shards: int | None, by: str | None, shuffle: bool, key: jax.Array
) -> tuple[Columns, Split]:
    """Checked columns for the model, and which rows go where."""
    raw = raw_columns(rows)
    if by is not None and not isinstance(by, str):
        raise EpviError(f"by is {by!r}: pass the name of one column.")
    if (by is None) == (shards is None):
        raise EpviError('pass either shards=8 or by="column": how many parts there are, or which column names them.')
    if shards is not None:
        columns = as_columns(raw)
        model.columns(list(columns))
        n = len(next(iter(columns.values())))
        return columns, split_evenly(n, shards, shuffle=shuffle, key=jax.random.fold_in(key, _SPLIT_KEY))
    assert by is not None
    split = split_by(raw, by)
    columns = as_columns({name: column for name, column in raw.items() if name != by or model.takes(by)})
    n = len(next(iter(columns.values())))
    if n != split.bounds[-1]:
        raise EpviError(f"column {by!r} has {split.bounds[-1]:,} entries and the others {n:,}: one per row in each.")
    return columns, split


def _as_bytes(model: Model) -> bytes:
    try:
        return cloudpickle.dumps(model)
    except Exception as error:
        raise EpviError(
            f"the model cannot be sent to workers ({type(error).__name__}: {error}): keep files, locks and connections"
            " out of what it refers to."
        ) from error


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="epvi-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _share(columns: Columns, split: Split, folder: Path) -> Path:
    """Write the columns in the order of the shards for workers to map, and a place to count sweeps."""
    for i, column in enumerate(columns.values()):
        np.save(folder / f"{i}.npy", column[split.order])
    sweeps = folder / "sweeps.npy"
    np.save(sweeps, np.zeros(split.num_shards, np.int32))
    return sweeps


def _run(executor: Executor, job: Job, tasks: list[tuple[Part, Any]], bar: ShardProgress) -> list[ShardFit]:
    """Fit all shards; when some fail, the others still finish."""
    futures: dict[Future, Part] = {}
    pending: set[Future] = set()
    fits: dict[int, ShardFit] = {}
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
        if job.sweeps is not None:
            pool.close()
            counts = np.load(job.sweeps)
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
