"""Runs NVI on one shard: finds the modes, places components there, and estimates the ELBO.

Takes a subposterior and the settings of NVI; returns the mixture with its status. On a shard with many rows ("tall")
the search uses subsamples of the rows, and only a few passes over all rows follow.
"""

import dataclasses

import numpy as np

from epvi.gaussian.packing import Packing
from epvi.gaussian.structure import Structure
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Space
from epvi.site.derivatives.expansion import (
    PARTS,
    ROWS_PER_PART,
    Around,
    Taylor,
    expand,
    is_tall,
    sizes_of_parts,
    taylors,
)
from epvi.site.derivatives.prior_part import PriorShare
from epvi.site.derivatives.subposterior import Curve, Subposterior
from epvi.site.derivatives.subsamples import uniform
from epvi.site.fit.entropy_bound import overlap
from epvi.site.fit.flat_directions import flat_direction
from epvi.site.fit.inference import Lack, LocalFit
from epvi.site.fit.information import information
from epvi.site.fit.ladder import NEAR_ENOUGH, first_part, part_sizes, represented_by_last, scaled_starts
from epvi.site.fit.modes import Modes, climb_to, distinct_of, find_modes, follow, second_order
from epvi.site.fit.monte_carlo import Drawn, base_draws, draw_from, draws_of, with_best_weights
from epvi.site.fit.newton import Tolerances
from epvi.site.fit.sweeps import Components, Sweeps
from epvi.site.rows.columns import Columns

# f is evaluated at this many draws in one pass over the rows. Judgement: it bounds the memory of a block.
_DRAWS_AT_ONCE = 64
# After at most this many passes over all rows the modes hardly moved from those of the subsample, and flat directions
# are checked with the Taylor expansion instead of another pass. Judgement.
_FEW_PASSES = 4
# Values from a Taylor expansion with a standard error above this, in nats, are recomputed from all rows. Judgement.
_CERTAIN = 0.02
# More components than modes must raise the estimated ELBO by this many nats, beyond two standard errors. Judgement:
# with smaller gains they fit the shard a little better but the product worse, because errors of shape multiply.
_WORTH = 0.5
# A fit gets the status non-finite if more than this fraction of its own draws has no finite log density. Judgement.
_MOST_NON_FINITE = 0.1
# A fit whose bound was still rising by more than this many nats per sweep at the last sweep is not used. Judgement.
_STILL_RISING = 0.1


