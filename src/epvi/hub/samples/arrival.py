"""Read and check the user's draws: one float64 array (n_m, d) per shard.

The draws of a shard are an array (n, d) or (chains, n, d), a mapping of names to (n, *shape) arrays, a data frame, or
ArviZ data with a posterior group. Draws that cannot be combined are refused; the message names shard and parameter.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from epvi.ground.errors import EpviError
from epvi.hub.samples.layout import COLUMNS, Layout
from epvi.hub.samples.method import Shards

# Least draws per shard: with ten, a sample sd has a standard error of about 24 %. Judgement.
_LEAST_DRAWS = 10
# A parameter is constant if its sd is below this fraction of its largest value. Judgement: rounding errors of float64
# are about 1e-16 of the value.
_CONSTANT = 1e-12
# Largest magnitude of a draw, and the inverse of the smallest. Kurtosis needs fourth powers: 1e280, where float64 ends
# at 1.8e308.
_LARGEST = 1e70
_FORMS = "an array (n, d) or (chains, n, d), a dict of names to (n, *shape) arrays, a data frame, or ArviZ data"


def arrived(draws_per_shard: Any) -> Shards:
    """The draws of all shards, checked, with their common layout."""
    if not isinstance(draws_per_shard, list | tuple):
        raise EpviError(
            f"draws_per_shard is a {type(draws_per_shard).__name__}: pass a list with one entry per shard, each"
            f" {_FORMS}."
        )
    if not draws_per_shard:
        raise EpviError("draws_per_shard is empty: pass a list with the draws of every shard.")
    read = [_read(m, draws) for m, draws in enumerate(draws_per_shard)]
    for m, shard in enumerate(read):
        _check_alike(m, shard, read[0])
    layout = read[0].layout
    theta = tuple(layout.flat(shard.values) for shard in read)
    seen: dict[bytes, int] = {}
    for m, draws in enumerate(theta):
        _check_values(m, draws, layout)
        other = seen.setdefault(hashlib.blake2b(np.ascontiguousarray(draws).data).digest(), m)
        if other != m:
            raise EpviError(f"shards {other} and {m} have the same draws: pass every shard once.")
    return Shards(theta, layout)


class _Read(NamedTuple):
    """One shard's draws by parameter name, (n, *shape) each."""

    values: dict[str, np.ndarray]
    layout: Layout


def _read(m: int, draws: Any) -> _Read:
    posterior = _posterior_of(draws)
    if posterior is not None:
        return _from_arviz(m, posterior)
    if hasattr(draws, "collect_schema") and hasattr(draws, "collect"):
        draws = draws.collect()
    if hasattr(draws, "columns"):
        # In Arrow tables, `columns` holds the data and `column_names` the names.
        return _from_mapping(m, {name: draws[name] for name in getattr(draws, "column_names", draws.columns)})
    if isinstance(draws, Mapping):
        return _from_mapping(m, draws)
    array = _floats(f"shard {m}", draws)
    if array.ndim == 3:
        array = array.reshape(-1, array.shape[2])
    if array.ndim != 2 or array.shape[1] == 0:
        raise EpviError(
            f"shard {m}'s draws have shape {array.shape}: pass (n, d) or (chains, n, d), and (n, 1) for one parameter."
        )
    return _Read({COLUMNS: array}, Layout({COLUMNS: array.shape[1:]}, named=False))


def _from_mapping(m: int, draws: Mapping) -> _Read:
    values = {str(name): _floats(f"shard {m}'s {name}", value) for name, value in draws.items()}
    if len(values) < len(draws):
        raise EpviError(f"shard {m} has two parameters of one name once names are text (1 and '1'): rename one.")
    if not values:
        raise EpviError(f"shard {m} has no parameters: pass a dict of names to (n, *shape) arrays.")
    single = next((name for name, value in values.items() if value.ndim == 0), None)
    if single is not None:
        raise EpviError(f"shard {m}'s {single} is a single number: pass an array of draws, (n, *shape).")
    counts = {name: len(value) for name, value in values.items()}
    first = next(iter(counts))
    other = next((name for name in counts if counts[name] != counts[first]), None)
    if other is not None:
        raise EpviError(
            f"shard {m} has {counts[first]:,} draws of {first} and {counts[other]:,} of {other}: the first axis counts"
            " draws (for chains by name, pass ArviZ data)."
        )
    return _Read(values, Layout({name: value.shape[1:] for name, value in values.items()}, named=True))


def _posterior_of(draws: Any) -> Any:
    """The posterior group of ArviZ data, or other xarray data unchanged; None for anything else."""
    if hasattr(draws, "to_dataset") and not hasattr(draws, "data_vars"):
        return draws.to_dataset(name=draws.name or COLUMNS)
    group = draws.get("posterior") if isinstance(draws, Mapping) else getattr(draws, "posterior", None)
    return next((data for data in (group, draws) if hasattr(data, "data_vars")), None)


