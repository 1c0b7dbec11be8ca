"""What a run says of its shards in the log."""

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from epvi.engines.local import size_of
from epvi.ground.log import logger
from epvi.ground.printable import shown
from epvi.run.failures import Work
from epvi.site.rows.split import Split
from epvi.wire.answer import Scores
from epvi.wire.shard_fit import Part, ShardFit


def log_account(level: int, made: ShardFit | Scores) -> None:
    """How it went at a shard; of thousands of shards a line is only made if somebody reads it."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", made.account)


def log_places(split: Split, bundle: int, executor: Executor | int | None) -> None:
    """How many rows there are, in which shards, and who works on them."""
    where = type(executor).__name__ if isinstance(executor, Executor) else f"{size_of(executor)} workers of epvi's own"
    rows, least, most = int(np.sum(split.sizes)), int(np.min(split.sizes)), split.largest
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    what = "rows" if bundle == 1 else "bundles of groups"
    logger.info("%s %s in %d shards of %s each, on %s", f"{rows:,}", what, split.num_shards, f"{each} {what}", where)


def log_loss(work: Work, group: Sequence[Part], error: Exception) -> None:
    """Which shards lost the process that worked on them."""
    name, more = shown(group[0].label), len(group) - 1
    if more:
        text = "shard %s and %d more lost their worker while they were %s, and are run again: %s"
        logger.warning(text, name, more, work.done, error)
    else:
        logger.warning("shard %s lost its worker while it was %s, and is run again: %s", name, work.done, error)
