"""Numbers and seeds as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def number_text(value: Any) -> str:
    """A number to four decimals."""
    return "unknown" if np.isnan(value) else f"{float(value):.4f}"


def numbers_text(values: Sequence[float], digits: int = 6) -> str:
    """Numbers in a row."""
    return ", ".join("unknown" if value != value else f"{value:.{digits}g}" for value in values) or "none"


def seed_text(key: tuple[int, ...]) -> str:
    """A seed, or the words of its key."""
    return str(key[1]) if len(key) == 2 and key[0] == 0 else f"key {list(key)}"


def range_text(values: np.ndarray) -> str:
    """How many numbers, and where they are."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"{len(values):,} numbers, all impossible"
    rest = len(values) - len(finite)
    more = f", {rest:,} of them impossible" if rest else ""
    return f"{len(values):,} numbers from {np.min(finite):.6g} to {np.max(finite):.6g}{more}"
