"""Covariance structures of a Gaussian: `Spherical`, `Diagonal`, `Full`, one class each.

A structure is a choice without data. It reads a *packed* precision Λ, shape (1,), (d,) or (d, d), and its packed
root L (Λ = L Lᵀ, the precision-Cholesky factor). Roots are what a mixture stores, because the density, draws and
log-determinants need them and nothing else; precisions are what a product adds up. Every method is written for
one component; callers `vmap`. The two elementwise structures differ only in how many numbers they pack.

One program must not hold two batched factorisations that do not depend on each other: jaxlib's kernels split a batch
over XLA's threads and wait there for its parts, and as many of them at once as there are threads wait for ever. So
factors are passed on (`fuse` gives its root) and factorisations of one step are stacked into one batch.
"""

import abc
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Int

from epvi.ground.float64 import AnyArray

Vector = Float[AnyArray, " d"]
Matrix = Float[AnyArray, "d d"]
Packed = Float[AnyArray, "*packed"]
Scalar = Float[AnyArray, ""]
# Roots of two parts of the coordinates, and a matrix from one to the other.
Parts = tuple[Float[AnyArray, "..."], Float[AnyArray, "..."], Float[AnyArray, "n m"]]


@dataclasses.dataclass(frozen=True)
class Structure(abc.ABC):
    """What the components of a mixture can hold of a covariance."""

    # A product is computed in the structure of the highest rank among its factors.
    rank: ClassVar[int]

    @abc.abstractmethod
    def packed_shape(self, d: int) -> tuple[int, ...]:
        """Shape of a packed precision, covariance or root in d dimensions."""

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
        """What this structure keeps of the covariance x xᵀ."""

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
        """The same with the product's precision A + B and its root in front."""
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
        """For coordinates in two parts: roots of Λ_first (the conditional of `first` given `last`) and of the
        marginal precision of `last`, and Λ_first⁻¹ Λ_first,last, the coefficients of that conditional.
        """


class _Elementwise(Structure):
    """Shared by the structures whose Λ is diagonal: every operation is per coordinate."""

    def root(self, precision: Packed) -> Packed:
        return jnp.sqrt(precision)

    def precision(self, root: Packed) -> Packed:
        return root**2

    def packed_covariance(self, root: Packed) -> Packed:
        return root**-2

    def root_of_covariance(self, covariance: Packed) -> Packed:
        return covariance**-0.5

    def half_log_det(self, root: Packed, d: int) -> Scalar:
        return jnp.sum(jnp.log(root)) * (d / root.shape[0])

    def times(self, precision: Packed, x: Vector) -> Vector:
        return precision * x

    def whiten(self, root: Packed, x: Vector) -> Vector:
        return root * x

    def unwhiten(self, root: Packed, z: Vector) -> Vector:
        return z / root

    def solve(self, root: Packed, x: Vector) -> Vector:
        return x / root**2

    def variances(self, root: Packed, d: int) -> Vector:
        return jnp.broadcast_to(root**-2, (d,))

    def dense(self, packed: Packed, d: int) -> Matrix:
        return jnp.diag(jnp.broadcast_to(packed, (d,)))

    def meet(self, root: Packed, a: Packed, mu_a: Vector, b: Packed, mu_b: Vector) -> tuple[Vector, Scalar]:
        share = b / (a + b)
        delta = mu_b - mu_a
        return mu_a + share * delta, jnp.sum(a * share * delta**2)

    def squares(
        self,
        point: Vector,
        means: Float[AnyArray, "m K d"],
        precisions: Float[AnyArray, "m K *packed"],
        index: Int[AnyArray, " m"],
    ) -> Scalar:
        shards = jnp.arange(len(index))
        return jnp.sum(precisions[shards, index] * (point[None] - means[shards, index]) ** 2)

    def split(self, root: Packed, first: np.ndarray, last: np.ndarray) -> Parts:
        return self.pick(root, first), self.pick(root, last), jnp.zeros((len(first), len(last)))

    @abc.abstractmethod
    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        """The packed numbers of some coordinates."""


