"""The fits of many shards in a few large arrays, as they travel between a worker and its caller.

Takes fits of one batch, with None for shards that could not be fitted together; gives an object with one array for each
of their parts, which is pickled in a fraction of the time that thousands of small objects take.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.wire.shard_fit import ShardFit

# What differs from shard to shard besides arrays and the hash of the rows.
_OWN = ("shard", "label", "prior", "num_rows", "status", "history", "gap", "passes", "seconds", "pass_seconds")


@dataclasses.dataclass(frozen=True, eq=False)
class StackedFits:
    """The fits of B of the shards of a batch, whose mixtures have one structure and number of components.

    Attributes:
        places: where in the batch these shards are.
        count: how many shards the batch has.
        first: the first of the fits, for what all of them share.
        own: the entries of each fit that are no arrays, and the hash of its rows.
        arrays: log weights, means and roots of the mixtures, and ELBOs with their errors, each with a leading axis B.
    """

    places: tuple[int, ...]
    count: int
    first: ShardFit
    own: tuple[tuple[tuple[Any, ...], str], ...]
    arrays: tuple[np.ndarray, ...]

    def each(self) -> list[ShardFit | None]:
        """The fit of each shard of the batch, or None."""
        *mixture, values, errors = self.arrays
        mixtures = GaussianMixture.each(*mixture, of=self.first.mixture.structure)
        shared = {field.name: getattr(self.first, field.name) for field in dataclasses.fields(ShardFit)}
        made: list[ShardFit | None] = [None] * self.count
        for b, (place, (own, rows)) in enumerate(zip(self.places, self.own, strict=True)):
            differs = dict(zip(_OWN, own, strict=True)) | {
                "mixture": mixtures[b],
                "elbo": Estimate(values[b, ...], errors[b, ...]),
                "made_of": dataclasses.replace(self.first.made_of, rows=rows),
            }
            made[place] = ShardFit(**shared | differs)
        return made


def stacked_fits(fits: Sequence[ShardFit | None]) -> "StackedFits | list[ShardFit | None]":
    """The fits of a batch stacked, if they have the same parts."""
    there = [fit for fit in fits if fit is not None]
    kinds = {(fit.mixture.structure, fit.mixture.num_components) for fit in there}
    if len(kinds) != 1 or not all(fit.stands_alone for fit in there):
        return list(fits)
    own = tuple((tuple(getattr(fit, name) for name in _OWN), fit.made_of.rows) for fit in there)
    mixtures = [fit.mixture for fit in there]
    parts = zip(*((one.log_weights, one.means, one.roots) for one in mixtures), strict=True)
    elbo = zip(*(fit.elbo for fit in there), strict=True)
    arrays = tuple(np.stack(part) for part in (*parts, *elbo))
    places = tuple(place for place, fit in enumerate(fits) if fit is not None)
    return StackedFits(places, len(fits), there[0], own, arrays)
