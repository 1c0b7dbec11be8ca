"""`Rows`: describes how a model's arguments are made from the columns of a source (units, levels, limits).

Takes a source and the description, and checks only the latter; `read_rows` gives a `Table` of checked columns.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from epvi.ground.errors import EpviError
from epvi.ground.verb import verb
from epvi.site.rows.cells import needs_levels
from epvi.site.rows.chunks import TablePart, first_duplicate
from epvi.site.rows.columns import as_columns, plain_array, raw_columns
from epvi.site.rows.levels import REFUSED, Keys, Undeclared, as_levels, level_codes, level_name
from epvi.site.rows.locate import is_path, open_source, unknown_column
from epvi.site.rows.table import Argument, Table, TablePlan, assemble


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class Rows:
    """A description of rows; nothing is read until they are needed.

    - `source`: a path, a glob or a list of paths (CSV, CSV.GZ, Parquet, .npz, .npy), a folder of Parquet files, a data
      frame or a mapping of arrays.
    - `columns`: the source columns of each argument of the model: `y="num"` is one column, `x=["age", "chol"]` a
      matrix; without any, every source column is the argument of its name.
    - `standardise`: (centre, scale) by column; or True, for the mean and sd of all these rows, in columns of matrices
      with more than two values.
    - `levels`: the categories of a column in order. Outside matrices they become codes 0, 1, ..., inside a matrix
      indicator columns, one per level but the first.
    - `limits`: (lowest, highest) by column; values outside are an error.
    - `drop_missing`: whether rows with a missing value are left out; otherwise they are an error.
    - `hash_key`: a secret that all sites share, the key of the hash by which shards with the same rows are detected.

    Columns with a categorical dtype of pandas, polars or Arrow are never taken for numbers: `epvi.fit` uses the
    categories of a table in memory in their order, files and sites need `levels`, and new rows are coded as the fit
    was. Booleans have the levels 0 and 1.

    The source is read in chunks. Arguments that take more than 256 MB together are written to unnamed temporary files
    (in TMPDIR) and memory-mapped; a plain .npy array is memory-mapped where it is.
    """

    source: Any = dataclasses.field(repr=False)
    columns: dict[str, str | tuple[str, ...]]
    standardise: bool | dict[str, tuple[float, float]]
    levels: dict[str, Keys]
    limits: dict[str, tuple[float, float]]
    drop_missing: bool
    hash_key: str

    def __init__(
        self,
        source: Any,
        *,
        standardise: Any = None,
        levels: Any = None,
        limits: Any = None,
        drop_missing: bool = False,
        hash_key: str = "",
        **columns: Any,
    ) -> None:
        if not isinstance(hash_key, str):
            raise EpviError(f"hash_key is a {type(hash_key).__name__}: pass a text.")
        if not isinstance(drop_missing, bool):
            raise EpviError(f"drop_missing is {drop_missing!r}: pass True or False.")
        if not isinstance(standardise, bool):
            standardise = _each("standardise", standardise, _constants)
        made = {
            "source": source,
            "columns": {name: _sources(name, of) for name, of in columns.items()},
            "standardise": standardise,
            "levels": _each("levels", levels, as_levels),
            "limits": _each("limits", limits, _limits),
            "drop_missing": drop_missing,
            "hash_key": hash_key,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Refuse options for columns that no argument uses, and options that contradict each other."""
        used = set(self.used)
        units = {} if isinstance(self.standardise, bool) else self.standardise
        for what, option in (("standardise", units), ("levels", self.levels), ("limits", self.limits)):
            strange = [name for name in option if used and name not in used]
            if strange:
                raise EpviError(
                    f"{what} names {strange[0]!r}, of which no argument is made: correct the name or take it out."
                )
        for what, option in (("standardise", units), ("limits", self.limits)):
            both = [name for name in option if name in self.levels]
            if both:
                raise EpviError(f"column {both[0]!r} has levels, so it cannot be in {what} too: take it out of one.")
        if self.standardise is True and all(isinstance(of, str) for of in self.columns.values()):
            raise EpviError('standardise=True is for columns in lists, as in x=["age", "chol"]: there is no list here.')

    def read(
        self,
        also: str | None = None,
        *,
        keep: bool = False,
        apart: str | None = None,
        optional: Container[str] = (),
        undeclared: Undeclared = REFUSED,
    ) -> Table:
        """Read and check the rows.

        `also` names a further source column, returned unconverted in the table's `extra`; if every column is an
        argument, this one is not, unless `keep`. The argument `apart` is not made but returned there, too. `optional`
        arguments are left out when the source has none of their columns. `undeclared` says how to treat categorical
        columns without `levels`.
        """
        parts = open_source(self.source)
        extra = {name: self._source_of(name, parts[0]) for name in (also, apart) if name is not None}
        arguments = self._arguments(parts, None if keep else also, apart, optional)
        standardise = self.standardise if isinstance(self.standardise, dict) else {}
        unknown = [] if self.columns else parts[0].lacks((*standardise, *self.levels, *self.limits))
        if unknown:
            raise unknown_column(unknown[0], parts[0])
        plan = TablePlan(
            arguments,
            {name: level_codes(keys) for name, keys in self.levels.items()},
            {name: tuple(map(level_name, keys)) for name, keys in self.levels.items()},
            self.limits,
            standardise,
            self.standardise is True,
            self.drop_missing,
            undeclared,
        )
        table = assemble(parts, plan, list(dict.fromkeys(extra.values())))
        return dataclasses.replace(
            table,
            extra={name: table.extra[source] for name, source in extra.items()},
            left_out=tuple(one for one in self._listed if one not in arguments and one.name != apart),
            hash_key=self.hash_key,
        )

    def _source_of(self, name: str, part: TablePart) -> str:
        """The source column of this name, or the one of which the argument of this name is made."""
        made_of = self.columns.get(name)
        return made_of if name not in part.names and isinstance(made_of, str) else name

    def _arguments(
        self, parts: list[TablePart], further: str | None, apart: str | None, optional: Container[str]
    ) -> tuple[Argument, ...]:
        there = parts[0].names
        if not self.columns:
            for part in parts:
                more = parts[0].lacks(part.names)
                if more:
                    raise EpviError(
                        f"{part.said} has a column {more[0]!r}, which {parts[0].said} has not: give all files the same"
                        " columns, or name the columns to use."
                    )
            return tuple(Argument(name, (name,), False) for name in there if name not in (further, apart))
        listed = [one for one in self._listed if one.name != apart]
        found = [
            one for one in listed if one.name not in optional or len(parts[0].lacks(one.sources)) < len(one.sources)
        ]
        return tuple(found or listed)

    @property
    def _listed(self) -> list[Argument]:
        return [
            Argument(name, (of,) if isinstance(of, str) else of, not isinstance(of, str))
            for name, of in self.columns.items()
        ]

    @property
    def used(self) -> list[str]:
        """The source columns that arguments use, each once; empty if no columns are chosen."""
        listed = [[of] if isinstance(of, str) else of for of in self.columns.values()]
        return list(dict.fromkeys(name for names in listed for name in names))

    @property
    def is_plain(self) -> bool:
        """Whether the source is a mapping of arrays that are the arguments without any conversion."""
        options = (self.columns, self.standardise, self.levels, self.limits, self.drop_missing)
        return not any(options) and not is_path(self.source) and not hasattr(self.source, "__arrow_c_stream__")


