"""Draws of shards, from any sampler, become draws of the posterior of all rows: one verb, one file per way."""

from epvi.hub.draws.combine_draws import combine_draws
from epvi.hub.draws.consensus import Consensus
from epvi.hub.draws.exponential_family import ExponentialFamily
from epvi.hub.draws.nonparametric import Nonparametric
from epvi.hub.draws.parametric import Parametric
from epvi.hub.draws.result import CombinedDraws
from epvi.hub.draws.semiparametric import Semiparametric
from epvi.hub.draws.weierstrass import Weierstrass

__all__ = [
    "CombinedDraws",
    "Consensus",
    "ExponentialFamily",
    "Nonparametric",
    "Parametric",
    "Semiparametric",
    "Weierstrass",
    "combine_draws",
]
