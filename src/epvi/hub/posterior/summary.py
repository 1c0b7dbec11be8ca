"""Means, sds and quantiles of a posterior's parameters, corrected by importance weights, as a table.

Takes a posterior. With a certificate the sample is n draws of the mixture with weights 1/n, and the scored draws with
weights w − v (see `trust/importance.py`), which are negative where the mixture's density is too high. Estimates from
this signed sample have the Monte Carlo error of the correction only, which vanishes where the posterior is exact.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import draw, uniform_points
from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed, as_key
from epvi.ground.text_table import lined_up
from epvi.hub.posterior.effect_moments import SharedMoments, moments_of, quantiles_of
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.supports import resampled
from epvi.hub.refine.step import Refinable
from epvi.parameters.space import Space

# Joint draws with group effects, where their summary needs any: so many numbers in all, and at least so many draws.
# Judgement: a second.
_NUMBERS, _LEAST_DRAWS = 10**7, 1000

# From draws by name, of shape (n, ...) each, to derived quantities by name, also with n entries.
Derive = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """Mean, standard deviation and quantiles of every parameter; `print` it for a table.

    Attributes:
        names: names of the scalars, such as `w[0]`.
        mean: their means.
        sd: their standard deviations.
        probabilities: those of the quantiles.
        quantiles: by scalar and probability.
    """

    names: tuple[str, ...]
    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    probabilities: tuple[float, ...]
    quantiles: Float[np.ndarray, "n q"]

    def __str__(self) -> str:
        head = ["", "mean", "sd", *(f"{100 * p:g} %" for p in self.probabilities)]
        numbers = np.column_stack([self.mean, self.sd, self.quantiles])
        # Decimals that show two significant digits of the sd.
        decimals = [int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if sd > 0 else 4 for sd in self.sd]
        cells = [[f"{x:.{k}f}" for x in row] for row, k in zip(numbers, decimals, strict=True)]
        rows = [head, *([name, *row] for name, row in zip(self.names, cells, strict=True))]
        return lined_up(rows)

    __repr__ = __str__

    def __getitem__(self, name: str) -> dict[str, float]:
        """The numbers of one parameter, by its name in the table."""
        if name not in self.names:
            raise EpviError(f"the summary has no {name!r}: it has {', '.join(self.names)}.")
        i = self.names.index(name)
        quantiles = {f"{100 * p:g} %": float(q) for p, q in zip(self.probabilities, self.quantiles[i], strict=True)}
        return {"mean": float(self.mean[i]), "sd": float(self.sd[i]), **quantiles}


class _Sample(NamedTuple):
    """Draws of the parameters that were not integrated out, φ: those of the mixture, then the scored ones."""

    theta: Float[np.ndarray, "n p"]
    # Weights 1/n of the draws of the mixture, and w − v of the scored ones.
    weights: Float[np.ndarray, " n"]
    # How many are from the mixture, and its means and sds.
    own: int
    mean: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]
    # w and v of the scored ones (`trust/importance.py`); both empty if there are none.
    w: Float[np.ndarray, " S"]
    v: Float[np.ndarray, " S"]

    @classmethod
    def of(cls, posterior: Refinable, num_samples: int, key: tuple[int, ...]) -> "_Sample":
        mixture, found = posterior.mixture, posterior.certificate
        theta = draw(mixture, uniform_points(num_samples, mixture.dim + 1, key))
        weights = np.full(num_samples, 1 / num_samples)
        mean, sd, w, v = np.asarray(mixture.mean()), np.asarray(mixture.sd()), np.zeros(0), np.zeros(0)
        if found is not None and found.scales is not None:
            theta, sd = mean + found.scales * (theta - mean), found.scales * sd
        if found is not None and found.corrects:
            w, v = found.weights, found.own
            theta, weights = np.concatenate([theta, found.theta]), np.concatenate([weights, w - v])
        return cls(theta, weights, num_samples, mean, sd, w, v)

    def moments(self, values: Float[np.ndarray, "n k"], known: tuple | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and sds of quantities at the draws, of which those under the mixture may be known."""
        mixture = known or _moments(values[: self.own], self.weights[: self.own])
        return _corrected(values[self.own :], self.w, self.v, *mixture)


