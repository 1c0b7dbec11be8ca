"""Single Gaussians, stored as mean and packed precision, and products of several, in NumPy."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.packing import Packed
from epvi.gaussian.structure import Structure

Vector = Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian:
    """N(μ, Λ⁻¹)."""

    # μ.
    mean: Vector
    # Λ, packed as the structure packs it.
    precision: Packed
    # The covariance structure.
    structure: Structure

    @classmethod
    def from_sums(cls, eta: Vector, precision: Packed, structure: Structure) -> "Gaussian":
        """The Gaussian with natural parameters η and Λ: μ = Λ⁻¹ η."""
        packing = structure.packing
        half = packing.inverse_root(precision)
        mean = packing.times(packing.transposed(half), packing.times(half, eta))
        return cls(mean, precision, structure)

    @property
    def covariance(self) -> Packed:
        """Λ⁻¹, packed."""
        return self.structure.packing.inverse(self.precision)

    @functools.cached_property
    def root(self) -> Packed:
        """L with L Lᵀ = Λ, the precision-Cholesky factor."""
        return self.structure.packing.root(self.precision)

    @functools.cached_property
    def inverse_root(self) -> Packed:
        """L⁻¹."""
        return self.structure.packing.inverse_root(self.precision)

    @functools.cached_property
    def variances(self) -> Vector:
        """The diagonal of Λ⁻¹."""
        packing, d = self.structure.packing, len(self.mean)
        return packing.diagonal(packing.gram(self.inverse_root), d)

    @property
    def information(self) -> Vector:
        """The diagonal of Λ."""
        return self.structure.packing.diagonal(self.precision, len(self.mean))

    @property
    def eta(self) -> Vector:
        """η = Λ μ."""
        return self.structure.packing.times(self.precision, self.mean)

    def mirrored(self, signs: Vector, centre: Vector) -> "Gaussian":
        """The Gaussian of x after some coordinates of θ = `centre` + x change their signs (`signs` are ±1)."""
        precision = self.structure.packing.mirrored(self.precision, signs)
        return dataclasses.replace(self, mean=signs * (self.mean + centre) - centre, precision=precision)

    def widened(self, structure: Structure) -> "Gaussian":
        """The same Gaussian in a more general structure."""
        kept = structure.packing.kept(self.precision, self.structure.packing, len(self.mean))
        return Gaussian(self.mean, kept, structure)

    def squares(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Squared Mahalanobis distances (x − μ)ᵀ Λ (x − μ), one per row x."""
        return np.sum(self.structure.packing.whiten(self.root, x - self.mean) ** 2, axis=1)

    def sample(self, count: int, rng: np.random.Generator) -> Float[np.ndarray, "n d"]:
        """Independent draws."""
        z = rng.standard_normal((count, len(self.mean)))
        return self.mean + self.structure.packing.unwhiten(self.root, z)

    def as_mixture(self) -> GaussianMixture:
        """The mixture with this one component."""
        shape = (1, *self.structure.user_shape(len(self.mean)))
        return GaussianMixture.from_covariances(
            self.mean[None], self.covariance.reshape(shape), structure=self.structure
        )

    def distance(self, other: "Gaussian") -> float:
        """δᵀ(Σ + Σ')⁻¹δ with δ = μ − μ', for two Gaussians of the same structure."""
        return self.distance_by(other, self.structure.packing.inverse_root(self.precision + other.precision))

    def distance_by(self, other: "Gaussian", half: Packed) -> float:
        """The same as `distance`, given L⁻¹ for L Lᵀ = Λ + Λ'."""
        # (Σ + Σ')⁻¹ = Λ (Λ + Λ')⁻¹ Λ': two products with L⁻¹, and no covariance matrix is needed.
        delta, times = self.mean - other.mean, self.structure.packing.times
        return float(times(half, times(self.precision, delta)) @ times(half, times(other.precision, delta)))


def components_of(mixture: GaussianMixture, structure: Structure, centre: Vector | float = 0.0) -> list[Gaussian]:
    """The components of a mixture, with means relative to `centre`, in a structure at least as general as its own."""
    precisions = mixture.structure.packing.precision(np.asarray(mixture.roots))
    means = np.asarray(mixture.means) - centre
    return [Gaussian(mu, p, mixture.structure).widened(structure) for mu, p in zip(means, precisions, strict=True)]


def product_of(gaussians: Sequence[Gaussian]) -> Gaussian:
    """The normalised product of Gaussians: Λ = Σ Λ_m and η = Σ η_m."""
    precision = functools.reduce(np.add, [one.precision for one in gaussians])
    eta = functools.reduce(np.add, [one.eta for one in gaussians])
    return Gaussian.from_sums(eta, precision, gaussians[0].structure)
