"""Settles which labels of a model can be exchanged, before shards are fitted.

Takes a model with its programs and rows; gives the model with the exchangeable parameters that were found declared, and
names those that cannot be. A posterior with labels that can be exchanged and are not aligned is never trusted.
"""

from typing import NamedTuple

from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns
from epvi.site.tasks.symmetry import Symmetry, SymmetryTest, find_symmetries, is_symmetric


class Settled(NamedTuple):
    """A model whose labels are settled."""

    # The model, with what was found exchangeable declared.
    model: Model
    programs: Programs
    # Parameters whose labels can be exchanged, but are not aligned between shards.
    unaligned: tuple[str, ...]


def settle_labels(model: Model, programs: Programs, columns: Columns) -> Settled:
    """Look for exchangeable parameters, and declare them if the user has declared nothing."""
    declared, test = model.exchangeable or (), SymmetryTest(programs, columns)
    for group in declared:
        if not is_symmetric(test, group):
            raise EpviError(
                f"{', '.join(group)} is declared exchangeable, but permuting it changes the log density: declare"
                ' together all parameters that change places (as in [("weights", "means")]), and only those.'
            )
    found = find_symmetries(test)
    if model.exchangeable is None:
        fits = tuple(one for one in found if one.can_be_declared)
        if fits:
            logger.warning("%s", _note(fits))
            model = model.declared(tuple(one.group for one in fits))
            programs = programs_of(model, columns, like=programs)
        declared = tuple(one.group for one in fits)
    known = [set(group) for group in declared]
    left = tuple(str(one) for one in found if set(one.group) not in known)
    if left:
        logger.warning("%s", _warning(left))
    return Settled(model, programs, left)


def _note(found: tuple[Symmetry, ...]) -> str:
    groups = "; ".join(map(str, found))
    written = ", ".join(str(one.group).replace("'", '"') for one in found)
    return (
        f"the order of labels does not matter to the model ({groups}): fits are aligned, and the posterior is that of"
        f" one order. To declare it yourself, pass exchangeable=[{written}] to epvi.Model; to fix an order, give one"
        " of the parameters an ordered prior (dist.transforms.OrderedTransform)."
    )


def _warning(left: tuple[str, ...]) -> str:
    return (
        f"the order of labels does not matter to the model ({'; '.join(left)}), and fits are not aligned: their product"
        " mixes orders, and will not be trusted. Fix an order by an ordered prior (dist.transforms.OrderedTransform)."
    )
