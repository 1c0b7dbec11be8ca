"""Run the whole algorithm (the paper's Algorithm 1) on an executor.

Takes a model and all rows; splits them, fits every shard independently, combines the fits into the posterior, and
checks it by importance sampling with the log densities of all shards.
"""

import dataclasses
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from epvi.engines.engine import Engine
from epvi.engines.kept_programs import kept_programs
from epvi.fragments.pieces import engine_for
from epvi.gaussian import quasi_random
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import Seed, SeedStream, as_key
from epvi.ground.verb import verb
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.run.chains import AllRows, checked, helps
from epvi.run.combining import combined, kept_in_errors, log_end
from epvi.run.fit_placed import PlacedFit
from epvi.run.grouping import Declared, Grouped, declared, grouped
from epvi.run.progress import ShardProgress
from epvi.run.rounds import Rounds, run_rounds
from epvi.run.scoring import Scoring
from epvi.run.shards import RunningShards, shards_of, workers_of
from epvi.run.work_folder import WorkFolder
from epvi.run.worker import Job
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.derivatives.subposterior import block_size
from epvi.site.fit.inference import Inference
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.levels import OWN
from epvi.site.rows.split import Split, split_by, split_evenly
from epvi.site.rows.table import Table
from epvi.site.tasks.chain import NUTS
from epvi.site.tasks.fit_shard import FitPlan, as_inference, as_model
from epvi.site.tasks.prepared import settled
from epvi.site.tasks.sent_model import model_of, packed
from epvi.wire.shard_fit import Provenance, ShardFit


