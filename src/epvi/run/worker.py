"""The tasks of one shard, as an executor runs them in any process: fit it, or score draws.

Takes a job and a shard of it as picklable data: the model as bytes, the settings, and rows in memory or in
memory-mapped files. Compiled functions of a model are cached for the next shards of the process.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from epvi.ground.compiled import MOST, let_go
from epvi.ground.errors import EpviError
from epvi.ground.verb import at_work
from epvi.run.row_files import MappedRows
from epvi.run.scoring import Scoring
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.expansions_cache import ExpansionsCache
from epvi.site.derivatives.nested import inner_columns
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns
from epvi.site.tasks.answers import Asking
from epvi.site.tasks.chain import NUTS, ChainDraws, Start, run_chain
from epvi.site.tasks.effects import effects_given
from epvi.site.tasks.fit_shard import FitPlan, fit_columns, fit_regular
from epvi.site.tasks.score import answer_columns
from epvi.site.tasks.score_together import answer_together
from epvi.site.tasks.sent_model import model_for
from epvi.wire.answer import Scores
from epvi.wire.effect_answer import LevelMoments
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, ShardFit
from epvi.wire.stacked_answers import StackedScores, stacked
from epvi.wire.stacked_fits import StackedFits, stacked_fits


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What the tasks of all shards of one call share.

    Attributes:
        model: the model, as `sent_model` packs it.
        plan: settings of the fits.
        passes: memory-mapped file of one int32 per shard in which passes are counted for the progress bar, or None.
        token: identifies the call.
        keeps: whether the shards will score draws later, so that workers keep rows that they were sent.
        owned: whether its tasks run in epvi's own workers, although they count no passes.
    """

    model: bytes
    plan: FitPlan
    passes: Path | None
    token: str = ""
    keeps: bool = False
    owned: bool = False

    @property
    def in_own_worker(self) -> bool:
        """Whether its tasks run in epvi's own workers, in whose processes nobody else uses JAX or the user's modules.

        Only they count passes in a file.
        """
        return self.owned or self.passes is not None

    def unpacked(self) -> Model:
        """The model."""
        return model_for(self.model, self.in_own_worker)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldRows:
    """Columns that are pickled with the task."""

    held: Mapping[str, np.ndarray]

    def columns(self) -> Columns:
        """The columns."""
        return dict(self.held)


def run_shard(job: Job, part: Part, rows: MappedRows | HeldRows, tried: bool = False) -> ShardFit:
    """Fit one shard; `tried` if it could not be fitted together with others."""
    columns = rows.columns()
    if job.keeps and isinstance(rows, HeldRows):
        _keep(job.token, part.shard, rows)
    count = _Passes(job.passes, [part])
    report = functools.partial(count, np.zeros(1, int))
    report(0)
    with task_context(job, "the fit"):
        programs = programs_of(job.unpacked(), columns)
        return fit_columns(programs, columns, part, job.plan, report, tried=tried)


def run_batch(
    job: Job, parts: Sequence[Part], rows: Sequence[MappedRows | HeldRows]
) -> StackedFits | list[ShardFit | None] | None:
    """Fit several shards together, whose rows lie one after the other; None for each that `run_shard` is to fit.

    None for all if their rows are refused: each shard alone then says which of them has such rows.
    """
    if job.keeps:
        _keep_all(job, parts, rows)
    columns, sizes = _joined(rows)
    with task_context(job, "the fit"):
        programs = programs_of(job.unpacked(), columns)
        try:
            size = block_size(programs, columns, sum(sizes), 1)
            Subposterior.of(programs, columns, parts[0].prior, size).refuse_outside()
        except EpviError:
            return None
        return stacked_fits(fit_regular(programs, columns, parts, sizes, job.plan, _Passes(job.passes, parts)))


def _joined(rows: Sequence[MappedRows | HeldRows]) -> tuple[Columns, list[int]]:
    """The rows of several shards, one shard after the other, and how many each has; a mapped run is not copied."""
    mapped = [own for own in rows if isinstance(own, MappedRows)]
    if len(mapped) == len(rows) and all(a.part.stop == b.part.start for a, b in itertools.pairwise(mapped)):
        whole = slice(mapped[0].part.start, mapped[-1].part.stop)
        return dataclasses.replace(mapped[0], part=whole).columns(), [own.part.stop - own.part.start for own in mapped]
    each = [own.columns() for own in rows]
    sizes = [len(next(iter(columns.values()))) for columns in each]
    return {name: np.concatenate([columns[name] for columns in each]) for name in each[0]}, sizes


