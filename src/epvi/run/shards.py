"""Run the tasks of all shards on an executor: fit each once, then have them score draws as often as needed.

Takes a job, rows with their split, and an executor; gives fits and scores. epvi's own workers read the rows from
memory-mapped files; other executors get them with the first task, and their workers keep them for the next ones.
"""

import contextlib
import dataclasses
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from epvi.engines.local import Pool, size_of, workers
from epvi.ground.atomic import owner
from epvi.ground.log import logger
from epvi.run.account import log_account, log_loss, log_places
from epvi.run.batches import batch_of
from epvi.run.failures import Work, explained
from epvi.run.progress import ShardProgress
from epvi.run.row_files import MappedRows, reported, write_rows
from epvi.run.scoring import Scoring
from epvi.run.submitting import ExecutorClosedError, abandon, error_of, submit
from epvi.run.work_folder import WorkFolder, remove_dead
from epvi.run.worker import (
    HeldRows,
    Job,
    NoRows,
    Question,
    answer_batch,
    answer_shard,
    effects_of,
    forget,
    run_batch,
    run_shard,
)
from epvi.site.rows.columns import Columns
from epvi.site.rows.split import Split
from epvi.site.tasks.fingerprint import hash_rows
from epvi.site.tasks.fit_shard import FitPlan
from epvi.wire.answer import Scores
from epvi.wire.effect_answer import LevelMoments
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, ShardFit
from epvi.wire.stacked_answers import StackedScores, unstacked
from epvi.wire.stacked_fits import StackedFits

# Seconds between updates of the progress bar while no task finishes: rich redraws it ten times a second by default.
_POLL_SECONDS = 0.1
# Worker processes that a shard may lose before it fails: after the second one, the shard itself is probably the cause.
_MOST_DEATHS = 2


# Shards that one task is for.
Group = Sequence[Part]


