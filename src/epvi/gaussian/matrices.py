"""Full symmetric matrices in NumPy, packed as they are."""

import functools
from typing import cast

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dtrtri  # pyright: ignore[reportAttributeAccessIssue]

from epvi.gaussian.eigen import eigen_of, units_of
from epvi.gaussian.packing import Directions, Numbers, Packed, Packing, Rows, Vectors
from epvi.gaussian.powers import Powers

# Least absolute eigenvalue of a curvature scaled to a unit diagonal, relative to the largest; smaller ones are raised
# to it. Judgement: rounding in float64 leaves eigenvalues uncertain by some multiple of 2e-16 of the largest.
_SINGULAR = 1e-12
# The same for a precision that `guarded` has already made positive-definite, so that it is changed no further.
# Judgement: a few times the machine epsilon.
_GUARDED = 1e-15
# Largest |t| of a starting value, where the diagonal of T is exp(t) and Σ = C T Tᵀ Cᵀ. It lies within the bounds of ±15
# on t in `entropy_bound.py`; e¹⁴ is about a million. Judgement.
_MOST_GROWTH = 14.0
# Up to this many dimensions a triangular matrix is inverted for what a triangular solve would do, because OpenBLAS
# starts threads for every solve, however small: beside busy workers that takes 10 ms instead of 0.1. Judgement.
_FEW = 128
# From so many matrices on, of up to so many dimensions, squared distances are computed together. Judgement: otherwise
# making the products of coordinates takes longer than they save.
_SEVERAL, _SMALL = 4, 32


