"""Stacks of packed symmetric matrices in NumPy: the arithmetic behind covariance structures and Hessians.

A covariance structure packs a symmetric matrix as its free numbers: one, d, or d x d. `Packing` is the arithmetic on
such numbers outside compiled programs. Leading axes are batch axes ("stacks"), unless a method says that it takes one
matrix. The root of a precision Λ is its Cholesky factor L (Λ = L Lᵀ), as in `structure.py`.
"""

import abc
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

Packed = Float[np.ndarray, "..."]
Vectors = Float[np.ndarray, "*stack d"]
Rows = Float[np.ndarray, "n d"]
# One number per matrix of a stack; for a single matrix a NumPy scalar.
Numbers = np.ndarray | np.floating


class Directions(NamedTuple):
    """Eigenvectors of a matrix, scaled to a unit diagonal, with the smallest absolute eigenvalues."""

    # Eigenvalues of the scaled matrix U A U, U = diag(units), in increasing absolute value.
    eigenvalues: Float[np.ndarray, " n"]
    # Unit eigenvectors, one per row; the direction in the original coordinates is units * axes.
    axes: Float[np.ndarray, "n d"]
    # The scale of each coordinate: 1/√ of the absolute diagonal.
    units: Float[np.ndarray, " d"]


class Packing(abc.ABC):
    """How symmetric d x d matrices are packed, and NumPy arithmetic on them."""

    # Whether full matrices are kept, so that full Hessians are needed and not only their diagonals.
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
        """Convert matrices packed in `form` to this packing, dropping what it cannot represent."""

    @abc.abstractmethod
    def flat(self, packed: Packed) -> Float[np.ndarray, "n k"]:
        """A stack (n, ...) as one row of free numbers per matrix, as in files; of full matrices the lower triangle."""

    @abc.abstractmethod
    def from_flat(self, flat: Float[np.ndarray, "n k"], d: int, *, symmetric: bool) -> Packed | None:
        """Inverse of `flat`, for symmetric matrices or for lower triangles; None if the rows have another length."""

    @abc.abstractmethod
    def symmetrised(self, packed: Packed) -> Packed:
        """The symmetric part, without asymmetry from rounding."""

    @abc.abstractmethod
    def reordered(self, packed: Packed, order: np.ndarray) -> Packed:
        """One matrix with rows and columns permuted."""

    @abc.abstractmethod
    def mirrored(self, packed: Packed, signs: Float[np.ndarray, " d"]) -> Packed:
        """D A D for one matrix, with D = diag(signs), signs ±1."""

    # Algebra.

    @abc.abstractmethod
    def times(self, packed: Packed, x: Vectors) -> Vectors:
        """A x for each matrix of the stack and its vector."""

    @abc.abstractmethod
    def rows_times(self, x: Vectors, packed: Packed) -> Vectors:
        """Vectors xᵀ A for one matrix A: A x for a symmetric one, Lᵀ x for a root L."""

    @abc.abstractmethod
    def transposed(self, root: Packed) -> Packed:
        """Lᵀ of one root."""

    @abc.abstractmethod
    def inverse(self, packed: Packed) -> Packed:
        """A⁻¹; raises LinAlgError if a matrix is singular."""

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
        """L of one precision; raises LinAlgError if Λ is not positive-definite."""

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

    def squares(self, roots: Packed, means: Float[np.ndarray, "K d"], x: Rows) -> Float[np.ndarray, "n K"]:
        """(x − μ_k)ᵀ Λ_k (x − μ_k) for every row and every root."""
        each = (self.whiten(root, x - mean) for root, mean in zip(roots, means, strict=True))
        return np.stack([np.sum(z**2, axis=1) for z in each], axis=1)

    @abc.abstractmethod
    def unwhiten(self, root: Packed, z: Rows) -> Rows:
        """L⁻ᵀ z for every row and one root: standard normal rows become rows with covariance Λ⁻¹."""

    @abc.abstractmethod
    def are_proper_roots(self, roots: Packed, least: float, greatest: float) -> bool:
        """Whether finite roots belong to positive-definite precisions within bounds.

        Diagonals of roots must be between `least` and `greatest`, and variances below `greatest`².
        """

    # Curvatures −H, which need not be positive-definite.

    @abc.abstractmethod
    def half_log_abs_det(self, curvature: Packed) -> Numbers:
        """½ log of the absolute determinant, with eigenvalues bounded away from zero."""

    @abc.abstractmethod
    def abs_square(self, packed: Packed, x: Vectors) -> np.ndarray:
        """Squared length xᵀ|A|x for one matrix, where |A| has the absolute eigenvalues of A."""

    @abc.abstractmethod
    def ratios(self, packed: Packed, other: Packed) -> Float[np.ndarray, " d"]:
        """The eigenvalues of |A|⁻¹B for one pair of matrices."""

    @abc.abstractmethod
    def smallest(self, curvature: Packed, most: int) -> Directions:
        """At most `most` directions in which one matrix has the least absolute curvature."""

    @abc.abstractmethod
    def newton_step(self, gradient: Float[np.ndarray, " d"], curvature: Packed, floor: float) -> np.ndarray:
        """Newton step |A|⁻¹ g for one matrix, with absolute eigenvalues at least `floor` times the largest."""

    @abc.abstractmethod
    def guarded(self, curvature: Packed, floor: float) -> tuple[Packed, np.ndarray]:
        """Positive-definite precisions from curvatures, and which curvatures had to be changed to that end."""

    @abc.abstractmethod
    def raised(self, curvature: Packed, floor: float) -> Packed:
        """One matrix with its eigenvalues, scaled to a unit diagonal, raised to `floor` times the largest."""

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
        """The gradient with respect to t of ⟨gradient, C T Tᵀ Cᵀ⟩ − ½|T|²."""

    @abc.abstractmethod
    def growth(self, root: Packed, covariance: Packed) -> Packed:
        """Inverse of `grown`: the t that gives these covariances, clipped to a finite range."""

    @abc.abstractmethod
    def growth_trace(self, t: Packed, d: int) -> Numbers:
        """−½|T|², which is ½ tr Σ H for Λ = −H."""

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

        Where Λ − bend is not positive-definite, Λ' is at least `least` Λ and (1 − ρ)Λ in every direction; where it is,
        it is followed, down to 1/`most` Λ.
        """

    @abc.abstractmethod
    def divergence(self, root: Packed, other: Packed, delta: Float[np.ndarray, " d"]) -> float:
        """KL(N(0, Λ⁻¹) ‖ N(δ, Λ'⁻¹)) in nats, from the roots of both."""
