"""Maximises L1 over all means of a mixture by Newton's method, with a trust region for each mean.

Takes means with f and its derivatives there; returns better means with theirs. Means whose components do not overlap do
not interact: L1 is then a sum over means, and each has a trust region of its own, so that one on a curved ridge does
not hold up the others. Means that interact share one region. Steps are tried with passes that compute f alone, which
cost much less than second derivatives; those follow once, when all means that can move have moved.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.eigen import Eigen, units_of
from epvi.gaussian.packing import Packing
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.fit.entropy_bound import Overlap, mean_gradient, mean_hessian, overlap
from epvi.site.fit.newton import LEAST_GAIN, Tolerances, damped_steps, damping_of

# Means interact when the entropy bound changes a model by more than this fraction of its least curvature (absolute
# eigenvalue and damping). Judgement: if it is left out, each of the last steps still removes nine tenths of the error.
INTERACTING = 0.1
# Most trials of a step. Judgement: radii shrink by at least 4 each time, so that the last is a billionth of the first.
TRIALS = 16
# A gain of less than this many rounding errors of f is not measured by a pass of another kind than that which gave f.
# Judgement: the rounding errors of two programs differ by that much.
_RESOLVED = 1000.0


class Placed(NamedTuple):
    """Means with f and its derivatives, and the trust regions of the next step."""

    # μ_k.
    means: Float[np.ndarray, "K d"]
    # f at the means, with gradient and full Hessian.
    at: Curve
    # Longest step of each mean, in these units; infinite before the first step.
    radii: Float[np.ndarray, " K"]
    # Scale of each coordinate: the least so far of those that the curvature gives (see `units_of`).
    units: Float[np.ndarray, "K d"]

    @classmethod
    def of(cls, means: np.ndarray, at: Curve) -> "Placed":
        """Means from which no step was taken yet."""
        return cls(means, at, np.full(len(means), np.inf), np.full(means.shape, np.inf))


class _Model(NamedTuple):
    """Quadratic models of L1 in G groups of coordinates: one group for each mean, or one for all if they interact."""

    gradient: Float[np.ndarray, "G D"]
    # The Hessians, in the units of the trust regions.
    eigen: Eigen
    # The part of L1 in each group, up to a constant.
    values: Float[np.ndarray, " G"]

    def steps(self, gradient: np.ndarray, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Newton steps within the radii, and the gains that the models predict."""
        return damped_steps(gradient, self.eigen, radius)

    def length(self, vectors: np.ndarray) -> np.ndarray:
        """Lengths in the units of the trust regions."""
        return np.linalg.norm(vectors / self.eigen.units, axis=-1)


