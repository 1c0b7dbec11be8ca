"""Eigendecompositions of Hessians scaled to a unit diagonal, which do not depend on the units of measurement."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Eigen(NamedTuple):
    """Eigendecomposition of a Hessian scaled to a unit diagonal, U H U with U = diag(units).

    The scaling makes the result the same whether a column is in metres or in millimetres.
    """

    # Absolute eigenvalues of U H U, bounded away from zero.
    size: Float[np.ndarray, "*B D"]
    # Its eigenvectors, as columns.
    vectors: Float[np.ndarray, "*B D D"]
    # The scale of each coordinate, see `units_of`.
    units: Float[np.ndarray, "*B D"]
    # Whether all eigenvalues are negative, as at a maximum.
    falls: Bool[np.ndarray, "*B"]


def units_of(hessian: np.ndarray) -> np.ndarray:
    """1/√|diagonal|: the conditional standard deviation of each coordinate according to the curvature."""
    diagonal = np.abs(np.diagonal(hessian, axis1=-2, axis2=-1))
    # No unit is above 1e12 times the smallest one, nor above 1e100, whose square float64 still holds. Judgement.
    least = 1e-24 * np.max(diagonal, axis=-1, keepdims=True) + 1e-200
    return 1 / np.sqrt(np.maximum(diagonal, least))


def eigen_of(hessian: np.ndarray, floor: float) -> Eigen:
    """Decompose the scaled Hessian; absolute eigenvalues are at least `floor` times the largest."""
    finite = np.all(np.isfinite(hessian), axis=(-2, -1), keepdims=True)
    hessian = np.where(finite, hessian, np.eye(hessian.shape[-1]))
    units = units_of(hessian)
    eigenvalues, vectors = np.linalg.eigh(hessian * units[..., :, None] * units[..., None, :])
    size = np.abs(eigenvalues)
    # 1e-290 in place of zero: its inverse is still finite in float64. Judgement.
    least = floor * size.max(axis=-1, keepdims=True) + 1e-290
    return Eigen(np.maximum(size, least), vectors, units, np.all(eigenvalues < 0, axis=-1) & finite[..., 0, 0])
