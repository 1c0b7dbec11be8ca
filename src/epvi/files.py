"""Loads any file that epvi has written (`load`), and saves column statistics."""

import dataclasses
import os
from pathlib import Path
from typing import TypeVar

from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.ground.version import __version__
from epvi.hub.posterior.posterior import Posterior, unpack_posterior
from epvi.wire import envelope
from epvi.wire.answer import Scores, unpack_scores
from epvi.wire.column_stats import Stats
from epvi.wire.envelope import Envelope, Malformed, UnusableFileError
from epvi.wire.record import Record, as_text
from epvi.wire.request import Draws, unpack_draws
from epvi.wire.shard_fit import ShardFit, unpack_fit

Loaded = ShardFit | Posterior | Draws | Scores
T = TypeVar("T")

# For each type: what error messages call such a file, and the command that makes it.
_CALLED: dict[type, tuple[str, str]] = {
    ShardFit: ("a shard's fit", "epvi shard"),
    Posterior: ("a posterior", "epvi combine"),
    Draws: ("draws to score", "epvi certify --draws"),
    Scores: ("a site's scores", "epvi score"),
    Stats: ("statistics of columns", "epvi stats"),
}


def load(path: str | os.PathLike) -> Loaded:
    """Load a shard's fit, a posterior, draws (`posterior.ask`) or scores (`epvi.score`) from a `.epvi` file.

    A file from other people may be malformed, which is an `EpviError` that names it, but loading it never runs code.
    """
    return load_only(path, ShardFit, Posterior, Draws, Scores)


def load_only(path: str | os.PathLike, *kinds: type[T]) -> T:
    """Load a `.epvi` file of one of these types; an error that says what the file is if it is of another."""
    found = load_any(path)
    if isinstance(found, kinds):
        return found
    wanted = " or ".join(f"{_CALLED[kind][0]} ({_CALLED[kind][1]})" for kind in kinds)
    raise UnusableFileError(f"{shown(path)} holds {_CALLED[type(found)][0]}", f": pass a file of {wanted}.")


def load_any(path: str | os.PathLike) -> Loaded | Stats:
    """Load a `.epvi` file of any type."""
    if not isinstance(path, str | os.PathLike):
        raise EpviError(f"path is of type {type(path).__name__}: pass a file's name.")
    content = envelope.load(path)
    try:
        if content.kind == "posterior":
            return unpack_posterior(content)
        if content.kind == "stats":
            return _unpack_stats(content)
        unpack = {"shard": unpack_fit, "draws": unpack_draws}.get(content.kind, unpack_scores)
        return dataclasses.replace(unpack(content), file=os.fspath(path))
    except Malformed as error:
        raise envelope.unusable(path, error) from error


def save_stats(path: str | os.PathLike, stats: Stats) -> Path:
    """Write column statistics to a `.epvi` file, atomically."""
    content = Envelope("stats", {"columns": stats.as_json(), "version": __version__}, {})
    return envelope.save(path, content, _unpack_stats)


def _unpack_stats(content: Envelope) -> Stats:
    columns = Record(content.record).any("columns")
    try:
        found = Stats.from_json(columns, "its statistics")
    except EpviError as error:
        raise Malformed(error.clause) from None
    for name in found.columns:
        as_text(name, "column")
    return found
