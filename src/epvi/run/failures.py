"""Errors of shards that could not be fitted or scored; they keep the fits of the other shards."""

import enum
from concurrent.futures import BrokenExecutor

from epvi.engines.performing import WorkerLostError
from epvi.engines.process import WorkerDied
from epvi.ground.errors import EpviError
from epvi.wire.shard_fit import Part, ShardFit


class Work(enum.Enum):
    """What workers do with shards, with its wording in the progress bar and in messages."""

    FIT = "fitting shards", "fitted"
    SCORE = "scoring draws", "scored"
    EFFECTS = "computing group effects", "evaluated"

    def __init__(self, doing: str, done: str) -> None:
        self.doing, self.done = doing, done


class ShardError(EpviError):
    """Some shards could not be fitted; `fits` holds those that could."""

    def __init__(self, message: str, fits: tuple[ShardFit, ...]) -> None:
        super().__init__(message)
        self.fits = fits


def kept_in(fits: tuple[ShardFit, ...]) -> str:
    """The sentence of a message that says where the fits of the other shards are."""
    return f" The other {len(fits)} fits are in the error's `fits`." if fits else ""


def explained(
    work: Work, failed: dict[int, Exception], fits: dict[int, ShardFit], parts: dict[int, Part]
) -> ShardError:
    """The error for the failed shards: it names the first one, and has the fits of the others."""
    kept = tuple(fits[shard] for shard in sorted(fits))
    first = min(failed)
    error = failed[first]
    others = f" So it was with {len(failed) - 1} more." if len(failed) > 1 else ""
    shard = f"shard {parts[first].label}"
    if isinstance(error, WorkerDied | WorkerLostError):
        said = (
            f"{shard} lost its worker process twice while it was {work.done} ({error}): it was killed, or ran out of"
            " memory. Take more shards or fewer workers (executor=1)."
        )
    elif isinstance(error, BrokenExecutor):
        which = " or ".join(parts[shard].label for shard in sorted(failed)[:4])
        said = (
            f"a worker process of the executor died while it {work.done} shard {which}, and the executor takes no more"
            " work: it was killed, or ran out of memory. Pass a new executor, with more shards or fewer workers."
        )
        others = ""
    elif isinstance(error, EpviError):
        said = f"{shard} could not be {work.done}: {error.clause}."
    else:
        said = f"{shard} could not be {work.done}: {type(error).__name__}: {str(error).rstrip('.')}."
    return ShardError(f"{said}{others}{kept_in(kept)}", kept)