class NoRows:
    """The answer of a process that has not kept the rows that it is asked about."""


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What some shards are asked.

    Attributes:
        draws: the draws to score.
        scoring: how.
        share: the part of all shards' rows that these shards have.
        earlier: the centres of earlier rounds, where shards cannot read in a file what they found then.
    """

    draws: Draws
    scoring: Scoring
    share: float
    earlier: tuple[np.ndarray, ...] = ()


def answer_shard(job: Job, part: Part, rows: MappedRows | HeldRows | None, question: Question) -> Scores | NoRows:
    """The scores of one shard; with `rows=None`, from rows that this process has kept."""
    draws, scoring, share = question.draws, question.scoring, question.share
    if isinstance(rows, HeldRows):
        _keep(job.token, part.shard, rows)
    rows = rows if rows is not None else _KEPT.get((job.token, part.shard))
    if rows is None:
        return NoRows()
    # Expansions are cached only in files that all workers share: the scores must not depend on which worker computes
    # them.
    memory = (
        ExpansionCache(rows.folder / f"expansions-{part.shard}.npz")
        if isinstance(rows, MappedRows)
        else ExpansionCache()
    )
    columns = rows.columns()
    plan = job.plan
    points = plan.inference.points_at_once
    with task_context(job, "the scores"):
        programs = programs_of(job.unpacked(), columns)
        made_of = plan.provenance()
        asking = Asking(plan.rows_per_block, made_of, scoring.exact, points, checked=True, share=share, memory=memory)
        return answer_columns(programs, columns, draws, draws.share_of(part.shard), asking)


def answer_batch(
    job: Job, parts: Sequence[Part], rows: Sequence[MappedRows | HeldRows] | None, question: Question
) -> StackedScores | list[Scores] | NoRows | None:
    """The scores of several shards, computed together; None if each is to answer alone.

    With `rows=None` they are computed from rows that this process has kept.
    """
    rows = _kept(job, parts, rows)
    if rows is None:
        return NoRows()
    first = rows[0]
    file = first.folder / f"expansions-batch-{parts[0].shard}.npz" if isinstance(first, MappedRows) else None
    known = ExpansionsCache(file, earlier=question.earlier)
    columns, sizes = _joined(rows)
    plan = job.plan
    with task_context(job, "the scores"):
        programs = programs_of(job.unpacked(), columns)
        points, exact = plan.inference.points_at_once, question.scoring.exact
        asking = Asking(plan.rows_per_block, plan.provenance(), exact, points, checked=True, share=question.share)
        made = answer_together(programs, columns, sizes, parts, question.draws, asking, known)
    return None if made is None else stacked(made)


def effects_of(
    job: Job,
    parts: Sequence[Part],
    rows: Sequence[MappedRows | HeldRows] | None,
    phi: Float[np.ndarray, "S p"],
    empty: Int[np.ndarray, " n"],
    among: Float[np.ndarray, "K p"],
    inner: bool,
) -> LevelMoments | NoRows:
    """Moments of the group effects of several shards given each φ; with `rows=None`, from rows that were kept.

    Of nested factors those of the larger groups or, with `inner`, of the groups in them.
    """
    rows = _kept(job, parts, rows)
    if rows is None:
        return NoRows()
    columns, _ = _joined(rows)
    with task_context(job, "the group effects"):
        target = programs_of(job.unpacked(), columns).target
        if inner:
            assert target.inner is not None
            target, columns = target.inner, inner_columns(columns)
        return effects_given(target, columns, phi, empty, among)


def chain_of(job: Job, rows: MappedRows | HeldRows, start: Start, nuts: NUTS) -> ChainDraws:
    """One chain of NUTS on all rows, from where it starts."""
    columns = rows.columns()

    def report(steps: int) -> None:
        if job.passes is not None:
            np.load(job.passes, mmap_mode="r+")[0] = steps

    with task_context(job, "the chain"):
        return run_chain(programs_of(job.unpacked(), columns).target, columns, start, nuts, report)


# Token of the call for which this process worked last, and its model.
_last_token, _last_model = "", b""
# Programs that may be held when a call has the model of the last one, whose programs it needs again. Judgement: twice
# as many as usual, since most fits of a model have 20 to 60.
_MOST_OF_ONE_MODEL = 2 * MOST


@contextlib.contextmanager
def task_context(job: Job, what: str) -> Iterator[None]:
    """The context of a shard's task; compiled functions of earlier calls are freed when a new call begins."""
    global _last_token, _last_model
    if job.token != _last_token:
        most = _MOST_OF_ONE_MODEL if job.model == _last_model else None
        _last_token, _last_model = job.token, job.model
        let_go(own_process=job.in_own_worker, most=most)
    try:
        with at_work(what):
            yield
    except EpviError as error:
        # Without the chained exceptions, which may not be picklable.
        raise EpviError(str(error)) from None


# Rows that were sent to this process, by token of the call and number of the shard.
_KEPT: dict[tuple[str, int], HeldRows] = {}


def _keep(token: str, shard: int, rows: HeldRows) -> None:
    """Keep a shard's rows for its next task, and free those of other calls, which will be sent again if needed."""
    for key in [key for key in _KEPT if key[0] != token]:
        _KEPT.pop(key, None)
    _KEPT[token, shard] = rows


def _kept(
    job: Job, parts: Sequence[Part], rows: Sequence[MappedRows | HeldRows] | None
) -> Sequence[MappedRows | HeldRows] | None:
    """The rows of some shards, which are kept then; if none are given, those kept before, or None."""
    if rows is None:
        kept = [_KEPT.get((job.token, part.shard)) for part in parts]
        rows = [own for own in kept if own is not None]
        if len(rows) < len(parts):
            return None
    _keep_all(job, parts, rows)
    return rows


def _keep_all(job: Job, parts: Sequence[Part], rows: Sequence[MappedRows | HeldRows]) -> None:
    for part, own in zip(parts, rows, strict=True):
        if isinstance(own, HeldRows):
            _keep(job.token, part.shard, own)


def forget(token: str) -> None:
    """Free the rows of a call that has ended."""
    for key in [key for key in _KEPT if key[0] == token]:
        _KEPT.pop(key, None)


class _Passes:
    """Writes the passes of some shards to the memory-mapped file: 0 before a shard begins, p + 1 after pass p."""

    def __init__(self, path: Path | None, parts: Sequence[Part]) -> None:
        self._counts = None if path is None else np.load(path, mmap_mode="r+")
        self._places = np.array([part.shard - 1 for part in parts])

    def __call__(self, shards: np.ndarray, passes: np.ndarray | float | int) -> None:
        """Note the passes so far of some of the shards, by their positions."""
        if self._counts is not None:
            self._counts[self._places[shards]] = np.asarray(passes) + 1
