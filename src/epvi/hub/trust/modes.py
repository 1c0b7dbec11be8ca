"""A posterior's mixture as one Gaussian per mode, and the modes that shards had and the posterior has not.

Takes the posterior's mixture and those of the shards; gives Gaussians to expand about and to refine. Two Gaussians are
of one mode when their means are near each other: δᵀ(Σ_a + Σ_b)⁻¹δ, about the square of half their distance in sds.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Diagonal, Full
from epvi.hub.agreement.leave_one_out import Gaussian, distance_between, product

# Whole matrices of second derivatives are asked for up to this many parameters, as fits have them.
FULL_UP_TO = 100
# Equal Gaussians three sds apart are two modes.
_ONE_MODE = 4.5
# A shard's component is another mode when chance brings it so far from the posterior's so rarely.
_RARELY = 1e-6
# So many components are looked at, and so many modes kept.
_MOST_LOOKED_AT, _MOST_STRAY = 32, 4
# Of the heaviest components that hold this mass, modes are made; what is left is spread over them.
_MASS, _MOST_COMPONENTS = 0.9999, 2000


def one_per_mode(mixture: GaussianMixture) -> GaussianMixture:
    """Gaussians with the moments of the components around each mode, heaviest first."""
    structure = Full() if mixture.dim <= FULL_UP_TO else Diagonal()
    mixture = mixture.to(structure) if mixture.structure.rank < structure.rank else mixture
    if mixture.num_components == 1:
        return mixture
    weights, means = np.asarray(mixture.weights), np.asarray(mixture.means)
    covariances = np.asarray(mixture.covariances())
    order = np.argsort(-weights, kind="stable")[:_MOST_COMPONENTS]
    order = order[: 1 + int(np.searchsorted(np.cumsum(weights[order]), _MASS))]
    groups: list[list[int]] = []
    seeds: list[Gaussian] = []
    for k in order.tolist():
        one = _gaussian(means[k], covariances[k])
        near = [i for i, seed in enumerate(seeds) if distance_between(one, seed) < _ONE_MODE]
        if near:
            groups[near[0]].append(k)
        else:
            groups.append([k])
            seeds.append(one)
    parts = _merged([_moments(weights[g], means[g], covariances[g]) for g in groups])
    total = sum(weight for weight, _, _ in parts)
    return GaussianMixture.from_covariances(
        np.stack([mean for _, mean, _ in parts]),
        np.stack([covariance for _, _, covariance in parts]),
        np.array([weight / total for weight, _, _ in parts]),
    )


def stray_modes(shards: Sequence[GaussianMixture], modes: GaussianMixture) -> GaussianMixture | None:
    """Where shards have components that no mode of the posterior explains: local products of those that are near.

    Most shared ones first; None when there is no such place.
    """
    full = isinstance(modes.structure, Full)
    own = list(_gaussians(modes, full))
    far = float(chdtri(modes.dim, _RARELY))
    if all(shard.num_components == 1 for shard in shards):
        return None
    listed = [(m, one) for m, shard in enumerate(shards) for one in _gaussians(shard, full)]
    strange = [(m, one) for m, one in listed if min(distance_between(one, mode) for mode in own) > far]
    found: list[tuple[int, Gaussian]] = []
    for m, one in strange[:_MOST_LOOKED_AT]:
        near = _nearest_of_each(one, m, strange, far)
        made = product(near)
        same = [distance_between(made, other) < _ONE_MODE for _, other in found]
        if not any(same) and min(distance_between(made, mode) for mode in own) > _ONE_MODE:
            found.append((len(near), made))
    if not found:
        return None
    kept = [one for _, one in sorted(found, key=lambda pair: -pair[0])[:_MOST_STRAY]]
    covariances = np.stack([_inverse(one.precision) if full else 1 / one.precision for one in kept])
    return GaussianMixture.from_covariances(np.stack([one.mean for one in kept]), covariances)


def joined(modes: GaussianMixture, others: GaussianMixture | None, share: float) -> GaussianMixture:
    """All in one mixture, the others with this share of the weight together."""
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
    """The component itself, and of every other shard the one nearest to it, if that may be of the same mode."""
    nearest: dict[int, tuple[float, Gaussian]] = {own: (0.0, one)}
    for m, other in strange:
        distance = distance_between(one, other)
        if m != own and distance < min(far, nearest.get(m, (np.inf, other))[0]):
            nearest[m] = distance, other
    return [gaussian for _, gaussian in nearest.values()]


def _inverse(matrix: np.ndarray) -> np.ndarray:
    made = np.linalg.inv(matrix)
    return 0.5 * (made + made.T)


def _gaussian(mean: np.ndarray, covariance: np.ndarray) -> Gaussian:
    return Gaussian(mean, np.linalg.inv(covariance) if covariance.ndim == 2 else 1 / covariance)


def _gaussians(mixture: GaussianMixture, full: bool) -> list[Gaussian]:
    mixture = mixture.to(Full() if full else Diagonal())
    roots = np.asarray(mixture.roots)
    precisions = roots @ np.swapaxes(roots, 1, 2) if full else roots**2
    return [Gaussian(mean, precision) for mean, precision in zip(np.asarray(mixture.means), precisions, strict=True)]


_Part = tuple[float, np.ndarray, np.ndarray]


def _moments(weights: Float[np.ndarray, " n"], means: np.ndarray, covariances: np.ndarray) -> _Part:
    """Weight, mean and covariance of several components together."""
    total = float(np.sum(weights))
    share = weights / total
    mean = share @ means
    away = means - mean
    within = np.tensordot(share, covariances, axes=1)
    between = (share[:, None] * away).T @ away if covariances.ndim == 3 else share @ away**2
    return total, mean, within + between


def _merged(parts: list[_Part]) -> list[_Part]:
    """Parts that turn out to be of one mode as one."""
    for i, a in enumerate(parts):
        for j in range(i + 1, len(parts)):
            b = parts[j]
            if distance_between(_gaussian(*a[1:]), _gaussian(*b[1:])) < _ONE_MODE:
                both = _moments(np.array([a[0], b[0]]), np.stack([a[1], b[1]]), np.stack([a[2], b[2]]))
                return _merged([*parts[:i], both, *parts[i + 1 : j], *parts[j + 1 :]])
    return sorted(parts, key=lambda part: -part[0])
