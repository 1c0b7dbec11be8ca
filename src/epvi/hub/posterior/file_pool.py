"""Write and read the scored draws of adaptive rounds, with the proposals that they came from."""

from typing import Any

import numpy as np

from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.trust.propose import Source
from epvi.wire.answer import read_array
from epvi.wire.codec import mixture_arrays, read_mixture
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record
from epvi.wire.request import MOST_DRAWS, read_points

# Rounds and parts of a proposal that a file may have. Judgement: a dozen rounds, of four parts each, are usual.
_MOST_SOURCES, _MOST_PARTS = 64, 16


def describe_pool(pool: ScoredDraws | None) -> list[Any] | None:
    """The proposals of all rounds without their arrays, as JSON."""
    if pool is None:
        return None
    return [
        {"parts": [{"draws": count, "structure": part.structure.name} for count, part in source.parts]}
        for source in pool.sources
    ]


def pool_arrays(pool: ScoredDraws | None, prefix: str) -> dict[str, np.ndarray]:
    """The draws, and the arrays of the proposals by name."""
    if pool is None:
        return {}
    arrays: dict[str, np.ndarray] = {f"{prefix}theta": pool.theta, f"{prefix}log_p": pool.log_p}
    for i, source in enumerate(pool.sources):
        for j, (_, part) in enumerate(source.parts):
            arrays |= mixture_arrays(part, f"{prefix}{i}/{j}/")
    return arrays


def read_pool(record: Record, content: Envelope, dim: int, prefix: str) -> ScoredDraws:
    """The pool of a run of adaptive rounds, checked."""
    sources = []
    for i, found in enumerate(record.list("pool", Record, _MOST_SOURCES)):
        parts = found.list("parts", Record, _MOST_PARTS)
        if not parts:
            raise Malformed("its pool has a proposal without parts")
        named = [(part, f"{prefix}{i}/{j}/") for j, part in enumerate(parts)]
        sources.append(Source(tuple(_read_part(part, content, dim, name) for part, name in named)))
    theta = read_points(content, f"{prefix}theta", None, dim)
    if not sources or not 1 <= len(theta) <= sum(source.num_draws for source in sources):
        raise Malformed("its pool has more draws than came from its proposals, or none")
    return ScoredDraws(theta, read_array(content, f"{prefix}log_p", (len(theta),)), tuple(sources))


def _read_part(record: Record, content: Envelope, dim: int, prefix: str) -> tuple[int, Any]:
    count = record.whole("draws", 1, MOST_DRAWS)
    return count, read_mixture(record.text("structure"), content.arrays, dim, prefix)
