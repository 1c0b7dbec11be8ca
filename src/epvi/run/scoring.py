"""How shards score a posterior's draws, as a user chooses it and as workers are told."""

import dataclasses

from epvi.ground.errors import EpviError
from epvi.ground.validation import check_settings
from epvi.wire.request import NUM_DRAWS

# Fewer draws say too little of a posterior for any verdict: k̂ is then that of a dozen weights. Judgement.
_LEAST_DRAWS = 64


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How a posterior is certified: by so many draws, which shards score.

    A tall shard's scores come from an expansion and some of its rows, with standard errors, unless they are `exact`.
    """

    num_draws: int = NUM_DRAWS
    exact: bool = False

    def __post_init__(self) -> None:
        check_settings(self, num_draws=_LEAST_DRAWS)
        if not isinstance(self.exact, bool):
            raise EpviError(f"exact is {self.exact!r}: pass True or False.")