def summarise(
    posterior: Refinable,
    quantiles: Sequence[float],
    num_samples: int,
    seed: Seed,
    of: Derive | None,
    effects: Effects | None = None,
) -> Summary:
    """The summary; moments of unconstrained parameters are those of the mixture (exact), plus the correction."""
    space, key = posterior.space, tuple(int(word) for word in jax.random.key_data(as_key(seed)))
    sample = _Sample.of(posterior, num_samples, key)
    if of is not None:
        if effects is not None:
            sample = _with_effects(sample, effects, space, key)
        values = derived(of, space.constrain(sample.theta), len(sample.theta))
        return _table(_of_values(values, sample, quantiles), quantiles)
    shared = space if effects is None else effects.product_space(space)
    parts = _of_values(shared.constrain(sample.theta), sample, quantiles, shared)
    if effects is not None:
        parts |= _of_effects(sample, effects, space, posterior.mixture, quantiles, key)
    return _table({p.name: parts[p.name] for p in space.parameters}, quantiles)


def probabilities(quantiles: Sequence[float]) -> tuple[float, ...]:
    """The probabilities of quantiles, checked."""
    if not all(0 < q < 1 for q in quantiles):
        raise EpviError(f"quantiles are {tuple(quantiles)}: pass probabilities between 0 and 1.")
    return tuple(quantiles)


def summary_of_draws(
    draws: Float[np.ndarray, "n d"], space: Space, quantiles: Sequence[float], of: Derive | None
) -> Summary:
    """The summary of draws of the posterior itself."""
    even, none = np.full(len(draws), 1 / len(draws)), np.zeros(0)
    sample = _Sample(draws, even, len(draws), np.mean(draws, axis=0), np.std(draws, axis=0), none, none)
    values = space.constrain(draws)
    values = values if of is None else derived(of, values, len(draws))
    return _table(_of_values(values, sample, quantiles), quantiles)


class _Part(NamedTuple):
    """Means, sds and quantiles of the entries of one parameter or derived quantity."""

    shape: tuple[int, ...]
    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]
    at: Float[np.ndarray, "k q"]


def _of_values(
    values: Mapping[str, np.ndarray], sample: _Sample, quantiles: Sequence[float], space: Space | None = None
) -> dict[str, _Part]:
    """The summary of quantities at the draws; those that are coordinates of `space` have known moments."""
    made = {}
    for name, value in values.items():
        flat = value.reshape(len(value), -1)
        known = None
        if space is not None and space.by_name[name].is_real:
            known = sample.mean[space.slices[name]], sample.sd[space.slices[name]]
        at = np.stack([_quantiles(column, sample.weights, quantiles) for column in flat.T])
        made[name] = _Part(value.shape[1:], *sample.moments(flat, known), at)
    return made


def _of_effects(
    sample: _Sample,
    effects: Effects,
    space: Space,
    mixture: GaussianMixture,
    quantiles: Sequence[float],
    key: tuple[int, ...],
) -> dict[str, _Part]:
    """The summary of group effects: from their moments given φ, or from draws where their support is not the reals."""
    below = effects.given
    made = (
        {} if below is None else _of_effects(sample, below, effects.which.shared_space(space), mixture, quantiles, key)
    )
    if not all(space.by_name[name].is_real for name in effects.which.names):
        sample = _with_effects(sample, effects, space, key)
        values = space.constrain(sample.theta)
        return made | _of_values({name: values[name] for name in effects.which.names}, sample, quantiles)
    shared = _known_of_shared(sample, effects, space, mixture)
    moments = moments_of(effects, shared)
    found = [*moments, quantiles_of(effects, shared, moments, quantiles, key)]
    whole = [np.empty((space.dim, *part.shape[2:])) for part in found]
    for to, part in zip(whole, found, strict=True):
        to[effects.which.places(space)] = part
    for name in effects.which.names:
        made[name] = _Part(space.by_name[name].shape, *(part[space.slices[name]] for part in whole))
    return made