def _from_arviz(m: int, posterior: Any) -> _Read:
    values, dims, coords = {}, {}, {}
    for name, variable in posterior.data_vars.items():
        if not {"chain", "draw"} <= set(variable.dims):
            raise EpviError(
                f"shard {m}'s {name} has no dimensions chain and draw: drop it from the posterior group, or pass the"
                " draws before their chains were stacked."
            )
        stacked = variable.transpose("chain", "draw", ...)
        array = _floats(f"shard {m}'s {name}", stacked.values)
        values[str(name)] = array.reshape(-1, *array.shape[2:])
        dims[str(name)] = [str(dim) for dim in stacked.dims[2:]]
        coords |= {dim: posterior.coords[dim].values for dim in dims[str(name)] if dim in posterior.coords}
    if not values:
        raise EpviError(f"shard {m}'s posterior group has no variables: pass data with draws.")
    return _Read(values, Layout({name: value.shape[1:] for name, value in values.items()}, True, dims, coords))


def _floats(what: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind in "biu":
        raise EpviError(f"{what} has integers or booleans: leave discrete parameters out, or pass floats.")
    if array.dtype.kind != "f":
        raise EpviError(f"{what} cannot be read as numbers: pass {_FORMS}.")
    if isinstance(value, np.ma.MaskedArray):
        array = value.filled(np.nan)
    return array.astype(np.float64)


def _check_alike(m: int, shard: _Read, first: _Read) -> None:
    if shard.layout.named != first.layout.named:
        raise EpviError(f"shard {m}'s draws have {_kind(shard)}, shard 0's {_kind(first)}: pass all in the same form.")
    if set(shard.values) != set(first.values):
        name = next(iter(set(shard.values) ^ set(first.values)))
        has, lacks = (m, 0) if name in shard.values else (0, m)
        raise EpviError(f"shard {has} has draws of {name}, shard {lacks} has not: pass the same parameters everywhere.")
    for name, shape in first.layout.shapes.items():
        if shard.layout.shapes[name] != shape:
            here = shard.layout.shapes[name]
            raise EpviError(
                f"shard {m}'s {name} has shape {here} per draw, shard 0's {shape}: all shards need the same parameters."
            )
        _check_axes(m, name, shard.layout, first.layout)


def _check_axes(m: int, name: str, here: Layout, first: Layout) -> None:
    """Refuse axes whose order or coordinates differ from shard 0's: entries are matched by position."""
    dims, expected = here.dims.get(name, []), first.dims.get(name, [])
    if dims != expected:
        raise EpviError(f"shard {m}'s {name} has dimensions {dims}, shard 0's {expected}: transpose or rename them.")
    for dim in dims:
        if not np.array_equal(here.coords.get(dim, ()), first.coords.get(dim, ())):
            raise EpviError(
                f"shard {m}'s {name} has other coordinates along {dim} than shard 0's, or in another order: reindex it"
                f" to shard 0's {dim}."
            )


def _kind(shard: _Read) -> str:
    return "names" if shard.layout.named else "no names"


def _check_values(m: int, draws: np.ndarray, layout: Layout) -> None:
    if layout.dim == 0:
        raise EpviError(f"shard {m}'s parameters are empty: pass at least one number per draw.")
    if len(draws) < _LEAST_DRAWS:
        raise EpviError(
            f"shard {m} has {len(draws)} draws: pass at least {_LEAST_DRAWS}, better hundreds, along the first axis"
            " (for chains by name, pass ArviZ data)."
        )
    bad = ~np.isfinite(draws)
    if np.any(bad):
        at = int(np.argmax(np.any(bad, axis=0)))
        count = int(np.count_nonzero(bad[:, at]))
        raise EpviError(
            f"shard {m}'s {layout.labels[at]} has {count} NaN, infinite or masked draws: find out why, and draw again."
        )
    largest = np.max(np.abs(draws), axis=0)
    beyond = (largest > _LARGEST) | ((largest > 0) & (largest < 1 / _LARGEST))
    if np.any(beyond):
        name, size = layout.labels[int(np.argmax(beyond))], largest[int(np.argmax(beyond))]
        raise EpviError(
            f"shard {m}'s {name} has draws of size {size:.0e}, whose fourth powers leave float64: rescale it."
        )
    still = np.std(draws, axis=0) <= _CONSTANT * largest
    if np.any(still):
        name = layout.labels[int(np.argmax(still))]
        raise EpviError(f"shard {m}'s {name} is the same in all draws: leave constant parameters out, or draw again.")