@verb("the fit")
@kept_programs()
def fit(
    model: Model | Callable,
    rows: Any,
    shards: int | None = None,
    *,
    by: str | None = None,
    shuffle: bool = True,
    inference: Inference | None = None,
    product: Product | None = None,
    certify: bool | Scoring = True,
    refine: int | None = None,
    fallback: NUTS | None = None,
    executor: Executor | int | None = None,
    engine: Engine | None = None,
    work: str | os.PathLike | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Posterior:
    """The posterior of all rows, from `shards` parts that are fitted independently of each other.

    `rows` is a mapping of columns with one entry per row in each, a data frame, a path or glob, or `Rows`. They are
    assigned to shards at random, unless `shuffle=False` (then shards are contiguous blocks of rows) or `by` names a
    column with one value per shard. `inference` is the method that fits a shard (`NVI()`), `product` the one that
    multiplies the fits (as in `multiply`). With `certify` all shards then evaluate their log density at draws of the
    product; the importance weights show whether it can be trusted (`posterior.certificate`). `refine` is the largest
    number of rounds that improve it; by default up to 30, until it can be trusted or
    further ones gain little. If the posterior still cannot be trusted then, `fallback=epvi.NUTS()` samples it from all
    rows by NumPyro's NUTS, with a verdict of its own.
    `executor` is any `concurrent.futures.Executor`, or a number of processes of epvi's own pool (by default one per
    core). The same seed gives the same result for any number of workers. With an `engine` (`epvi.engines.Dask(client)`,
    `epvi.engines.Local()`) rows stay where they are: `rows` is files that all workers can read, or the engine's own
    data frame, which brings its engine. Each file or partition is a shard then, unless `shards` or `by` groups them.
    `work` is a folder to which each shard's fit is written as soon as it is finished: an interrupted run that is
    started again fits only the missing shards. `progress` shows a progress bar (by default only on a terminal).
    """
    start = time.perf_counter()
    model, inference, key = as_model(model), as_inference(inference), as_key(seed)
    rounds, kept = Rounds.of(certify, refine), WorkFolder(Path(work)) if work else None
    where = engine_for(rows, engine)
    _refuse_executor(executor, fallback, where)
    if where is not None:
        return PlacedFit(shards, by, inference, product, rounds, kept, seed, progress).run(model, rows, where)
    fallback = checked(fallback, rounds.certify)
    if not isinstance(executor, Executor):
        # The workers start while rows are read, and the model is checked and traced, here.
        workers_of(executor)
    table, split = _split(model, rows, shards, by, shuffle, key)
    sent, programs, made_of = _prepared(model, table)
    call = _Call(sent, programs, table, made_of, inference, product, rounds, kept, executor, seed)
    ways, deal = [None], shuffle and by is None
    if model.groups is not None:
        ways = [declared(model_of(sent), programs, model.groups, table, split, deal, key)]
    elif inference.fits_together:
        ways = grouped(model_of(sent), programs, table.columns, split, deal, key) or ways
    with ShardProgress(split.num_shards, progress) as bar:
        for number, integrated in enumerate(ways, start=1):
            posterior, everything = call.run(integrated, split, bar)
            if number < len(ways) and helps(posterior.certificate):
                logger.info("this posterior cannot be trusted: more effects are integrated out")
                continue
            posterior = everything.answer(posterior, fallback, key)
            bar.say("done")
            log_end(posterior, time.perf_counter() - start)
            return posterior
    raise AssertionError("the last way gives a posterior")


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call of `fit`, whose rows are in this process: it can fit them with or without effects integrated out."""

    # The model as it was checked, for the workers; and its programs.
    model: bytes
    programs: Programs
    table: Table
    made_of: Provenance
    inference: Inference
    product: Product | None
    rounds: Rounds
    kept: WorkFolder | None
    executor: Executor | int | None
    seed: Seed

    def run(self, integrated: Grouped | Declared | None, split: Split, bar: ShardProgress) -> tuple[Posterior, AllRows]:
        """The posterior, and what its fallback needs."""
        sent, columns, programs, key = self.model, self.table.columns, self.programs, as_key(self.seed)
        kept = self.kept
        if kept is not None and isinstance(integrated, Grouped) and integrated.outer is not None:
            kept = kept.within("nested")
        if integrated is not None:
            logger.info("%s", integrated.said)
            sent, columns, split = packed(integrated.model), integrated.columns, integrated.split
            programs = programs_of(model_of(sent), columns)
        size = _affordable_block(self.inference, programs, columns, split)
        plan = FitPlan(self.inference, size, _words(key), self.made_of, self.table.hash_key, programs.target.bundle)
        job = Job(sent, plan, None, uuid.uuid4().hex, self.rounds.any or integrated is not None)
        with shards_of(job, columns, split, self.executor, bar, kept) as sites:
            posterior = combined(_fitted(sites, self.rounds), self.product, self.seed, bar)
            with kept_in_errors(posterior.fits):
                posterior = run_rounds(posterior, sites.answer, self.rounds, key)
            if integrated is not None:
                posterior = integrated.put_back(posterior, sites, key)
        # With declared groups the posterior is that of the shared parameters.
        if isinstance(integrated, Declared):
            return posterior, AllRows(job, columns, self.executor, bar)
        return posterior, AllRows(_job_of_all(self.model, plan), self.table.columns, self.executor, bar)


def _refuse_executor(executor: Any, fallback: Any, engine: Engine | None) -> None:
    """Refuse what is no executor, and what does not go with an engine."""
    if engine is not None and executor is not None:
        raise EpviError("there is an engine and an executor: leave executor out, the engine has workers of its own.")
    if engine is not None and fallback is not None:
        raise EpviError(
            "fallback samples from all rows in one place, and an engine leaves them where they are: leave it out."
        )
    if executor is None or isinstance(executor, Executor | int):
        return
    if type(executor).__module__.partition(".")[0] == "distributed":
        raise EpviError(
            f"executor is a Dask {type(executor).__name__}: pass engine=epvi.engines.Dask(client) for rows in files or"
            " in a Dask data frame, or executor=client.get_executor() for rows in this process."
        )
    raise EpviError(f"executor is {executor!r}: pass a concurrent.futures.Executor or a number of processes.")


def _prepared(model: Model, table: Table) -> tuple[bytes, Programs, Provenance]:
    """The checked model for the workers, with what was found exchangeable declared; its programs and provenance.

    With groups it is the model for a fixed number of them (`site/tasks/prepared.py`).
    """
    sent = packed(model)
    model = model_of(sent)
    made = settled(model, table)
    if made.model is not model:
        sent, columns = packed(made.model), made.columns
        return sent, programs_of(model_of(sent), columns, like=made.programs), made.made_of
    return sent, made.programs, made.made_of


def _words(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def _job_of_all(model: bytes, plan: FitPlan) -> Job:
    """The job of the model as the user wrote it, with group effects among its parameters."""
    return Job(model, dataclasses.replace(plan, bundle=1), None, uuid.uuid4().hex)


def _affordable_block(inference: Inference, programs: Programs, columns: Columns, split: Split) -> int:
    """Rows per block; what no shard could afford is refused here, not in a worker."""
    inference.settled(programs.target.space.dim, split.num_shards)
    return block_size(programs, columns, split.largest, inference.points_at_once)


def _fitted(sites: RunningShards, rounds: Rounds) -> list[ShardFit]:
    """The fits of all shards; meanwhile, what further rounds need is imported."""
    if rounds.any:
        quasi_random.get_ready()
    return sites.fit()


def _split(
    model: Model, rows: Any, shards: int | None, by: str | None, shuffle: bool, key: jax.Array
) -> tuple[Table, Split]:
    """The checked columns of the model, and the split of their rows into shards."""
    if by is not None and not isinstance(by, str):
        raise EpviError(f"by is {by!r}: pass the name of one column.")
    if (by is None) == (shards is None):
        raise EpviError('pass either shards=8 or by="column": how many parts there are, or which column names them.')
    table = read_grouped(
        rows, model.groups, by, keep=by is not None and by != model.groups and model.takes(by), undeclared=OWN
    )
    if by is not None:
        return table, split_by(table.extra, by)
    assert shards is not None
    model.columns(list(table.columns))
    key = jax.random.fold_in(key, SeedStream.SPLIT)
    return table, split_evenly(table.num_rows, shards, shuffle=shuffle, key=key)
