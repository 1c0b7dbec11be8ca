"""The posterior of the effects of the groups of one site: means, sds and quantiles by group, as a table."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.text_table import lined_up
from epvi.parameters.space import Space
from epvi.site.model.model import Model
from epvi.site.tasks.site_effects import affordable, effects_at, site_rows
from epvi.wire.shard_fit import Provenance


@dataclasses.dataclass(frozen=True, eq=False)
class GroupSummary:
    """The posterior of the effects of the groups of one site; `print` it for a table.

    Attributes:
        groups: the column of groups.
        labels: the G groups, as the column has them.
        mean: means of the effects by name, (G, ...) each.
        sd: their standard deviations.
        probabilities: those of the quantiles.
        quantiles: by name, (G, ..., q) each.
        draws: draws of the effects by name, (S, G, ...) each; a draw s belongs to one draw of the shared parameters.
    """

    groups: str
    labels: np.ndarray
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    probabilities: tuple[float, ...]
    quantiles: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]

    def __str__(self) -> str:
        rows = [[self.groups, "", "mean", "sd", *(f"{100 * p:g} %" for p in self.probabilities)]]
        for g, label in enumerate(self.labels):
            for name, mean in self.mean.items():
                for i in np.ndindex(mean.shape[1:]):
                    numbers = [mean[g, *i], self.sd[name][g, *i], *self.quantiles[name][g, *i]]
                    called = f"{name}[{','.join(map(str, i))}]" if i else name
                    rows.append([str(label), called, *(f"{x:.3f}" for x in numbers)])
        return lined_up(rows)

    __repr__ = __str__

    def __getitem__(self, label: Any) -> dict[str, dict[str, Any]]:
        """Mean, sd and quantiles of the effects of one group, by name."""
        found = np.flatnonzero(self.labels == label)
        if not len(found):
            raise EpviError(f"{self.groups} has no group {label!r} in these rows.")
        g = int(found[0])
        quantiles = {
            name: {f"{100 * p:g} %": at[g, ..., k] for k, p in enumerate(self.probabilities)}
            for name, at in self.quantiles.items()
        }
        return {name: {"mean": self.mean[name][g], "sd": self.sd[name][g], **quantiles[name]} for name in self.mean}


def group_summary(
    self: Model,
    rows: Any,
    space: Space,
    made_of: Provenance,
    phi: Float[np.ndarray, "S p"],
    quantiles: Sequence[float],
    key: jax.Array,
) -> GroupSummary:
    """The posterior of the effects of the groups in these rows, at draws of the shared parameters."""
    site = site_rows(self, rows, space, made_of)
    most = affordable(len(phi), site.table.num_rows)
    found = effects_at(site, phi[:most], key)
    mean, sd, at = {}, {}, {}
    for name, value in found.values.items():
        mean[name], sd[name] = np.mean(value, axis=0), np.std(value, axis=0)
        if name in found.mean:
            # Moments given φ are known, and only φ is drawn.
            own = found.mean[name]
            mean[name] = np.mean(own, axis=0)
            sd[name] = np.sqrt(np.mean(found.variance[name], axis=0) + np.var(own, axis=0))
        at[name] = np.moveaxis(np.quantile(value, quantiles, axis=0), 0, -1)
    return GroupSummary(str(self.groups), found.labels, mean, sd, tuple(quantiles), at, found.values)


# Attached as a method, because the hub calls it on the user's model and may not import the site.
Model.group_summary = group_summary
