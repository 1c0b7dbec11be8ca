"""Group effects that were integrated out of a posterior: their distribution given the other parameters φ.

Takes moments of the effects z_g of each level given φ at supports φ_s, which are weighted draws of the posterior of φ,
or its centre alone where there are so many groups that the moments hardly change:

    z_g = m_gs + M_g (φ − φ_s) + C_g h(e),   e ~ N(0, I),   φ_s the support nearest to φ,

with C_g lower triangular, log diag C_g and the rest of C_g linear in φ − φ_s like the mean, and functions h of single
coordinates that give them the skewness and kurtosis of C_g⁻¹ (z_g − m_gs) (`gaussian/skewed.py`). With a distribution
of φ this is a distribution of all parameters in which levels are independent given φ.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.skewed import Skewed
from epvi.hub.trust.effects import EffectErrors
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Space

_LOG_2PI = float(np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """The effects of all G levels given φ.

    Attributes:
        which: the parameters that are group effects.
        supports: the φ_s.
        weights: their weights, which sum to 1.
        mean: m_gs.
        root: the rows of C_g at φ_s one after the other, with the logarithms of its diagonal.
        shape: skewness and excess kurtosis at φ_s.
        mean_slope: M_g.
        root_slope: the derivatives of `root` in φ.
        given: the effects of larger groups, in which the levels lie, given the other parameters; they are part of φ
            then. None if there are none.
    """

    which: GroupEffects
    supports: Float[np.ndarray, "S p"]
    weights: Float[np.ndarray, " S"]
    mean: Float[np.ndarray, "S G s"]
    root: Float[np.ndarray, "S G t"]
    shape: Float[np.ndarray, "S G s 2"]
    mean_slope: Float[np.ndarray, "G s p"]
    root_slope: Float[np.ndarray, "G t p"]
    given: "Effects | None" = None

    @classmethod
    def regressed(
        cls,
        which: GroupEffects,
        supports: Float[np.ndarray, "S p"],
        weights: Float[np.ndarray, " S"],
        mean: Float[np.ndarray, "S G s"],
        root: Float[np.ndarray, "S G t"],
        shape: Float[np.ndarray, "S G s 2"],
    ) -> "Effects":
        """The effects with slopes by weighted linear regression on the supports."""
        scales = np.sqrt(weights)[:, None]
        away = supports - weights @ supports
        slopes = []
        for moment in (mean, root):
            flat = moment.reshape(len(moment), -1)
            fitted = np.linalg.lstsq(scales * away, scales * (flat - weights @ flat), rcond=None)[0]
            slopes.append(fitted.T.reshape(*moment.shape[1:], -1))
        return cls(which, supports, weights, mean, root, shape, *slopes)

    @property
    def num_effects(self) -> int:
        """The number of effects of all levels, also of larger groups."""
        return self.mean[0].size + (0 if self.given is None else self.given.num_effects)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that are group effects, those of larger groups first."""
        return (*(() if self.given is None else self.given.names), *self.which.names)

    def product_space(self, space: Space) -> Space:
        """The space of the parameters that are no effects, of the space of all."""
        shared = self.which.shared_space(space)
        return shared if self.given is None else self.given.product_space(shared)

    @property
    def per_level(self) -> int:
        """Effects of one level, s."""
        return self.mean.shape[2]

    @property
    def are_linear(self) -> bool:
        """Whether the moments are known at one support, and extended linearly from there."""
        return len(self.supports) == 1

    def said(self, errors: EffectErrors) -> str:
        """What a certificate of the other parameters has to say of them."""
        names = ", ".join(self.names)
        return (
            f" It judges the shared parameters; the {self.num_effects:,} group effects ({names}) were integrated out"
            f" and follow from them (at {errors.levels:,} levels with errors of at most {errors.shift:.3f} sds in means"
            f" and {errors.change:.1%} in sds)."
        )

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Row and column of the entries of a root."""
        return [(i, j) for i in range(self.per_level) for j in range(i + 1)]

    @functools.cached_property
    def _scales(self) -> Float[np.ndarray, " p"]:
        """The sds of φ, in units of which distances to supports are measured."""
        sds = np.sqrt(self.weights @ (self.supports - self.weights @ self.supports) ** 2)
        return np.where(sds > 0, sds, 1.0)

    def nearest(self, phi: Float[np.ndarray, "n p"]) -> Int[np.ndarray, " n"]:
        """The number of the support that is nearest to each φ; a φ that is a support has itself."""
        if self.are_linear:
            return np.zeros(len(phi), np.int64)
        # Imported here because only posteriors with group effects need it.
        from scipy.spatial import KDTree

        return np.asarray(KDTree(self.supports / self._scales).query(phi / self._scales)[1])

    def means(self, phi: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n G s"]:
        """The means given φ."""
        near = self.nearest(phi)
        return self.mean[near] + _along(self.mean_slope, phi - self.supports[near])

    def roots(self, phi: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n G s s"]:
        """The roots C_g given φ."""
        near, s = self.nearest(phi), self.per_level
        entries = self.root[near] + _along(self.root_slope, phi - self.supports[near])
        made = np.zeros((*entries.shape[:2], s, s))
        for t, (i, j) in enumerate(self.entries):
            made[..., i, j] = np.exp(entries[..., t]) if i == j else entries[..., t]
        return made

    @functools.cached_property
    def _skewed(self) -> Skewed:
        """h of each support, level and effect."""
        return Skewed.of(self.shape[..., 0], self.shape[..., 1])

    def skewed(self, phi: Float[np.ndarray, "n p"]) -> Skewed:
        """h given φ, of shape (n, G, s)."""
        near = self.nearest(phi)
        return Skewed(*(part[near] for part in self._skewed))

    def draw(self, phi: Float[np.ndarray, "n p"], rng: np.random.Generator) -> Float[np.ndarray, "n G s"]:
        """One draw of the effects for each φ."""
        means, roots = self.means(phi), self.roots(phi)
        return means + np.einsum("ngij,ngj->ngi", roots, self.skewed(phi)(rng.standard_normal(means.shape)))

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
        skewed = self.skewed(phi)
        e = skewed.inverse(away)
        log_dets = np.sum(np.log(np.diagonal(roots, axis1=-2, axis2=-1) * skewed.slope(e)), axis=(1, 2))
        if self.given is None:
            of_phi = np.asarray(mixture.log_density(phi))
        else:
            of_phi = self.given.log_density(self.which.shared_space(space), mixture, phi)
        return of_phi - 0.5 * np.sum(e**2, axis=(1, 2)) - log_dets - 0.5 * self.mean[0].size * _LOG_2PI


def _along(slopes: Float[np.ndarray, "G s p"], away: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n G s"]:
    levels, s, p = slopes.shape
    return (away @ slopes.reshape(-1, p).T).reshape(-1, levels, s)