class FirstBound(NamedTuple):
    """L1 as a function of the means, at fixed covariances."""

    subposterior: Subposterior
    packing: Packing
    covariances: np.ndarray

    def value(self, f: np.ndarray, means: np.ndarray) -> float:
        """L1 of means at which f is known."""
        return float(np.mean(f)) + overlap(self.packing, means, self.covariances).bound

    def maximise(self, placed: Placed, precision: Tolerances, max_steps: int) -> Placed:
        """Take Newton steps until the decrement of every mean is below the tolerance, at most `max_steps`."""
        for _ in range(max_steps):
            placed = placed._replace(units=np.minimum(placed.units, units_of(_second(placed.at))))
            search = _MeanSearch.of(self.model(placed, precision.floor), placed, precision)
            at = self._search(placed, search)
            if not np.any(search.taken):
                break
            placed = self._moved(placed, search, at)
        return placed

    def model(self, placed: Placed, floor: float) -> _Model:
        """The quadratic models at these means."""
        means, at, _, units = placed
        k, d = means.shape
        between = overlap(self.packing, means, self.covariances)
        gradient, hessian = at.gradient / k + mean_gradient(between), _second(at) / k
        values = (at.value - between.logs) / k
        eigen = _eigen(hessian, units, floor)
        along = np.einsum("bij,bi->bj", eigen.vectors, gradient * units)
        damped = eigen.size + damping_of(along, eigen.size, _radii(placed))[:, None]
        if not _interact(self.packing, between, units, np.min(damped, axis=1)):
            return _Model(gradient, eigen, values)
        whole = mean_hessian(self.packing, between).reshape(k, d, k, d)
        whole[np.arange(k), :, np.arange(k), :] += hessian
        eigen = _eigen(whole.reshape(1, k * d, k * d), units.reshape(1, -1), floor)
        return _Model(gradient.reshape(1, -1), eigen, np.sum(values, keepdims=True))

    def _parts(self, f: np.ndarray, means: np.ndarray, groups: int) -> np.ndarray:
        """The part of L1 in each group."""
        parts = (f - overlap(self.packing, means, self.covariances).logs) / len(means)
        return np.sum(parts.reshape(groups, -1), axis=1)

    def _search(self, placed: Placed, search: "_MeanSearch") -> Curve | None:
        """Try steps until every group has one or can have none; derivatives, if they were computed at the last."""
        means, at, groups = placed.means, None, len(search.taken)
        for trial in range(TRIALS):
            if not np.any(search.waiting):
                break
            step, promised, whole = search.propose()
            tried = means + search.joined(step).reshape(means.shape)
            # The first full Newton step is likely to be taken, and then its derivatives are needed.
            if search.is_blind(promised) or (trial == 0 and np.all(whole | ~search.waiting)):
                at = self.subposterior.full(tried)
                f = at.value
            else:
                at, f = None, self.subposterior.value(tried, len(tried))
            if not search.judge(step, promised, self._parts(f, tried, groups)):
                at = None
        return at

    def _moved(self, placed: Placed, search: "_MeanSearch", at: Curve | None) -> Placed:
        """The means after the step; those without finite derivatives stay, and all do if L1 has fallen."""
        means = placed.means + search.step.reshape(placed.means.shape)
        at = self.subposterior.full(means) if at is None else at
        kept = np.isfinite(at.value) & np.all(np.isfinite(at.gradient), axis=1)
        kept &= np.all(np.isfinite(_second(at)), axis=(1, 2))
        # Of means that did not interact each has gained, but they can have come close to each other.
        before, after = float(np.sum(search.model.values)), self.value(at.value, means)
        kept &= not after < before - search.precision.rounding * (1 + abs(before))
        radii = np.broadcast_to(search.radius / np.sqrt(len(means) / len(search.radius)), len(means))
        return Placed(
            _either(kept, means, placed.means),
            Curve(
                _either(kept, at.value, placed.at.value),
                _either(kept, at.gradient, placed.at.gradient),
                _either(kept, _second(at), _second(placed.at)),
            ),
            # Shrunk as after a step that was not taken.
            np.where(kept, radii, 0.25 * radii),
            placed.units,
        )


