"""One shard's work as an executor runs it, in whatever process that is.

Takes a job and a part of it, made of plain data: the model as bytes, the settings, and rows either in memory or in
memory-mapped files. What was compiled for a model is kept for the process's next shards.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import cloudpickle
import numpy as np

from epvi.errors import EpviError
from epvi.handover import ShardFit
from epvi.site.model import Model
from epvi.site.rows import Columns
from epvi.site.shard import Part, Plan, fit_columns
from epvi.store import MappedRows


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What all shards of one call share."""

    model: bytes
    plan: Plan
    # Where passes over the rows are counted for the progress bar: an array of one int32 per shard, or None.
    passes: Path | None


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
    report = _Passes(job.passes, part.shard)
    report(0)
    try:
        programs = model_of(job.model).programs(columns)
        return fit_columns(programs, columns, part, job.plan, report)
    except EpviError as error:
        # Without the chain of causes, which may not travel between processes.
        raise EpviError(str(error)) from None


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
