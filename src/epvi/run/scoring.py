"""Settings for scoring a posterior's draws."""

import dataclasses

from epvi.ground.errors import EpviError
from epvi.ground.validation import check_settings
from epvi.wire.request import NUM_DRAWS

# The least number of draws for a verdict. Judgement: k̂ is then estimated from only 13 weights.
_LEAST_DRAWS = 64


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How shards score draws: at how many draws, and whether from all rows.

    A shard with many rows estimates its log density from a Taylor expansion and a subset of its rows, with standard
    errors, unless `exact` is True.
    """

    num_draws: int = NUM_DRAWS
    exact: bool = False

    def __post_init__(self) -> None:
        check_settings(self, num_draws=_LEAST_DRAWS)
        if not isinstance(self.exact, bool):
            raise EpviError(f"exact is {self.exact!r}: pass True or False.")
