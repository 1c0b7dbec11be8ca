"""Stacks of packed symmetric matrices in NumPy: the arithmetic behind covariance structures and Hessians.

A structure packs a matrix as the numbers that it keeps of it: one, d, or d x d. `Packing` is what can be done with such
numbers outside a compiled program. Leading axes are stacks, unless a method says that it takes one matrix. Precisions Λ
have roots L (Λ = L Lᵀ), as in `structure.py`.
"""

import abc
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

Packed = Float[np.ndarray, "..."]
Vectors = Float[np.ndarray, "*stack d"]
Rows = Float[np.ndarray, "n d"]
# One number for each matrix of a stack; of a single matrix a NumPy scalar.
Numbers = np.ndarray | np.floating


class Directions(NamedTuple):
    """Directions in which a matrix is smallest: its eigenvalues there, in units of its own diagonal.

    `axes` are unit vectors, one row each, and `units` what a coordinate of them is worth.
    """

    eigenvalues: Float[np.ndarray, " n"]
    axes: Float[np.ndarray, "n d"]
    units: Float[np.ndarray, " d"]


class Packing(abc.ABC):
    """How symmetric d x d matrices are packed, and NumPy arithmetic on them."""

    # Whether whole matrices are kept, so that Hessians are computed whole and not as their diagonals.
    whole: ClassVar[bool]

    # Shapes and conversions.

    @abc.abstractmethod
    def identity(self, d: int) -> Packed:
        """The identity matrix, packed."""

    @abc.abstractmethod
    def dense(self, packed: Packed, d: int) -> Float[np.ndarray, "*stack d d"]:
        """As d x d matrices."""

    @abc.abstractmethod
    def diagonal(self, packed: Packed, d: int) -> Vectors:
        """The diagonals."""

    @abc.abstractmethod
    def kept(self, matrices: np.ndarray, form: "Packing", d: int) -> Packed:
        """What this packing keeps of matrices that another one packs."""

    @abc.abstractmethod
    def flat(self, packed: Packed) -> Float[np.ndarray, "n k"]:
        """A stack (n, ...) as rows of different numbers, as files have them; of a root L the lower triangle."""

    @abc.abstractmethod
    def from_flat(self, flat: Float[np.ndarray, "n k"], d: int, *, symmetric: bool) -> Packed | None:
        """The stack that was made flat, of symmetric matrices or of lower triangles; None for another width."""

    @abc.abstractmethod
    def symmetrised(self, packed: Packed) -> Packed:
        """Without what rounding has made unsymmetric."""

    @abc.abstractmethod
    def reordered(self, packed: Packed, order: np.ndarray) -> Packed:
        """One matrix with its coordinates in another order."""

    @abc.abstractmethod
    def mirrored(self, packed: Packed, signs: Float[np.ndarray, " d"]) -> Packed:
        """One matrix after the signs of some coordinates were turned."""

    # Algebra.

    @abc.abstractmethod
    def times(self, packed: Packed, x: Vectors) -> Vectors:
        """A x, stack by stack."""

    @abc.abstractmethod
    def rows_times(self, x: Vectors, packed: Packed) -> Vectors:
        """Xᵀ A for every vector x and one matrix A, or root: A x, or Lᵀ x."""

    @abc.abstractmethod
    def transposed(self, root: Packed) -> Packed:
        """Lᵀ of one root."""

    @abc.abstractmethod
    def inverse(self, packed: Packed) -> Packed:
        """A⁻¹; raises LinAlgError where there is none."""

    @abc.abstractmethod
    def log_det(self, packed: Packed, d: int) -> Numbers:
        """log|A|."""

    @abc.abstractmethod
    def outer(self, weights: Float[np.ndarray, " n"], x: Rows) -> Packed:
        """Σ_n w_n x_n x_nᵀ."""

    @abc.abstractmethod
    def covariance_of(self, draws: Rows) -> Packed:
        """The sample covariance of draws, with divisor n − 1."""

    # Roots of precisions.

    @abc.abstractmethod
    def precision(self, root: Packed) -> Packed:
        """Λ = L Lᵀ."""

    @abc.abstractmethod
    def root(self, precision: Packed) -> Packed:
        """L of one precision; raises LinAlgError where Λ is not positive-definite."""

    @abc.abstractmethod
    def inverse_root(self, precision: Packed) -> Packed:
        """L⁻¹ of one precision."""

    @abc.abstractmethod
    def gram(self, half: Packed) -> Packed:
        """Λ⁻¹ = L⁻ᵀ L⁻¹ from L⁻¹."""

    @abc.abstractmethod
    def half_log_det(self, root: Packed, d: int) -> Numbers:
        """½ log|Λ| of every root."""

    @abc.abstractmethod
    def solve(self, root: Packed, x: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """Λ⁻¹ x for one root."""

    @abc.abstractmethod
    def whiten(self, root: Packed, x: Rows) -> Rows:
        """Lᵀ x for every row and one root."""

    @abc.abstractmethod
    def unwhiten(self, root: Packed, z: Rows) -> Rows:
        """L⁻ᵀ z for every row and one root: standard normal rows become rows with covariance Λ⁻¹."""

    @abc.abstractmethod
    def are_proper_roots(self, roots: Packed, least: float, greatest: float) -> bool:
        """Whether finite roots are those of positive-definite precisions, and precisions and variances within bounds.

        The diagonals of roots are to be between `least` and `greatest`, and no variance above `greatest`².
        """

    # Curvatures −H, which need not be positive-definite.

    @abc.abstractmethod
    def half_log_abs_det(self, curvature: Packed) -> Numbers:
        """½ log||A||, with eigenvalues kept off zero."""

    @abc.abstractmethod
    def abs_square(self, packed: Packed, x: Vectors) -> np.ndarray:
        """Xᵀ|A|x for one matrix."""

    @abc.abstractmethod
    def ratios(self, packed: Packed, other: Packed) -> Float[np.ndarray, " d"]:
        """The eigenvalues of |A|⁻¹B for one pair of matrices."""

    @abc.abstractmethod
    def smallest(self, curvature: Packed, most: int) -> Directions:
        """The directions, at most so many, in which one matrix is smallest."""

    @abc.abstractmethod
    def newton_step(self, gradient: Float[np.ndarray, " d"], curvature: Packed, floor: float) -> np.ndarray:
        """|A|⁻¹ g for one matrix, with eigenvalues at least `floor` times the largest."""

    @abc.abstractmethod
    def guarded(self, curvature: Packed, floor: float) -> tuple[Packed, np.ndarray]:
        """Positive-definite precisions from curvatures, and which ones had to be changed for it."""

    # The covariances of nonparametric variational inference: Σ = C T Tᵀ Cᵀ with C Cᵀ = Λ⁻¹ at a guarded curvature Λ.

    @abc.abstractmethod
    def covariance_root(self, precision: Packed) -> Packed:
        """C with C Cᵀ = Λ⁻¹."""

    @abc.abstractmethod
    def rooted(self, root: Packed, z: Vectors) -> Vectors:
        """C z."""

    @abc.abstractmethod
    def grown(self, root: Packed, t: Packed) -> Packed:
        """C T Tᵀ Cᵀ, with T = exp(t), or triangular with an exponential diagonal."""

    @abc.abstractmethod
    def grown_gradient(self, root: Packed, t: Packed, gradient: Packed, d: int) -> Packed:
        """The gradient in t of ⟨gradient, C T Tᵀ Cᵀ⟩ − ½|T|²."""

    @abc.abstractmethod
    def growth(self, root: Packed, covariance: Packed) -> Packed:
        """The t at which `grown` gives these covariances."""

    @abc.abstractmethod
    def growth_trace(self, t: Packed, d: int) -> Numbers:
        """−½|T|²: ½ tr Σ H at the guarded curvature."""

    @abc.abstractmethod
    def half_trace(self, covariance: Packed, curvature: Packed, d: int) -> Numbers:
        """½ tr Σ H from covariances and curvatures −H."""

    @abc.abstractmethod
    def overlap_gradient(self, a: Vectors, inverse: Packed, d: int) -> Packed:
        """∂ log N(δ; 0, S) / ∂S = ½(a aᵀ − S⁻¹) for a = S⁻¹δ."""

    # Natural-gradient steps of one Gaussian.

    @abc.abstractmethod
    def relaxed(self, root: Packed, bend: Packed, rate: float, least: float, most: float) -> Packed:
        """The covariance of Λ' = (1 − ρ)Λ + ρ(Λ − bend), at most `most` Λ in any direction.

        Where Λ − bend is not positive-definite, Λ' is at least `least` Λ and at least (1 − ρ)Λ in every direction; where
        it is, it is followed, down to 1/`most` Λ.
        """

    @abc.abstractmethod
    def divergence(self, root: Packed, other: Packed, delta: Float[np.ndarray, " d"]) -> float:
        """KL(N(0, Λ⁻¹) ‖ N(δ, Λ'⁻¹)) in nats, from the roots of both."""
