"""Topographic latent source analysis (section 5.2 of Neiswanger, Wang & Xing 2015): L spatial sources are superposed.

    λ_l ~ Exponential(ρ),  r̄_ld ~ Uniform(0, 1),  w_lc ~ N(0, σ_w²)
    g_lv = exp(−‖r_v − r̄_l‖² / λ_l),  y_nv ~ N(Σ_c x_nc Σ_l w_lc g_lv, τ⁻¹)

r_v is the position of column v. The paper's formula for g lacks the minus sign, and its Beta(1, 1) is the uniform here.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from epvi.ground import validation
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, is_traced
from epvi.models.columns import check_positive

# Parameters whose leading axis is the source; permuting it in all of them at once leaves the posterior unchanged.
EXCHANGEABLE = (("weights", "centres", "widths"),)


def tlsa(
    x: AnyArray,
    y: AnyArray | None = None,
    *,
    places: AnyArray,
    num_sources: int,
    tau: float | int = 1.0,
    sigma_w2: float | int = 5.0,
    rho: float | int = 1.0,
) -> None:
    """Vectors y (n, V) from covariates x (n, C), with the positions `places` (V, D) of y's columns in the unit box.

    Parameters are weights w (L, C), centres r̄ (L, D) and widths λ (L,). The L = `num_sources` sources are
    exchangeable: permuting the leading axis of all three gives the same density. The defaults are the values of the
    simulations in experiments/figure5.py, which follows the paper.
    """
    places = _checked_places(places)
    num_columns, num_dimensions = places.shape
    _check_rows(x, y, num_columns)
    validation.at_least("num_sources", num_sources, 1)
    check_positive(tau=tau, sigma_w2=sigma_w2, rho=rho)
    weights = numpyro.sample("weights", dist.Normal(0.0, sigma_w2**0.5).expand([num_sources, x.shape[1]]).to_event(2))
    centres = numpyro.sample("centres", dist.Uniform(0.0, 1.0).expand([num_sources, num_dimensions]).to_event(2))
    widths = numpyro.sample("widths", dist.Exponential(rho).expand([num_sources]).to_event(1))
    basis = jnp.exp(-_scaled_distances(places, centres, widths))
    # Multiplies in the cheapest order for these sizes, and never makes an array of rows x columns x sources.
    mean = jnp.linalg.multi_dot([x, jnp.transpose(weights), basis])
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, tau**-0.5).to_event(1), obs=y)


def simulate_tlsa(
    num_rows: int,
    num_covariates: int,
    *,
    places: AnyArray,
    num_sources: int,
    tau: float | int = 1.0,
    sigma_w2: float | int = 5.0,
    rho: float | int = 1.0,
    seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rows x, y and the true weights, centres, widths, drawn from the model with its defaults; x is standard normal."""
    places = np.asarray(_checked_places(places))
    validation.at_least("num_rows", num_rows, 1)
    validation.at_least("num_covariates", num_covariates, 1)
    validation.at_least("num_sources", num_sources, 1)
    check_positive(tau=tau, sigma_w2=sigma_w2, rho=rho)
    rng = np.random.default_rng(seed)
    weights = rng.normal(scale=sigma_w2**0.5, size=(num_sources, num_covariates))
    centres = rng.uniform(size=(num_sources, places.shape[1]))
    widths = rng.exponential(1 / rho, size=num_sources)
    x = rng.normal(size=(num_rows, num_covariates))
    mean = x @ (weights.T @ np.exp(-_scaled_distances(places, centres, widths)))
    y = mean + rng.normal(scale=tau**-0.5, size=mean.shape)
    return {"x": x, "y": y}, {"weights": weights, "centres": centres, "widths": widths}


def grid_places(num_columns: int, num_dimensions: int = 2) -> np.ndarray:
    """Positions (V, D) for V columns: cell centres of a regular grid in the unit box, evenly thinned to V of them."""
    validation.at_least("num_columns", num_columns, 1)
    validation.at_least("num_dimensions", num_dimensions, 1)
    side = round(num_columns ** (1 / num_dimensions))
    side += side**num_dimensions < num_columns
    cells = np.linspace(0, side**num_dimensions - 1, num_columns).round().astype(np.int64)
    return (np.stack(np.unravel_index(cells, (side,) * num_dimensions), axis=1) + 0.5) / side


def _scaled_distances(places: Any, centres: Any, widths: Any) -> Any:
    """‖r_v − r̄_l‖² / λ_l, of shape (L, V)."""
    return ((places[None] - centres[:, None]) ** 2).sum(-1) / widths[:, None]


def _checked_places(places: AnyArray) -> AnyArray:
    """Check that the positions are (V, D) and in the unit box, the support of the centres."""
    if not is_traced(places):
        places = validation.finite_array("places", places)
        if places.size and not 0 <= places.min() <= places.max() <= 1:
            raise EpviError(f"places run from {places.min():.3g} to {places.max():.3g}: rescale them to 0 to 1.")
    if places.ndim != 2 or 0 in places.shape:
        raise EpviError(f"places have shape {places.shape}: pass one row per column of y, one column per dimension.")
    return places


def _check_rows(x: AnyArray, y: AnyArray | None, num_columns: int) -> None:
    if jnp.ndim(x) != 2:
        raise EpviError(f"x has shape {jnp.shape(x)}: pass rows by covariates.")
    if y is not None and jnp.shape(y) != (x.shape[0], num_columns):
        raise EpviError(
            f"y has shape {jnp.shape(y)}: with these x and places it must be ({x.shape[0]}, {num_columns}),"
            " one row per row of x and one column per place."
        )
