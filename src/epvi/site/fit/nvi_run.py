"""One shard's fit under way: modes, components around them, and how good they are.

Takes a subposterior and what NVI is told; gives the mixture with its status. On a tall shard all searching is done on
parts of the rows; all rows are then passed over a few times.
"""

import dataclasses
import math

import numpy as np

from epvi.gaussian.packing import Packing
from epvi.gaussian.structure import Structure
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Space
from epvi.site.derivatives.expansion import TALL, Around, Taylor, expand, taylors
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.fit.entropy_bound import overlap
from epvi.site.fit.flat_directions import flat_direction
from epvi.site.fit.inference import LocalFit
from epvi.site.fit.modes import Modes, climb_to, distinct_of, find_modes, follow
from epvi.site.fit.monte_carlo import Drawn, base_draws, draw_from, draws_of, with_best_weights
from epvi.site.fit.newton import Tolerances
from epvi.site.fit.sweeps import Components, Sweeps
from epvi.site.rows.columns import Columns

# f is evaluated at this many draws in one pass.
_DRAWS_AT_ONCE = 64
# More observed numbers than these do not help to find where the modes are.
_START_TERMS_PER_PARAMETER, _LEAST_START_TERMS, _LEAST_START_ROWS = 20, 960, 64
# The last part is one row in so many: a mode then moves by about as many standard deviations as its root on the way to
# all rows, which two steps of Newton's method cover. From part to part it is at most so many times.
_LAST_PART, _NEXT_PART = 16, 64
# From one part to the next a mode need not be met better than this, in nats.
_NEAR_ENOUGH = 0.01
# A mode that was reached on all rows in at most this many passes has been seen to be one.
_FEW_PASSES = 4
# Values from an expansion that are less certain than this, in nats, are computed from all rows.
_CERTAIN = 0.02
# Further components must raise the Monte Carlo bound by this many nats, beyond its standard error. Those that gain less
# describe a shard a little better and the product worse: what is wrong with their shape multiplies.
_WORTH = 0.5
# What is left of a flat direction when a mixture is made in spite of it, relative and absolute.
_FLAT_FLOOR, _FLAT_PRECISION = 1e-8, 1e-8
# A fit is of no use when more than this share of its own draws has no finite log density.
_MOST_NON_FINITE = 0.1
# A fit that was still gaining more than this many nats a sweep when it had to stop is not one to multiply.
_STILL_RISING = 0.1


