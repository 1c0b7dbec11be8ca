"""Prepares a table of rows for a fit or scores: checks the model on it, settles its labels, integrates its groups out.

Takes a model and its rows; gives compiled programs with the columns that they take. Where the model has groups these
are bundles of groups (`site/derivatives/integrated.py`), and the parameters are those that sites share.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from epvi.ground.version import __version__
from epvi.site.derivatives.declared_groups import LOOKED_AT, declared_effects, with_few_groups
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.passes import Programs, programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.model.model import Model
from epvi.site.rows.bundles import Bundles, bundle, size_of_bundles
from epvi.site.rows.columns import Columns
from epvi.site.rows.table import Table
from epvi.site.tasks.fingerprint import hash_fixed, model_values
from epvi.site.tasks.labels import settle_labels
from epvi.wire.shard_fit import Provenance

# Rows that are checked at a time. Judgement.
_ROWS_AT_ONCE = 2**14


class Prepared(NamedTuple):
    """What fits and scores of rows are made with."""

    programs: Programs
    # The columns that the programs take.
    columns: Columns
    # Provenance without inference, key and hash of the rows.
    made_of: Provenance


class Checked(NamedTuple):
    """A model that was checked on its rows."""

    # With groups, the model for a fixed number of them.
    model: Model
    programs: Programs
    # The columns that it takes.
    columns: Columns
    made_of: Provenance


def settled(model: Model, table: Table, *, labels: bool = True) -> Checked:
    """The model and its programs after it was checked on these rows, and with `labels` its labels settled.

    Where it has groups, their effects are parameters like the others, and there are `LOOKED_AT` of them.
    """
    columns = table.columns
    if model.groups is not None:
        columns = with_few_groups(model.groups, columns)
    few = model.with_groups(LOOKED_AT)
    programs = programs_of(few, columns)
    programs.target.check(columns)
    programs.refuse_codes(columns)
    unaligned: tuple[str, ...] = ()
    if labels:
        few, programs, unaligned = settle_labels(few, programs, columns)
    return Checked(few, programs, columns, provenance(model, programs, table, unaligned))


def provenance(model: Model, programs: Programs, table: Table, unaligned: tuple[str, ...] = ()) -> Provenance:
    """The provenance of fits of this model to such rows, without inference, key and hash of the rows."""
    prior_values, row_values = model_values(programs, table.columns)
    return Provenance(
        model=model.name,
        prior_values=prior_values,
        row_values=row_values,
        fixed=hash_fixed(model.fixed),
        columns=table.sources,
        standardised=table.standardised,
        levels=table.levels,
        unaligned=unaligned,
        groups=model.groups or "",
        version=__version__,
    )


def prepared(model: Model, table: Table, *, labels: bool = True) -> Prepared:
    """Programs, columns and provenance for rows of one shard."""
    few, programs, _, made_of = settled(model, table, labels=labels)
    if model.groups is None:
        return Prepared(programs, table.columns, made_of)
    integrated = integrated_model(few, programs, model.groups, table)
    columns = bundled(table.columns, model.groups).unnumbered(table.columns)
    return Prepared(programs_of(integrated, columns), columns, made_of)


def integrated_model(few: Model, programs: Programs, groups: str, table: Table) -> IntegratedModel:
    """The model with the effects of its groups integrated out, from a settled one."""
    columns = with_few_groups(groups, table.columns)
    Subposterior.of(programs, columns, Fraction(1), _ROWS_AT_ONCE).refuse_outside()
    return IntegratedModel(few, declared_effects(few, groups, columns))


def bundled(columns: Columns, groups: str) -> Bundles:
    """The rows of whole groups together."""
    codes = columns[groups]
    return bundle(codes, np.arange(len(codes)), size_of_bundles(np.bincount(codes)))
