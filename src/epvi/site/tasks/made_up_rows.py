"""Makes up rows like those of a site, on which no two parameters have the same effect unless the model says so.

Takes the columns of a site; gives blocks of a few rows, so that programs for as many rows serve all. A category that a
site has no row of, or a rare one, has an effect of its own only on rows with its code, so that all codes are made up.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from epvi.site.model.example_runs import FEW
from epvi.site.rows.columns import Columns

# The most codes of a column that are made up between its smallest and its largest. Judgement: as many categories as
# are common, and each takes an eighth of a block.
_MOST_CODES = 64
# Rows by which a column of floats is taken for one of codes. Judgement: that more rows are not whole numbers does no
# harm.
_ROWS_TO_LOOK = 1000


def made_up_blocks(columns: Columns, rng: np.random.Generator, length: int) -> Iterator[dict[str, np.ndarray]]:
    """Rows to compare densities on, with codes that reach every entry of axes up to this length.

    The first ones do not depend on the site's own: numbers of either sign with codes 0 and 1, and numbers within (0, 1)
    with codes 0 to 3. Then rows of the site whose entries come from different rows, with other sizes; rows as they are,
    which are possible values of what is observed; and rows whose entries come from different rows, with each code once.
    """
    names = sorted(columns)
    yield {name: _numbers(columns[name], rng.standard_normal, 2, rng) for name in names}
    yield {name: _numbers(columns[name], rng.random, 4, rng) for name in names}
    yield {name: _scaled(_mixed(columns[name], rng), rng) for name in names}
    which = rng.integers(len(columns[names[0]]), size=FEW)
    yield {name: np.asarray(columns[name][which]) for name in names}
    for coded in names:
        codes = _codes(columns[coded], length)
        for some in np.split(codes, range(FEW, len(codes), FEW)):
            block = {name: _mixed(columns[name], rng) for name in names}
            flat = block[coded].reshape(FEW, -1)
            flat[np.arange(FEW), rng.integers(flat.shape[1], size=FEW)] = np.resize(some, FEW)
            yield block


def _numbers(column: np.ndarray, draw: Any, codes: int, rng: np.random.Generator) -> np.ndarray:
    shape = (FEW, *column.shape[1:])
    if column.dtype.kind == "f":
        return draw(shape).astype(column.dtype)
    return rng.integers(2 if column.dtype.kind == "b" else codes, size=shape).astype(column.dtype)


def _mixed(column: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows whose entries come from different rows."""
    which = rng.integers(len(column), size=(FEW, *column.shape[1:]))
    return np.ascontiguousarray(np.take_along_axis(column, which, axis=0))


def _scaled(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rows * rng.uniform(0.5, 1.5, rows.shape)).astype(rows.dtype) if rows.dtype.kind == "f" else rows


def _codes(column: np.ndarray, length: int) -> np.ndarray:
    """Codes that rows may have, in the column's type; none if it holds no codes.

    They are those of the rows, from 0 to the length, and those that are next to the rows' own where these are some of
    `length` consecutive ones that do not begin at 0.
    """
    if not _is_coded(column):
        return np.zeros(0, column.dtype)
    least, most = int(np.min(column)), int(np.max(column))
    own = np.linspace(least, most, min(most - least + 1, _MOST_CODES))
    listed = {*np.rint(own).astype(int).tolist(), *range(length + 1), *range(most - length, least + length + 1)}
    held = np.iinfo(column.dtype) if column.dtype.kind in "iu" else np.finfo(column.dtype)
    codes = [code for code in sorted(listed) if code >= min(least, 0) and code <= held.max]
    return np.array(codes, column.dtype)


def _is_coded(column: np.ndarray) -> bool:
    if not column.size or column.dtype.kind != "f":
        return column.dtype.kind in "iu" and column.size > 0
    few = column[:_ROWS_TO_LOOK]
    return bool(np.all(np.isfinite(few)) and np.all(few == np.rint(few)) and np.all(np.isfinite(column)))
