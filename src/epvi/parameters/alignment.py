"""Resolves label switching: permutes exchangeable parameters so that all shards' components agree on one labelling.

L exchangeable units (such as the components of a mixture model) have L! equivalent labellings, and the product of
subposteriors with different labellings would have no mass. Takes θ and a reference with its precisions; gives the
relabelling that brings θ nearest to the reference, group by group, by optimal assignment. Weights on a simplex are
compared by their logarithms, and relabelled through them (`stick_breaking.py`).
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.packing import Packed, Packing
from epvi.gaussian.structures import form_of
from epvi.parameters.space import Space
from epvi.parameters.stick_breaking import from_log_weights, inverse_slopes, log_weights, slopes
from epvi.parameters.units import costs, features, scaled


@dataclasses.dataclass(frozen=True, eq=False)
class Relabelling:
    """A permutation of the units of every exchangeable group, as a map of θ.

    Attributes:
        space: the parameters.
        units: for each group, which unit of θ takes the place of unit 0, 1, ...
    """

    space: Space
    units: tuple[np.ndarray, ...]

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Indices i such that θ[i] is the relabelling of θ, but for the coordinates of simplexes."""
        order = np.arange(self.space.dim)
        for group, units in zip(self.space.exchangeable, self.units, strict=True):
            blocks = self.space.blocks(group)
            order[blocks] = blocks[units]
        return order

    @functools.cached_property
    def simplexes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The coordinates of each simplex, and the order of its categories."""
        groups = zip(self.space.exchangeable, self.units, strict=True)
        return [(part, units) for group, units in groups for part in self.space.simplexes(group)]

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return all(np.array_equal(units, np.arange(len(units))) for units in self.units)

    def inverse(self) -> "Relabelling":
        """The relabelling that undoes it."""
        return Relabelling(self.space, tuple(np.argsort(units) for units in self.units))

    def point(self, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """θ relabelled."""
        made = theta[self.order]
        for part, units in self.simplexes:
            made[part] = from_log_weights(log_weights(theta[part])[units])
        return made

    def covariance(self, packing: Packing, packed: Packed, theta: Float[np.ndarray, " d"]) -> Packed:
        """The covariance of relabelled θ' = τ(θ), A Σ Aᵀ with A = ∂θ'/∂θ; exact where θ' is linear in θ."""
        if not self.simplexes:
            return packing.reordered(packed, self.order)
        jacobian = self._jacobian(theta)
        dense = jacobian @ packing.dense(packed, len(theta)) @ jacobian.T
        return packing.kept(dense, form_of(dense), len(theta))

    def curvature(self, packing: Packing, packed: Packed, theta: Float[np.ndarray, " d"]) -> Packed:
        """The curvature −H at τ(θ) of a density that τ does not change, from that at its mode θ: A⁻ᵀ (−H) A⁻¹."""
        if not self.simplexes:
            return packing.reordered(packed, self.order)
        back = self.inverse()._jacobian(self.point(theta))
        dense = back.T @ packing.dense(packed, len(theta)) @ back
        return packing.kept(dense, form_of(dense), len(theta))

    def gradient(self, gradient: Float[np.ndarray, " d"], theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """The gradient at τ(θ) of a density that τ does not change, from that at θ: A⁻ᵀ g."""
        if not self.simplexes:
            return gradient[self.order]
        return self.inverse()._jacobian(self.point(theta)).T @ gradient

    def _jacobian(self, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
        """∂θ'/∂θ."""
        made = np.eye(len(theta))[self.order]
        for part, units in self.simplexes:
            logs = log_weights(theta[part])[units]
            made[part] = 0.0
            made[np.ix_(part, part)] = inverse_slopes(logs) @ slopes(theta[part])[units]
        return made


def nearest(space: Space, theta: np.ndarray, reference: np.ndarray, precision: np.ndarray) -> Relabelling:
    """The relabelling that brings θ nearest to `reference`, weighting by `precision` (d,)."""
    units = []
    for group in space.exchangeable:
        away = costs(features(space, group, theta[None]), *scaled(space, group, reference, precision))[0]
        chosen, place = linear_sum_assignment(away)
        order = np.empty(len(place), np.int64)
        order[place] = chosen
        units.append(order)
    return Relabelling(space, tuple(units))


def relabelled(mixture: GaussianMixture, relabellings: Sequence[Relabelling]) -> GaussianMixture:
    """The mixture with component k relabelled by `relabellings[k]`."""
    if all(one.is_identity for one in relabellings):
        return mixture
    means = np.asarray(mixture.means)
    structure, covariances = mixture.structure, np.asarray(mixture.covariances())
    packed = covariances.reshape(len(means), *structure.packed_shape(mixture.dim))
    listed = list(zip(relabellings, means, packed, strict=True))
    moved = np.stack([one.covariance(structure.packing, part, mean) for one, mean, part in listed])
    return GaussianMixture.from_covariances(
        np.stack([one.point(mean) for one, mean, _ in listed]),
        structure.packing.symmetrised(moved).reshape(covariances.shape),
        mixture.weights,
        structure,
    )


def aligned(space: Space, mixtures: Sequence[GaussianMixture]) -> list[GaussianMixture]:
    """The shards' mixtures, every component relabelled to be nearest to a common reference.

    The reference is the precision-weighted mean of the heaviest components of the shards before.
    """
    if not space.exchangeable:
        return list(mixtures)
    mean, precision = None, np.zeros(space.dim)
    made = []
    for mixture in mixtures:
        heaviest = int(np.argmax(mixture.log_weights))
        if mean is None:
            mean, precision = np.asarray(mixture.means)[heaviest], 1 / variances(mixture)[heaviest]
        moved = relabelled(mixture, [nearest(space, theta, mean, precision) for theta in np.asarray(mixture.means)])
        if made:
            own = 1 / variances(moved)[heaviest]
            mean = mean + own / (precision + own) * (np.asarray(moved.means)[heaviest] - mean)
            precision = precision + own
        made.append(moved)
    return made


def variances(mixture: GaussianMixture) -> Float[np.ndarray, "K d"]:
    """The variances of every component."""
    shape = (mixture.num_components, *mixture.structure.packed_shape(mixture.dim))
    return mixture.structure.packing.diagonal(np.asarray(mixture.covariances()).reshape(shape), mixture.dim)