@dataclasses.dataclass(frozen=True)
class Fitting:
    """The settings and data of one fit."""

    # K, the most components.
    num_components: int
    # Draws of the ELBO estimate, over all components.
    num_draws: int
    # The density to be approximated.
    subposterior: Subposterior
    # Its rows, which are checked for constant columns.
    columns: Columns
    # The covariance structure of the components.
    structure: Structure
    # Numerical tolerances of the optimisations.
    precision: Tolerances
    # The sweeps of NVI on the same subposterior.
    sweeps: Sweeps

    def plain(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """The paper's method: K means from N(0, I), unit variances, equal weights."""
        k, d = self.num_components, self.subposterior.dim
        unit = np.broadcast_to(self._packing.identity(d), (k, *self.structure.packed_shape(d)))
        works = self.ladder(rng)
        at = works[0].sweeps.curve(starts[:k])
        if not np.any(np.isfinite(at.value)):
            works[0]._refuse_non_finite(starts[:k])
        components = Components(starts[:k], np.array(unit), (), False, False)
        for work in works:
            sweeps = work.sweeps if work is works[-1] else work.sweeps.roughly(NEAR_ENOUGH)
            components, at = sweeps.run(components.means, components.covariances, rng, at), None
        means = components.means
        nearest = climb_to(self.subposterior, means, self.precision)
        modes = self._some(distinct_of(self.subposterior, nearest, k), means)
        flat = self._flat_direction(modes)
        if flat is not None:
            return self.informing(works, starts, flat)
        near = self._near(means, taylors(self.sweeps.curve(means)), rng) if self._is_tall else None
        return self.finished(components, self.draw(components, rng, near))

    def merged(self, starts: np.ndarray, rng: np.random.Generator) -> LocalFit:
        """One Gaussian per mode, or more components if they raise the estimated ELBO; weights are optimised."""
        works = self.ladder(rng)
        found = [works[0].search(starts)]
        for work in works[1:]:
            found.append(work.follow(found[-1]))
        modes = found[-1]
        at_modes = taylors(Curve(modes.value, modes.gradient, -modes.curvature))
        near = self._near(modes.points, at_modes, rng)
        seen = near is not None and self.subposterior.passes <= _FEW_PASSES
        flat = self._flat_direction(modes, near[0] if near is not None and seen else None)
        if flat is not None or not modes.converged[0]:
            return self.informing(works, starts, flat or _NO_MODE)
        plain = self.at_modes(modes)
        best, drawn = plain, with_best_weights(self.draw(plain, rng, near))
        # With many parameters the sweeps would optimise all entries of several large covariances.
        few = second_order(self.num_components, self.subposterior.dim) or not self._packing.whole
        can_split = self.num_components > 1 and few
        if can_split and self._falls_short(drawn):
            # The smallest subsample shows whether a split is worth passes over all rows.
            asked = len(works) == 1 or works[0].asks_for_a_split(found[0], rng)
            split = self.split(plain, rng) if asked else None
            if split is not None and _asked_for(split[1], drawn):
                # The estimated ELBO is higher, so the split counts as converged even if L2 was not stationary.
                best, drawn = split[0]._replace(converged=True), split[1]
        made = self.finished(best, drawn)
        if made.status.code is StatusCode.NON_FINITE:
            return self.informing(works, starts, Lack(made.status, "the log density is not finite around its mode"))
        return made

    def informing(self, works: list["Fitting"], starts: np.ndarray, lack: Lack) -> LocalFit:
        """What is handed over of a subposterior that is no density of its own."""
        made = information([work.subposterior for work in works], starts[: self.num_components], self.structure, lack)
        if made is None:
            raise EpviError(f"{lack.finding}, and the log density has no finite derivatives near the origin.")
        return made

    def ladder(self, rng: np.random.Generator) -> list["Fitting"]:
        """The same fit on subsamples of increasing size, and finally on all rows."""
        n, d = self.subposterior.num_rows, self.subposterior.dim
        works = []
        target = self.subposterior.programs.target
        first, represented = first_part(d, target.terms, target.bundle), represented_by_last(n, d, target)
        for size in part_sizes(n, first, represented):
            thinned = self.subposterior.thinned(size, rng)
            sweeps = dataclasses.replace(self.sweeps, subposterior=thinned)
            precision = self.precision._replace(tolerance=NEAR_ENOUGH) if works else self.precision
            works.append(dataclasses.replace(self, subposterior=thinned, sweeps=sweeps, precision=precision))
        trusting = self.precision._replace(trusting=self._is_tall)
        return [*works, dataclasses.replace(self, precision=trusting)]

    def search(self, starts: np.ndarray) -> Modes:
        """Search for the modes from many starts."""
        k = self.num_components
        starts = scaled_starts(starts)
        starts = np.concatenate([starts, np.repeat(starts[:1], -len(starts) % k, axis=0)])
        modes = self._some(find_modes(self.subposterior, starts, k, self.precision), starts)
        return self._with_curvature(modes)

    def follow(self, before: Modes) -> Modes:
        """Find the modes, starting from those of a smaller subsample."""
        ended = follow(self.subposterior, before, self.precision)
        modes = self._some(distinct_of(self.subposterior, ended, self.num_components), before.points)
        return self._with_curvature(modes)

    def _with_curvature(self, modes: Modes) -> Modes:
        """The modes with full Hessians, if the covariance structure needs them."""
        if modes.form.whole or not self._packing.whole:
            return modes
        hessian = self.subposterior.full(modes.points).hessian
        assert hessian is not None
        return modes._replace(curvature=-hessian)

    def asks_for_a_split(self, modes: Modes, rng: np.random.Generator) -> bool:
        """Whether more components than modes raise the estimated ELBO of this subsample."""
        plain = self.at_modes(modes)
        split = self.split(plain, rng)
        return split is not None and _asked_for(split[1], with_best_weights(self.draw(plain, rng)))

    def split(self, plain: Components, rng: np.random.Generator) -> tuple[Components, Drawn] | None:
        """K components by sweeps that start at the modes and around them; None if they diverge."""
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
        return is_tall(self.subposterior.num_rows, self.subposterior.programs.target.bundle)

    def _some(self, modes: Modes, starts: np.ndarray) -> Modes:
        """Check that there is a mode; refuse if no start has a finite log density with finite derivatives."""
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
            " space can generate these rows. Check the coding of the observed column, and scale columns to about 1."
        )

    def at_modes(self, modes: Modes) -> Components:
        """One Gaussian at each mode with the Laplace covariance, which maximises L2 if components do not overlap."""
        curvature = self.sweeps.packed(modes.curvature, modes.form)
        precisions, guarded = self._packing.guarded(curvature, self.precision.floor)
        covariances = self._packing.inverse(precisions)
        at = overlap(self._packing, modes.points, covariances)
        bound = float(np.mean(modes.value + self.sweeps.trace(covariances, precisions)) + at.bound)
        return Components(modes.points, covariances, (bound,), bool(modes.converged[0]), bool(np.any(guarded)))

    @property
    def _packing(self) -> Packing:
        return self.structure.packing

    def draw(self, components: Components, rng: np.random.Generator, near: list[Around] | None = None) -> Drawn:
        """Evaluate f at equally many draws of each component; on a tall shard by Taylor expansions about the means."""
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
        """Taylor expansions of a tall shard; None if a few rows, which subsamples may lack, dominate the Hessian."""
        bundle = self.subposterior.programs.target.bundle
        sizes = [ROWS_PER_PART] if bundle == 1 else sizes_of_parts(self.subposterior.num_rows, bundle=bundle)
        if not self._is_tall or not sizes:
            return None
        made = expand(centres, wholes, uniform(self.subposterior, sizes[0], PARTS, rng))
        return made if all(around.is_alike for around in made) else None

    def finished(self, components: Components, drawn: Drawn) -> LocalFit:
        """Put together the mixture, its status and its diagnostics."""
        elbo = drawn.elbo()
        if np.mean(~np.isfinite(drawn.f)) > _MOST_NON_FINITE:
            text = "non-finite: the log density is not finite around the fit: rescale the columns."
            status = Status(StatusCode.NON_FINITE, text)
        elif not components.converged:
            status = _stopped(components.history)
        else:
            note = " (a Hessian was not negative-definite at a component and was made so)" if components.guarded else ""
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
        """Whether the ELBO may be so far below the log evidence that more components could help.

        With full covariances the draws show that. With others the draws do not reach where correlations put mass, so
        the answer is yes; except on a tall shard, which is close to Gaussian, where more passes are not worth it.
        """
        if not self._packing.whole:
            return not self._is_tall
        # The smaller estimate of two halves of the draws, since a single far draw can dominate the evidence of one.
        least = min(half.log_evidence() - float(half.elbo().value) for half in drawn.halves())
        return not least < self._worth + 2 * float(drawn.elbo().standard_error)

    @property
    def _worth(self) -> float:
        prior = self.subposterior.prior
        return worth(prior.fraction if isinstance(prior, PriorShare) else 0.0)

    def _around(self, plain: Components, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """K starting components: the modes, slightly moved, and draws around them in turn."""
        k, d = self.num_components, self.subposterior.dim
        which = np.resize(np.arange(len(plain.means)), k)
        roots = self._packing.covariance_root(self._packing.inverse(plain.covariances))
        moved = self._packing.rooted(roots[which], rng.standard_normal((k, d)))
        moved[: len(plain.means)] *= 0.1
        return plain.means[which] + moved, plain.covariances[which]

    def _flat_direction(self, modes: Modes, near: Around | None = None) -> Lack | None:
        value = self._value if near is None else lambda theta: near.near(theta, _DRAWS_AT_ONCE).value
        return flat_direction(self._space, self.columns, modes, self.precision.floor, value)

    def _value(self, theta: np.ndarray) -> np.ndarray:
        return self.subposterior.value(theta, _DRAWS_AT_ONCE)


def worth(share: float) -> float:
    """The KL divergence of one Gaussian from a subposterior, in nats, from which on more components are tried.

    A shard with a share f of the prior has about that share of the information. The posterior of all shards is then
    closer to a Gaussian: its divergence is of the order of f times that of the shard, and refinement attains that.
    """
    return _WORTH / share if share > 0 else _WORTH


_NO_MODE = Lack(
    Status(
        StatusCode.NO_MODE,
        "stopped early: no start converged to a mode. Either the density has none (a scale that tends to zero in a"
        " shard with a small share of the prior: take fewer shards, or a non-centred model), or num_starts is too"
        " small.",
    ),
    "on these rows, with their share of the prior, no start converged to a mode",
)


def _stopped(history: tuple[float, ...]) -> Status:
    """The status of a fit that reached `max_sweeps` (or, if there were no sweeps, did not converge to a mode)."""
    if len(history) < 2:
        return _NO_MODE.status
    gain, text = history[-1] - history[-2], f"stopped early after {len(history)} sweeps"
    if history[-1] < max(history):
        return Status(StatusCode.CYCLING, f"{text}: the bound cycled, and the sweep with the highest bound was taken.")
    rising = f"{text}, the bound still rising by {gain:.2g} nats per sweep"
    if gain < _STILL_RISING:
        return Status(StatusCode.SLOWLY_RISING, f"{rising}.")
    return Status(StatusCode.RISING, f"{rising}: raise max_sweeps.")


def _asked_for(split: Drawn, plain: Drawn) -> bool:
    """Whether more components raise the estimated ELBO by `_WORTH` beyond two standard errors."""
    a, b = split.elbo(), plain.elbo()
    error = float(np.hypot(a.standard_error, b.standard_error))
    return bool(np.isfinite(a.value)) and float(a.value) - float(b.value) > 2 * error + _WORTH
