"""Rows that pass a study's checks, for tracing its model where there are none: only names, shapes and dtypes matter."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

# Judgement: any few would do.
_ROWS = 8


def placeholder_rows(names: Sequence[str], columns: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values of source columns that are within their limits, or levels."""
    made = {}
    for name in names:
        column = columns.get(name, {})
        low, high = column.get("limits", (-math.inf, math.inf))
        low = low if math.isfinite(low) else min(0, high - 1)
        choices = column.get("levels") or [low, min(low + 1, high)]
        made[name] = list(itertools.islice(itertools.cycle(choices), _ROWS))
    return made