def _known_of_shared(sample: _Sample, effects: Effects, space: Space, mixture: GaussianMixture) -> SharedMoments:
    """What is known of the parameters that effects are given: also of the effects of larger groups."""
    if effects.given is None:
        mean, sd = sample.moments(sample.theta, (sample.mean, sample.sd))
        return SharedMoments(mixture, sample.theta[sample.own :], sample.weights[sample.own :], mean, sd)
    shared = effects.which.shared_space(space)
    below = _known_of_shared(sample, effects.given, shared, mixture)
    places = effects.given.which.places(shared)
    others = np.setdiff1d(np.arange(shared.dim), places)
    mean, sd = np.empty(shared.dim), np.empty(shared.dim)
    mean[others], sd[others] = below.mean, below.sd
    mean[places], sd[places] = moments_of(effects.given, below)
    return below._replace(mean=mean, sd=sd)


def _with_effects(sample: _Sample, effects: Effects, space: Space, key: tuple[int, ...]) -> _Sample:
    """Draws of all parameters: at the draws of φ, or at supports of the effects where these are known better there.

    Of thousands of effects there are fewer draws.
    """
    rng, own = np.random.default_rng(key), sample.own
    most = min(own, max(_NUMBERS // effects.num_effects, _LEAST_DRAWS))
    even = np.full(most, 1 / most)
    scored = {} if effects.are_linear else {"w": np.zeros(0), "v": np.zeros(0)}
    if effects.are_linear:
        phi, weights = (
            np.concatenate([first, all_of[own:]])
            for first, all_of in ((sample.theta[:most], sample.theta), (even, sample.weights))
        )
    else:
        phi, weights = effects.supports[resampled(effects.weights, most, rng)], even
    return sample._replace(theta=effects.theta(space, phi, rng), weights=weights, own=most, **scored)


def _table(parts: Mapping[str, _Part], probabilities: Sequence[float]) -> Summary:
    names = [
        f"{name}[{','.join(map(str, i))}]" if i else name
        for name, part in parts.items()
        for i in np.ndindex(part.shape)
    ]
    means, sds, at = (np.concatenate([getattr(part, one) for part in parts.values()]) for one in ("mean", "sd", "at"))
    return Summary(tuple(names), means, sds, tuple(probabilities), at)


def derived(of: Derive, values: dict[str, np.ndarray], num_draws: int) -> dict[str, np.ndarray]:
    """The derived quantities by a user's function, checked: finite, with one entry per draw."""
    made = of(values)
    if not isinstance(made, Mapping):
        raise EpviError(f"of gives a {type(made).__name__}: it must give a dict of arrays with one entry per draw.")
    arrays = {str(name): np.asarray(value, np.float64) for name, value in made.items()}
    for name, array in arrays.items():
        if array.shape[:1] != (num_draws,) or not np.all(np.isfinite(array)):
            raise EpviError(
                f"of gives {name!r} with shape {array.shape}: it must give finite numbers, one entry for each of"
                f" {num_draws:,} draws."
            )
    return arrays


def _moments(values: Float[np.ndarray, "n k"], weights: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def _corrected(
    values: Float[np.ndarray, "S k"],
    w: Float[np.ndarray, " S"],
    v: Float[np.ndarray, " S"],
    mean: np.ndarray,
    sd: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd under w, with those under v as control variates: their known values are `mean` and `sd`."""
    if not len(values):
        return mean, sd
    centre = mean + _controlled(values - mean, w, v, np.zeros_like(mean))
    variance = _controlled((values - centre) ** 2, w, v, sd**2 + (mean - centre) ** 2)
    return centre, np.sqrt(np.maximum(variance, 1e-6 * sd**2))


def _controlled(values: Float[np.ndarray, "S k"], w: np.ndarray, v: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Σ w h + β (E_q h − Σ v h), with the β of least variance: 1 where w = v, 0 where Σ v h says nothing of Σ w h."""
    under, control = w[:, None] * (values - w @ values), v[:, None] * (values - v @ values)
    beta = np.sum(under * control, axis=0) / np.maximum(np.sum(control**2, axis=0), 1e-300)
    return w @ values + beta * (known - v @ values)


def _quantiles(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], probabilities: Sequence[float]
) -> Float[np.ndarray, " q"]:
    """Quantiles of a sample with signed weights: its distribution function is made monotone by its running maximum."""
    order = np.argsort(values, kind="stable")
    below = np.maximum.accumulate(np.cumsum(weights[order]) - 0.5 * np.abs(weights[order]))
    return np.interp(np.asarray(probabilities) * np.sum(weights), below, values[order])
