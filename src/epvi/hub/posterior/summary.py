"""Means, sds and quantiles of a posterior's parameters, corrected by importance weights, as a table.

Takes a posterior. With a certificate the sample is n draws of the mixture with weights 1/n, and the scored draws with
weights w − v (see `trust/importance.py`), which are negative where the mixture's density is too high. Estimates from
this signed sample have the Monte Carlo error of the correction only, which vanishes where the posterior is exact.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import draw, uniform_points
from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed, as_key
from epvi.ground.text_table import lined_up
from epvi.hub.posterior.effects import Effects
from epvi.hub.refine.step import Refinable
from epvi.parameters.space import Space

# Draws behind the quantiles of group effects: so many numbers in all, and at least so many draws. Judgement: a second.
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


def summarise(
    posterior: Refinable,
    quantiles: Sequence[float],
    num_samples: int,
    seed: Seed,
    of: Derive | None,
    effects: Effects | None = None,
) -> Summary:
    """The summary; moments of unconstrained parameters are those of the mixture (exact), plus the correction."""
    mixture, space = posterior.mixture, posterior.space
    key = tuple(int(word) for word in jax.random.key_data(as_key(seed)))
    if effects is not None and of is None:
        # Quantiles of thousands of effects are worth fewer draws.
        num_samples = min(num_samples, max(_NUMBERS // effects.num_effects, _LEAST_DRAWS))
    theta = draw(mixture, uniform_points(num_samples, mixture.dim + 1, key))
    weights = np.full(num_samples, 1 / num_samples)
    found = posterior.certificate
    if found is not None and found.corrects:
        theta, weights = np.concatenate([theta, found.theta]), np.concatenate([weights, found.weights - found.own])
    mean, sd = np.asarray(mixture.mean()), np.asarray(mixture.sd())
    if effects is not None:
        mean, sd = _with_effects(effects, mixture, space, (mean, sd), theta[num_samples:], weights[num_samples:])
        theta = effects.theta(space, theta, np.random.default_rng(key))
    constrained = space.constrain(theta)
    values = {parameter.name: constrained[parameter.name] for parameter in space.parameters}
    exact = {p.name: space.slices[p.name] for p in space.parameters if p.is_real and of is None}
    names, means, sds, at = [], [], [], []
    for name, value in (values if of is None else derived(of, values, len(theta))).items():
        of_one = value.reshape(len(theta), -1)
        names += [f"{name}[{','.join(map(str, i))}]" if i else name for i in np.ndindex(value.shape[1:])]
        part = exact.get(name)
        known = _moments(of_one[:num_samples], weights[:num_samples]) if part is None else (mean[part], sd[part])
        done = part is not None and effects is not None and name in effects.which.names
        scored = found if found is not None and found.corrects and not done else None
        moved = known if scored is None else _corrected(of_one[num_samples:], scored.weights, scored.own, *known)
        means.append(moved[0])
        sds.append(moved[1])
        at.append(np.stack([_quantiles(column, weights, quantiles) for column in of_one.T]))
    return Summary(
        tuple(names),
        np.concatenate(means),
        np.concatenate(sds),
        tuple(quantiles),
        np.concatenate(at).reshape(-1, len(quantiles)),
    )


def _with_effects(
    effects: Effects,
    mixture: GaussianMixture,
    space: Space,
    known: tuple[np.ndarray, np.ndarray],
    phi: Float[np.ndarray, "S p"],
    signed: Float[np.ndarray, " S"],
) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of all parameters, from those of all but the group effects; only the latter are corrected."""
    places = effects.which.places(space)
    shared = np.setdiff1d(np.arange(space.dim), places)
    made = []
    for own, more in zip(known, effects.moments(mixture, phi, signed), strict=True):
        whole = np.empty(space.dim)
        whole[shared], whole[places] = own, more
        made.append(whole)
    return made[0], made[1]


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