class Matrices(Packing):
    """Full matrices (d, d)."""

    whole = True

    def identity(self, d: int) -> Packed:
        return np.eye(d)

    def dense(self, packed: Packed, d: int) -> np.ndarray:
        return packed

    def diagonal(self, packed: Packed, d: int) -> Vectors:
        return np.diagonal(packed, axis1=-2, axis2=-1)

    def kept(self, matrices: np.ndarray, form: Packing, d: int) -> Packed:
        return form.dense(matrices, d)

    def flat(self, packed: Packed) -> np.ndarray:
        return packed[:, *_lower(packed.shape[-1])]

    def from_flat(self, flat: np.ndarray, d: int, *, symmetric: bool) -> Packed | None:
        if flat.shape[1] != d * (d + 1) // 2:
            return None
        rows, columns = _lower(d)
        made = np.zeros((len(flat), d, d))
        made[:, rows, columns] = flat
        if symmetric:
            made[:, columns, rows] = flat
        return made

    def symmetrised(self, packed: Packed) -> Packed:
        return 0.5 * (packed + np.swapaxes(packed, -1, -2))

    def reordered(self, packed: Packed, order: np.ndarray) -> Packed:
        return packed[np.ix_(order, order)]

    def mirrored(self, packed: Packed, signs: np.ndarray) -> Packed:
        return signs[:, None] * packed * signs

    def times(self, packed: Packed, x: Vectors) -> Vectors:
        return np.einsum("...ij,...j->...i", packed, x)

    def rows_times(self, x: Vectors, packed: Packed) -> Vectors:
        return x @ packed

    def transposed(self, root: Packed) -> Packed:
        return root.T

    def inverse(self, packed: Packed) -> Packed:
        return np.linalg.inv(packed)

    def log_det(self, packed: Packed, d: int) -> Numbers:
        return np.linalg.slogdet(packed)[1]

    def outer(self, weights: np.ndarray, x: Rows) -> Packed:
        return (weights[:, None] * x).T @ x

    def covariance_of(self, draws: Rows) -> Packed:
        return np.atleast_2d(np.cov(draws, rowvar=False))

    def precision(self, root: Packed) -> Packed:
        return root @ np.swapaxes(root, -1, -2)

    def root(self, precision: Packed) -> Packed:
        return np.linalg.cholesky(precision)

    def inverse_root(self, precision: Packed) -> Packed:
        return _inverted(np.linalg.cholesky(precision))

    def gram(self, half: Packed) -> Packed:
        return half.T @ half

    def half_log_det(self, root: Packed, d: int) -> Numbers:
        return np.sum(np.log(np.diagonal(root, axis1=-2, axis2=-1)), axis=-1)

    def solve(self, root: Packed, x: np.ndarray) -> np.ndarray:
        return cho_solve((root, True), x, check_finite=False)

    def whiten(self, root: Packed, x: Rows) -> Rows:
        return x @ root

    def squares(self, roots: Packed, means: np.ndarray, x: Rows) -> np.ndarray:
        (count, d), n = means.shape, len(x)
        if count < _SEVERAL or d > _SMALL or n < count * d:
            return super().squares(roots, means, x)
        # Coordinates in which the average precision is 1, so that squares lose few digits; without squaring roots.
        stacked = np.concatenate(roots.swapaxes(1, 2)) / np.sqrt(count)
        average = np.transpose(cast(np.ndarray, np.linalg.qr(stacked, mode="r")))
        inner = lower_solved(average, roots.swapaxes(0, 1).reshape(d, -1)).reshape(d, count, d).swapaxes(0, 1)
        white = Powers.of((x - means[0]) @ average)
        return np.maximum(white.squares(self.precision(inner), (means - means[0]) @ average), 0.0)

    def unwhiten(self, root: Packed, z: Rows) -> Rows:
        return z @ _inverted(root) if len(root) <= _FEW else solve_triangular(root, z.T, lower=True, trans=1).T

    def are_proper_roots(self, roots: Packed, least: float, greatest: float) -> bool:
        diagonal = np.diagonal(roots, axis1=-2, axis2=-1)
        if np.any(diagonal < least) or np.any(diagonal > greatest) or np.any(np.abs(roots) > greatest):
            return False
        # Entries off the diagonal can still make a variance overflow; inf and NaN fail the comparison, as they should.
        with np.errstate(over="ignore", invalid="ignore"):
            return all(np.all(np.sum(_inverted(root) ** 2, axis=0) < greatest**2) for root in roots)

    def half_log_abs_det(self, curvature: Packed) -> Numbers:
        eigen = eigen_of(curvature, _SINGULAR)
        return 0.5 * np.sum(np.log(eigen.size) - 2 * np.log(eigen.units), axis=-1)

    def abs_square(self, packed: Packed, x: Vectors) -> np.ndarray:
        sizes, vectors = np.linalg.eigh(packed)
        return np.asarray(np.sum((x @ vectors) ** 2 * np.abs(sizes), axis=-1))

    def ratios(self, packed: Packed, other: Packed) -> np.ndarray:
        eigen = eigen_of(packed, _SINGULAR)
        root = eigen.units[:, None] * eigen.vectors / np.sqrt(eigen.size)
        return np.linalg.eigvalsh(root.T @ other @ root)

    def smallest(self, curvature: Packed, most: int) -> Directions:
        units = units_of(curvature)
        eigenvalues, vectors = np.linalg.eigh(curvature * units[:, None] * units)
        order = np.argsort(np.abs(eigenvalues))[:most]
        return Directions(eigenvalues[order], vectors.T[order], units)

    def newton_step(self, gradient: np.ndarray, curvature: Packed, floor: float) -> np.ndarray:
        eigen = eigen_of(curvature, floor)
        return eigen.units * (eigen.vectors @ ((eigen.vectors.T @ (gradient * eigen.units)) / eigen.size))

    def guarded(self, curvature: Packed, floor: float) -> tuple[Packed, np.ndarray]:
        units = units_of(curvature)
        if np.all(_clearly_positive_definite(curvature, units, floor)):
            return curvature, np.zeros(curvature.shape[:-2], bool)
        eigenvalues = np.linalg.eigvalsh(curvature * units[..., :, None] * units[..., None, :])
        bad = np.any(eigenvalues < floor * np.max(np.abs(eigenvalues), axis=-1, keepdims=True), axis=-1)
        eigen = eigen_of(curvature, floor)
        spread = eigen.vectors / units[..., :, None]
        mended = (spread * eigen.size[..., None, :]) @ np.swapaxes(spread, -1, -2)
        return np.where(bad[..., None, None], mended, curvature), bad

    def raised(self, curvature: Packed, floor: float) -> Packed:
        units = units_of(curvature)
        eigenvalues, vectors = np.linalg.eigh(curvature * units[:, None] * units)
        spread = vectors / units[:, None]
        return (spread * np.maximum(eigenvalues, floor * np.max(np.abs(eigenvalues)))) @ spread.T

    def covariance_root(self, precision: Packed) -> Packed:
        units = units_of(precision)
        if np.all(_clearly_positive_definite(precision, units, _SINGULAR)):
            scaled = precision * units[..., :, None] * units[..., None, :]
            return units[..., :, None] * np.swapaxes(np.linalg.inv(np.linalg.cholesky(scaled)), -1, -2)
        # By eigendecomposition, because a guarded precision may be too close to singular for Cholesky.
        eigen = eigen_of(precision, _GUARDED)
        return eigen.vectors * eigen.units[..., :, None] / np.sqrt(eigen.size)[..., None, :]

    def rooted(self, root: Packed, z: Vectors) -> Vectors:
        return self.times(root, z)

    def grown(self, root: Packed, t: Packed) -> Packed:
        spread = root @ _triangle(t)
        return spread @ np.swapaxes(spread, -1, -2)

    def grown_gradient(self, root: Packed, t: Packed, gradient: Packed, d: int) -> Packed:
        triangle = _triangle(t)
        slope = np.tril(2 * np.swapaxes(root, -1, -2) @ gradient @ root @ triangle - triangle)
        diagonal = np.arange(d)
        slope[..., diagonal, diagonal] *= triangle[..., diagonal, diagonal]
        return slope

    def growth(self, root: Packed, covariance: Packed) -> Packed:
        inverse = np.linalg.inv(root)
        triangle = np.linalg.cholesky(inverse @ covariance @ np.swapaxes(inverse, -1, -2))
        diagonal = np.arange(triangle.shape[-1])
        t = np.tril(triangle, -1)
        t[..., diagonal, diagonal] = np.log(triangle[..., diagonal, diagonal])
        return np.clip(t, -_MOST_GROWTH, _MOST_GROWTH)

    def growth_trace(self, t: Packed, d: int) -> Numbers:
        return -0.5 * np.sum(_triangle(t) ** 2, axis=(-1, -2))

    def half_trace(self, covariance: Packed, curvature: Packed, d: int) -> Numbers:
        return -0.5 * np.sum(covariance * curvature, axis=(-1, -2))

    def overlap_gradient(self, a: Vectors, inverse: Packed, d: int) -> Packed:
        return 0.5 * (a[..., :, None] * a[..., None, :] - inverse)

    def relaxed(self, root: Packed, bend: Packed, rate: float, least: float, most: float) -> Packed:
        precision = root @ root.T
        target = precision - self.symmetrised(bend)
        if np.all(positive_definite(np.stack([target - precision / most, most * precision - target]))):
            # Within the bounds in every direction, as usual.
            return self.gram(self.inverse_root((1 - rate) * precision + rate * target))
        # In units of its own sds, L⁻¹ Λ' L⁻ᵀ, eigenvalues are what precisions change by.
        half = np.linalg.solve(root, np.linalg.solve(root, bend).T)
        values, vectors = np.linalg.eigh(np.eye(len(root)) - 0.5 * (half + half.T))
        floor = 1 / most if values[0] > 0 else max(least, 1 - rate)
        units = np.linalg.solve(root.T, vectors / np.sqrt(np.clip(1 - rate + rate * values, floor, most)))
        return units @ units.T

    def divergence(self, root: Packed, other: Packed, delta: np.ndarray) -> float:
        # L⁻¹ L', whose squared entries sum to tr Λ' Σ.
        ratio, white = lower_solved(root, other), delta @ other
        log_ratio = np.sum(np.log(np.diagonal(other))) - np.sum(np.log(np.diagonal(root)))
        return float(0.5 * (np.sum(ratio**2) - len(delta) + white @ white) - log_ratio)


