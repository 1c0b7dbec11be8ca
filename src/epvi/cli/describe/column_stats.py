"""Statistics of columns as text."""

from pathlib import Path
from typing import TYPE_CHECKING

from epvi.cli.output import size_of
from epvi.ground.printable import shown
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.wire.column_stats import Stats


def stats_text(file: Path, stats: "Stats") -> str:
    """Everything that is in a file of statistics."""
    rows = [["", "values", "missing", "mean", "sd", "rounded off the mean"]]
    for name, column in stats.columns.items():
        numbers = f"{column.mean:.10g}", f"{column.sd:.10g}", f"{column.rest:.1e}"
        rows.append([name, f"{column.count:,}", f"{column.missing:,}", *numbers])
    return f"{shown(file)}, {size_of(file)}, statistics of columns\n\n{lined_up(rows)}\n\nThat is all that is in it."