@verb("reading the rows")
def read_rows(
    rows: Any,
    also: str | None = None,
    *,
    keep: bool = False,
    apart: str | None = None,
    optional: Container[str] = (),
    undeclared: Undeclared = REFUSED,
) -> Table:
    """Read rows from a `Rows`, a path or glob, a data frame or a mapping of arrays; arguments as of `Rows.read`."""
    rows = rows if isinstance(rows, Rows) else Rows(rows)
    raw = raw_columns(rows.source) if rows.is_plain else {}
    own = {name: column for name, column in raw.items() if name != apart and (name != also or keep)}
    if not rows.is_plain or any(map(needs_levels, own.values())):
        return rows.read(also, keep=keep, apart=apart, optional=optional, undeclared=undeclared)
    further = [name for name in (also, apart) if name is not None]
    for name in further:
        if name not in raw:
            purpose = "group" if name == apart else "split"
            raise EpviError(f"there is no column {name!r} to {purpose} by: the rows have {', '.join(raw)}.")
    extra = {name: raw[name] for name in further}
    table = Table(as_columns(own) if own or not extra else {}, extra=extra, hash_key=rows.hash_key)
    for name in further:
        length = plain_array(name, raw[name]).shape[:1]
        if length not in ((), (table.num_rows,)):
            raise EpviError(
                f"column {name!r} has {length[0]:,} entries and the others {table.num_rows:,}: one per row in each."
            )
    return table


def check_arguments(names: Iterable[str]) -> None:
    """Refuse a model's arguments whose names are options of `Rows`."""
    taken = {"self", *inspect.signature(Rows).parameters}
    for name in names:
        if name in taken:
            raise EpviError(f"an argument is called {name!r}, which is an option of epvi.Rows: rename it in the model.")


def with_constants(rows: Any, remedy: str) -> Any:
    """The rows; an error if they would be standardised with their own mean and sd (`standardise=True`)."""
    if isinstance(rows, Rows) and rows.standardise is True:
        raise EpviError(f"standardise=True computes constants from these rows alone: {remedy}")
    return rows


def _each(what: str, option: Any, check: Callable[[str, Any], Any]) -> dict[str, Any]:
    if option is None:
        return {}
    if not isinstance(option, Mapping) or any(not isinstance(name, str) for name in option):
        raise EpviError(f"{what} is a {type(option).__name__}: pass a mapping from columns' names.")
    return {name: check(name, value) for name, value in option.items()}


def _sources(name: str, of: Any) -> str | tuple[str, ...]:
    if isinstance(of, str):
        return of
    if not isinstance(of, list | tuple) or not of or any(not isinstance(one, str) for one in of):
        raise EpviError(f"{name} is {str(of)[:40]!r}: pass a column's name, or a list of names for a matrix.")
    twice = first_duplicate(of)
    if twice is not None:
        raise EpviError(f"{name} lists column {twice!r} twice: once is enough.")
    return tuple(of)


def _pair(value: Any) -> tuple[Any, Any]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise TypeError
    return value[0], value[1]


def _constants(name: str, value: Any) -> tuple[float, float]:
    try:
        centre, scale = map(float, _pair(value))
        if not (math.isfinite(centre) and math.isfinite(scale) and scale > 0):
            raise ValueError
    except (TypeError, ValueError):
        raise EpviError(
            f"standardise of column {name!r} is {str(value)[:60]}: pass (centre, scale), the scale above 0."
        ) from None
    return centre, scale


def _limits(name: str, value: Any) -> tuple[float, float]:
    try:
        low, high = _pair(value)
        pair = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
        if not pair[0] <= pair[1] or (low is None and high is None):
            raise ValueError
    except (TypeError, ValueError):
        raise EpviError(
            f"limits of column {name!r} are {str(value)[:60]}: pass (lowest, highest), either may be None."
        ) from None
    return pair
