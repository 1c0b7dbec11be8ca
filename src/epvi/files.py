"""Reading any file that epvi has written: `load`."""

import dataclasses
import os
from pathlib import Path

from epvi import envelope
from epvi.columnstats import Stats
from epvi.envelope import Envelope, Malformed
from epvi.errors import EpviError
from epvi.handover import ShardFit, unpack_fit
from epvi.hub.posterior import Posterior
from epvi.hub.stored import unpack_posterior
from epvi.record import Record, as_text
from epvi.version import __version__


def load(path: str | os.PathLike) -> ShardFit | Posterior:
    """The shard fit or the posterior in a `.epvi` file.

    A file from elsewhere can be wrong, which is an `EpviError` that names it, but it cannot run code.
    """
    found = load_any(path)
    if isinstance(found, Stats):
        raise EpviError(
            f"{envelope.shown(path)} holds statistics of columns: pass a file of a shard's fit or of a posterior."
        )
    return found


def load_any(path: str | os.PathLike) -> ShardFit | Posterior | Stats:
    """Whatever is in a `.epvi` file."""
    if not isinstance(path, str | os.PathLike):
        raise EpviError(f"path is of type {type(path).__name__}: pass a file's name.")
    content = envelope.load(path)
    try:
        if content.kind == "shard":
            return dataclasses.replace(unpack_fit(content), file=os.fspath(path))
        if content.kind == "posterior":
            return unpack_posterior(content)
        if content.kind == "stats":
            return _unpack_stats(content)
    except Malformed as error:
        raise envelope.unusable(path, error) from error
    raise EpviError(
        f"{envelope.shown(path)} holds {content.kind}, which this epvi cannot use: pass a shard's fit or a posterior."
    )


def save_stats(path: str | os.PathLike, stats: Stats) -> Path:
    """Write statistics of columns to a `.epvi` file, whole or not at all."""
    content = Envelope("stats", {"columns": stats.as_json(), "version": __version__}, {})
    return envelope.save(path, content, _unpack_stats)


def _unpack_stats(content: Envelope) -> Stats:
    columns = Record(content.record).any("columns")
    try:
        found = Stats.from_json(columns, "its statistics")
    except EpviError as error:
        raise Malformed(str(error).rstrip(".")) from None
    for name in found.columns:
        as_text(name, "column")
    return found
