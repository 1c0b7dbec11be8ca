"""What travels between the wings: a shard's fit."""

import dataclasses
from fractions import Fraction

from epvi.mixture import Estimate, GaussianMixture
from epvi.space import Space
from epvi.status import Status


@dataclasses.dataclass(frozen=True, eq=False)
class ShardFit:
    """One shard's approximation of its subposterior p(θ)^f p(x_m | θ), with all that the hub needs to know of it.

    `shard` counts from 1 to `num_shards`, `prior` is the share f of the prior; `history` is the variational bound after
    each sweep, `elbo` the Monte Carlo bound with its standard error, `gap` how many nats that is below the evidence as
    far as the fit's own draws tell, `passes` the passes over the rows.
    """

    mixture: GaussianMixture
    space: Space
    shard: int
    num_shards: int
    label: str
    prior: Fraction
    num_rows: int
    status: Status
    history: tuple[float, ...]
    elbo: Estimate
    gap: float
    passes: int
    seconds: float

    def __repr__(self) -> str:
        return f"ShardFit(shard {self.label}, {self.num_rows:,} rows, {self.mixture!r}, {self.status})"
