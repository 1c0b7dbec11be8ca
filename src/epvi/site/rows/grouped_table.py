"""Reads the rows of a model with groups: their column, whatever it holds, becomes the number of each row's group."""

import dataclasses
from typing import Any

import numpy as np

from epvi.site.rows.rows import read_rows
from epvi.site.rows.split import distinct
from epvi.site.rows.table import Table


def read_grouped(rows: Any, groups: str | None, also: str | None = None, **options: Any) -> Table:
    """The table of rows with their groups numbered from 0 in the order of their labels; arguments as of `read_rows`."""
    if groups is None:
        return read_rows(rows, also, **options)
    table = read_rows(rows, also, apart=groups, **options)
    labels, codes = distinct(groups, table.extra[groups], "group")
    # As sorted by name, the order in which JAX passes columns to programs.
    columns = dict(sorted({**table.columns, groups: codes.astype(np.int32)}.items()))
    return dataclasses.replace(table, columns=columns, groups=labels)
