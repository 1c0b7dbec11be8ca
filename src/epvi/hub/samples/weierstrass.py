"""The Weierstrass rejection sampler (Wang & Dunson 2013), applied to pairs of shards in a binary tree.

Draw θ₁ ~ f₁ and θ₂ ~ f₂, and accept the pair with a probability that decreases with the distance δ = θ₁ − θ₂,

    exp(−½ δᵀ (Σ₁ + Σ₂)⁻¹ δ / h²);   return the average  (W₁ + W₂)⁻¹ (W₁ θ₁ + W₂ θ₂),   W = Σ⁻¹

The density of accepted averages tends to f₁ f₂ / ∫ f₁ f₂ as h → 0, while the acceptance rate falls like hᵈ. At h = ∞
this is consensus Monte Carlo. For Gaussian shards every h is exact, since the weighted average is independent of δ.
Accepted averages of one pair are combined with those of another pair: M shards take ⌈log₂ M⌉ rounds.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.gaussian import Gaussian
from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import Full
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.consensus import weighted_average
from epvi.hub.samples.layout import Layout
from epvi.hub.samples.method import METHODS, Combination, DrawsMethod, Shards, check_covariance, generator, positive
from epvi.hub.samples.moments import fit_gaussians, sum_of
from epvi.hub.samples.shape import unfollowed

# Random pairs with which the bandwidth is chosen. Judgement: an acceptance rate of 2 % is estimated to 0.1 points.
_PILOT = 20_000
# Pairs proposed for one pair of shards before the sampler gives up. Judgement.
_MAX_PAIRS = 20_000_000
# Least effective number of distinct draws of a shard: 1/√11 is a standard error of 0.3 sds, the limit in halves.py.
_LEAST_EFFECTIVE = 11
# Most pairs proposed in one batch. Judgement.
_PAIRS = 50_000
# Most float64 numbers in one batch of differences: 80 MB. Judgement.
_NUMBERS = 10_000_000


@dataclasses.dataclass(frozen=True)
class WeierstrassDiagnostics:
    """One entry per pair of shards or groups, in the order in which they were combined.

    Attributes:
        bandwidths: bandwidth h, in sds of the difference of a pair of draws.
        acceptance: acceptance rate.
        effective: smallest effective number of distinct draws, of any shard, among the ancestors of accepted draws.
    """

    bandwidths: tuple[float, ...]
    acceptance: tuple[float, ...]
    effective: tuple[float, ...]


class _KernelGroup(NamedTuple):
    """Draws of the product of consecutive shards."""

    first: int  # index of the first of these shards
    theta: Float[np.ndarray, "n d"]  # draws of their product
    ancestors: Int[np.ndarray, "shards n"]  # index of the draw of each shard from which each one was averaged

    def __str__(self) -> str:
        last = self.first + len(self.ancestors) - 1
        return f"shard {last}" if last == self.first else f"shards {self.first} to {last}"


@METHODS.add
@dataclasses.dataclass(frozen=True)
class Weierstrass(DrawsMethod):
    """Averages of pairs of nearby draws, for one pair of shards after another.

    Wang & Dunson, Parallelizing MCMC via Weierstrass Sampler (2013, arXiv 1312.4605). Exact as h → 0 and n → ∞, and for
    Gaussian shards with any h.

    Attributes:
        covariance: structure of the shards' covariances, which weight the averages and scale distances.
        bandwidth: h, in sds of the difference of a pair; None to choose it by `acceptance`.
        acceptance: acceptance rate that determines h for each pair of shards; h is at least n^(-1/(4+d)).
    """

    covariance: Structure = dataclasses.field(default_factory=Full)
    bandwidth: float | None = None
    # Rate. Judgement: 50 pairs of draws are proposed for one that is kept.
    acceptance: float = 0.02

    def __post_init__(self) -> None:
        check_covariance(self.covariance)
        object.__setattr__(self, "acceptance", positive("acceptance", self.acceptance, below=1.0))
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", positive("bandwidth", self.bandwidth))

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Combine pairs in a binary tree; a group without a partner joins the next round unchanged."""
        count = min(shards.counts) if num_samples is None else num_samples
        # Intermediate rounds keep at least as many draws as the smallest shard has, since later rounds resample them.
        kept = max(count, min(shards.counts))
        rng = generator(key)
        round_of = [_KernelGroup(m, theta, np.arange(len(theta))[None]) for m, theta in enumerate(shards.theta)]
        met = []
        while len(round_of) > 1:
            last = len(round_of) == 2
            for i in range(len(round_of) // 2):
                pair = (round_of[i], round_of.pop(i + 1))
                round_of[i], found = self._meet(pair, shards.layout, count if last else kept, rng)
                met.append(found)
        diagnostics = WeierstrassDiagnostics(*zip(*met, strict=True))
        return Combination(round_of[0].theta, _status(diagnostics, count, shards), diagnostics)

    def _meet(
        self, groups: tuple[_KernelGroup, _KernelGroup], layout: Layout, count: int, rng: np.random.Generator
    ) -> tuple[_KernelGroup, tuple[float, float, float]]:
        """`count` averages of accepted pairs; with h, the acceptance rate, and the effective number of ancestors."""
        pair = Shards(tuple(group.theta for group in groups), layout)
        gaussians = fit_gaussians(pair, self.covariance)
        spread = sum_of(gaussians[0], gaussians[1], np.zeros(pair.dim))
        h = self.bandwidth or self._fitting(pair, spread, rng)
        places, tried = _accepted(pair, spread, h, (f"{groups[0]} and {groups[1]}", count), rng)
        met = np.stack([draws[at] for draws, at in zip(pair.theta, places, strict=True)])
        ancestors = np.concatenate([group.ancestors[:, at] for group, at in zip(groups, places, strict=True)])
        group = _KernelGroup(groups[0].first, weighted_average(gaussians, met), ancestors)
        return group, (h, count / tried, min(_effective(line) for line in ancestors))

    def _fitting(self, pair: Shards, spread: Gaussian, rng: np.random.Generator) -> float:
        """The h that gives the wanted acceptance rate for random pairs, but at least n^(-1/(4+d))."""
        pilot = min(_PILOT, _at_once(pair.dim))
        squares = _distances(spread, pair, [rng.integers(len(draws), size=pilot) for draws in pair.theta])
        # Bisection on log h: h from 2e-9 to 5e8, to 40 · 2⁻⁶⁰.
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            too_few = np.mean(np.exp(-0.5 * squares * np.exp(-2 * middle))) < self.acceptance
            low, high = (middle, high) if too_few else (low, middle)
        return max(float(np.exp(high)), min(pair.counts) ** (-1 / (4 + pair.dim)))


def _at_once(d: int) -> int:
    """Number of pairs proposed in one batch."""
    return max(1, min(_PAIRS, _NUMBERS // d))


def _distances(spread: Gaussian, pair: Shards, places: list[np.ndarray]) -> Float[np.ndarray, " n"]:
    """δᵀ (Σ₁ + Σ₂)⁻¹ δ for pairs of draws."""
    return spread.squares(pair.theta[0][places[0]] - pair.theta[1][places[1]])


def _accepted(
    pair: Shards, spread: Gaussian, h: float, wanted: tuple[str, int], rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Indices (2, count) of accepted pairs into the two shards' draws, and how many pairs were proposed for them."""
    name, count = wanted
    kept, tried, size = [], 0, _at_once(pair.dim)
    while sum(places.shape[1] for places in kept) < count:
        if tried >= _MAX_PAIRS:
            raise EpviError(
                f"of {tried:,} pairs of {name} only {sum(p.shape[1] for p in kept):,} were accepted at bandwidth"
                f" {h:.3g}: raise bandwidth, leave it out, or use Semiparametric()."
            )
        places = [rng.integers(len(draws), size=size) for draws in pair.theta]
        near = -2 * np.log(rng.uniform(size=size)) * h**2 > _distances(spread, pair, places)
        kept.append(np.stack(places)[:, near])
        tried += size
    found = np.concatenate(kept, axis=1)
    # Of the last batch, count only the expected number of proposals up to the last pair needed.
    return found[:, :count], max(count, round(tried * count / found.shape[1]))


def _effective(places: np.ndarray) -> float:
    """Effective number of distinct draws: (Σ c)² / Σ c² for their counts c."""
    counts = np.bincount(places)
    return float(len(places) ** 2 / np.sum(counts**2))


def _status(found: WeierstrassDiagnostics, count: int, shards: Shards) -> Status:
    h, accepted, effective = max(found.bandwidths), min(found.acceptance), min(found.effective)
    told = f"bandwidth up to {h:.2f} sds, at least {accepted:.1%} of pairs accepted"
    if effective < min(_LEAST_EFFECTIVE, count / 2):
        return Status(
            StatusCode.FEW_DRAWS,
            f"accepted draws descend from only about {effective:.0f} draws of one shard ({told}), because shards hardly"
            " overlap, or are many for their draws: draw more, or raise acceptance.",
        )
    left = unfollowed(shards, h)
    if left:
        text = f"the kernel ({told}) is too wide to follow {left}, or draw more and lower acceptance."
        return Status(StatusCode.WIDE_KERNEL, text)
    text = f"accepted: {count:,} draws, {told}; exact for Gaussian shards, and for others as h goes to 0."
    return Status(StatusCode.DRAWN, text)