@dataclasses.dataclass(eq=False)
class RunningShards:
    """All shards of one call.

    Attributes:
        executor: runs the tasks.
        job: what all tasks share.
        parts: the shards.
        rows: rows by shard, memory-mapped or in memory.
        done: finished fits by shard.
        bar: the progress bar.
        work: where finished fits are written, if anywhere.
        sizes: number of rows of each shard.
        earlier: the centres of the draws that shards have scored so far.
    """

    executor: Executor
    job: Job
    parts: list[Part]
    rows: dict[int, MappedRows | HeldRows]
    done: dict[int, ShardFit]
    bar: ShardProgress
    work: WorkFolder | None
    sizes: Int[np.ndarray, " M"]
    earlier: list[np.ndarray] = dataclasses.field(default_factory=list)

    def fit(self) -> list[ShardFit]:
        """Fit all shards that are not done; when some fail, the others are finished before the error is raised."""
        left = [part for part in self.parts if part.shard not in self.done]
        fits = dict(self.done)
        self.bar.begin(Work.FIT.doing)
        if self.done:
            logger.info("%d of %d fits were in the work folder", len(self.done), len(self.parts))

        irregular: set[int] = set()

        def keep(group: Group, made: StackedFits | list[ShardFit | None] | ShardFit | None) -> list[Group]:
            if made is None:
                return [(part,) for part in group]
            found = [made] if isinstance(made, ShardFit) else made.each() if isinstance(made, StackedFits) else made
            for part, fit in zip(group, found, strict=True):
                if fit is None:
                    irregular.add(part.shard)
                    continue
                fits[fit.shard] = fit
                log_account(logging.INFO, fit)
                if self.work is not None:
                    self.work.keep(fit)
            # Shards that cannot be fitted together with others are fitted alone.
            return [(part,) for part, fit in zip(group, found, strict=True) if fit is None]

        def task(group: Group) -> tuple:
            rows = [self.rows[part.shard] for part in group]
            if len(group) > 1:
                return run_batch, self.job, group, rows
            return run_shard, self.job, group[0], rows[0], group[0].shard in irregular

        groups = self._groups(left) if self.job.plan.inference.fits_together else [(part,) for part in left]
        failed = self._each(Work.FIT, groups, task, keep, fits)
        if failed:
            raise explained(Work.FIT, failed, fits, {part.shard: part for part in left})
        self.done = fits
        return [fits[shard] for shard in sorted(fits)]

    def answer(self, draws: Draws, scoring: Scoring) -> list[Scores]:
        """The scores of every shard; rows are sent again where no worker has kept them."""
        answers: dict[int, Scores] = {}
        self.bar.begin(Work.SCORE.doing)

        def keep(group: Group, made: StackedScores | list[Scores] | Scores | NoRows | None) -> list[Group]:
            if made is None:
                return [(part,) for part in group]
            for answer in [] if isinstance(made, NoRows) else unstacked(made):
                answers[answer.shard] = answer
                log_account(logging.DEBUG, answer)
            return []

        def task(group: Group, rows: list[MappedRows | HeldRows] | None) -> tuple:
            share = sum(float(self.sizes[part.shard - 1]) for part in group) / float(np.sum(self.sizes))
            asked = dataclasses.replace(draws, shares=tuple(group))
            question = Question(asked, scoring, share, () if self._all_mapped else tuple(self.earlier))
            if len(group) > 1:
                return answer_batch, self.job, group, rows, question
            return answer_shard, self.job, group[0], None if rows is None else rows[0], question

        self._asked(Work.SCORE, task, keep, answers)
        self.earlier += list(draws.centres)
        return [answers[shard] for shard in sorted(answers)]

    def effects(
        self,
        phi: Float[np.ndarray, "S p"],
        empty: Int[np.ndarray, " n"],
        among: Float[np.ndarray, "K p"],
        *,
        inner: bool = False,
    ) -> list[LevelMoments]:
        """Moments of the integrated group effects given each φ, also of levels without rows; audited at `among`.

        Of nested factors those of the larger groups or, with `inner`, of the groups in them, given the others.
        """
        answers: dict[int, LevelMoments | None] = {}

        def keep(group: Group, made: LevelMoments | NoRows) -> list[Group]:
            if not isinstance(made, NoRows):
                answers.update({part.shard: None for part in group} | {group[0].shard: made})
            return []

        def task(group: Group, rows: list[MappedRows | HeldRows] | None) -> tuple:
            return effects_of, self.job, group, rows, phi, empty if group[0].shard == 1 else empty[:0], among, inner

        self._asked(Work.EFFECTS, task, keep, answers)
        return [made for _, made in sorted(answers.items()) if made is not None]

    def _asked(
        self,
        work: Work,
        task: Callable[[Group, list[MappedRows | HeldRows] | None], tuple],
        keep: Callable[[Group, Any], list[Group]],
        answers: dict,
    ) -> None:
        """Ask all shards; where rows travel, first without them, and again with rows where no worker has kept them."""

        def with_rows(group: Group) -> tuple:
            return task(group, [self.rows[part.shard] for part in group])

        failed, groups = {}, self._groups(self.parts)
        if not self._all_mapped:
            failed = self._each(work, groups, lambda group: task(group, None), keep, answers)
            groups = [group for group in groups if any(part.shard not in answers for part in group)]
        if groups and not failed:
            failed = self._each(work, groups, with_rows, keep, answers)
        if failed:
            raise explained(work, failed, self.done, {part.shard: part for part in self.parts})

    @property
    def _all_mapped(self) -> bool:
        return all(isinstance(rows, MappedRows) for rows in self.rows.values())

    def forget(self) -> None:
        """Have workers free the rows that they were sent (best effort)."""
        if any(isinstance(rows, HeldRows) for rows in self.rows.values()):
            with contextlib.suppress(Exception):
                wait([self.executor.submit(forget, self.job.token) for _ in self.parts], timeout=1)

    def _groups(self, left: list[Part]) -> list[Group]:
        """Shards that are fitted together: those of these that are in the same batch of all shards."""
        numbers = batch_of(self.sizes * self.job.plan.bundle)
        groups: dict[int, list[Part]] = {}
        for part in left:
            groups.setdefault(int(numbers[part.shard - 1]), []).append(part)
        return [tuple(group) for group in groups.values()]

    def _each(
        self,
        work: Work,
        groups: Sequence[Group],
        task: Callable[[Group], tuple],
        keep: Callable[[Group, Any], list[Group]],
        results: dict,
    ) -> dict[int, Exception]:
        """Run a task for each group of shards; `keep` takes its result and gives groups that are still to be run.

        Gives the errors by shard. A task whose worker process died is retried on another worker, with the same result.
        When the task of several shards fails, or has lost a second worker, each of them is run alone.
        """
        pending, failed = dict[Future, Group](), dict[int, Exception]()
        deaths: Counter[tuple[int, int]] = Counter()
        numbers = {group[0].shard: number for number, group in enumerate(groups)}

        def begin(group: Group) -> None:
            pending[submit(self.executor, numbers.get(first := group[0].shard, first), *task(group))] = group

        def again(group: Group, error: Exception) -> None:
            died, key = isinstance(error, BrokenExecutor), (group[0].shard, len(group))
            deaths[key] += died
            lost = not died or deaths[key] >= _MOST_DEATHS
            if lost and len(group) == 1:
                failed[group[0].shard] = error
                return
            if died:
                log_loss(work, group, error)
            try:
                for some in [(part,) for part in group] if lost else [group]:
                    begin(some)
            except ExecutorClosedError:
                # The executor is broken by the loss of its worker: no retry is possible.
                begun = {part.shard for some in pending.values() for part in some}
                failed.update({part.shard: error for part in group if part.shard not in begun})

        try:
            for group in groups:
                begin(group)
            while pending:
                for future in wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    group = pending.pop(future)
                    error = error_of(future)
                    if error is not None:
                        again(group, error)
                        continue
                    for more in keep(group, future.result()):
                        begin(more)
                self.bar.update(set(results) | set(failed))
        finally:
            abandon(self.executor, list(pending))
        return failed


