"""Export posterior draws with their provenance, as an ArviZ `DataTree` or an Arrow table.

Takes a posterior. Predictive draws and log likelihoods come from the method `replies` of the model, if one is given
with rows: the hub imports nothing of models.
"""

import json
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.seeds import PredictionStream, Seed, as_key
from epvi.ground.status import Status
from epvi.ground.validation import at_least
from epvi.ground.version import __version__
from epvi.hub.posterior.parts import Choices
from epvi.hub.trust.chains import Chains
from epvi.parameters.arviz_names import arviz_names
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit

if TYPE_CHECKING:
    import pyarrow
    import xarray

# ArviZ groups in their order: those in _SAMPLED have dimensions chain and draw, all but _POSTERIOR a dimension of rows.
_POSTERIOR = "posterior"
_SAMPLED = (_POSTERIOR, "posterior_predictive", "log_likelihood")
_GROUPS = (*_SAMPLED, "observed_data", "constant_data")
# Chains unless said: R-hat is recommended with at least four (Vehtari et al. 2021).
_CHAINS = 4


@runtime_checkable
class Exportable(Protocol):
    """A posterior with draws and provenance; `epvi.Posterior` is one."""

    @property
    def space(self) -> Space: ...  # noqa: D102
    @property
    def fits(self) -> tuple[ShardFit, ...]: ...  # noqa: D102
    @property
    def choices(self) -> Choices: ...  # noqa: D102
    @property
    def num_rows(self) -> int: ...  # noqa: D102
    @property
    def stands_for(self) -> str: ...  # noqa: D102
    @property
    def status(self) -> Status: ...  # noqa: D102
    @property
    def chains(self) -> Chains | None: ...  # noqa: D102
    def theta(self, num_samples: int, *, seed: Seed) -> np.ndarray: ...  # noqa: D102
    def sample(self, num_samples: int, *, seed: Seed) -> dict[str, np.ndarray]: ...  # noqa: D102


def draws_frame(posterior: Exportable, num_samples: int, seed: Seed) -> "pyarrow.Table":
    """One float64 column per scalar, with the provenance in the schema's metadata."""
    import pyarrow

    draws = posterior.sample(num_samples, seed=seed)
    columns = {
        label: np.ascontiguousarray(draws[parameter.name][(slice(None), *index)], np.float64)
        for parameter in posterior.space.parameters
        for index, label in parameter.elements()
    }
    return pyarrow.table(columns, metadata={"epvi": json.dumps(provenance(posterior))})


def to_arviz(
    posterior: Exportable, num_samples: int, num_chains: int | None, model: Any, rows: Any, seed: Seed
) -> "xarray.DataTree":
    """Draws in chains, with the model's predictions and log likelihoods of the rows at them."""
    try:
        import arviz_base
        import xarray
    except ImportError:
        raise EpviError("to_arviz needs ArviZ: install it with pip install 'epvi[arviz]'.") from None
    key = as_key(seed)
    if posterior.chains is None:
        chains = _chains(num_samples, _CHAINS if num_chains is None else num_chains)
        theta = posterior.theta(num_samples, seed=key)
    else:
        chains, theta = _thinned(posterior.chains, num_samples, num_chains)
    found = _replies(posterior, model, rows, theta, jax.random.fold_in(key, PredictionStream.ROWS))
    found[_POSTERIOR] = {**posterior.space.constrain(theta), **found.get(_POSTERIOR, {})}
    groups = {group: arviz_names(found[group]) for group in _GROUPS if found.get(group)}
    row = _row_dimension(groups)
    about = provenance(posterior)
    made = {}
    for group, data in groups.items():
        sampled = group in _SAMPLED
        made[group] = arviz_base.dict_to_dataset(
            {name: value.reshape(*chains, *value.shape[1:]) if sampled else value for name, value in data.items()},
            attrs=about if group == _POSTERIOR else {},
            dims={} if group == _POSTERIOR else {name: [row] for name in data},
            sample_dims=["chain", "draw"] if sampled else [],
        )
    tree = xarray.DataTree.from_dict(made)
    tree.attrs = about
    return tree


def provenance(posterior: Exportable) -> dict[str, str | int]:
    """Provenance of the draws, as strings and integers, which every file format supports."""
    product = posterior.choices.product
    return {
        "inference_library": "epvi",
        "inference_library_version": __version__,
        "num_rows": posterior.num_rows,
        "stands_for": posterior.stands_for,
        "num_shards": len(posterior.fits),
        "shards": json.dumps([fit.label for fit in posterior.fits], ensure_ascii=False),
        "product": "by size" if product is None else type(product).__name__,
        "status": posterior.status.text,
        "status_ok": int(posterior.status.ok),
    }


def _chains(num_samples: Any, num_chains: Any) -> tuple[int, int]:
    num_samples, num_chains = at_least("num_samples", num_samples, 1), at_least("num_chains", num_chains, 1)
    draws, left = divmod(num_samples, num_chains)
    if left or draws < num_chains:
        raise EpviError(
            f"num_samples is {num_samples:,} for {num_chains:,} chains: pass a multiple of num_chains, with at least as"
            " many draws in a chain as there are chains."
        )
    return num_chains, draws


def _thinned(chains: Chains, num_samples: Any, num_chains: Any) -> tuple[tuple[int, int], np.ndarray]:
    """Draws at equal distances from each chain, in their order, so that R-hat and ESS are those of the chains."""
    count, size, d = chains.theta.shape
    if num_chains not in (None, count):
        raise EpviError(f"num_chains is {num_chains}, but NUTS ran {count} chains: leave num_chains out.")
    shape = _chains(num_samples, count)
    if shape[1] > size:
        raise EpviError(f"num_samples is {num_samples:,}, but NUTS drew {count * size:,}: pass at most so many.")
    kept = np.arange(shape[1]) * size // shape[1]
    return shape, chains.theta[:, kept].reshape(-1, d)


def _replies(
    posterior: Exportable, model: Any, rows: Any, theta: np.ndarray, key: jax.Array
) -> dict[str, dict[str, np.ndarray]]:
    if model is None and rows is None:
        return {}
    if model is None or rows is None:
        missing = "model" if model is None else "rows"
        raise EpviError(f"to_arviz has no {missing}: pass model and rows together, or neither.")
    if not hasattr(model, "replies"):
        raise EpviError(f"model is a {type(model).__name__}: pass epvi.Model(function).")
    return model.replies(rows, posterior.space, posterior.fits[0].made_of, theta, key)


def _row_dimension(groups: dict[str, dict[str, np.ndarray]]) -> str:
    """A name for the dimension of rows that differs from the names of all variables."""
    row = "row"
    while any(row in data for data in groups.values()):
        row += "_"
    return row
