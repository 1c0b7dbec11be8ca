"""Embarrassingly parallel variational inference: one posterior from data that never meets."""

from epvi.errors import EpviError
from epvi.hub.product import Anchored, Chain, Exact, ProductMixture, Subset, multiply
from epvi.mixture import Estimate, GaussianMixture, NaturalParameters
from epvi.structure import Diagonal, Full, Spherical

__version__ = "0.1.0"

__all__ = [
    "Anchored",
    "Chain",
    "Diagonal",
    "EpviError",
    "Estimate",
    "Exact",
    "Full",
    "GaussianMixture",
    "NaturalParameters",
    "ProductMixture",
    "Spherical",
    "Subset",
    "multiply",
]
