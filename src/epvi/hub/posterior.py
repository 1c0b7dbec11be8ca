"""The posterior of all the data: named draws, a summary, the density, and where it came from."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from epvi.errors import EpviError
from epvi.float64 import ArrayLike
from epvi.handover import ShardFit
from epvi.hub.conflict import Conflict, conflict_between
from epvi.hub.product import ProductMixture
from epvi.mixture import GaussianMixture
from epvi.seeds import Seed
from epvi.space import Space
from epvi.status import Status
from epvi.validation import at_least

# Quantiles, and moments of constrained parameters, come from this many draws.
_SUMMARY_DRAWS = 10_000
# Nats that all fits together may be away from their subposteriors before the posterior says so.
_TOLERABLE_LOSS = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """Mean, standard deviation and quantiles of every parameter; `print` it for a table."""

    names: tuple[str, ...]
    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    probabilities: tuple[float, ...]
    quantiles: Float[np.ndarray, "n q"]

    def __str__(self) -> str:
        head = ["", "mean", "sd", *(f"{100 * p:g} %" for p in self.probabilities)]
        numbers = np.column_stack([self.mean, self.sd, self.quantiles])
        # As many decimals as show the sd to two figures.
        decimals = [int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if sd > 0 else 4 for sd in self.sd]
        cells = [[f"{x:.{k}f}" for x in row] for row, k in zip(numbers, decimals, strict=True)]
        rows = [head, *([name, *row] for name, row in zip(self.names, cells, strict=True))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            row[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))
            for row in rows
        )

    __repr__ = __str__

    def __getitem__(self, name: str) -> dict[str, float]:
        """The numbers of one parameter, by its name in the table."""
        if name not in self.names:
            raise EpviError(f"the summary has no {name!r}: it has {', '.join(self.names)}.")
        i = self.names.index(name)
        quantiles = {f"{100 * p:g} %": float(q) for p, q in zip(self.probabilities, self.quantiles[i], strict=True)}
        return {"mean": float(self.mean[i]), "sd": float(self.sd[i]), **quantiles}


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of all the data as a mixture of Gaussians over unconstrained θ.

    `status` says in a sentence how it went, `product` how the mixture was computed (`product.diagnostics`), `fits` are
    the shards' own, `space` names the parameters.
    """

    product: ProductMixture
    space: Space
    fits: tuple[ShardFit, ...]

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture over unconstrained θ."""
        return self.product.mixture

    def __repr__(self) -> str:
        rows = sum(fit.num_rows for fit in self.fits)
        shards = f"{len(self.fits)} shards" if len(self.fits) > 1 else "1 shard"
        return f"Posterior({self.space.describe()}; {rows:,} rows in {shards}; {self.status})"

    @property
    def status(self) -> Status:
        """How the product went, and whether the shards' own fits were good enough to be multiplied.

        Their divergences add up: what single shards hardly determine (scales, variances of effects) goes wrong first.
        """
        lost = sum(fit.gap for fit in self.fits)
        if lost < _TOLERABLE_LOSS:
            return self.product.status
        doubt = (
            f" The shards' fits are {lost:.2g} nats from their subposteriors in all: parameters that a shard alone"
            " hardly determines, such as scales, may be off. Compare with fewer shards."
        )
        return Status(self.product.status.ok, self.product.status.text + doubt)

    def conflict(self, *, seed: Seed = 0) -> Conflict:
        """Whether the shards agree: how far each is from the product of the others, and what it does to the result."""
        return conflict_between(self.fits, self.mixture, self.space, seed=seed)

    def sample(self, num_samples: int, *, seed: Seed) -> dict[str, np.ndarray]:
        """Independent draws of every parameter, constrained, of shape (num_samples, *shape)."""
        return self.space.constrain(self.mixture.sample(num_samples, seed=seed))

    def log_density(self, theta: ArrayLike | Mapping[str, ArrayLike]) -> np.ndarray:
        """The log density over unconstrained coordinates, at θ (..., d) or at named constrained values."""
        if isinstance(theta, Mapping):
            theta = self.space.unconstrain(theta)
        return np.asarray(self.mixture.log_density(theta))

    def summary(
        self, quantiles: Sequence[float] = (0.05, 0.5, 0.95), *, num_samples: int = _SUMMARY_DRAWS, seed: Seed = 0
    ) -> Summary:
        """Mean, sd and quantiles of every parameter; exact moments where a parameter is unconstrained."""
        at_least("num_samples", num_samples, 2)
        if not all(0 < q < 1 for q in quantiles):
            raise EpviError(f"quantiles are {tuple(quantiles)}: pass probabilities between 0 and 1.")
        draws = self.sample(num_samples, seed=seed)
        exact_mean, exact_sd = self.mixture.mean(), self.mixture.sd()
        names, means, sds, found = [], [], [], []
        for parameter in self.space.parameters:
            values = draws[parameter.name].reshape(num_samples, -1)
            names += [label for _, label in parameter.elements()]
            part = self.space.slices[parameter.name]
            real = parameter.is_real
            means.append(exact_mean[part] if real else values.mean(axis=0))
            sds.append(exact_sd[part] if real else values.std(axis=0, ddof=1))
            found.append(np.quantile(values, quantiles, axis=0).T)
        moments = np.concatenate(means), np.concatenate(sds)
        return Summary(tuple(names), *moments, tuple(quantiles), np.concatenate(found))
