"""Renames parameters so that ArviZ can store them."""

from collections.abc import Mapping
from typing import TypeVar

from epvi.ground.errors import EpviError

T = TypeVar("T")


def arviz_names(data: Mapping[str, T]) -> dict[str, T]:
    """Replace slashes in names by dots: in ArviZ's DataTree a slash separates groups."""
    made = {name.replace("/", "."): value for name, value in data.items()}
    taken = [name for name in ("chain", "draw") if name in made]
    if taken or len(made) < len(data):
        which = repr(taken[0]) if taken else "two names that differ by a slash and a dot only"
        raise EpviError(f"the model has {which}, which ArviZ needs for itself: rename it in the model and its columns.")
    return made
