"""The Weierstrass rejection sampler (Wang & Dunson 2013): pairs of shards, round after round.

For draws θ₁ ~ f₁ and θ₂ ~ f₂, accepted with a probability that falls with their distance δ = θ₁ − θ₂,

    exp(−½ δᵀ (Σ₁ + Σ₂)⁻¹ δ / h²),   the average  (W₁ + W₂)⁻¹ (W₁ θ₁ + W₂ θ₂),   W = Σ⁻¹

has a density that tends to f₁ f₂ / ∫ f₁ f₂ as h → 0; that limit makes it exact, and acceptance falls with h to the
power d. At h = ∞ it is consensus Monte Carlo. For Gaussian shards every h is exact: the weighted average is
independent of δ. What was accepted meets the next pair's, so M shards take ⌈log₂ M⌉ rounds.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.structure import Full, Structure
from epvi.ground.errors import EpviError
from epvi.ground.status import Status, StatusCode
from epvi.hub.samples.consensus import weighted_average
from epvi.hub.samples.layout import Layout
from epvi.hub.samples.method import Combination, DrawsMethod, Shards, check_covariance, generator, positive
from epvi.hub.samples.moments import DrawnGaussian, fit_gaussians, inverse
from epvi.hub.samples.shape import unfollowed

# Pairs that the bandwidth is found with, and pairs that are tried in vain before giving up.
_PILOT = 20_000
_MAX_PAIRS = 20_000_000
# Means of fewer draws are off by more than 0.3 sds.
_LEAST_EFFECTIVE = 11
# Pairs that are tried at once, and numbers that they may have.
_PAIRS = 50_000
_NUMBERS = 10_000_000


@dataclasses.dataclass(frozen=True)
class WeierstrassDiagnostics:
    """Per pair, in the order in which they met: the bandwidth, the share accepted, and how many draws were of use.

    `effective` is the smallest effective number of distinct draws, of any shard, that the accepted descend from.
    """

    bandwidths: tuple[float, ...]
    acceptance: tuple[float, ...]
    effective: tuple[float, ...]


class _KernelGroup(NamedTuple):
    """Draws of the product of some shards from the `first` on, and which draw of each shard every one descends from."""

    first: int
    theta: Float[np.ndarray, "n d"]
    ancestors: Int[np.ndarray, "shards n"]

    def __str__(self) -> str:
        last = self.first + len(self.ancestors) - 1
        return f"shard {last}" if last == self.first else f"shards {self.first} to {last}"


@dataclasses.dataclass(frozen=True)
class Weierstrass(DrawsMethod):
    """Averages of pairs of draws that are near each other, pair of shards after pair of shards.

    Wang & Dunson, Parallelizing MCMC via Weierstrass Sampler (2013, arXiv 1312.4605). `bandwidth` h is in sds of the
    difference of a pair; without it, each pair of shards has the h with which a share `acceptance` of random pairs is
    accepted, or n^(-1/(4+d)) when that is more. Exact as h → 0 with ever more draws, and for Gaussian shards with any
    h.
    """

    covariance: Structure = dataclasses.field(default_factory=Full)
    bandwidth: float | None = None
    acceptance: float = 0.02

    def __post_init__(self) -> None:
        check_covariance(self.covariance)
        object.__setattr__(self, "acceptance", positive("acceptance", self.acceptance, below=1.0))
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", positive("bandwidth", self.bandwidth))

    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """A tree of pairs; one that has no partner goes on to the next round as it is."""
        count = min(shards.counts) if num_samples is None else num_samples
        # Later rounds stand on what earlier ones kept.
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
        """`count` averages of accepted pairs, with h, the share accepted, and the effective number of draws."""
        pair = Shards(tuple(group.theta for group in groups), layout)
        gaussians = fit_gaussians(pair, self.covariance)
        spread = DrawnGaussian(np.zeros(pair.dim), inverse(gaussians[0].covariance + gaussians[1].covariance))
        h = self.bandwidth or self._fitting(pair, spread, rng)
        places, tried = _accepted(pair, spread, h, (f"{groups[0]} and {groups[1]}", count), rng)
        met = np.stack([draws[at] for draws, at in zip(pair.theta, places, strict=True)])
        ancestors = np.concatenate([group.ancestors[:, at] for group, at in zip(groups, places, strict=True)])
        group = _KernelGroup(groups[0].first, weighted_average(gaussians, met), ancestors)
        return group, (h, count / tried, min(_effective(line) for line in ancestors))

    def _fitting(self, pair: Shards, spread: DrawnGaussian, rng: np.random.Generator) -> float:
        """The h with which the wanted share of random pairs is accepted; not less than n draws can follow."""
        pilot = min(_PILOT, _at_once(pair.dim))
        squares = _distances(spread, pair, [rng.integers(len(draws), size=pilot) for draws in pair.theta])
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            too_few = np.mean(np.exp(-0.5 * squares * np.exp(-2 * middle))) < self.acceptance
            low, high = (middle, high) if too_few else (low, middle)
        return max(float(np.exp(high)), min(pair.counts) ** (-1 / (4 + pair.dim)))


def _at_once(d: int) -> int:
    """How many pairs are tried at once."""
    return max(1, min(_PAIRS, _NUMBERS // d))


def _distances(spread: DrawnGaussian, pair: Shards, places: list[np.ndarray]) -> Float[np.ndarray, " n"]:
    """δᵀ (Σ₁ + Σ₂)⁻¹ δ for pairs of draws."""
    return spread.squares(pair.theta[0][places[0]] - pair.theta[1][places[1]])


def _accepted(
    pair: Shards, spread: DrawnGaussian, h: float, wanted: tuple[str, int], rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Places (2, count) of accepted pairs in the two shards' draws, and how many pairs were tried for them."""
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
    # `tried` counts those up to the last one that was needed, in expectation.
    return found[:, :count], max(count, round(tried * count / found.shape[1]))


def _effective(places: np.ndarray) -> float:
    """How many different draws are among these, counted by how evenly they are used."""
    counts = np.bincount(places)
    return float(len(places) ** 2 / np.sum(counts**2))


def _status(found: WeierstrassDiagnostics, count: int, shards: Shards) -> Status:
    h, accepted, effective = max(found.bandwidths), min(found.acceptance), min(found.effective)
    told = f"bandwidth up to {h:.2f} sds, {accepted:.1%} of pairs accepted at least"
    if effective < min(_LEAST_EFFECTIVE, count / 2):
        return Status(
            StatusCode.FEW_DRAWS,
            f"what was accepted descends from only about {effective:.0f} draws of one shard ({told}): shards hardly"
            " overlap, or are many for their draws; draw more, or raise acceptance.",
        )
    left = unfollowed(shards, h)
    if left:
        text = f"the kernel ({told}) is too wide to follow {left}, or draw more and lower acceptance."
        return Status(StatusCode.WIDE_KERNEL, text)
    text = f"accepted: {count:,} draws, {told}; exact for Gaussian shards, and for others as h falls."
    return Status(StatusCode.DRAWN, text)
