"""Runs a NumPyro model on a few example rows, with numbers or abstractly.

Takes the function and the first rows; gives the trace, in which "sites" are NumPyro's. Comparing the traces of two
numbers of rows shows which axes are row axes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from epvi.ground.errors import EpviError
from epvi.site.model.tracing import ModelTrace, failed, placed, run, trace_program

# The two numbers of example rows on which a model is traced: an axis whose length differs between them is a row axis.
# Judgement: few, since only shapes matter, and more than 1, which would broadcast. Fingerprints of models are computed
# on FEW rows and stored in files, so FEW cannot change without making older files incompatible.
MANY, FEW = 12, 8


def take(rows: Mapping[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    """The first n rows, repeated cyclically when there are fewer."""
    have = len(next(iter(rows.values())))
    return {name: np.asarray(column[np.arange(n) % have]) for name, column in rows.items()}


def run_plain(
    function: Callable, fixed: Mapping[str, Any], block: Mapping[str, np.ndarray], of_rows: tuple[str, ...]
) -> ModelTrace:
    """Run the model on a block with numbers, each latent site at one value of its support."""
    try:
        arguments = {**fixed, **{name: jnp.asarray(column) for name, column in block.items()}}
        return run(function, placed, arguments, len(next(iter(block.values()))), of_rows)
    except EpviError:
        raise
    except Exception as error:
        raise failed(error) from error


def run_abstract(
    function: Callable,
    fixed: Mapping[str, Any],
    block: Mapping[str, np.ndarray],
    of_rows: tuple[str, ...] | None = None,
    value_of: Callable = placed,
) -> ModelTrace:
    """Trace the model abstractly: sites have shapes but no numbers, and nothing is compiled."""
    seen = []

    def record(columns: dict[str, Any]) -> int:
        sites = run(function, value_of, {**fixed, **columns}, len(next(iter(block.values()))), of_rows)
        for site in sites.by_name.values():
            site["columns"] = [name for name, column in columns.items() if site.get("value") is column]
        seen.append(sites)
        return 0

    trace_program(record, dict(block))
    return seen[0]
