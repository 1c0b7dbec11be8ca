"""One shard's work as an executor runs it, in whatever process that is.

Takes a job and a part of it, made of plain data: the model as bytes, the settings, and rows either in memory or in
memory-mapped files. What was compiled for a model is kept for the process's next shards.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import cloudpickle
import numpy as np

from epvi.ground.compiled import let_go
from epvi.ground.errors import EpviError
from epvi.ground.verb import at_work
from epvi.run.row_files import MappedRows
from epvi.run.scoring import Scoring
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.passes import programs_of
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns
from epvi.site.tasks.fit_shard import FitPlan, fit_columns
from epvi.site.tasks.score import Asking, answer_columns
from epvi.wire.answer import Scores
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, ShardFit


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What all shards of one call share."""

    model: bytes
    plan: FitPlan
    # Where passes over the rows are counted for the progress bar: an array of one int32 per shard, or None.
    passes: Path | None
    # The call that it belongs to, and whether shards will be asked again.
    token: str = ""
    keeps: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class HeldRows:
    """Columns that travel with the task."""

    held: Mapping[str, np.ndarray]

    def columns(self) -> Columns:
        """The columns."""
        return dict(self.held)


def run_shard(job: Job, part: Part, rows: MappedRows | HeldRows) -> ShardFit:
    """Fit one shard."""
    columns = rows.columns()
    if job.keeps and isinstance(rows, HeldRows):
        _keep(job.token, part.shard, rows)
    report = _Passes(job.passes, part.shard)
    report(0)
    with _at_work(job, "the fit"):
        programs = programs_of(model_of(job.model), columns)
        return fit_columns(programs, columns, part, job.plan, report)


def answer_shard(
    job: Job, part: Part, rows: MappedRows | HeldRows | None, draws: Draws, scoring: Scoring
) -> Scores | None:
    """Answer for one shard; without rows only if this process has kept them, and otherwise None."""
    if isinstance(rows, HeldRows):
        _keep(job.token, part.shard, rows)
    rows = rows if rows is not None else _KEPT.get((job.token, part.shard))
    if rows is None:
        return None
    # Expansions are used again only where every worker has them: the answer is the same whoever gives it.
    memory = (
        ExpansionCache(rows.folder / f"expansions-{part.shard}.npz")
        if isinstance(rows, MappedRows)
        else ExpansionCache()
    )
    columns = rows.columns()
    plan = job.plan
    points = plan.inference.points_at_once
    with _at_work(job, "the scores"):
        programs = programs_of(model_of(job.model), columns)
        asking = Asking(plan.rows_per_block, plan.provenance(), scoring.exact, points, checked=True, memory=memory)
        return answer_columns(programs, columns, draws, draws.share_of(part.shard), asking)


# The call that this process worked for last.
_last_token = ""


@contextlib.contextmanager
def _at_work(job: Job, what: str) -> Iterator[None]:
    """The context of a shard's work; what other calls compiled is let go when a new one begins, never during one."""
    global _last_token
    if job.token != _last_token:
        _last_token = job.token
        # Passes are counted in files for epvi's own workers, where nobody else uses JAX.
        let_go(own_process=job.passes is not None)
    try:
        with at_work(what):
            yield
    except EpviError as error:
        # Without the chain of causes, which may not travel between processes.
        raise EpviError(str(error)) from None


# Rows that were sent to this process, by the call and the shard.
_KEPT: dict[tuple[str, int], HeldRows] = {}


def _keep(token: str, shard: int, rows: HeldRows) -> None:
    """Keep a shard's rows for the next question, and none of other calls: whoever asks for those sends them again."""
    for key in [key for key in _KEPT if key[0] != token]:
        _KEPT.pop(key, None)
    _KEPT[token, shard] = rows


def forget(token: str) -> None:
    """Give up the rows of a call that is over."""
    for key in [key for key in _KEPT if key[0] == token]:
        _KEPT.pop(key, None)


@functools.lru_cache(maxsize=8)
def model_of(model: bytes) -> Model:
    """The model, the same one for the same bytes: what was compiled for it is there the next time."""
    return cloudpickle.loads(model)


class _Passes:
    """Counts a shard's passes where the caller can see them; 0 until it has begun, p + 1 after pass p."""

    def __init__(self, path: Path | None, shard: int) -> None:
        self._counts = None if path is None else np.load(path, mmap_mode="r+")
        self._shard = shard

    def __call__(self, passes: int) -> None:
        if self._counts is not None:
            self._counts[self._shard - 1] = passes + 1