class Spherical(_Elementwise):
    """Λ = λI: one variance per component, the paper's family."""

    rank = 0

    def packed_shape(self, d: int) -> tuple[int, ...]:
        return (1,)

    def outer(self, x: Vector) -> Packed:
        return jnp.mean(x**2, keepdims=True)

    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        return packed


class Diagonal(_Elementwise):
    """Λ = diag(λ): one variance per component and parameter."""

    rank = 1

    def packed_shape(self, d: int) -> tuple[int, ...]:
        return (d,)

    def outer(self, x: Vector) -> Packed:
        return x**2

    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        return packed[coordinates]


class Full(Structure):
    """Λ any positive-definite matrix: scales and correlations."""

    rank = 2

    def packed_shape(self, d: int) -> tuple[int, ...]:
        return (d, d)

    def root(self, precision: Packed) -> Packed:
        return jnp.linalg.cholesky(precision)

    def precision(self, root: Packed) -> Packed:
        return root @ root.T

    def packed_covariance(self, root: Packed) -> Packed:
        inverse = solve_triangular(root, jnp.eye(root.shape[0]), lower=True)
        return inverse.T @ inverse

    def root_of_covariance(self, covariance: Packed) -> Packed:
        # Factored with the coordinates reversed, because the inverse transpose of a lower factor is upper.
        reversed_factor = jnp.linalg.cholesky(covariance[::-1, ::-1])
        inverse = solve_triangular(reversed_factor, jnp.eye(covariance.shape[0]), lower=True)
        return inverse.T[::-1, ::-1]

    def half_log_det(self, root: Packed, d: int) -> Scalar:
        return jnp.sum(jnp.log(jnp.diag(root)))

    def times(self, precision: Packed, x: Vector) -> Vector:
        return precision @ x

    def whiten(self, root: Packed, x: Vector) -> Vector:
        return root.T @ x

    def unwhiten(self, root: Packed, z: Vector) -> Vector:
        return solve_triangular(root, z, lower=True, trans=1)

    def solve(self, root: Packed, x: Vector) -> Vector:
        return self.unwhiten(root, solve_triangular(root, x, lower=True))

    def outer(self, x: Vector) -> Packed:
        return x[:, None] * x[None, :]

    def variances(self, root: Packed, d: int) -> Vector:
        return jnp.sum(solve_triangular(root, jnp.eye(d), lower=True) ** 2, axis=0)

    def dense(self, packed: Packed, d: int) -> Matrix:
        return packed

    def meet(self, root: Packed, a: Packed, mu_a: Vector, b: Packed, mu_b: Vector) -> tuple[Vector, Scalar]:
        delta = mu_b - mu_a
        # Q as an inner product of two half-solves: no difference of large numbers when A << B.
        halves = solve_triangular(root, jnp.stack([a @ delta, b @ delta], axis=1), lower=True)
        return mu_a + self.unwhiten(root, halves[:, 1]), jnp.sum(halves[:, 0] * halves[:, 1])

    def squares(
        self,
        point: Vector,
        means: Float[AnyArray, "m K d"],
        precisions: Float[AnyArray, "m K *packed"],
        index: Int[AnyArray, " m"],
    ) -> Scalar:
        # All components and then the chosen: a matrix product over many points, where a gather would copy matrices.
        delta = point[None, None] - means
        every = jnp.einsum("mki,mkij,mkj->mk", delta, precisions, delta)
        return jnp.sum(every[jnp.arange(len(index)), index])

    def split(self, root: Packed, first: np.ndarray, last: np.ndarray) -> Parts:
        # A QR of the permuted root refactors Λ without squaring its condition number.
        upper = jnp.linalg.qr(root[np.concatenate([first, last])].T, mode="r")
        lower = (upper * jnp.sign(jnp.diag(upper))[:, None]).T
        n = len(first)
        coefficients = solve_triangular(lower[:n, :n], lower[n:, :n].T, lower=True, trans=1)
        return lower[:n, :n], lower[n:, n:], coefficients
