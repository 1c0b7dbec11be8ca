"""Alternating timed runs of peers, so that load on the machine affects all of them alike; verdicts on targets."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Turn(NamedTuple):
    """Time and result of one run of a peer."""

    seconds: float
    result: Any


def timed(run: Callable[[], Any]) -> Turn:
    start = time.perf_counter()
    result = run()
    return Turn(time.perf_counter() - start, result)


def in_turn(peers: Mapping[str, Callable[[], Any]], repeats: int, *, warm: bool = False) -> dict[str, list[Turn]]:
    """Run every peer once to warm up (unless `warm`), then `repeats` rounds of all; return the timed rounds."""
    if not warm:
        for run in peers.values():
            run()
    rounds = [{name: timed(run) for name, run in peers.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in peers}


def median_seconds(turns: list[Turn]) -> float:
    return float(np.median([turn.seconds for turn in turns]))


def verdict(met: bool | None, target: str) -> str:
    """A line on a target; `met` is None if the run was too short to decide."""
    return f"{'open' if met is None else 'met' if met else 'MISSED'}: {target}"
