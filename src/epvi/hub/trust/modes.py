"""Reduce a posterior's mixture to one Gaussian per mode, and find modes of the shards that the posterior lacks.

Takes the posterior's mixture and those of the shards; gives the Gaussians at which derivatives are asked for and which
are refined. Two Gaussians belong to one mode when δᵀ(Σ_a + Σ_b)⁻¹δ is small, with δ the difference of their means: for
equal covariances this is half the squared Mahalanobis distance.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri

from epvi.gaussian.gaussian import Gaussian, components_of, product_of
from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure, common
from epvi.gaussian.structures import Diagonal, Full

# Parameters up to which full Hessians are asked for of posteriors with diagonal covariances, and only their diagonals
# beyond. Judgement: as up to which fits have full covariances in any number of shards.
FULL_UP_TO = 100
# Gaussians of equal covariance whose means are 3 sds apart (3²/2) or more are two modes. Judgement: a mixture of two
# equal ones is bimodal from 2 sds on.
_ONE_MODE = 4.5
# A shard's component belongs to no mode of the posterior when the chi-squared p-value of its distance from each is
# below this. Judgement: components are many, and stray modes cost every site work.
_RARELY = 1e-6
# Components of the shards that are examined as stray, and stray modes that are kept. Judgement: bounds on the work.
_MOST_LOOKED_AT, _MOST_STRAY = 32, 4
# The heaviest components, up to this total weight and this number, are grouped into modes; the remaining weight is
# distributed over them in proportion. Judgement: 1e-4 of the mass changes no summary, and grouping compares each with
# every mode.
_MASS, _MOST_COMPONENTS = 0.9999, 2000


def one_per_mode(mixture: GaussianMixture) -> GaussianMixture:
    """One Gaussian per mode, with the weight, mean and covariance of the components around it; heaviest first."""
    structure = common([Full() if mixture.dim <= FULL_UP_TO else Diagonal(), mixture.structure])
    mixture = mixture.to(structure)
    if mixture.num_components == 1:
        return mixture
    weights, means = np.asarray(mixture.weights), np.asarray(mixture.means)
    covariances = np.asarray(mixture.covariances()).reshape(np.shape(mixture.roots))
    order = np.argsort(-weights, kind="stable")[:_MOST_COMPONENTS]
    order = order[: 1 + int(np.searchsorted(np.cumsum(weights[order]), _MASS))]
    groups: list[list[int]] = []
    seeds: list[Gaussian] = []
    for k in order.tolist():
        one = _gaussian(means[k], covariances[k], structure)
        near = [i for i, seed in enumerate(seeds) if one.distance(seed) < _ONE_MODE]
        if near:
            groups[near[0]].append(k)
        else:
            groups.append([k])
            seeds.append(one)
    parts = _merged([_moments(weights[g], means[g], covariances[g], structure) for g in groups], structure)
    total = sum(weight for weight, _, _ in parts)
    covariances = np.stack([covariance for _, _, covariance in parts])
    return GaussianMixture.from_covariances(
        np.stack([mean for _, mean, _ in parts]),
        covariances.reshape(len(parts), *structure.user_shape(mixture.dim)),
        np.array([weight / total for weight, _, _ in parts]),
        structure,
    )


def stray_modes(shards: Sequence[GaussianMixture], modes: GaussianMixture) -> GaussianMixture | None:
    """Modes where shards have components that belong to no mode of the posterior, or None.

    Each is the product of one such component and, of every other shard, the nearest one that may belong to the same
    mode. Modes to which most shards contribute come first.
    """
    structure = modes.structure
    own = components_of(modes, structure)
    far = float(chdtri(modes.dim, _RARELY))
    if all(shard.num_components == 1 for shard in shards):
        return None
    listed = [(m, one) for m, shard in enumerate(shards) for one in components_of(shard, structure)]
    strange = [(m, one) for m, one in listed if min(one.distance(mode) for mode in own) > far]
    found: list[tuple[int, Gaussian]] = []
    for m, one in strange[:_MOST_LOOKED_AT]:
        near = _nearest_of_each(one, m, strange, far)
        made = product_of(near)
        same = [made.distance(other) < _ONE_MODE for _, other in found]
        if not any(same) and min(made.distance(mode) for mode in own) > _ONE_MODE:
            found.append((len(near), made))
    if not found:
        return None
    kept = [one for _, one in sorted(found, key=lambda pair: -pair[0])[:_MOST_STRAY]]
    covariances = np.stack([structure.packing.symmetrised(one.covariance) for one in kept])
    shape = (len(kept), *structure.user_shape(modes.dim))
    return GaussianMixture.from_covariances(
        np.stack([one.mean for one in kept]), covariances.reshape(shape), structure=structure
    )


def joined(modes: GaussianMixture, others: GaussianMixture | None, share: float) -> GaussianMixture:
    """One mixture of both, in which `others` have this share of the weight in total."""
    if others is None:
        return modes
    weights = np.concatenate([(1 - share) * np.asarray(modes.weights), share * np.asarray(others.weights)])
    return GaussianMixture(
        np.log(weights),
        np.concatenate([np.asarray(modes.means), np.asarray(others.means)]),
        np.concatenate([np.asarray(modes.roots), np.asarray(others.to(modes.structure).roots)]),
        modes.structure,
    )


def _nearest_of_each(one: Gaussian, own: int, strange: list[tuple[int, Gaussian]], far: float) -> list[Gaussian]:
    """The component itself, and of every other shard the nearest one, if it may belong to the same mode."""
    nearest: dict[int, tuple[float, Gaussian]] = {own: (0.0, one)}
    for m, other in strange:
        distance = one.distance(other)
        if m != own and distance < min(far, nearest.get(m, (np.inf, other))[0]):
            nearest[m] = distance, other
    return [gaussian for _, gaussian in nearest.values()]


def _gaussian(mean: np.ndarray, covariance: np.ndarray, structure: Structure) -> Gaussian:
    return Gaussian(mean, structure.packing.inverse(covariance), structure)


_Part = tuple[float, np.ndarray, np.ndarray]


def _moments(
    weights: Float[np.ndarray, " n"], means: np.ndarray, covariances: np.ndarray, structure: Structure
) -> _Part:
    """Total weight, mean and covariance of several components (moment matching)."""
    total = float(np.sum(weights))
    share = weights / total
    mean = share @ means
    within = np.tensordot(share, covariances, axes=1)
    return total, mean, within + structure.packing.outer(share, means - mean)


def _merged(parts: list[_Part], structure: Structure) -> list[_Part]:
    """The parts, heaviest first, with those that belong to one mode merged by their moments."""
    for i, a in enumerate(parts):
        for j in range(i + 1, len(parts)):
            b = parts[j]
            if _gaussian(*a[1:], structure).distance(_gaussian(*b[1:], structure)) < _ONE_MODE:
                both = _moments(np.array([a[0], b[0]]), np.stack([a[1], b[1]]), np.stack([a[2], b[2]]), structure)
                return _merged([*parts[:i], both, *parts[i + 1 : j], *parts[j + 1 :]], structure)
    return sorted(parts, key=lambda part: -part[0])
