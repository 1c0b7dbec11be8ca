"""Finds the pieces of rows that stay where they are: one for each file, or for each partition that an engine holds.

Takes rows as a user describes them, and an engine; gives a recipe for each piece, in order. Nothing is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from epvi.engines.engine import Engine
from epvi.engines.known import checked, holder_of
from epvi.ground.errors import EpviError
from epvi.site.rows.locate import files_of, is_path
from epvi.site.rows.rows import Rows
from epvi.wire.fragment import Description, Fragment, Piece


def engine_for(rows: Any, engine: Any) -> Engine | None:
    """The engine that a user passes, or the one that holds the rows; None for rows in this process without one."""
    holder = holder_of(rows.source if isinstance(rows, Rows) else rows)
    return holder if engine is None else checked(engine)


def fragments_of(
    rows: Any,
    engine: Engine,
    *,
    by: str | None = None,
    optional: Sequence[str] = (),
    fitted: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Fragment]:
    """A fragment of each piece of the rows; `fitted` are the levels of an earlier fit.

    Given units are applied then as rows are read; otherwise only once all fragments were looked at.
    """
    rows = rows if isinstance(rows, Rows) else Rows(rows)
    in_files = is_path(rows.source)
    units = {} if fitted is None or isinstance(rows.standardise, bool) else rows.standardise
    description = Description(
        rows.columns, rows.levels, rows.limits, rows.drop_missing, not in_files, fitted, by, tuple(optional), units
    )
    if in_files:
        paths = files_of(rows.source)
        return [
            Fragment((Piece(f"fragment {i} of {len(paths)}", str(path.absolute())),), description)
            for i, path in enumerate(paths, start=1)
        ]
    held = engine.partitions(rows.source, list(dict.fromkeys([*rows.used, *([by] if by and rows.used else [])])))
    if not held:
        raise EpviError(f"the {type(rows.source).__name__} has no partitions: it needs at least one.")
    return [
        Fragment((Piece(f"partition {i} of {len(held)}"),), description, partitions=(one,))
        for i, one in enumerate(held, start=1)
    ]
