"""Fits many shards at once: those whose subposterior has a single mode and is close to a Gaussian there.

Takes the subposteriors of several shards; gives for each either its fit, one Gaussian at the mode, or None: then it is
fitted alone (`nvi_run.py`), with more starts and components. All steps of all shards are made together, so that a fit
costs what its passes over the rows cost, whatever the number of shards. What a shard gets does not depend on others.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from epvi.gaussian.matrices import positive_definite
from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import WHOLE
from epvi.ground.status import Status, StatusCode
from epvi.site.derivatives.expansion import PARTS, TALL, Taylor, near_by_influence
from epvi.site.derivatives.expansions import Taylors, expand_together
from epvi.site.derivatives.near_modes import near_modes
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.fit.few_hessians import OneShard, only_mode
from epvi.site.fit.inference import LocalFit
from epvi.site.fit.ladder import (
    NEAR_ENOUGH,
    fewer_in_first_part,
    first_part,
    part_sizes,
    represented_by_last,
    scaled_starts,
)
from epvi.site.fit.modes import MOST_ON_TALL
from epvi.site.fit.monte_carlo import RatioEstimates, base_draws
from epvi.site.fit.newton import Climbed, Tolerances, newton_steps
from epvi.site.fit.one_mode import MORE_STEPS, OneModeSearch, climbed, last_step, moved_by_scarce

_LOG_2PI = float(np.log(2 * np.pi))
# A parameter of which the prior's share has at least this part of the curvature is bounded by the prior. Judgement.
_BY_PRIOR = 0.05
# From this many parameters on, and if a Hessian of a shard takes more than this many products, modes are searched for
# by gradients. Judgement: with 48 columns a Hessian takes as long as five gradients, and then some milliseconds.
_FEW_HESSIANS, _DEAR = 48, 2**27
# Draws at which values are computed in one pass over the rows. Judgement: it bounds the memory of a block.
_DRAWS_AT_ONCE = 64
# A regular shard is recognised with a fraction of the draws that `num_draws` allows, 64 of 256 at most, fewer with a
# smaller share of the prior, and at least this many. Judgement: what is tolerable grows with the number of shards, and
# the ELBO's standard error is far below it.
_FEWER_DRAWS, _LEAST_DRAWS = 4, 16
# Where rows are bundles of groups, a draw costs an integral over every group's effects: fewer draws, but at least
# `_LEAST_DRAWS`, if values of so many rows are not enough for all. Judgement: some hundredths of a second.
_VALUES_OF_BUNDLES = 2**21
# Rows of the parts of a shard on which remainders are computed: a share of its rows, at least so many per parameter (so
# that the Hessians of parts and of all rows differ by less than a factor of two, by the Marchenko-Pastur law), and at
# most 512 in each part, as on a shard with many rows. Judgement.
_SHARE_OF_ROWS, _ROWS_PER_PARAMETER, _MOST_PER_PART = 8, 16, 512
# The same for bundles of groups: a share of them, at least so many in each part. Judgement: with a larger share, values
# of all bundles near the mode in float32 cost less.
_SHARE_OF_BUNDLES, _LEAST_BUNDLES = 8, 2
# Most places for rows of bundles that are copied, so that values near the modes cost less. Judgement: it bounds memory.
_MOST_COPIED = 2**20
# A remainder with a larger average standard error, in nats, is computed from all rows. Judgement: it is compared with
# half a nat.
_CERTAIN = 0.1
# Where uniform parts are not enough, and the values of all rows at all draws are at least so many, parts with the
# influential rows are tried first. Judgement: their choice costs as much as a few hundred thousand values.
_MANY_VALUES = 2**22
# Up to this many parameters the KL divergence of one Gaussian is compared with what is acceptable. With more it is the
# sum of small divergences in all directions, which refinement mends and a split into a few components does not.
# Judgement.
_DIVERGES_IN = 128


class Ends(NamedTuple):
    """The modes of B shards."""

    # The mode of each shard, with value, gradient and Hessian.
    at: Taylors
    # Whether the search met its tolerance, and found no other mode.
    good: Bool[np.ndarray, " B"]


@dataclasses.dataclass(frozen=True)
class RegularShards:
    """The settings and data of fits that are made together."""

    subposteriors: Subposteriors
    # The covariance structure of the Gaussians.
    structure: Structure
    # Numerical tolerances of Newton's method.
    precision: Tolerances
    # Starts of the search, and how many of them have to end in the same mode.
    starts: Float[np.ndarray, "n d"]
    num_starts: int
    # Draws of the ELBO estimate.
    num_draws: int
    # Largest acceptable KL divergence from the subposterior, in nats, beyond two standard errors, by shard.
    tolerable: Float[np.ndarray, " B"]

    def fit(self, rngs: list[np.random.Generator]) -> list[LocalFit | None]:
        """The fits, or None where a shard is to be fitted alone."""
        ends = self.modes(rngs)
        # Draws do not depend on the way to the mode, on which a shard alone takes other subsamples than one of many.
        rngs = [rng.spawn(1)[0] for rng in rngs]
        shards = np.flatnonzero(ends.good)
        made: list[LocalFit | None] = [None] * self.subposteriors.num_shards
        if len(shards):
            at = Taylors(*(part[shards] for part in dataclasses.astuple(ends.at)))
            for shard, fit in zip(shards, self._at_modes(shards, at, rngs), strict=True):
                made[shard] = fit
        return made

    def modes(self, rngs: list[np.random.Generator]) -> Ends:
        """The modes: searched for on a subsample of each shard with many rows, and followed to all of its rows."""
        sub, d, ends = self.subposteriors, self.subposteriors.dim, _unknown(self.subposteriors)
        slopes = np.array([self._is_by_gradients(int(n)) for n in sub.sizes])
        self._by_gradients(ends, np.flatnonzero(slopes), rngs)
        if d <= MOST_ON_TALL:
            # Newton's method copes with more: along its way the density need not be concave everywhere.
            slopes &= ends.good
            ends.good[:] = True
        target = sub.programs.target
        first = first_part(d, target.terms, target.bundle)
        others = self._left_by_pool(ends, np.flatnonzero(~slopes), rngs)
        sizes = {m: int(sub.sizes[m]) for m in others}
        steps = {m: part_sizes(n, first, represented_by_last(n, d, target)) for m, n in sizes.items()}
        for i in range(max(map(len, steps.values()), default=0)):
            shards = np.array([m for m in others if len(steps[m]) > i and ends.good[m]], int)
            if len(shards):
                thinned = sub.sampled(shards, [steps[m][i] for m in shards], [rngs[m] for m in shards])
                own, loose = np.arange(len(shards)), self.precision._replace(tolerance=NEAR_ENOUGH)
                if i == 0:
                    self._search(ends, thinned, shards, own, loose)
                    self._tempered(ends, thinned, shards, loose)
                else:
                    self._follow(ends, thinned, shards, own, loose)
        plain = np.array([m for m in others if not steps[m]], int)
        if len(plain):
            self._search(ends, sub, plain, plain, self.precision)
        rest = np.array([m for m in others if steps[m] and ends.good[m]], int)
        for tall in (False, True):
            some = rest[(sub.sizes[rest] * sub.programs.target.bundle >= TALL) == tall]
            if len(some):
                self._follow(ends, sub, some, some, self.precision._replace(trusting=tall))
        return self._polished(ends)

    def _tempered(self, ends: Ends, thinned: Subposteriors, shards: np.ndarray, loose: Tolerances) -> None:
        """Go on from where these few rows lead if they do not represent others, if the prior bounds something alone.

        A category of which all rows have one label leads the farther out, the more rows each of them represents. With
        rows that have scarce values, these represent few.
        """
        if thinned.by_row is not None:
            return
        prior = thinned.prior_alone(ends.at.centre[shards], np.arange(len(shards)))[2]
        curvature = (np.diagonal(part, axis1=1, axis2=2) for part in (prior, ends.at.hessian[shards]))
        told = [np.abs(one) for one in curvature]
        own = np.flatnonzero(ends.good[shards] & np.any(told[0] > _BY_PRIOR * told[1], axis=1))
        if len(own):
            alike = dataclasses.replace(thinned, weights=np.ones(len(shards)))
            found = climbed(alike, own, ends.at.centre[shards[own]], loose, MORE_STEPS)
            fine = found.converged & found.concave
            ends.at.centre[shards[own[fine]]] = found.points[fine]

    def _left_by_pool(self, ends: Ends, shards: np.ndarray, rngs: list[np.random.Generator]) -> np.ndarray:
        """The shards that are left when modes of shards that are not tall have been followed from that of a pool."""
        sub = self.subposteriors
        some = shards[ends.good[shards] & (sub.sizes[shards] * sub.programs.target.bundle < TALL)]
        loose = self.precision._replace(tolerance=NEAR_ENOUGH)
        search = OneModeSearch(sub, scaled_starts(self.starts), self.num_starts, loose)
        mode = search.of_pool(some, rngs[some[0]]) if len(some) else None
        if mode is None:
            return shards
        ends.at.centre[some] = moved_by_scarce(sub, some, np.tile(mode, (len(some), 1)), loose)
        self._follow(ends, sub, some, some, self.precision)
        left = some[~ends.good[some]]
        ends.good[left] = True
        return np.setdiff1d(shards, np.setdiff1d(some, left))

    def _polished(self, ends: Ends) -> Ends:
        """The modes after one more Newton step, without a pass: they then hardly depend on where the search began."""
        centre, value, gradient, hessian = dataclasses.astuple(ends.at)
        newton = newton_steps(gradient, hessian, self.precision.floor)
        near = newton.falls & (newton.decrement <= self.precision.tolerance)
        at = Taylors(
            np.where(near[:, None], centre + newton.step, centre),
            np.where(near, value + newton.decrement, value),
            np.where(near[:, None], 0.0, gradient),
            hessian,
        )
        return Ends(at, ends.good)

    def _is_by_gradients(self, num_rows: int) -> bool:
        """Whether the mode of a shard with so many rows is searched for by gradients and few Hessians."""
        sub = self.subposteriors
        if sub.dim > MOST_ON_TALL:
            return True
        is_dear = sub.dim >= _FEW_HESSIANS and num_rows * sub.dim**2 >= _DEAR
        return is_dear and sub.programs.target.bundle == 1

    def _by_gradients(self, ends: Ends, shards: np.ndarray, rngs: list[np.random.Generator]) -> None:
        """The modes of shards with many parameters, one shard after the other, with few Hessians."""
        sub = self.subposteriors
        first = fewer_in_first_part(sub.dim, sub.programs.target.terms)
        starts = scaled_starts(self.starts)[: self.num_starts]
        for m in map(int, shards):
            size = int(sub.sizes[m])
            one = np.array([m])
            parts = [OneShard(sub.sampled(one, [part], [rngs[m]]), 0) for part in part_sizes(size, first)]
            found = only_mode([*parts, OneShard(sub, m)], starts)
            if found is None:
                ends.good[m] = False
                continue
            at = Climbed(
                found.point[None],
                np.array([found.value]),
                found.gradient[None],
                found.hessian[None],
                np.array([found.decrement]),
                np.ones(1, bool),
                np.ones(1, bool),
            )
            last = last_step(sub, np.array([m]), at, self.precision)
            _put(ends, np.array([m]), last, last.converged & last.concave)

    def _search(
        self, ends: Ends, sub: Subposteriors, shards: np.ndarray, own: np.ndarray, precision: Tolerances
    ) -> None:
        """Climb from several starts; the shards are number `own` of `sub`."""
        search = OneModeSearch(sub, scaled_starts(self.starts), self.num_starts, precision)
        made = search.run(own)
        _put(ends, shards, made.found, made.fine)
        ends.at.centre[shards] = made.onwards

    def _follow(
        self, ends: Ends, sub: Subposteriors, shards: np.ndarray, own: np.ndarray, precision: Tolerances
    ) -> None:
        """Climb from the modes of fewer rows."""
        found = climbed(sub, own, ends.at.centre[shards], precision, MORE_STEPS)
        if precision.trusting:
            found = last_step(sub, own, found, precision._replace(trusting=False))
        _put(ends, shards, found, found.converged & positive_definite(-found.hessian))

    def _at_modes(self, shards: np.ndarray, at: Taylors, rngs: list[np.random.Generator]) -> list[LocalFit | None]:
        """One Gaussian at each mode, with the Laplace covariance."""
        packing, d = self.structure.packing, self.subposteriors.dim
        curvature = packing.kept(-at.hessian, WHOLE, d)
        precisions, guarded = packing.guarded(curvature, self.precision.floor)
        roots = packing.covariance_root(precisions)
        # A few draws show whether one Gaussian is enough.
        z = np.stack([base_draws(rngs[m], self._enough_draws, d) for m in shards])
        drawn = np.stack([packing.rooted(root[None], one) for root, one in zip(roots, z, strict=True)])
        values, doubt = self._values(shards, at, at.centre[:, None] + drawn, rngs)
        log_dets = np.asarray(packing.log_det(precisions, d))
        # The log density of a Gaussian at μ + Cz is that of z, up to its determinant.
        ratios = values + 0.5 * (np.sum(z**2, axis=2) - log_dets[:, None] + d * _LOG_2PI)
        # L2 of a single Gaussian with the Laplace covariance: ½ tr ΣH = −d/2, and the entropy bound of N(μ; μ, 2Σ).
        bounds = at.value - 0.5 * d + 0.5 * (d * (_LOG_2PI + np.log(2.0)) - log_dets)
        made = RatioEstimates.of(ratios, doubt)
        tolerable = self.tolerable[shards] if d <= _DIVERGES_IN else np.inf
        good = np.all(np.isfinite(ratios), axis=1) & ~guarded & (made.least < tolerable + 2 * made.error)
        fits: list[LocalFit | None] = [None] * len(shards)
        fine, status = np.flatnonzero(good), Status(StatusCode.CONVERGED, "converged: 1 component.")
        if not len(fine):
            return fits
        factors, weights = np.stack([packing.root(precisions[i]) for i in fine]), np.zeros((len(fine), 1))
        mixtures = GaussianMixture.each(weights, at.centre[fine][:, None], factors[:, None], self.structure)
        for i, mixture in zip(fine, mixtures, strict=True):
            elbo = Estimate(np.asarray(made.elbo[i]), np.asarray(made.error[i]))
            passes, seconds = self._effort(int(shards[i]))
            fits[i] = LocalFit(mixture, status, (float(bounds[i]),), elbo, float(made.gap[i]), passes, seconds)
        return fits

    @property
    def _enough_draws(self) -> int:
        """A power of two, in proportion to the largest share of the prior."""
        sub = self.subposteriors
        bundle, share = sub.programs.target.bundle, float(np.max(sub.shares))
        most = max(self.num_draws // _FEWER_DRAWS, 8)
        if bundle > 1:
            affordable = _VALUES_OF_BUNDLES // (int(np.sum(sub.sizes)) * bundle)
            most = min(most, 2 ** int(math.log2(max(affordable, _LEAST_DRAWS))))
        return min(max(2 ** math.ceil(math.log2(self.num_draws * share)), _LEAST_DRAWS), most)

    def _effort(self, m: int) -> tuple[int, float]:
        """Passes over the rows of a shard, and its part of the time of all passes."""
        sub = self.subposteriors
        own = int(sub.windows.bounds[m + 1] - sub.windows.bounds[m])
        return int(sub.passes[m]), sub.seconds * own / sub.windows.num_rows

    def _values(
        self, shards: np.ndarray, at: Taylors, theta: np.ndarray, rngs: list[np.random.Generator]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log densities at the draws, and their average standard errors."""
        sub, d = self.subposteriors, self.subposteriors.dim
        sizes = sub.sizes[shards]
        bundle, part = sub.programs.target.bundle, _SHARE_OF_ROWS
        least, most = -(-_ROWS_PER_PARAMETER * d // PARTS), _MOST_PER_PART
        if bundle > 1:
            part, least, most = (
                _SHARE_OF_BUNDLES,
                max(least // bundle, _LEAST_BUNDLES),
                max(most // bundle, _LEAST_BUNDLES),
            )
        per_part = np.clip(sizes // (PARTS * part), least, max(most, least))
        values, doubt = np.full(theta.shape[:2], np.nan), np.zeros(len(shards))
        # Values of all bundles near the mode in float32 cost less than those of many small parts.
        copied = bundle > 1 and np.sum(sizes) * bundle <= _MOST_COPIED
        sampled = np.flatnonzero((part * PARTS * per_part <= sizes) & (not copied))
        if len(sampled):
            some = Taylors(*(part[sampled] for part in dataclasses.astuple(at)))
            made = expand_together(sub, shards[sampled], some, per_part[sampled], rngs)
            found, errors = made.near(theta[sampled], _DRAWS_AT_ONCE)
            error = np.mean(errors, axis=1)
            good = made.alike & (error < _CERTAIN)
            values[sampled[good]], doubt[sampled[good]] = found[good], error[good]
        for i in sampled[np.isnan(values[sampled, 0])] if bundle == 1 else ():
            if sizes[i] * theta.shape[1] >= _MANY_VALUES:
                whole = Taylor(float(at.value[i]), at.gradient[i], at.hessian[i])
                alone, rng = sub.alone(int(shards[i])), rngs[int(shards[i])]
                near = near_by_influence(alone, at.centre[i], whole, theta[i], int(per_part[i]), rng)
                if near is not None and np.mean(near.error) < _CERTAIN:
                    values[i], doubt[i] = near.value, np.mean(near.error)
        left = np.flatnonzero(np.isnan(values[:, 0]))
        if len(left) and copied:
            some = Taylors(*(part[left] for part in dataclasses.astuple(at)))
            found, error = near_modes(sub, shards[left], some, theta[left])
            good = error < _CERTAIN
            values[left[good]], doubt[left[good]] = found[good], error[good]
            left = left[~good]
        for i in range(0, theta.shape[1] if len(left) else 0, _DRAWS_AT_ONCE):
            values[left, i : i + _DRAWS_AT_ONCE] = sub.value(theta[left, i : i + _DRAWS_AT_ONCE], shards[left])
        return values, doubt


def _unknown(sub: Subposteriors) -> Ends:
    count, d = sub.num_shards, sub.dim
    at = Taylors(np.zeros((count, d)), np.zeros(count), np.zeros((count, d)), np.zeros((count, d, d)))
    return Ends(at, np.ones(count, bool))


def _put(ends: Ends, shards: np.ndarray, found: Climbed, good: np.ndarray) -> None:
    ends.at.centre[shards], ends.at.value[shards] = found.points, found.value
    ends.at.gradient[shards], ends.at.hessian[shards] = found.gradient, found.hessian
    ends.good[shards] &= good & np.isfinite(found.value)
