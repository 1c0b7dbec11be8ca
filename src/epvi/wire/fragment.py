"""`Fragment`: a recipe for rows that stay where they are, from which any worker can make the same columns.

It names pieces, which are files that all workers can read, or partitions that an engine holds,
and says how columns become arguments of the model. It has no rows, so that it is small wherever it is sent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Piece:
    """The smallest part of the rows that is read by itself.

    Attributes:
        name: how messages call it, as in "fragment 7 of 40".
        path: the file; empty if the piece is a partition of an engine.
    """

    name: str
    path: str = ""

    @property
    def said(self) -> str:
        """Its name and its file, for messages."""
        return f"{self.name} ({self.path!r})" if self.path else self.name


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a piece had when it was first read: later readings must find the same.

    Attributes:
        num_rows: the number of its rows, without those that were left out.
        tag: a hash of these rows that does not depend on their order.
    """

    num_rows: int
    tag: str


@dataclasses.dataclass(frozen=True)
class Description:
    """How columns become arguments of the model, before all pieces were looked at; as of `epvi.Rows`.

    Attributes:
        columns: the source columns of each argument; empty if each column is the argument of its name.
        levels: the categories of columns, in order.
        limits: lowest and highest value allowed, by column.
        drop_missing: whether rows that lack a value are left out.
        own_levels: whether the categories of a column's dtype are its levels.
        fitted: the names of levels in an earlier fit, by column; None without one.
        by: a column that is only looked at, with one value in each piece.
        optional: arguments that are left out where no piece has their columns.
        units: centre and scale of columns that are standardised while they are read.
    """

    columns: Mapping[str, str | tuple[str, ...]]
    levels: Mapping[str, tuple[str | float, ...]]
    limits: Mapping[str, tuple[float, float]]
    drop_missing: bool = False
    own_levels: bool = False
    fitted: Mapping[str, tuple[str, ...]] | None = None
    by: str | None = None
    optional: tuple[str, ...] = ()
    units: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Coding:
    """What all pieces were found to have in common.

    Attributes:
        dtypes: the NumPy dtype of each argument, in which all of its values fit.
        sources: the names of the columns of each argument.
        levels: the names of levels, by source column.
        units: centre and scale of the source columns that are standardised.
        left_out: the optional arguments that no piece has.
    """

    dtypes: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, tuple[str, ...]]
    units: Mapping[str, tuple[float, float]]
    left_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fragment:
    """A recipe for the rows of some pieces, one after the other.

    Attributes:
        pieces: the pieces.
        description: how to read them.
        coding: how to convert what was read; None for pieces that are looked at for the first time.
        contents: what each piece has; empty for the first time.
        partitions: what the engine knows each piece by, if it is not a file.
    """

    pieces: tuple[Piece, ...]
    description: Description
    coding: Coding | None = None
    contents: tuple[Contents, ...] = ()
    partitions: tuple[Any, ...] = dataclasses.field(default=(), repr=False)

    @property
    def num_rows(self) -> int:
        """The number of rows, once it is known."""
        return sum(one.num_rows for one in self.contents)

    def without_partitions(self) -> "Fragment":
        """The recipe alone, for an engine that hands its partitions over by itself."""
        return dataclasses.replace(self, partitions=())


def joined(fragments: Sequence[Fragment]) -> Fragment:
    """One recipe for the rows of several fragments, one after the other."""
    return dataclasses.replace(
        fragments[0],
        pieces=tuple(piece for one in fragments for piece in one.pieces),
        contents=tuple(known for one in fragments for known in one.contents),
        partitions=tuple(held for one in fragments for held in one.partitions),
    )
