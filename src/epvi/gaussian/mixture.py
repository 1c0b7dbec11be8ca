"""Gaussian mixtures q(θ) = Σ_k w_k N(θ | μ_k, Λ_k⁻¹): density, draws, moments, marginals, natural parameters.

Takes and returns arrays: NumPy in float64 outside a JAX trace, JAX inside one. A mixture is immutable, a JAX pytree,
and works under `jit`, `vmap` and `grad`. It stores log w_k, μ_k and the precision-Cholesky factors ("roots") L_k with
Λ_k = L_k L_kᵀ.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float

from epvi.gaussian.in_blocks import over_blocks
from epvi.gaussian.reduction import ComponentMoments, greedy_merge
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Diagonal, Full, Spherical
from epvi.ground import validation
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, ArrayLike, in_float64, is_traced
from epvi.ground.seeds import Seed, as_key

LOG_2PI = math.log(2 * math.pi)


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Float[AnyArray, ""]
    standard_error: Float[AnyArray, ""]


class NaturalParameters(NamedTuple):
    """Natural parameters of the components, which add up in a product of Gaussians, and the log weights."""

    log_weights: Float[AnyArray, " K"]  # log w_k
    eta: Float[AnyArray, "K d"]  # η_k = Λ_k μ_k
    precisions: Float[AnyArray, "K *packed"]  # Λ_k, packed


class GaussianMixture(eqx.Module):
    """A mixture of K Gaussians in d dimensions; make one with `from_covariances`, `from_natural` or `from_draws`."""

    log_weights: Float[AnyArray, " K"]  # log w_k
    means: Float[AnyArray, "K d"]  # μ_k
    roots: Float[AnyArray, "K *packed"]  # L_k with L_k L_kᵀ = Λ_k, packed
    structure: Structure = eqx.field(static=True)  # The covariance structure of all components

    @classmethod
    def from_covariances(
        cls,
        means: ArrayLike,
        covariances: ArrayLike,
        weights: ArrayLike | None = None,
        structure: Structure | None = None,
    ) -> "GaussianMixture":
        """From means (K, d) and covariances: (K,) variances are `Spherical`, (K, d) `Diagonal`, (K, d, d) `Full`.

        `weights` sum to 1; by default they are equal. For any other structure pass `structure`, and covariances in the
        shape of its `user_shape`.
        """
        means = validation.finite_array("means", means, ndim=2)
        k, d = means.shape
        if k == 0 or d == 0:
            raise EpviError(f"means has shape {means.shape}: a mixture needs at least one component and one dimension.")
        covariances = validation.finite_array("covariances", covariances)
        known = (Spherical(), Diagonal(), Full()) if structure is None else (structure,)
        by_shape = {(k, *one.user_shape(d)): one for one in known}
        if structure is not None and covariances.shape not in by_shape:
            shape = (k, *structure.user_shape(d))
            raise EpviError(f"covariances has shape {covariances.shape}: for {structure!r} pass {shape}.")
        if covariances.shape not in by_shape:
            raise EpviError(
                f"covariances has shape {covariances.shape}: for {k} components in {d} dimensions pass"
                f" {(k,)} variances, {(k, d)} variances per coordinate, or {(k, d, d)} matrices."
            )
        structure = by_shape[covariances.shape]
        structure.check(covariances)
        packed = covariances.reshape(k, *structure.packed_shape(d))
        return cls(validation.log_weights(weights, k), means, _roots_of_covariances(structure, packed), structure)

    @classmethod
    def from_natural(cls, natural: NaturalParameters, structure: Structure) -> "GaussianMixture":
        """The mixture with these natural parameters: μ_k = Λ_k⁻¹ η_k."""
        if not is_traced(natural):
            natural = _checked(natural, structure)
        mixture = _from_natural(natural, structure)
        if not is_traced(mixture) and not np.all(np.isfinite(mixture.means)):
            bad = int(np.argmin(np.all(np.isfinite(mixture.means), axis=1)))
            raise EpviError(f"component {bad} has no finite mean: its precision must be positive-definite, eta finite.")
        return mixture

    @classmethod
    def from_draws(cls, draws: ArrayLike, bandwidth: ArrayLike) -> "GaussianMixture":
        """A kernel density estimate: one equally weighted component per draw (n, d).

        `bandwidth` is the kernel's sd, as one number (`Spherical`) or one per coordinate (`Diagonal`), or the
        kernel's (d, d) covariance matrix (`Full`).
        """
        draws = validation.finite_array("draws", draws, ndim=2)
        kernel = validation.finite_array("bandwidth", bandwidth)
        if kernel.shape not in ((), (draws.shape[1],), (draws.shape[1],) * 2):
            raise EpviError(f"bandwidth has shape {kernel.shape}: pass one sd, {draws.shape[1]} sds, or a covariance.")
        if kernel.ndim < 2:
            if np.any(kernel <= 0):
                raise EpviError(f"bandwidth is {bandwidth}: an sd must be positive.")
            kernel = kernel**2
        return cls.from_covariances(draws, np.broadcast_to(kernel, (len(draws), *kernel.shape)))

    @classmethod
    def each(cls, log_weights: AnyArray, means: AnyArray, roots: AnyArray, of: Structure) -> list["GaussianMixture"]:
        """Mixtures from parameters with a leading axis, in a fraction of the time that their constructors take."""
        form = jax.tree.structure(cls(log_weights[0], means[0], roots[0], of))
        return [form.unflatten(one) for one in zip(log_weights, means, roots, strict=True)]

    @property
    def num_components(self) -> int:
        """The number K of components."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.means.shape[1]

    @property
    def weights(self) -> Float[AnyArray, " K"]:
        """The weights w_k."""
        return jnp.exp(self.log_weights) if is_traced(self.log_weights) else np.exp(self.log_weights)

    def __repr__(self) -> str:
        return f"GaussianMixture(K={self.num_components}, d={self.dim}, {type(self.structure).__name__})"

    def log_density(self, theta: ArrayLike) -> Float[AnyArray, "*batch"]:
        """log q(θ) for θ of shape (..., d)."""
        return _log_density(self, validation.points(theta, self.dim))

    def density(self, theta: ArrayLike) -> Float[AnyArray, "*batch"]:
        """q(θ) for θ of shape (..., d)."""
        log_density = self.log_density(theta)
        return jnp.exp(log_density) if is_traced(log_density) else np.asarray(np.exp(log_density))

    def sample(self, num_samples: int, *, seed: Seed) -> Float[AnyArray, "n d"]:
        """Independent draws."""
        return _sample(self, validation.at_least("num_samples", num_samples, 1), as_key(seed))

    def covariances(self) -> Float[AnyArray, "K ..."]:
        """The covariances as `from_covariances` takes them: (K,), (K, d) or (K, d, d)."""
        packed = _packed_covariances(self.structure, self.roots)
        return packed.reshape(len(packed), *self.structure.user_shape(self.dim))

    @in_float64
    def mean(self) -> Float[AnyArray, " d"]:
        """E θ."""
        # Relative to the first component, so that a large offset common to all means costs no precision.
        first = self.means[0]
        return first + jnp.exp(self.log_weights) @ (self.means - first[None])

    @in_float64
    def covariance(self) -> Float[AnyArray, "d d"]:
        """Cov θ of the mixture: within components plus between their means."""
        weights = jnp.exp(self.log_weights)
        deviations = self.means - self.mean()[None]
        within = jnp.tensordot(weights, jax.vmap(self.structure.packed_covariance)(self.roots), axes=1)
        return self.structure.dense(within, self.dim) + (weights[:, None] * deviations).T @ deviations

    @in_float64
    def sd(self) -> Float[AnyArray, " d"]:
        """The standard deviation of each parameter."""
        within = jax.vmap(lambda root: self.structure.variances(root, self.dim))(self.roots)
        deviations = self.means - self.mean()[None]
        return jnp.sqrt(jnp.exp(self.log_weights) @ (within + deviations**2))

    def marginal(self, coordinates: Sequence[int]) -> "GaussianMixture":
        """The marginal distribution of some of the coordinates, in the order given."""
        return _marginal(self, validation.coordinate_tuple(coordinates, self.dim))

    def condition(self, coordinates: Sequence[int], values: ArrayLike) -> "GaussianMixture":
        """The conditional distribution of the other coordinates, given that these equal `values`."""
        given = validation.coordinate_tuple(coordinates, self.dim)
        if len(given) == self.dim:
            raise EpviError("all coordinates are given: leave at least one to have a distribution.")
        values = validation.points(values, len(given))
        if values.ndim != 1:
            raise EpviError(f"values has shape {values.shape}: pass one number per given coordinate.")
        conditional = _condition(self, given, values)
        if not is_traced(conditional) and np.any(np.isnan(conditional.log_weights)):
            raise EpviError("the mixture has no density at these values, even in logarithms: check them.")
        return conditional

    @in_float64
    def entropy_bound(self) -> Float[AnyArray, ""]:
        """The lower bound −Σ_k w_k log Σ_j w_j N(μ_k; μ_j, Σ_k + Σ_j) of the entropy, by Jensen's inequality."""
        structure, d, components = self.structure, self.dim, jnp.arange(self.num_components)
        precisions = jax.vmap(structure.precision)(self.roots)
        half_log_dets = jax.vmap(lambda root: structure.half_log_det(root, d))(self.roots)

        def log_overlap(k: AnyArray, j: AnyArray) -> AnyArray:
            _, root, _, q = structure.fuse(precisions[k], self.means[k], precisions[j], self.means[j])
            fused = structure.half_log_det(root, d)
            return half_log_dets[k] + half_log_dets[j] - fused - 0.5 * q - 0.5 * d * LOG_2PI

        def log_average_overlap(k: AnyArray) -> AnyArray:
            return logsumexp(self.log_weights + jax.vmap(lambda j: log_overlap(k, j))(components))

        return -jnp.exp(self.log_weights) @ over_blocks(log_average_overlap, components, self.roots.size)

    # 1000 draws: −log q has a variance of about d/2, so the standard error is about √(d/2000) nats. Judgement.
    def entropy(self, num_samples: int = 1000, *, seed: Seed) -> Estimate:
        """The entropy −E log q by Monte Carlo."""
        return _entropy(self, validation.at_least("num_samples", num_samples, 2), as_key(seed))

    @in_float64
    def to_natural(self) -> NaturalParameters:
        """The natural parameters."""
        precisions = jax.vmap(self.structure.precision)(self.roots)
        return NaturalParameters(self.log_weights, jax.vmap(self.structure.times)(precisions, self.means), precisions)

    def to(self, structure: Structure) -> "GaussianMixture":
        """The same mixture in a structure that is at least as general (`Spherical` < `Diagonal` < `Full`)."""
        if not isinstance(structure, Structure):
            raise EpviError(f"structure is {structure!r}: pass Spherical(), Diagonal() or Full(), with its brackets.")
        if not structure.holds(self.structure):
            names = type(self.structure).__name__, type(structure).__name__
            raise EpviError(f"a {names[0]} mixture does not fit into {names[1]}(): choose a structure that holds more.")
        return self if structure == self.structure else _widen(self, structure)

    def reduce(self, num_components: int) -> "GaussianMixture":
        """Merge components down to `num_components`, keeping the mean and, if the structure can, the covariance."""
        num_components = validation.at_least("num_components", num_components, 1)
        return self if num_components >= self.num_components else _reduce(self, num_components)


