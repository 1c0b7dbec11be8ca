"""Formats tables as plain text."""

from collections.abc import Collection, Sequence

from epvi.ground.printable import shown


def lined_up(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """The rows with aligned columns: those in `left` flush left, the others flush right."""
    rows = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if j in left else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
