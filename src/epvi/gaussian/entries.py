"""Diagonal matrices in NumPy, packed as the distinct numbers on their diagonals."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from epvi.gaussian.packing import Directions, Numbers, Packed, Packing, Rows, Vectors

# Least magnitude of a curvature that is divided by: 1/√ of it is 1e100, whose square float64 still holds. Judgement.
_ZERO = 1e-200
# Takes the place of zero in logarithms and divisors: its inverse is still finite in float64. Judgement.
_TINY = 1e-290
# Largest |t|, the log of the factor between the sds of Σ and of Λ⁻¹, of a starting value. It lies within the bounds of
# ±15 on t in `entropy_bound.py`; e¹⁴ is about a million. Judgement.
_MOST_GROWTH = 14.0


@runtime_checkable
class Tying(Protocol):
    """Which entries of a diagonal are constrained to be equal."""

    def spread(self, packed: Any, d: int) -> Any:
        """The diagonal, or an array that broadcasts to it."""
        ...

    def gather(self, diagonal: Any) -> Any:
        """The distinct numbers: averages over the entries that are constrained to be equal."""
        ...

    def counts(self, d: int) -> np.ndarray:
        """How many entries of the diagonal each distinct number is repeated in."""
        ...


class Entries(Packing):
    """Diagonal matrices; `tying` says which of their entries are constrained to be equal."""

    whole = False

    def __init__(self, tying: Tying) -> None:
        self._tying = tying

    def identity(self, d: int) -> Packed:
        return np.ones(len(self._tying.counts(d)))

    def dense(self, packed: Packed, d: int) -> np.ndarray:
        return self.diagonal(packed, d)[..., None] * np.eye(d)

    def diagonal(self, packed: Packed, d: int) -> Vectors:
        return np.broadcast_to(self._tying.spread(packed, d), (*np.shape(packed)[:-1], d))

    def kept(self, matrices: np.ndarray, form: Packing, d: int) -> Packed:
        return self._tying.gather(form.diagonal(matrices, d))

    def flat(self, packed: Packed) -> np.ndarray:
        return packed

    def from_flat(self, flat: np.ndarray, d: int, *, symmetric: bool) -> Packed | None:
        return np.array(flat) if flat.shape[1] == len(self._tying.counts(d)) else None

    def symmetrised(self, packed: Packed) -> Packed:
        return packed

    def reordered(self, packed: Packed, order: np.ndarray) -> Packed:
        return self._tying.gather(self.diagonal(packed, len(order))[order])

    def mirrored(self, packed: Packed, signs: np.ndarray) -> Packed:
        return packed

    def times(self, packed: Packed, x: Vectors) -> Vectors:
        return self._tying.spread(packed, x.shape[-1]) * x

    def rows_times(self, x: Vectors, packed: Packed) -> Vectors:
        return x * self._tying.spread(packed, x.shape[-1])

    def transposed(self, root: Packed) -> Packed:
        return root

    def inverse(self, packed: Packed) -> Packed:
        return 1 / packed

    def log_det(self, packed: Packed, d: int) -> Numbers:
        return np.sum(np.log(packed) * self._tying.counts(d), axis=-1)

    def outer(self, weights: np.ndarray, x: Rows) -> Packed:
        return self._tying.gather(weights @ x**2)

    def covariance_of(self, draws: Rows) -> Packed:
        return self._tying.gather(np.var(draws, axis=0, ddof=1))

    def precision(self, root: Packed) -> Packed:
        return root**2

    def root(self, precision: Packed) -> Packed:
        return np.sqrt(precision)

    def inverse_root(self, precision: Packed) -> Packed:
        return precision**-0.5

    def gram(self, half: Packed) -> Packed:
        return half**2

    def half_log_det(self, root: Packed, d: int) -> Numbers:
        return self.log_det(root, d)

    def solve(self, root: Packed, x: np.ndarray) -> np.ndarray:
        return x / self._tying.spread(root, len(x)) ** 2

    def whiten(self, root: Packed, x: Rows) -> Rows:
        return self.rows_times(x, root)

    def unwhiten(self, root: Packed, z: Rows) -> Rows:
        return z / self._tying.spread(root, z.shape[-1])

    def are_proper_roots(self, roots: Packed, least: float, greatest: float) -> bool:
        return bool(np.all((roots >= least) & (roots <= greatest)))

    def half_log_abs_det(self, curvature: Packed) -> Numbers:
        return 0.5 * np.sum(np.log(np.maximum(np.abs(curvature), _TINY)), axis=-1)

    def abs_square(self, packed: Packed, x: Vectors) -> np.ndarray:
        return np.asarray(np.sum(x**2 * np.abs(packed), axis=-1))

    def ratios(self, packed: Packed, other: Packed) -> np.ndarray:
        return other / np.where(packed == 0, _TINY, packed)

    def smallest(self, curvature: Packed, most: int) -> Directions:
        units = 1 / np.sqrt(np.maximum(np.abs(curvature), _ZERO))
        eigenvalues = curvature * units**2
        order = np.argsort(np.abs(eigenvalues))[:most]
        return Directions(eigenvalues[order], (np.arange(len(curvature)) == order[:, None]).astype(float), units)

    def newton_step(self, gradient: np.ndarray, curvature: Packed, floor: float) -> np.ndarray:
        return gradient / np.maximum(np.abs(curvature), _ZERO)

    def guarded(self, curvature: Packed, floor: float) -> tuple[Packed, np.ndarray]:
        return np.maximum(np.abs(curvature), _TINY), np.any(curvature <= 0, axis=-1)

    def raised(self, curvature: Packed, floor: float) -> Packed:
        # Of a diagonal matrix scaled to a unit diagonal all eigenvalues are 1 or −1.
        return np.where(curvature > 0, curvature, floor * np.abs(curvature))

    def covariance_root(self, precision: Packed) -> Packed:
        return precision**-0.5

    def rooted(self, root: Packed, z: Vectors) -> Vectors:
        return self.times(root, z)

    def grown(self, root: Packed, t: Packed) -> Packed:
        return (root * np.exp(t)) ** 2

    def grown_gradient(self, root: Packed, t: Packed, gradient: Packed, d: int) -> Packed:
        return 2 * gradient * self.grown(root, t) - np.exp(2 * t) * self._tying.counts(d)

    def growth(self, root: Packed, covariance: Packed) -> Packed:
        return np.clip(0.5 * np.log(covariance) - np.log(root), -_MOST_GROWTH, _MOST_GROWTH)

    def growth_trace(self, t: Packed, d: int) -> Numbers:
        return -0.5 * np.sum(np.exp(2 * t) * self._tying.counts(d), axis=-1)

    def half_trace(self, covariance: Packed, curvature: Packed, d: int) -> Numbers:
        return -0.5 * np.sum(covariance * curvature * self._tying.counts(d), axis=-1)

    def overlap_gradient(self, a: Vectors, inverse: Packed, d: int) -> Packed:
        slope = 0.5 * (a**2 - self._tying.spread(inverse, d))
        return self._tying.gather(slope) * self._tying.counts(d)

    def relaxed(self, root: Packed, bend: Packed, rate: float, least: float, most: float) -> Packed:
        ratio = 1 - bend / root**2
        floor = 1 / most if np.all(ratio > 0) else max(least, 1 - rate)
        return 1 / (root**2 * np.clip(1 - rate + rate * ratio, floor, most))

    def divergence(self, root: Packed, other: Packed, delta: np.ndarray) -> float:
        counts, d = self._tying.counts(len(delta)), len(delta)
        white = self._tying.spread(other, d) * delta
        trace = float(np.sum((other / root) ** 2 * counts))
        return 0.5 * (trace - d + float(white @ white)) - float(np.sum(np.log(other / root) * counts))