def lower_solved(root: Float[np.ndarray, "d d"], x: Float[np.ndarray, "d n"]) -> Float[np.ndarray, "d n"]:
    """L⁻¹x for a lower triangular matrix L."""
    return _inverted(root) @ x if len(root) <= _FEW else solve_triangular(root, x, lower=True, check_finite=False)


def _inverted(root: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix, by a LAPACK function that starts no threads."""
    return dtrtri(root, lower=1)[0]


@functools.lru_cache(maxsize=8)
def _lower(d: int) -> tuple[np.ndarray, ...]:
    """Row and column indices of the lower triangle."""
    return np.tril_indices(d)


def positive_definite(matrices: Float[np.ndarray, "B D D"]) -> Bool[np.ndarray, " B"]:
    """Which matrices have a Cholesky factor; NumPy refuses a whole stack if one has none, so halves are tried."""
    if not len(matrices):
        return np.zeros(0, bool)
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        half = len(matrices) // 2
        if not half:
            return np.zeros(1, bool)
        return np.concatenate([positive_definite(matrices[:half]), positive_definite(matrices[half:])])
    return np.ones(len(matrices), bool)


def _clearly_positive_definite(matrices: np.ndarray, units: np.ndarray, floor: float) -> Bool[np.ndarray, " B"]:
    """Which matrices, scaled to a unit diagonal, have only eigenvalues above `floor` times the largest."""
    d = matrices.shape[-1]
    scaled = matrices * units[..., :, None] * units[..., None, :]
    # With a unit diagonal no eigenvalue is above d.
    return positive_definite((scaled - floor * d * np.eye(d)).reshape(-1, d, d))


def _triangle(t: np.ndarray) -> np.ndarray:
    """T: the lower triangle of t, with its diagonal exponentiated."""
    lower = np.tril(t, -1)
    diagonal = np.arange(t.shape[-1])
    lower[..., diagonal, diagonal] = np.exp(t[..., diagonal, diagonal])
    return lower
