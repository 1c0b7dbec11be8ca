"""Group effects that were integrated out of a posterior: their distribution given the other parameters φ.

Takes moments of the effects z_g of each level given φ near a point φ₀, as the shards' rows give them:

    z_g | φ ~ N(m_g + M_g (φ − φ₀), C_g C_gᵀ),   C_g lower triangular,  log diag C_g and the rest of C_g linear in φ

With a mixture of Gaussians over φ this is a distribution of all parameters in which levels are independent given φ.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space

_LOG_2PI = float(np.log(2 * np.pi))
# Levels whose moments at all scored draws are in memory at once: 8 MB per effect for 2,048 draws. Judgement.
_LEVELS_AT_ONCE = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """The effects of all G levels given φ.

    Attributes:
        which: the parameters that are group effects.
        centre: φ₀.
        mean: m_g.
        root: the rows of C_g at φ₀ one after the other, with the logarithms of its diagonal.
        mean_slope: M_g.
        root_slope: the derivatives of `root` in φ.
    """

    which: GroupEffects
    centre: Float[np.ndarray, " p"]
    mean: Float[np.ndarray, "G s"]
    root: Float[np.ndarray, "G t"]
    mean_slope: Float[np.ndarray, "G s p"]
    root_slope: Float[np.ndarray, "G t p"]

    @property
    def num_effects(self) -> int:
        """The number of effects of all levels."""
        return self.mean.size

    @property
    def said(self) -> str:
        """What a certificate of the other parameters has to say of them."""
        names = ", ".join(self.which.names)
        return (
            f" It judges the shared parameters; the {self.num_effects:,} group effects ({names}) were integrated out"
            " and follow from them."
        )

    @property
    def _entries(self) -> list[tuple[int, int]]:
        """Row and column of the entries of a root."""
        return [(i, j) for i in range(self.mean.shape[1]) for j in range(i + 1)]

    def means(self, phi: Float[np.ndarray, "n p"], levels: slice = slice(None)) -> Float[np.ndarray, "n G s"]:
        """The means given φ, of some levels."""
        return self.mean[levels] + np.einsum("gsp,np->ngs", self.mean_slope[levels], phi - self.centre, optimize=True)

    def roots(self, phi: Float[np.ndarray, "n p"], levels: slice = slice(None)) -> Float[np.ndarray, "n G s s"]:
        """The roots C_g given φ, of some levels."""
        delta, s = phi - self.centre, self.mean.shape[1]
        entries = self.root[levels] + np.einsum("gtp,np->ngt", self.root_slope[levels], delta, optimize=True)
        made = np.zeros((*entries.shape[:2], s, s))
        for t, (i, j) in enumerate(self._entries):
            made[..., i, j] = np.exp(entries[..., t]) if i == j else entries[..., t]
        return made

    def draw(
        self, phi: Float[np.ndarray, "n p"], rng: np.random.Generator, levels: slice = slice(None)
    ) -> Float[np.ndarray, "n G s"]:
        """One draw of the effects of some levels for each φ."""
        means, roots = self.means(phi, levels), self.roots(phi, levels)
        return means + np.einsum("ngij,ngj->ngi", roots, rng.standard_normal(means.shape))

    def theta(self, space: Space, phi: Float[np.ndarray, "n p"], rng: np.random.Generator) -> Float[np.ndarray, "n d"]:
        """All parameters: φ, with a draw of the effects for each."""
        places = self.which.places(space)
        made = np.empty((len(phi), space.dim))
        made[:, np.setdiff1d(np.arange(space.dim), places)] = phi
        made[:, places.ravel()] = self.draw(phi, rng).reshape(len(phi), -1)
        return made

    def log_density(
        self, space: Space, mixture: GaussianMixture, theta: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, " n"]:
        """The log density of all parameters, in unconstrained coordinates."""
        places = self.which.places(space)
        phi = theta[:, np.setdiff1d(np.arange(space.dim), places)]
        roots = self.roots(phi)
        away = np.linalg.solve(roots, (theta[:, places] - self.means(phi))[..., None])[..., 0]
        log_dets = np.sum(np.log(np.diagonal(roots, axis1=-2, axis2=-1)), axis=(1, 2))
        return (
            np.asarray(mixture.log_density(phi))
            - 0.5 * np.sum(away**2, axis=(1, 2))
            - log_dets
            - (0.5 * self.num_effects * _LOG_2PI)
        )

    def moments(
        self, mixture: GaussianMixture, phi: Float[np.ndarray, "S p"], signed: Float[np.ndarray, " S"]
    ) -> tuple[Float[np.ndarray, "G s"], Float[np.ndarray, "G s"]]:
        """Means and sds under the mixture, corrected by draws of φ with signed weights, which sum to 0."""
        weights = np.exp(np.asarray(mixture.log_weights))
        centres, covariances = np.asarray(mixture.means), np.asarray(mixture.covariances())
        parts = [self._under(*one) for one in zip(centres, covariances, strict=True)]
        mean = np.einsum("k,kgs->gs", weights, np.stack([one for one, _ in parts]))
        spread = np.stack([second + (one - mean) ** 2 for one, second in parts])
        variance = np.einsum("k,kgs->gs", weights, spread)
        if not len(phi):
            return mean, np.sqrt(variance)
        delta = phi - self.centre
        # Σ_n signed_n (b + M δ_n)² with b the mean at φ₀ relative to that under the mixture: Σ_n signed_n is 0.
        first, second = signed @ delta, (signed[:, None] * delta).T @ delta
        at, slopes = self.mean - mean, self.mean_slope
        shift = slopes @ first
        more = 2 * at * shift + np.einsum("gsp,pq,gsq->gs", slopes, second, slopes, optimize=True)
        for start in range(0, len(mean), _LEVELS_AT_ONCE):
            some = slice(start, start + _LEVELS_AT_ONCE)
            more[some] += self._within(delta, signed, some)
        corrected = variance + more - shift**2
        return mean + shift, np.sqrt(np.maximum(corrected, 1e-6 * variance))

    def _within(self, delta: Float[np.ndarray, "n p"], signed: Float[np.ndarray, " n"], levels: slice) -> np.ndarray:
        """Σ_n signed_n diag(C_g C_gᵀ) at displacements of φ, of some levels."""
        root, slope = self.root[levels], self.root_slope[levels]
        made = np.zeros((len(root), self.mean.shape[1]))
        for t, (i, j) in enumerate(self._entries):
            entry = root[:, t] + delta @ slope[:, t].T
            made[:, i] += signed @ (np.exp(2 * entry) if i == j else entry**2)
        return made

    def _under(self, centre: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each effect under one Gaussian over φ."""
        delta = centre - self.centre
        mean = self.mean + self.mean_slope @ delta
        variance = np.einsum("gsp,pq,gsq->gs", self.mean_slope, covariance, self.mean_slope, optimize=True)
        at = self.root + self.root_slope @ delta
        spread = np.einsum("gtp,pq,gtq->gt", self.root_slope, covariance, self.root_slope, optimize=True)
        for t, (i, j) in enumerate(self._entries):
            # E exp(2X) of a Gaussian X, and E X².
            variance[:, i] += np.exp(2 * at[:, t] + 2 * spread[:, t]) if i == j else at[:, t] ** 2 + spread[:, t]
        return mean, variance