@dataclasses.dataclass(frozen=True)
class Fitting:
    """One fit under way."""

    num_components: int
    num_draws: int
    subposterior: Subposterior
    columns: Columns
    structure: Structure
    precision: Tolerances
    sweeps: Sweeps

    def plain(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """The paper's method: K means from N(0, I), unit variances, equal weights."""
        k, d = self.num_components, self.subposterior.dim
        unit = np.broadcast_to(self._packing.identity(d), (k, *self.structure.packed_shape(d)))
        works = self.ladder(rng)
        works[0]._refuse_non_finite(starts[:k])
        components = Components(starts[:k], np.array(unit), (), False, False)
        for work in works:
            components = work.sweeps.run(components.means, components.covariances, rng)
        means = components.means
        near = self._near(means, taylors(self.sweeps.curve(means)), rng) if self._is_tall else None
        drawn = self.draw(components, rng, near)
        nearest = climb_to(self.subposterior, means, self.precision)
        modes = self._some(distinct_of(self.subposterior, nearest, k), means)
        flat = self._flat_direction(modes)
        if flat is not None:
            components = self.at_modes(modes, flat=True)
            drawn = self.draw(components, rng)
        return self.finished(components, drawn, flat)

    def merged(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """One Gaussian per mode, unless more components raise the Monte Carlo bound; weights learned."""
        works = self.ladder(rng)
        found = [works[0].search(starts)]
        for work in works[1:]:
            found.append(work.follow(found[-1]))
        modes = found[-1]
        at_modes = taylors(Curve(modes.value, modes.gradient, -modes.curvature))
        near = self._near(modes.points, at_modes, rng)
        seen = near is not None and self.subposterior.passes <= _FEW_PASSES
        flat = self._flat_direction(modes, near[0] if near is not None and seen else None)
        plain = self.at_modes(modes, flat=flat is not None)
        best, drawn = plain, with_best_weights(self.draw(plain, rng, near))
        can_split = flat is None and plain.converged and self.num_components > 1
        if can_split and self._falls_short(drawn):
            # The smallest part tells well enough whether it is worth passes over all rows.
            asked = len(works) == 1 or works[0].asks_for_a_split(found[0], rng)
            split = self.split(plain, rng) if asked else None
            if split is not None and _asked_for(split[1], drawn):
                # The Monte Carlo bound vouches for it, whether or not L2 stood still.
                best, drawn = split[0]._replace(converged=True), split[1]
        return self.finished(best, drawn, flat)

    def ladder(self, rng: np.random.Generator) -> list["Fitting"]:
        """The same work on larger and larger parts of the rows, and at last on all of them."""
        n, d = self.subposterior.num_rows, self.subposterior.dim
        terms = self.subposterior.programs.target.terms
        part = max(_LEAST_START_TERMS, _START_TERMS_PER_PARAMETER * d) // terms + _LEAST_START_ROWS
        works = []
        for size in _part_sizes(n, part):
            thinned = self.subposterior.thinned(size, rng)
            sweeps = dataclasses.replace(self.sweeps, subposterior=thinned)
            precision = self.precision._replace(tolerance=_NEAR_ENOUGH) if works else self.precision
            works.append(dataclasses.replace(self, subposterior=thinned, sweeps=sweeps, precision=precision))
        trusting = self.precision._replace(trusting=self._is_tall)
        return [*works, dataclasses.replace(self, precision=trusting)]

    def search(self, starts: np.ndarray) -> Modes:
        """The modes, from many starts."""
        k = self.num_components
        starts = starts * np.resize([1.0, 1.0, 0.1, 3.0], len(starts))[:, None]
        starts = np.concatenate([starts, np.repeat(starts[:1], -len(starts) % k, axis=0)])
        modes = self._some(find_modes(self.subposterior, starts, k, self.precision), starts)
        return self._with_curvature(modes)

    def follow(self, before: Modes) -> Modes:
        """The modes, from those of a part of the rows."""
        ended = follow(self.subposterior, before, self.precision)
        modes = self._some(distinct_of(self.subposterior, ended, self.num_components), before.points)
        return self._with_curvature(modes)

    def _with_curvature(self, modes: Modes) -> Modes:
        """With whole matrices, where the covariances are."""
        if modes.form.whole or not self._packing.whole:
            return modes
        hessian = self.subposterior.full(modes.points).hessian
        assert hessian is not None
        return modes._replace(curvature=-hessian)

    def asks_for_a_split(self, modes: Modes, rng: np.random.Generator) -> bool:
        """Whether more components than modes raise the bound of a part of the rows."""
        plain = self.at_modes(modes, flat=False)
        split = self.split(plain, rng)
        return split is not None and _asked_for(split[1], with_best_weights(self.draw(plain, rng)))

    def split(self, plain: Components, rng: np.random.Generator) -> tuple[Components, Drawn] | None:
        """K components, from the modes and from around them; None where they run off to where nothing is known."""
        try:
            split = self.sweeps.run(*self._around(plain, rng), rng)
        except np.linalg.LinAlgError:
            return None
        return split, with_best_weights(self.draw(split, rng))

    @property
    def _space(self) -> Space:
        return self.subposterior.programs.target.space

    @property
    def _is_tall(self) -> bool:
        return self.subposterior.num_rows >= TALL

    def _some(self, modes: Modes, starts: np.ndarray) -> Modes:
        """Refuse where no climb had anything to go by."""
        if not len(modes.points):
            self._refuse_non_finite(starts)
            raise EpviError(
                f"the log density has no finite derivatives at any of {len(starts)} starts: guard square roots,"
                " logarithms and divisions in the model (jnp.where on their arguments, not on their results)."
            )
        return modes

    def _refuse_non_finite(self, starts: np.ndarray) -> None:
        at = self.subposterior.value(starts, _DRAWS_AT_ONCE)
        if np.any(np.isfinite(at)):
            return
        kind = "minus infinity" if np.all(at == -np.inf) else "not finite"
        raise EpviError(
            f"the log density is {kind} at all {len(starts)} starts: no parameter near the origin of the unconstrained"
            " space can have made these rows. Check the coding of the observed column, and scale columns to about 1."
        )

    def at_modes(self, modes: Modes, *, flat: bool) -> Components:
        """One Gaussian at each mode with the covariance that L2 gives a separate component."""
        curvature = self.sweeps.packed(modes.curvature, modes.form)
        if flat:
            # A mixture is made in spite of it, for the record.
            curvature = curvature + _FLAT_PRECISION * self._packing.identity(self.subposterior.dim)
        floor = _FLAT_FLOOR if flat else self.precision.floor
        precisions, guarded = self._packing.guarded(curvature, floor)
        covariances = self._packing.inverse(precisions)
        at = overlap(self._packing, modes.points, covariances)
        bound = float(np.mean(modes.value + self.sweeps.trace(covariances, precisions)) + at.bound)
        return Components(modes.points, covariances, (bound,), bool(modes.converged[0]), bool(np.any(guarded)))

    @property
    def _packing(self) -> Packing:
        return self.structure.packing

    def draw(self, components: Components, rng: np.random.Generator, near: list[Around] | None = None) -> Drawn:
        """f at draws, as many of every component; on a tall shard from expansions about their means."""
        means, covariances = components.means, components.covariances
        z = base_draws(rng, self.num_draws // len(means), self.subposterior.dim)
        if near is not None:
            draws, drawn = draws_of(self._packing, means, covariances, z)
            found = [around.near(points, _DRAWS_AT_ONCE) for around, points in zip(near, draws, strict=True)]
            doubt = float(np.mean([one.error for one in found]))
            if doubt <= _CERTAIN:
                return drawn._replace(f=np.stack([one.value for one in found]), doubt=doubt)
        return draw_from(self._value, self._packing, means, covariances, z)

    def _near(self, centres: np.ndarray, wholes: list[Taylor], rng: np.random.Generator) -> list[Around] | None:
        """Expansions of a tall shard, unless a few rows that parts do not have bend it."""
        made = expand(self.subposterior, centres, wholes, rng) if self._is_tall else []
        return made if made and all(around.is_alike for around in made) else None

    def finished(self, components: Components, drawn: Drawn, flat: Status | None) -> LocalFit:
        """The mixture with its status."""
        elbo = drawn.elbo()
        if flat is not None:
            status = flat
        elif np.mean(~np.isfinite(drawn.f)) > _MOST_NON_FINITE:
            text = "non-finite: the log density is not finite around the fit: rescale the columns."
            status = Status(StatusCode.NON_FINITE, text)
        elif not components.converged:
            status = _stopped(components.history)
        else:
            note = " (a curvature that was not that of a maximum was guarded)" if components.guarded else ""
            unseen = self.subposterior.unseen
            if unseen:
                note += f" (these rows say nothing of {', '.join(unseen[:3])}{', ...' if len(unseen) > 3 else ''})"
            count = len(components.means)
            text = f"converged: {count} component{'s' if count > 1 else ''}{note}."
            status = Status(StatusCode.CONVERGED, text)
        mixture = components.mixture(self.structure, np.exp(drawn.log_weights))
        gap = drawn.log_evidence() - float(elbo.value)
        passes, seconds = int(self.subposterior.passes), self.subposterior.seconds
        return LocalFit(mixture, status, components.history, elbo, gap, passes, seconds)

    def _falls_short(self, drawn: Drawn) -> bool:
        """Whether the bound may be so far below the evidence that further components could help.

        Draws of a full Gaussian tell; those of one that cannot follow correlations do not see what it leaves out. On a
        tall shard, which is close to Gaussian, what that leaves out is not worth the passes.
        """
        if not self._packing.whole:
            return not self._is_tall
        # A single far draw can make one half's evidence; where the fit is poor, both halves say so.
        least = min(half.log_evidence() - float(half.elbo().value) for half in drawn.halves())
        return not least < _WORTH + 2 * float(drawn.elbo().standard_error)

    def _around(self, plain: Components, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """K starts: the modes, and draws around them in turn."""
        k, d = self.num_components, self.subposterior.dim
        which = np.resize(np.arange(len(plain.means)), k)
        roots = self._packing.covariance_root(self._packing.inverse(plain.covariances))
        moved = self._packing.rooted(roots[which], rng.standard_normal((k, d)))
        moved[: len(plain.means)] *= 0.1
        return plain.means[which] + moved, plain.covariances[which]

    def _flat_direction(self, modes: Modes, near: Around | None = None) -> Status | None:
        value = self._value if near is None else lambda theta: near.near(theta, _DRAWS_AT_ONCE).value
        return flat_direction(self._space, self.columns, modes, self.precision.floor, value)

    def _value(self, theta: np.ndarray) -> np.ndarray:
        return self.subposterior.value(theta, _DRAWS_AT_ONCE)


def _part_sizes(num_rows: int, first: int) -> list[int]:
    """From a few rows, where modes are sought, to a good part of all; none where the rows are few."""
    if num_rows <= 2 * first:
        return []
    last = num_rows // _LAST_PART
    if last <= 2 * first:
        return [first]
    steps = math.ceil(math.log(last / first, _NEXT_PART))
    return [round(first * (last / first) ** (i / steps)) for i in range(steps + 1)]


def _stopped(history: tuple[float, ...]) -> Status:
    """What to say of a fit that ran out of sweeps (or, without any, of steps towards a mode)."""
    if len(history) < 2:
        return Status(
            StatusCode.NO_MODE,
            "stopped early: no climb reached a mode. Either the density has none (a scale that runs to zero in a shard"
            " with a small share of the prior: take fewer shards, or a non-centred model), or num_starts is too small.",
        )
    gain, text = history[-1] - history[-2], f"stopped early after {len(history)} sweeps"
    if history[-1] < max(history):
        return Status(StatusCode.CYCLING, f"{text}, which went round in a circle: the best of them was taken.")
    rising = f"{text}, the bound still rising by {gain:.2g} nats a sweep"
    if gain < _STILL_RISING:
        return Status(StatusCode.SLOWLY_RISING, f"{rising}.")
    return Status(StatusCode.RISING, f"{rising}: raise max_sweeps.")


def _asked_for(split: Drawn, plain: Drawn) -> bool:
    """Whether more components raise the Monte Carlo bound beyond its standard error."""
    a, b = split.elbo(), plain.elbo()
    error = float(np.hypot(a.standard_error, b.standard_error))
    return bool(np.isfinite(a.value)) and float(a.value) - float(b.value) > 2 * error + _WORTH
