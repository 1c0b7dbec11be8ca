"""The covariance structures `Spherical`, `Diagonal` and `Full`, and the registry of structures by name."""

import abc

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Int

from epvi.gaussian.entries import Entries
from epvi.gaussian.matrices import Matrices
from epvi.gaussian.packing import Packing
from epvi.gaussian.structure import Matrix, Packed, Parts, Scalar, Structure, Vector
from epvi.ground import validation
from epvi.ground.float64 import AnyArray
from epvi.ground.registry import Registry


class Elementwise(Structure):
    """Base of the structures with a diagonal Λ, some of whose entries may be constrained to be equal."""

    @abc.abstractmethod
    def spread(self, packed: Float[AnyArray, "..."], d: int) -> Float[AnyArray, "..."]:
        """The diagonal from packed numbers (..., k), or an array that broadcasts to it; for NumPy and JAX arrays."""

    @abc.abstractmethod
    def gather(self, diagonal: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Pack a diagonal (..., d) as numbers (..., k): averages over the entries that are constrained to be equal."""

    @abc.abstractmethod
    def counts(self, d: int) -> Float[np.ndarray, " k"]:
        """How many entries of the diagonal each packed number is repeated in."""

    @property
    def packing(self) -> Packing:
        return Entries(self)

    @property
    def hessians(self) -> Packing:
        return DIAGONALS

    def packed_shape(self, d: int) -> tuple[int, ...]:
        return (len(self.counts(d)),)

    def user_shape(self, d: int) -> tuple[int, ...]:
        return self.packed_shape(d)

    def check(self, covariances: np.ndarray) -> None:
        validation.positive_variances(covariances)

    def cost(self, d: int) -> int:
        return d

    def root(self, precision: Packed) -> Packed:
        return jnp.sqrt(precision)

    def precision(self, root: Packed) -> Packed:
        return root**2

    def packed_covariance(self, root: Packed) -> Packed:
        return root**-2

    def root_of_covariance(self, covariance: Packed) -> Packed:
        return covariance**-0.5

    def half_log_det(self, root: Packed, d: int) -> Scalar:
        return jnp.sum(jnp.log(root) * self.counts(d))

    def times(self, precision: Packed, x: Vector) -> Vector:
        return self.spread(precision, len(x)) * x

    def whiten(self, root: Packed, x: Vector) -> Vector:
        return self.spread(root, len(x)) * x

    def unwhiten(self, root: Packed, z: Vector) -> Vector:
        return z / self.spread(root, len(z))

    def solve(self, root: Packed, x: Vector) -> Vector:
        return x / self.spread(root, len(x)) ** 2

    def outer(self, x: Vector) -> Packed:
        return self.gather(x**2)

    def variances(self, root: Packed, d: int) -> Vector:
        return jnp.broadcast_to(self.spread(root, d) ** -2, (d,))

    def dense(self, packed: Packed, d: int) -> Matrix:
        return jnp.diag(jnp.broadcast_to(self.spread(packed, d), (d,)))

    def meet(self, root: Packed, a: Packed, mu_a: Vector, b: Packed, mu_b: Vector) -> tuple[Vector, Scalar]:
        d = len(mu_a)
        share, delta = self.spread(b / (a + b), d), mu_b - mu_a
        return mu_a + share * delta, jnp.sum(self.spread(a, d) * share * delta**2)

    def squares(
        self,
        point: Vector,
        means: Float[AnyArray, "m K d"],
        precisions: Float[AnyArray, "m K *packed"],
        index: Int[AnyArray, " m"],
    ) -> Scalar:
        shards = jnp.arange(len(index))
        chosen = self.spread(precisions[shards, index], len(point))
        return jnp.sum(chosen * (point[None] - means[shards, index]) ** 2)

    def split(self, root: Packed, first: np.ndarray, last: np.ndarray) -> Parts:
        return self.pick(root, first), self.pick(root, last), jnp.zeros((len(first), len(last)))

    @abc.abstractmethod
    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        """The packed numbers of some of the coordinates."""


class Spherical(Elementwise):
    """Λ = λI: one variance per component, as in the paper."""

    def wider(self) -> Structure:
        return Diagonal()

    def widened(self, root: Packed, d: int) -> Float[AnyArray, "..."]:
        return jnp.broadcast_to(root, (d,))

    def user_shape(self, d: int) -> tuple[int, ...]:
        return ()

    def spread(self, packed: Float[AnyArray, "..."], d: int) -> Float[AnyArray, "..."]:
        return packed

    def gather(self, diagonal: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return diagonal.mean(axis=-1, keepdims=True)

    def counts(self, d: int) -> Float[np.ndarray, " k"]:
        return np.array([float(d)])

    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        return packed


class Diagonal(Elementwise):
    """Λ = diag(λ): one variance per component and parameter."""

    def wider(self) -> Structure:
        return Full()

    def widened(self, root: Packed, d: int) -> Float[AnyArray, "..."]:
        return jnp.diag(root)

    def spread(self, packed: Float[AnyArray, "..."], d: int) -> Float[AnyArray, "..."]:
        return packed

    def gather(self, diagonal: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return diagonal

    def counts(self, d: int) -> Float[np.ndarray, " k"]:
        return np.ones(d)

    def pick(self, packed: Packed, coordinates: np.ndarray) -> Float[AnyArray, "..."]:
        return packed[coordinates]


class Full(Structure):
    """Λ any positive-definite matrix: variances and correlations."""

    @property
    def packing(self) -> Packing:
        return Matrices()

    @property
    def hessians(self) -> Packing:
        return WHOLE

    def wider(self) -> None:
        return None

    def widened(self, root: Packed, d: int) -> Float[AnyArray, "..."]:
        return root

    def packed_shape(self, d: int) -> tuple[int, ...]:
        return (d, d)

    def user_shape(self, d: int) -> tuple[int, ...]:
        return (d, d)

    def check(self, covariances: np.ndarray) -> None:
        validation.positive_definite(covariances)

    def cost(self, d: int) -> int:
        return d**3

    def root(self, precision: Packed) -> Packed:
        return jnp.linalg.cholesky(precision)

    def precision(self, root: Packed) -> Packed:
        return root @ root.T

    def packed_covariance(self, root: Packed) -> Packed:
        inverse = solve_triangular(root, jnp.eye(root.shape[0]), lower=True)
        return inverse.T @ inverse

    def root_of_covariance(self, covariance: Packed) -> Packed:
        # Factored with the coordinates reversed, because the inverse transpose of a lower triangular factor is upper.
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
        # Q as an inner product of two triangular solves: no cancellation when A << B.
        halves = solve_triangular(root, jnp.stack([a @ delta, b @ delta], axis=1), lower=True)
        return mu_a + self.unwhiten(root, halves[:, 1]), jnp.sum(halves[:, 0] * halves[:, 1])

    def squares(
        self,
        point: Vector,
        means: Float[AnyArray, "m K d"],
        precisions: Float[AnyArray, "m K *packed"],
        index: Int[AnyArray, " m"],
    ) -> Scalar:
        # All components, then the chosen ones: one matrix product, where a gather would copy matrices for each point.
        delta = point[None, None] - means
        every = jnp.einsum("mki,mkij,mkj->mk", delta, precisions, delta)
        return jnp.sum(every[jnp.arange(len(index)), index])

    def split(self, root: Packed, first: np.ndarray, last: np.ndarray) -> Parts:
        # A QR decomposition of the permuted root refactors Λ without squaring the condition number.
        upper = jnp.linalg.qr(root[np.concatenate([first, last])].T, mode="r")
        lower = (upper * jnp.sign(jnp.diag(upper))[:, None]).T
        n = len(first)
        coefficients = solve_triangular(lower[:n, :n], lower[n:, :n].T, lower=True, trans=1)
        return lower[:n, :n], lower[n:, n:], coefficients


STRUCTURES: Registry[Structure] = Registry("covariance structure")
for _class in (Spherical, Diagonal, Full):
    STRUCTURES.add(_class)


def structures() -> dict[str, Structure]:
    """The registered structures by name."""
    return {name: STRUCTURES.make(name, {}) for name in STRUCTURES.names()}


# The two forms of Hessians: diagonals, or full matrices.
DIAGONALS, WHOLE = Diagonal().packing, Full().packing


def form_of(hessian: np.ndarray) -> Packing:
    """The form of one Hessian, by its shape: (d,) or (d, d)."""
    return WHOLE if hessian.ndim == 2 else DIAGONALS