def log_components(mixture: GaussianMixture, theta: Float[AnyArray, " d"]) -> Float[AnyArray, " K"]:
    """Log w_k + log N(θ | μ_k, Λ_k⁻¹) for one point and every k."""
    structure, d = mixture.structure, mixture.dim

    def one(mean: AnyArray, root: AnyArray) -> AnyArray:
        white = structure.whiten(root, theta - mean)
        return structure.half_log_det(root, d) - 0.5 * jnp.sum(white**2) - 0.5 * d * LOG_2PI

    return mixture.log_weights + jax.vmap(one)(mixture.means, mixture.roots)


@in_float64
def _log_density(mixture: GaussianMixture, theta: Float[AnyArray, "*batch d"]) -> Float[AnyArray, "*batch"]:
    def one(point: AnyArray) -> AnyArray:
        return logsumexp(log_components(mixture, point))

    return over_blocks(one, theta.reshape(-1, mixture.dim), mixture.means.size).reshape(theta.shape[:-1])


@in_float64
def _sample(mixture: GaussianMixture, num_samples: int, key: AnyArray) -> Float[AnyArray, "n d"]:
    which, noise = jax.random.split(key)
    k = _components(which, mixture.log_weights, num_samples)
    z = jax.random.normal(noise, (num_samples, mixture.dim))
    return mixture.means[k] + jax.vmap(mixture.structure.unwhiten)(mixture.roots[k], z)


