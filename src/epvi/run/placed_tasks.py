"""What a worker of an engine does with placed rows: settle the model on them, fit a batch of shards, score draws.

Takes the rows of a batch of shards, one shard after the other, with the shards; gives fits and answers, and for a shard
that has none the reason. What it gives does not depend on what the process has done before.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from epvi.fragments.reading import PlacedRows
from epvi.ground.errors import EpviError
from epvi.run.scoring import Scoring
from epvi.run.worker import Job, task_context
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.expansions_cache import ExpansionsCache
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior, block_size
from epvi.site.fit.inference import Inference
from epvi.site.rows.columns import Columns
from epvi.site.rows.table import Table
from epvi.site.tasks.answers import Asking
from epvi.site.tasks.fingerprint import hash_each
from epvi.site.tasks.fit_shard import fit_columns, fit_regular
from epvi.site.tasks.prepared import settled
from epvi.site.tasks.score import answer_columns
from epvi.site.tasks.score_together import answer_together
from epvi.site.tasks.sent_model import packed
from epvi.wire.answer import Scores
from epvi.wire.fragment import Coding
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, Provenance, ShardFit
from epvi.wire.stacked_answers import StackedScores, stacked
from epvi.wire.stacked_fits import StackedFits, stacked_fits

# Batches of which a process keeps the expansions that it has computed. Judgement: a worker has few batches at a time,
# and expansions of many shards with many parameters are large.
_MOST_KEPT = 16


@dataclasses.dataclass(frozen=True)
class Batch:
    """The shards of a batch, and how many rows each has."""

    parts: tuple[Part, ...]
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Unsettled:
    """What is needed to settle a model on rows.

    Attributes:
        job: identifies the call, and has the model as the user wrote it.
        coding: how the columns were made.
        inference: how shards are fitted.
        largest: the number of rows of the largest shard.
    """

    job: Job
    coding: Coding
    inference: Inference
    largest: int


@dataclasses.dataclass(frozen=True, eq=False)
class SettledModel:
    """A model that was checked on rows, for all shards.

    Attributes:
        model: the model with its labels settled, packed.
        made_of: provenance without inference, key and hash of the rows.
        dim: the number of parameters.
        rows_per_block: rows per block of a pass.
    """

    model: bytes
    made_of: Provenance
    dim: int
    rows_per_block: int


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """The fits of a batch, with None for shards that have none, and the reasons by the shards' places."""

    fits: StackedFits | list[ShardFit | None]
    failed: dict[int, str]


def settle(asked: Unsettled, rows: PlacedRows, batch: Batch) -> SettledModel:
    """Check the model on the rows of a batch, and settle what is the same for all shards."""
    coding, columns = asked.coding, rows.columns
    table = Table(columns, dict(coding.sources), dict(coding.units), dict(coding.levels))
    with task_context(asked.job, "the fit"):
        model = asked.job.unpacked()
        made = settled(model, table)
        # The same bytes if nothing was settled: then workers find the programs that they have.
        sent = asked.job.model if made.model is model else packed(made.model)
        size = block_size(made.programs, columns, asked.largest, asked.inference.points_at_once)
        return SettledModel(sent, made.made_of, made.programs.target.space.dim, size)


def fit_batch(job: Job, rows: PlacedRows, batch: Batch) -> Fitted:
    """Fit the shards of a batch: together those that can be, and each of the others alone."""
    columns, failed = rows.columns, dict[int, str]()
    with task_context(job, "the fit"):
        programs = programs_of(job.unpacked(), columns)
        fits: list[ShardFit | None] = [None] * len(batch.parts)
        try:
            size = block_size(programs, columns, sum(batch.sizes), 1)
            Subposterior.of(programs, columns, batch.parts[0].prior, size).refuse_outside()
            fits = fit_regular(programs, columns, batch.parts, batch.sizes, job.plan)
            tried = True
        except Exception:
            # Each shard alone then says whether it is the cause.
            tried = False
        for place, own in _each(columns, batch):
            if fits[place] is None:
                try:
                    fits[place] = fit_columns(programs, own, batch.parts[place], job.plan, tried=tried)
                except Exception as error:
                    failed[place] = str(error) if isinstance(error, EpviError) else f"{type(error).__name__}: {error}"
        return Fitted(stacked_fits(fits) if not failed else fits, failed)


def hash_batch(hash_key: str, rows: PlacedRows, batch: Batch) -> list[str]:
    """The hash of the rows of each shard."""
    return hash_each(rows.columns, batch.sizes, hash_key)


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedQuestion:
    """What all shards are asked.

    Attributes:
        job: what the tasks of all shards share.
        draws: the draws to score.
        scoring: how.
        num_rows: the number of rows of all shards.
        earlier: the centres of earlier rounds.
    """

    job: Job
    draws: Draws
    scoring: Scoring
    num_rows: int
    earlier: tuple[Float[np.ndarray, " d"], ...]


def answer_placed(question: PlacedQuestion, rows: PlacedRows, batch: Batch) -> StackedScores | list[Scores]:
    """The scores of the shards of a batch: computed together, or each alone."""
    job, plan = question.job, question.job.plan
    draws = dataclasses.replace(question.draws, shares=batch.parts)
    columns, share = rows.columns, sum(batch.sizes) / question.num_rows
    with task_context(job, "the scores"):
        programs = programs_of(job.unpacked(), columns)
        asking = Asking(
            plan.rows_per_block,
            plan.provenance(),
            question.scoring.exact,
            plan.inference.points_at_once,
            checked=True,
            share=share,
        )
        if len(batch.parts) > 1:
            known = _expansions(job, rows, question.earlier)
            made = answer_together(programs, columns, batch.sizes, batch.parts, draws, asking, known)
            _keep_expansions(job, rows, known)
            if made is not None:
                return stacked(made)
        answers = []
        for place, own in _each(columns, batch):
            alone = batch.sizes[place] / question.num_rows
            one = dataclasses.replace(asking, share=alone, memory=ExpansionCache())
            answers.append(answer_columns(programs, own, draws, batch.parts[place], one))
        return stacked(answers)


def _each(columns: Columns, batch: Batch) -> list[tuple[int, Columns]]:
    """The rows of each shard."""
    ends = np.cumsum(batch.sizes).tolist()
    return [
        (place, {name: column[end - size : end] for name, column in columns.items()})
        for place, (end, size) in enumerate(zip(ends, batch.sizes, strict=True))
    ]


# Expansions that this process has computed, by call and rows, and by their points. They are those that would be
# computed again: answers do not depend on them.
_COMPUTED: OrderedDict[tuple[str, str], dict[bytes, Taylors]] = OrderedDict()


def _expansions(job: Job, rows: PlacedRows, earlier: Sequence[np.ndarray]) -> ExpansionsCache:
    return ExpansionsCache(None, earlier=earlier, computed=_COMPUTED.get((job.token, rows.name), {}))


def _keep_expansions(job: Job, rows: PlacedRows, known: ExpansionsCache) -> None:
    """Keep what is known now for the next round of this call, and let go of those of others."""
    made = {one.centre[0].tobytes(): one for one in known.known}
    _COMPUTED[job.token, rows.name] = made
    _COMPUTED.move_to_end((job.token, rows.name))
    while len(_COMPUTED) > _MOST_KEPT:
        _COMPUTED.popitem(last=False)
