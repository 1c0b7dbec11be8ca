"""The shards of one call whose rows are placed on an engine: fit each once, then have them score draws.

Takes an engine and shards of fragments; gives fits and scores. Shards are handled in batches, which depend on their
sizes alone, so that the answer is the same on every engine and for any number of workers.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from epvi.engines.engine import Engine, Handle
from epvi.engines.performing import WorkerLostError, packed_each, packed_task, result_of
from epvi.fragments.reading import placed
from epvi.fragments.shards import FragmentShards
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.run.account import log_account
from epvi.run.batches import batch_of
from epvi.run.failures import Work, explained
from epvi.run.placed_tasks import (
    Batch,
    Fitted,
    PlacedQuestion,
    SettledModel,
    Unsettled,
    answer_placed,
    fit_batch,
    hash_batch,
    settle,
)
from epvi.run.progress import ShardProgress
from epvi.run.scoring import Scoring
from epvi.run.work_folder import WorkFolder
from epvi.run.worker import Job
from epvi.site.tasks.fit_shard import FitPlan
from epvi.wire.answer import Scores
from epvi.wire.fragment import joined
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, ShardFit
from epvi.wire.stacked_answers import unstacked
from epvi.wire.stacked_fits import StackedFits


@dataclasses.dataclass(eq=False)
class PlacedShards:
    """All shards of one call.

    Attributes:
        engine: has the rows, and runs the tasks.
        parts: the shards.
        sizes: the number of rows of each.
        batches: the shards that are handled together.
        handles: the engine's name for the rows of each batch.
        bar: the progress bar.
        earlier: the centres of the draws that shards have scored so far.
    """

    engine: Engine
    parts: tuple[Part, ...]
    sizes: np.ndarray
    batches: tuple[Batch, ...]
    handles: list[Handle]
    bar: ShardProgress = dataclasses.field(default_factory=lambda: ShardProgress(0, False))
    earlier: list[np.ndarray] = dataclasses.field(default_factory=list)

    def settle(self, asked: Unsettled) -> SettledModel:
        """Check the model on the rows of the first batch, and settle what is the same for all."""
        task = packed_task(settle, asked)
        for _, made in self._map(task, [0], "settle"):
            found = result_of(made)
            if isinstance(found, EpviError):
                raise found
            if isinstance(found, Exception):
                raise EpviError(f"the model could not be tried on the first shard: {found}.") from found
            return found
        raise AssertionError("an engine gave no result of a task")

    def fit(self, job: Job, work: WorkFolder | None) -> list[ShardFit]:
        """The fits of all shards; when some fail, the others are finished before the error is raised."""
        fits = {} if work is None else self._already(work, job.plan)
        if fits:
            logger.info("%d of %d fits were in the work folder", len(fits), len(self.parts))
        self.bar.begin(Work.FIT.doing)
        left = [b for b, batch in enumerate(self.batches) if any(part.shard not in fits for part in batch.parts)]

        def keep(batch: Batch, made: Fitted) -> dict[int, Exception]:
            found = made.fits.each() if isinstance(made.fits, StackedFits) else made.fits
            for fit in found:
                if fit is not None and fit.shard not in fits:
                    fits[fit.shard] = fit
                    log_account(logging.INFO, fit)
                    if work is not None:
                        work.keep(fit)
            return {batch.parts[place].shard: EpviError(said) for place, said in made.failed.items()}

        failed = self._each(packed_task(fit_batch, job), left, Work.FIT, keep, fits)
        if failed:
            raise explained(Work.FIT, failed, fits, {part.shard: part for part in self.parts})
        return [fits[part.shard] for part in self.parts]

    def answer(self, job: Job, draws: Draws, scoring: Scoring, fits: Sequence[ShardFit]) -> list[Scores]:
        """The scores of every shard."""
        answers: dict[int, Scores] = {}
        self.bar.begin(Work.SCORE.doing)
        asked = PlacedQuestion(job, draws, scoring, int(np.sum(self.sizes)), tuple(self.earlier))

        def keep(batch: Batch, made: Any) -> dict[int, Exception]:
            for answer in unstacked(made):
                answers[answer.shard] = answer
                log_account(logging.DEBUG, answer)
            return {}

        failed = self._each(packed_task(answer_placed, asked), range(len(self.batches)), Work.SCORE, keep, answers)
        if failed:
            done = {fit.shard: fit for fit in fits}
            raise explained(Work.SCORE, failed, done, {part.shard: part for part in self.parts})
        self.earlier += list(draws.centres)
        return [answers[part.shard] for part in self.parts]

    def _already(self, work: WorkFolder, plan: FitPlan) -> dict[int, ShardFit]:
        """The fits in the work folder; refused if they are of other rows, which are hashed where they are."""
        work.tidy()
        there = [b for b, batch in enumerate(self.batches) if any(work.file(part).exists() for part in batch.parts)]
        fits: dict[int, ShardFit] = {}

        def keep(batch: Batch, hashes: list[str]) -> dict[int, Exception]:
            for part, rows in zip(batch.parts, hashes, strict=True):
                fit = work.fit_of(part, plan, lambda rows=rows: rows)
                if fit is not None:
                    fits[part.shard] = fit
            return {}

        failed = self._each(packed_task(hash_batch, plan.hash_key), there, Work.FIT, keep, fits)
        if failed:
            raise explained(Work.FIT, failed, fits, {part.shard: part for part in self.parts})
        return fits

    def _each(
        self,
        task: bytes,
        which: Sequence[int],
        work: Work,
        keep: Callable[[Batch, Any], dict[int, Exception]],
        results: dict,
    ) -> dict[int, Exception]:
        """Run a task on some batches; `keep` takes its result. Gives the errors by shard."""
        failed: dict[int, Exception] = {}
        for b, made in self._map(task, which, work.name.lower()):
            batch, found = self.batches[b], result_of(made)
            if isinstance(found, WorkerLostError):
                first, last = batch.parts[0].shard, batch.parts[-1].shard
                logger.warning("shards %d to %d lost their workers too often, and are given up: %s", first, last, found)
            if isinstance(found, Exception):
                failed.update({part.shard: found for part in batch.parts})
            else:
                failed |= keep(batch, found)
            self.bar.update(set(results) | set(failed))
        return failed

    def _map(self, task: bytes, which: Sequence[int], name: str) -> Iterator[tuple[int, bytes]]:
        """The engine's results, by the number of the batch; what is left is cancelled if it is not wanted any more."""
        handles = [self.handles[b] for b in which]
        each = [packed_each(self.batches[b]) for b in which]
        with contextlib.closing(self.engine.map(task, handles, each=each, name=name)) as results:
            for i, made in results:
                yield which[i], made


@contextlib.contextmanager
def placed_shards(engine: Engine, shards: FragmentShards, parts: tuple[Part, ...]) -> Iterator[PlacedShards]:
    """A context with the shards, whose rows are placed on the engine while it lasts."""
    numbers = batch_of(shards.sizes)
    batches, fragments = [], []
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number).tolist()
        batches.append(Batch(tuple(parts[m] for m in members), tuple(int(shards.sizes[m]) for m in members)))
        fragments.append(joined([shards.fragments[m] for m in members]))
    handles, sizes = engine.place(fragments, placed), shards.sizes
    # Partitions that the recipes hold can be freed once the rows are made of them.
    del shards, fragments
    try:
        yield PlacedShards(engine, parts, sizes, tuple(batches), handles)
    finally:
        engine.release(handles)
