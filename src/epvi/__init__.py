"""Embarrassingly parallel variational inference: one posterior from data that never meets."""

from epvi.errors import EpviError
from epvi.handover import ShardFit
from epvi.hub import Posterior, Summary, combine
from epvi.hub.product import Anchored, Chain, Exact, ProductMixture, Subset, multiply
from epvi.mixture import Estimate, GaussianMixture, NaturalParameters
from epvi.predict import log_predictive, predict
from epvi.run import ShardError, fit
from epvi.site import NVI, Model, Rows, fit_shard
from epvi.space import Parameter, Space
from epvi.structure import Diagonal, Full, Spherical

__version__ = "0.1.0"

__all__ = [
    "NVI",
    "Anchored",
    "Chain",
    "Diagonal",
    "EpviError",
    "Estimate",
    "Exact",
    "Full",
    "GaussianMixture",
    "Model",
    "NaturalParameters",
    "Parameter",
    "Posterior",
    "ProductMixture",
    "Rows",
    "ShardError",
    "ShardFit",
    "Space",
    "Spherical",
    "Subset",
    "Summary",
    "combine",
    "fit",
    "fit_shard",
    "log_predictive",
    "multiply",
    "predict",
]
