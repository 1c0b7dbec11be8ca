"""Checks and simulates the design matrix and the other columns that the regression models share."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from epvi.ground import validation
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, is_traced


def draw_columns(
    rng: np.random.Generator, num_rows: int, num_columns: int, condition: float | int, intercept: bool
) -> np.ndarray:
    """A Gaussian design matrix (n, C): its covariance has eigenvalues from 1 down to 1/condition, random eigenvectors.

    With `intercept` the first column is 1, and this holds for the others.
    """
    validation.at_least("num_rows", num_rows, 1)
    validation.at_least("num_columns", num_columns, 1)
    if not 1 <= condition < np.inf:
        raise EpviError(f"condition is {condition!r}: pass a number of at least 1 (1 makes the columns independent).")
    drawn = num_columns - int(intercept)
    directions, _ = np.linalg.qr(rng.normal(size=(drawn, drawn)))
    sd = np.geomspace(1.0, condition**-0.5, drawn)
    columns = (sd * rng.normal(size=(num_rows, drawn))) @ directions.T
    return np.hstack([np.ones((num_rows, int(intercept))), columns])


def check_columns(x: AnyArray, **others: AnyArray | None) -> None:
    """Refuse x that is not (n, C), and other columns that are not (n,): (n, 1) would broadcast to (n, n) densities."""
    if jnp.ndim(x) != 2:
        raise EpviError(f"x has shape {jnp.shape(x)}: pass rows by columns, for example x[:, None] for one column.")
    for name, column in others.items():
        if column is not None and jnp.shape(column) != (x.shape[0],):
            raise EpviError(f"{name} has shape {jnp.shape(column)}: pass one value for each of the {x.shape[0]} rows.")


def check_positive(**settings: Any) -> None:
    """Refuse settings that are not positive and finite; traced values are not checked."""
    for name, value in settings.items():
        if not is_traced(value) and not 0 < value < np.inf:
            raise EpviError(f"{name} is {value!r}: pass a positive number.")
