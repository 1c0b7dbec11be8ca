"""Numbers and seeds as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Rows of the largest matrix that is printed entry by entry; beyond, a page would not hold a line of it. Judgement.
LARGEST_MATRIX = 30
# Significant digits of a number in a list: enough to tell two fits apart, few enough to read. Judgement.
_DIGITS = 6


def number_text(value: Any) -> str:
    """A number to four decimals."""
    return "unknown" if np.isnan(value) else f"{float(value):.4f}"


def numbers_text(values: Sequence[float], digits: int = _DIGITS) -> str:
    """Numbers one after the other."""
    return ", ".join("unknown" if value != value else f"{value:.{digits}g}" for value in values) or "none"


def seed_text(key: tuple[int, ...]) -> str:
    """The seed of a JAX key that was made of one, or else the two words of the key."""
    return str(key[1]) if len(key) == 2 and key[0] == 0 else f"key {list(key)}"


def range_text(values: np.ndarray) -> str:
    """How many numbers, and between which two; minus infinity is the score of a draw that cannot be."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"{len(values):,} numbers, all minus infinity"
    rest = len(values) - len(finite)
    more = f", {rest:,} of them minus infinity" if rest else ""
    return f"{len(values):,} numbers from {np.min(finite):.6g} to {np.max(finite):.6g}{more}"