@dataclasses.dataclass
class _MeanSearch:
    """The search for a step of each group, with radii that shrink until the step raises L1."""

    model: _Model
    precision: Tolerances
    # Longest step of each group.
    radius: Float[np.ndarray, " G"]
    # Which groups have no step yet, and which have one.
    waiting: Bool[np.ndarray, " G"]
    taken: Bool[np.ndarray, " G"]
    # The steps found; zero for the other groups.
    step: Float[np.ndarray, "G D"]
    # Radii at the rounding error of the means, which allow no further progress.
    least: Float[np.ndarray, " G"]

    @classmethod
    def of(cls, model: _Model, placed: Placed, precision: Tolerances) -> "_MeanSearch":
        """The search at these means; groups whose decrement is below the tolerance stay."""
        groups = len(model.values)
        size = model.length(placed.means.reshape(groups, -1))
        radius = np.sqrt(np.sum(_radii(placed).reshape(groups, -1) ** 2, axis=1))
        _, decrement = model.steps(model.gradient, np.full(groups, np.inf))
        left = np.where(np.isfinite(model.values), decrement, np.nan)
        nothing = np.zeros(groups, bool)
        zero = np.zeros_like(model.gradient)
        return cls(model, precision, radius, left > precision.tolerance, nothing, zero, 1e-13 * (1 + size))

    def propose(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps within the radii, the gains that the models predict, and which of them are full Newton steps."""
        step, promised = self.model.steps(self.model.gradient, self.radius)
        within = self.model.length(step) < self.radius * (1 - 1e-3)
        return step, promised, within & self.model.eigen.falls

    def joined(self, step: np.ndarray) -> np.ndarray:
        """The steps found so far, and those proposed for the other groups."""
        return np.where(self.waiting[:, None], step, self.step)

    def is_blind(self, promised: np.ndarray) -> bool:
        """Whether a predicted gain is too small to be measured by a pass that computes f alone."""
        least = _RESOLVED * self.precision.rounding * (1 + np.abs(self.model.values))
        return bool(np.any(self.waiting & (promised <= least)))

    def rises(self, parts: np.ndarray, promised: np.ndarray) -> np.ndarray:
        """Which parts of L1 have risen enough."""
        # Near the maximum the gain is below the rounding error: there steps are taken without a check of the gain.
        drowned = promised <= self.precision.rounding * (1 + np.abs(self.model.values))
        gain = parts - self.model.values
        return np.isfinite(parts) & ((gain >= LEAST_GAIN * promised) | drowned)

    def judge(self, step: np.ndarray, promised: np.ndarray, parts: np.ndarray) -> bool:
        """Take the steps that raise L1, given each group's part of it there; says whether all proposed steps do."""
        good = self.waiting & self.rises(parts, promised)
        drowned = promised <= self.precision.rounding * (1 + np.abs(self.model.values))
        ratio = np.where(drowned, 1.0, (parts - self.model.values) / np.maximum(promised, 1e-300))
        length = self.model.length(step)
        # The usual rules of the radius (Nocedal & Wright 2006, algorithm 4.1).
        shrinks = self.waiting & (~good | (ratio < 0.25))
        self.radius = np.where(shrinks, 0.25 * np.minimum(length, self.radius), self.radius)
        self.radius = np.where(good & (ratio > 0.75), np.maximum(self.radius, 2 * length), self.radius)
        self.step = np.where(good[:, None], step, self.step)
        self.taken, every = self.taken | good, bool(np.all(good == self.waiting))
        self.waiting = self.waiting & ~good & (self.radius > self.least)
        return every


def _radii(placed: Placed) -> np.ndarray:
    """The radii; before the first step as long as the means themselves, and at least 1."""
    first = np.maximum(1.0, np.linalg.norm(placed.means / placed.units, axis=1))
    return np.where(np.isfinite(placed.radii), placed.radii, first)


def _interact(packing: Packing, between: Overlap, units: np.ndarray, least: np.ndarray) -> bool:
    """Whether the entropy bound changes the models notably, given the least curvature of each, with damping."""
    k, d = units.shape
    others = np.where(np.eye(k, dtype=bool), 0.0, between.shares + between.shares.T)
    # In the units of mean k the bound's Hessian has eigenvalues of at most r_kj (|a_kj|² + |S_kj⁻¹|).
    inverses = np.max(units[:, None] ** 2 * packing.diagonal(between.inverses, d), axis=-1)
    most = others * (np.sum((units[:, None] * between.slopes) ** 2, axis=-1) + inverses)
    return bool(np.any(most > k * INTERACTING * least[:, None]))


def _second(at: Curve) -> np.ndarray:
    assert at.hessian is not None
    return at.hessian


def _eigen(hessian: np.ndarray, units: np.ndarray, floor: float) -> Eigen:
    """Decompositions of Hessians in given units; absolute eigenvalues are at least `floor` times the largest."""
    finite = np.all(np.isfinite(hessian), axis=(-2, -1))
    hessian = np.where(finite[:, None, None], hessian, -np.eye(hessian.shape[-1]))
    eigenvalues, vectors = np.linalg.eigh(hessian * units[:, :, None] * units[:, None, :])
    size = np.abs(eigenvalues)
    # 1e-290 in place of zero: its inverse is still finite in float64. Judgement.
    least = floor * size.max(axis=-1, keepdims=True) + 1e-290
    return Eigen(np.maximum(size, least), vectors, units, np.all(eigenvalues < 0, axis=-1) & finite)


def _either(mask: np.ndarray, some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Entries of one array where the mask is true, and of another elsewhere, along the first axis."""
    return np.where(np.reshape(mask, (-1,) + (1,) * (some.ndim - 1)), some, others)