@contextlib.contextmanager
def shards_of(
    job: Job,
    columns: Columns,
    split: Split,
    executor: Executor | int | None,
    bar: ShardProgress,
    work: WorkFolder | None,
) -> Iterator[RunningShards]:
    """A context with the shards, whose rows are available to the executor's workers while it lasts."""
    m = split.num_shards
    share = Fraction(1, m)
    parts = [Part(i, m, label, share) for i, label in enumerate(split.labels, start=1)]
    done = _already(work, job.plan, columns, parts, split)
    log_places(split, job.plan.bundle, executor)
    if isinstance(executor, Executor):
        needed = [part for part in parts if job.keeps or part.shard not in done]
        held: dict[int, MappedRows | HeldRows] = {p.shard: HeldRows(_taken(columns, split, p)) for p in needed}
        made = RunningShards(executor, job, parts, held, done, bar, work, split.sizes)
        try:
            yield made
        finally:
            made.forget()
        return
    if len(done) == m and not job.keeps:
        yield RunningShards(workers_of(executor), job, parts, {}, done, bar, work, split.sizes)
        return
    with _folder(work) as folder:
        pool = workers_of(executor)
        passes = folder / "passes.npy"
        with reported(folder.parent):
            np.save(passes, np.zeros(m, np.int32))
        bar.say("reading rows")
        mapped = write_rows(columns, split, folder, min(size_of(executor), m))
        bar.watch(passes)
        job = dataclasses.replace(job, passes=passes)
        yield RunningShards(
            pool, job, parts, {part.shard: mapped[part.shard - 1] for part in parts}, done, bar, work, split.sizes
        )


def _taken(columns: Columns, split: Split, part: Part) -> Columns:
    return {name: column[split.shards[part.shard - 1]] for name, column in columns.items()}


def _already(
    work: WorkFolder | None, plan: FitPlan, columns: Columns, parts: list[Part], split: Split
) -> dict[int, ShardFit]:
    if work is None:
        return {}
    work.tidy()
    found = {
        part.shard: work.fit_of(part, plan, lambda part=part: hash_rows(_taken(columns, split, part), plan.hash_key))
        for part in parts
    }
    return {shard: fit for shard, fit in found.items() if fit is not None}


@contextlib.contextmanager
def _folder(work: WorkFolder | None) -> Iterator[Path]:
    if work is not None:
        with work.scratch() as folder:
            yield folder
        return
    with reported(tempfile.tempdir or "the temporary folder"):
        remove_dead(Path(tempfile.gettempdir()), "epvi-rows-")
        folder = Path(tempfile.mkdtemp(prefix=f"epvi-rows-{owner()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def workers_of(number: int | None) -> Pool:
    """epvi's own worker processes, `number` of them or one per core; they import their modules while idle."""
    return workers(number, preloaded="epvi.run.worker")