def _components(key: AnyArray, log_weights: Float[AnyArray, " K"], num: int) -> AnyArray:
    """Component indices drawn with their weights, in memory K + n; `jax.random.categorical` takes n times K."""
    below = jnp.cumsum(jax.nn.softmax(log_weights))
    drawn = jnp.searchsorted(below, below[-1] * jax.random.uniform(key, (num,), below.dtype), side="right")
    return jnp.minimum(drawn, len(log_weights) - 1)


@in_float64
def _entropy(mixture: GaussianMixture, num_samples: int, key: AnyArray) -> Estimate:
    values = -_log_density(mixture, _sample(mixture, num_samples, key))
    return Estimate(jnp.mean(values), jnp.std(values, ddof=1) / math.sqrt(num_samples))


def _with_rest(mixture: GaussianMixture, chosen: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rest = [i for i in range(mixture.dim) if i not in set(chosen)]
    return np.asarray(rest, int), np.asarray(chosen, int)


@in_float64
def _marginal(mixture: GaussianMixture, coordinates: tuple[int, ...]) -> GaussianMixture:
    rest, chosen = _with_rest(mixture, coordinates)
    _, roots, _ = jax.vmap(lambda root: mixture.structure.split(root, rest, chosen))(mixture.roots)
    return GaussianMixture(mixture.log_weights, mixture.means[:, chosen], roots, mixture.structure)


@in_float64
def _condition(
    mixture: GaussianMixture, coordinates: tuple[int, ...], values: Float[AnyArray, " n"]
) -> GaussianMixture:
    rest, given = _with_rest(mixture, coordinates)
    roots, given_roots, coefficients = jax.vmap(lambda root: mixture.structure.split(root, rest, given))(mixture.roots)
    marginal = GaussianMixture(mixture.log_weights, mixture.means[:, given], given_roots, mixture.structure)
    shift = jnp.einsum("kij,kj->ki", coefficients, values[None] - marginal.means)
    log_weights = jax.nn.log_softmax(log_components(marginal, values))
    return GaussianMixture(log_weights, mixture.means[:, rest] - shift, roots, mixture.structure)


def _checked(natural: NaturalParameters, structure: Structure) -> NaturalParameters:
    eta = validation.finite_array("eta", natural.eta, ndim=2)
    precisions = validation.finite_array("precisions", natural.precisions)
    shape = (len(eta), *structure.packed_shape(eta.shape[1]))
    if precisions.shape != shape:
        raise EpviError(f"precisions has shape {precisions.shape}: for {type(structure).__name__}() pass {shape}.")
    with np.errstate(invalid="ignore"):
        weights = np.exp(np.asarray(natural.log_weights, np.float64))
    return NaturalParameters(validation.log_weights(weights, len(eta)), eta, precisions)


@in_float64
def _from_natural(natural: NaturalParameters, structure: Structure) -> GaussianMixture:
    roots = jax.vmap(structure.root)(natural.precisions)
    return GaussianMixture(natural.log_weights, jax.vmap(structure.solve)(roots, natural.eta), roots, structure)


@in_float64
def _widen(mixture: GaussianMixture, structure: Structure) -> GaussianMixture:
    chain, roots = mixture.structure.chain(), jnp.asarray(mixture.roots)
    for narrow in chain[: chain.index(structure)]:
        roots = jax.vmap(lambda root, narrow=narrow: narrow.widened(root, mixture.dim))(roots)
    return GaussianMixture(mixture.log_weights, mixture.means, roots, structure)


@in_float64
def _reduce(mixture: GaussianMixture, num_components: int) -> GaussianMixture:
    structure = mixture.structure
    covariances = jax.vmap(structure.packed_covariance)(mixture.roots)
    kept = greedy_merge(
        structure, ComponentMoments(jnp.exp(mixture.log_weights), mixture.means, covariances), num_components
    )
    roots = jax.vmap(structure.root_of_covariance)(kept.covariances)
    return GaussianMixture(jnp.log(kept.weights), kept.means, roots, structure)


@in_float64
def _roots_of_covariances(structure: Structure, covariances: AnyArray) -> AnyArray:
    return jax.vmap(structure.root_of_covariance)(covariances)


@in_float64
def _packed_covariances(structure: Structure, roots: AnyArray) -> AnyArray:
    return jax.vmap(structure.packed_covariance)(roots)
