"""The result of `combine_draws`: draws in the form in which the shards' draws came, with a status."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.status import Status
from epvi.ground.validation import at_least
from epvi.ground.version import __version__
from epvi.hub.samples.layout import Layout
from epvi.parameters.arviz_names import arviz_names

if TYPE_CHECKING:
    import xarray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CombinedDraws:
    """Draws of the full posterior.

    Attributes:
        theta: the draws as a flat array (R, d).
        status: whether they can be used as they are, and what to do if not.
        diagnostics: the method's own record.
        method: the method that combined them.
        num_shards: number of shards.
        layout: names and shapes of the parameters in `theta`.
    """

    theta: Float[np.ndarray, "R d"]
    status: Status
    diagnostics: Any
    method: Any
    num_shards: int
    layout: Layout

    @property
    def draws(self) -> np.ndarray | dict[str, np.ndarray]:
        """The draws as an array (R, d), or by name as (R, *shape) when the shards' draws had names."""
        return self.layout.by_name(self.theta) if self.layout.named else self.theta

    # Four chains, as NumPyro, Stan and PyMC users expect in ArviZ; the number has no meaning here.
    def to_arviz(self, num_chains: int = 4) -> "xarray.DataTree":
        """The draws as ArviZ data, cut into `num_chains` chains (up to num_chains − 1 draws are left out).

        ArviZ's R-hat and ESS describe these draws as they are; `status` says whether the combination is right.
        """
        try:
            import arviz_base
            import xarray
        except ImportError:
            raise EpviError("to_arviz needs ArviZ: install it with pip install 'epvi[arviz]'.") from None
        per_chain = len(self.theta) // at_least("num_chains", num_chains, 1)
        if per_chain < num_chains:
            raise EpviError(f"num_chains is {num_chains} for {len(self.theta):,} draws: pass fewer chains.")
        values = arviz_names(self.layout.by_name(self.theta[: num_chains * per_chain]))
        about = self._provenance()
        posterior = arviz_base.dict_to_dataset(
            {name: value.reshape(num_chains, per_chain, *value.shape[1:]) for name, value in values.items()},
            attrs=about,
            dims={name: list(dims) for name, dims in self.layout.dims.items()},
            coords=dict(self.layout.coords),
        )
        tree = xarray.DataTree.from_dict({"posterior": posterior})
        tree.attrs = about
        return tree

    def _provenance(self) -> dict[str, str | int]:
        return {
            "inference_library": "epvi",
            "inference_library_version": __version__,
            "num_shards": self.num_shards,
            "method": type(self.method).__name__,
            "status": self.status.text,
            "status_ok": int(self.status.ok),
        }

    def __repr__(self) -> str:
        method, mark = type(self.method).__name__, "" if self.status.ok else "not ok: "
        drawn = f"{len(self.theta):,} draws of {self.layout.describe()}"
        return f"CombinedDraws({drawn} from {self.num_shards} shards by {method}; {mark}{self.status})"
