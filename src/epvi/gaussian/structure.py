"""The interface of a covariance structure, through which all other code works with covariance matrices.

A structure has no data of its own. Its methods take a *packed* precision Λ, of shape (1,), (d,) or (d, d) for those of
epvi, or its packed root L (Λ = L Lᵀ, the precision-Cholesky factor). Mixtures store roots, because densities, draws and
log-determinants need only them; products of Gaussians add precisions. The methods here are JAX code for one component,
and callers `vmap`; `packing` has the NumPy arithmetic for everything outside compiled programs. `structures.py` has the
structures, docs/extending.md a skeleton of a new one.

A compiled program must not contain two batched factorisations that do not depend on each other: jaxlib's kernels split
a batch over XLA's threads and wait inside a thread for its parts, so that with as many such kernels at once as there
are threads all of them deadlock. Hence factors are passed on (`fuse` returns its root), and the factorisations of one
step are stacked into one batch.
"""

import abc
import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.packing import Packing
from epvi.ground.float64 import AnyArray

Vector = Float[AnyArray, " d"]
Matrix = Float[AnyArray, "d d"]
Packed = Float[AnyArray, "*packed"]
Scalar = Float[AnyArray, ""]
# What `split` returns: the roots of two groups of coordinates, and the matrix of regression coefficients between them.
Parts = tuple[Float[AnyArray, "..."], Float[AnyArray, "..."], Float[AnyArray, "n m"]]


@dataclasses.dataclass(frozen=True)
class Structure(abc.ABC):
    """A family of covariance matrices, such as the diagonal ones, that the components of a mixture may have."""

    @property
    def name(self) -> str:
        """Its name in files, on the command line and in study.toml, once it is registered."""
        return type(self).__name__.lower()

    @property
    @abc.abstractmethod
    def packing(self) -> Packing:
        """The NumPy arithmetic on its packed matrices."""

    @property
    @abc.abstractmethod
    def hessians(self) -> Packing:
        """The form in which a fit of this structure needs Hessians: `WHOLE`, or `DIAGONALS` of `structures.py`."""

    @abc.abstractmethod
    def wider(self) -> "Structure | None":
        """The next more general structure, which contains all of its matrices; None for full matrices."""

    @abc.abstractmethod
    def widened(self, root: Packed, d: int) -> Float[AnyArray, "..."]:
        """The same root, packed as in the structure `wider`."""

    def chain(self) -> "list[Structure]":
        """Itself and all more general structures, in increasing generality."""
        wider = self.wider()
        return [self, *([] if wider is None else wider.chain())]

    def holds(self, other: "Structure") -> bool:
        """Whether it contains all matrices of the other structure."""
        return self in other.chain()

    @abc.abstractmethod
    def packed_shape(self, d: int) -> tuple[int, ...]:
        """Shape of a packed precision, covariance or root in d dimensions."""

    @abc.abstractmethod
    def user_shape(self, d: int) -> tuple[int, ...]:
        """Shape of a covariance as users write it; `GaussianMixture.from_covariances` recognises it by that."""

    @abc.abstractmethod
    def check(self, covariances: np.ndarray) -> None:
        """Refuse covariances (K, ...) that are not symmetric and positive-definite, or outside the range of float64."""

    @abc.abstractmethod
    def cost(self, d: int) -> int:
        """Operation count of a factorisation and a solve, up to a constant factor."""

    @abc.abstractmethod
    def root(self, precision: Packed) -> Packed:
        """L with L Lᵀ = Λ; NaN where Λ is not positive-definite."""

    @abc.abstractmethod
    def precision(self, root: Packed) -> Packed:
        """Λ = L Lᵀ."""

    @abc.abstractmethod
    def packed_covariance(self, root: Packed) -> Packed:
        """Λ⁻¹, packed."""

    @abc.abstractmethod
    def root_of_covariance(self, covariance: Packed) -> Packed:
        """L with L Lᵀ = Σ⁻¹ for a packed covariance Σ."""

    @abc.abstractmethod
    def half_log_det(self, root: Packed, d: int) -> Scalar:
        """½ log|Λ|."""

    @abc.abstractmethod
    def times(self, precision: Packed, x: Vector) -> Vector:
        """Λ x."""

    @abc.abstractmethod
    def whiten(self, root: Packed, x: Vector) -> Vector:
        """Lᵀ x, whose squared length is xᵀ Λ x."""

    @abc.abstractmethod
    def unwhiten(self, root: Packed, z: Vector) -> Vector:
        """L⁻ᵀ z, which has covariance Λ⁻¹ when z has covariance I."""

    @abc.abstractmethod
    def solve(self, root: Packed, x: Vector) -> Vector:
        """Λ⁻¹ x."""

    @abc.abstractmethod
    def outer(self, x: Vector) -> Packed:
        """The covariance x xᵀ, projected onto this structure and packed."""

    @abc.abstractmethod
    def variances(self, root: Packed, d: int) -> Vector:
        """The diagonal of Λ⁻¹."""

    @abc.abstractmethod
    def dense(self, packed: Packed, d: int) -> Matrix:
        """A packed precision, covariance or root as a d x d matrix."""

    @abc.abstractmethod
    def meet(self, root: Packed, a: Packed, mu_a: Vector, b: Packed, mu_b: Vector) -> tuple[Vector, Scalar]:
        """The mean of the product of N(μ_a, A⁻¹) and N(μ_b, B⁻¹), and Q = δᵀ(A⁻¹ + B⁻¹)⁻¹δ with δ = μ_b − μ_a.

        `root` is that of A + B. The product's mass is exp(½log|A| + ½log|B| − ½log|A + B| − ½Q − (d/2) log 2π). Only
        differences of means enter, so nothing cancels however far from the origin they are.
        """

    def fuse(self, a: Packed, mu_a: Vector, b: Packed, mu_b: Vector) -> tuple[Packed, Packed, Vector, Scalar]:
        """The product's precision A + B and its root, followed by what `meet` returns."""
        total = a + b
        root = self.root(total)
        return total, root, *self.meet(root, a, mu_a, b, mu_b)

    @abc.abstractmethod
    def squares(
        self,
        point: Vector,
        means: Float[AnyArray, "m K d"],
        precisions: Float[AnyArray, "m K *packed"],
        index: Int[AnyArray, " m"],
    ) -> Scalar:
        """Σ_m (θ − μ_mk)ᵀ Λ_mk (θ − μ_mk) over the chosen components k = index[m] of a block of shards."""

    @abc.abstractmethod
    def split(self, root: Packed, first: np.ndarray, last: np.ndarray) -> Parts:
        """Split the coordinates into `first` and `last`.

        Returns the root of Λ_first (the conditional precision of `first` given `last`), the root of the marginal
        precision of `last`, and Λ_first⁻¹ Λ_first,last, the negative regression coefficients of that conditional.
        """


def common(structures: Iterable[Structure]) -> Structure:
    """The least general structure that contains all of these."""
    first, *others = structures
    return next(wide for wide in first.chain() if all(wide.holds(other) for other in others))
