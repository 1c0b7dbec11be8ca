"""Peers that take turns, so that what else the machine does meets all of them, and what the figures say of a target."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Turn(NamedTuple):
    """What one run of a peer took and gave."""

    seconds: float
    result: Any


def timed(run: Callable[[], Any]) -> Turn:
    start = time.perf_counter()
    result = run()
    return Turn(time.perf_counter() - start, result)


def in_turn(peers: Mapping[str, Callable[[], Any]], repeats: int, *, warm: bool = False) -> dict[str, list[Turn]]:
    """Every peer once to warm up, unless all are warm, then `repeats` rounds of all, which are given."""
    if not warm:
        for run in peers.values():
            run()
    rounds = [{name: timed(run) for name, run in peers.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in peers}


def median_seconds(turns: list[Turn]) -> float:
    return float(np.median([turn.seconds for turn in turns]))


def verdict(met: bool | None, target: str) -> str:
    """None when the run was too short to tell."""
    return f"{'open' if met is None else 'met' if met else 'MISSED'}: {target}"
