"""Eigenvalues of Hessians, in units in which it does not matter how a column is measured."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Eigen(NamedTuple):
    """|eigenvalues| of a Hessian in units of its own diagonal, kept off zero, with its eigenvectors and the units.

    Units make it all the same whether a column is in metres or in millimetres.
    """

    size: Float[np.ndarray, "*B D"]
    vectors: Float[np.ndarray, "*B D D"]
    units: Float[np.ndarray, "*B D"]
    # Whether all eigenvalues were negative.
    falls: Bool[np.ndarray, "*B"]


def units_of(hessian: np.ndarray) -> np.ndarray:
    """1/√|diagonal|, the standard deviations that the curvature alone gives."""
    diagonal = np.abs(np.diagonal(hessian, axis1=-2, axis2=-1))
    least = 1e-24 * np.max(diagonal, axis=-1, keepdims=True) + 1e-200
    return 1 / np.sqrt(np.maximum(diagonal, least))


def eigen_of(hessian: np.ndarray, floor: float) -> Eigen:
    """The eigenvalues' sizes, none below `floor` times the largest."""
    finite = np.all(np.isfinite(hessian), axis=(-2, -1), keepdims=True)
    hessian = np.where(finite, hessian, np.eye(hessian.shape[-1]))
    units = units_of(hessian)
    eigenvalues, vectors = np.linalg.eigh(hessian * units[..., :, None] * units[..., None, :])
    size = np.abs(eigenvalues)
    least = floor * size.max(axis=-1, keepdims=True) + 1e-290
    return Eigen(np.maximum(size, least), vectors, units, np.all(eigenvalues < 0, axis=-1) & finite[..., 0, 0])
