"""Run the whole algorithm on an engine that has the rows: they are read where they are needed, and never sent.

Takes a model and a description of rows; has the engine look at all fragments once, makes shards of them, fits and
scores them there, and combines the fits here. The caller's memory does not grow with the rows.
"""

import dataclasses
import tempfile
import time
import uuid
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np

from epvi.engines.engine import Engine
from epvi.fragments.looking import Looked, look, repeated
from epvi.fragments.pieces import fragments_of
from epvi.fragments.shards import FragmentShards, shards_of_fragments
from epvi.gaussian import quasi_random
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import Seed, as_key
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.run.combining import combined, kept_in_errors, log_end
from epvi.run.placed_shards import PlacedShards, placed_shards
from epvi.run.placed_tasks import SettledModel, Unsettled
from epvi.run.progress import ShardProgress
from epvi.run.rounds import Rounds, run_rounds
from epvi.run.work_folder import WorkFolder, remove_dead
from epvi.run.worker import Job
from epvi.site.fit.inference import Inference
from epvi.site.model.model import Model
from epvi.site.rows.rows import Rows
from epvi.site.tasks.fit_shard import FitPlan
from epvi.site.tasks.sent_model import packed
from epvi.wire.shard_fit import Part, Provenance

# What the job has before the model is settled.
_NO_KEY = np.zeros(2, np.uint32)


@dataclasses.dataclass(frozen=True)
class PlacedFit:
    """How rows on an engine are fitted; the fields are arguments of `epvi.fit`."""

    shards: int | None
    by: str | None
    inference: Inference
    product: Product | None
    rounds: Rounds
    work: WorkFolder | None
    seed: Seed
    progress: bool | None

    def run(self, model: Model, rows: Any, engine: Engine) -> Posterior:
        """The posterior of all rows."""
        start, key = time.perf_counter(), as_key(self.seed)
        _refuse_groups(model)
        remove_dead(Path(tempfile.gettempdir()), "epvi-rows-")
        shards, hash_key = self._shards(rows, engine), rows.hash_key if isinstance(rows, Rows) else ""
        m = len(shards.labels)
        parts = tuple(Part(i, m, label, Fraction(1, m)) for i, label in enumerate(shards.labels, start=1))
        if self.rounds.any:
            quasi_random.get_ready()
        coding, largest = shards.fragments[0].coding, int(np.max(shards.sizes))
        assert coding is not None
        context = placed_shards(engine, shards, parts)
        # Only the engine needs the recipes now, and what they hold of it.
        del shards
        with ShardProgress(m, self.progress) as bar, context as sites:
            sites.bar = bar
            token = uuid.uuid4().hex
            job = Job(
                packed(model),
                FitPlan(self.inference, 1, _NO_KEY, Provenance()),
                None,
                token,
                owned=engine.owns_workers,
            )
            made = sites.settle(Unsettled(job, coding, self.inference, largest))
            job = dataclasses.replace(job, model=made.model, plan=self._plan(made, m, key, hash_key))
            return self._posterior(sites, job, key, start)

    def _shards(self, rows: Any, engine: Engine) -> FragmentShards:
        """Look at all fragments, and make shards of them."""
        if self.by is not None and self.shards is not None:
            raise EpviError('pass either shards=8 or by="column", or neither for a shard of each fragment.')
        fragments = fragments_of(rows, engine, by=self.by)
        standardise = rows.standardise if isinstance(rows, Rows) else {}
        looked = look(engine, fragments, standardise)
        shards = shards_of_fragments(looked, self.shards, self.by)
        _log_shards(looked, shards, engine)
        return shards

    def _plan(self, made: SettledModel, num_shards: int, key: jax.Array, hash_key: str) -> FitPlan:
        self.inference.settled(made.dim, num_shards)
        words = np.asarray(jax.random.key_data(key))
        return FitPlan(self.inference, made.rows_per_block, words, made.made_of, hash_key)

    def _posterior(self, sites: PlacedShards, job: Job, key: jax.Array, start: float) -> Posterior:
        fits = sites.fit(job, self.work)
        posterior = combined(fits, self.product, self.seed, sites.bar)
        with kept_in_errors(posterior.fits):
            posterior = run_rounds(
                posterior, lambda draws, scoring: sites.answer(job, draws, scoring, fits), self.rounds, key
            )
        sites.bar.say("done")
        log_end(posterior, time.perf_counter() - start)
        return posterior


def _refuse_groups(model: Model) -> None:
    if model.groups is not None:
        raise EpviError(
            f"the model has groups={model.groups!r}, whose rows an engine cannot bring together: fit rows in one place"
            " (without engine=), or each part with epvi.fit_shard and combine the fits."
        )


def _log_shards(looked: Looked, shards: FragmentShards, engine: Engine) -> None:
    sizes, pieces = shards.sizes, len(looked.fragments)
    if looked.empty:
        logger.warning("fragments without rows are left out: %d of %d", looked.empty, pieces + looked.empty)
    for first, again in repeated(looked.fragments)[:1]:
        logger.warning(
            "%s has the same rows as %s: if it is a copy, its rows count twice",
            *(again.pieces[0].said, first.pieces[0].said),
        )
    logger.info(
        "%s rows of %d fragments in %d shards of %s to %s rows each, on %s",
        *(f"{int(np.sum(sizes)):,}", pieces, len(sizes)),
        *(f"{int(np.min(sizes)):,}", f"{int(np.max(sizes)):,}", engine.said),
    )
