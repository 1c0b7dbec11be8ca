"""Ready models: ordinary NumPyro model functions, each with a simulator of data.

Positional arguments are columns; keyword-only ones are settings, fixed as in `epvi.Model(multinomial, num_classes=3)`.
A simulator gives the rows and the true parameter values.
"""

from epvi.models.logistic import logistic, simulate_logistic
from epvi.models.multinomial import multinomial, simulate_multinomial
from epvi.models.poisson import poisson, simulate_poisson
from epvi.models.robust_linear import robust_linear, simulate_robust_linear
from epvi.models.tlsa import grid_places, simulate_tlsa, tlsa

__all__ = [
    "grid_places",
    "logistic",
    "multinomial",
    "poisson",
    "robust_linear",
    "simulate_logistic",
    "simulate_multinomial",
    "simulate_poisson",
    "simulate_robust_linear",
    "simulate_tlsa",
    "tlsa",
]
