"""Draws of shards, from any sampler, become draws of the posterior of all rows: one verb, one file per way."""

from epvi.hub.samples.combine_draws import combine_draws
from epvi.hub.samples.consensus import Consensus
from epvi.hub.samples.exponential_family import ExponentialFamily
from epvi.hub.samples.nonparametric import Nonparametric
from epvi.hub.samples.parametric import Parametric
from epvi.hub.samples.result import CombinedDraws
from epvi.hub.samples.semiparametric import Semiparametric
from epvi.hub.samples.weierstrass import Weierstrass

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
