"""Anchored product sampling: importance sampling of index vectors k·, proposed at anchor points θ_a.

Given θ the indices are independent, p(k_m|θ) ∝ w_mk N(θ|μ_mk, Λ_mk⁻¹), and W_k·/Z = E_{θ~q*} Π_m p(k_m|θ). The
proposal is therefore the mixture Σ_a v_a Π_m p(k_m|θ_a) over anchors θ_a, and the importance weight of k· is W_k· over
its proposal probability. That probability is exact and cheap: the logs of its terms are one matrix product of the
one-hot indices (S x MK) with the table of log p(k_m|θ_a) (MK x A). The mean importance weight estimates Z = ∫ Π q_m
without bias.

Anchors are placed in rounds. The first are drawn around the modes of Π q_m (`modes.py`), later ones from the weighted
components of the round before. All rounds but the last also place some anchors many sds out, to find wide parts of the
product. The modes themselves remain anchors in every round, with a small share of the proposal, so that none is lost.
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float, Int

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.ground import validation
from epvi.ground.compiled import compiled
from epvi.ground.float64 import AnyArray, to_numpy
from epvi.ground.seeds import ProductStream
from epvi.ground.status import Status, StatusCode
from epvi.hub.product.blocks import Blocks, in_blocks, log_joint, select
from epvi.hub.product.fold import fold_singles
from epvi.hub.product.modes import ProductModes, find_modes
from epvi.hub.product.resampling import systematic
from epvi.hub.product.result import Product, ProductMixture
from epvi.hub.product.stack import Stack, check_memory, finish, stack

# Share of the proposal spread evenly over the modes: in every round as anchors at the modes themselves, in the first
# round also among the Gaussians that the other anchors are drawn from. It bounds the importance weights near modes of
# little mass. Judgement.
_MODES_SHARE = 0.1
# Most draws computed together, and the number of draws in every round but the last. Judgement.
_CHUNK = 1024
# Most float64 numbers that the components of one chunk may hold: 64 MiB. Judgement.
_NUMBERS = 2**23
# Log probability that stands for −∞, since 0 · (−∞) is NaN in a matrix product. exp underflows to 0 far above it.
_IMPOSSIBLE = -1e30


@dataclasses.dataclass(frozen=True)
class AnchoredDiagnostics:
    """How well the proposal covered the product.

    Attributes:
        ess: effective sample size of the final round's importance weights, (Σω)² / Σω².
        ess_by_round: effective sample size of every round, the final one last.
        largest_weight: largest normalised importance weight of the final round.
        num_modes: number of distinct modes of Π q_m that the search found.
        mean_standard_error: Monte Carlo standard error of the product's mean.
    """

    ess: float
    ess_by_round: tuple[float, ...]
    largest_weight: float
    num_modes: int
    mean_standard_error: Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True)
class Anchored(Product):
    """Importance sampling of the product's components (see the module docstring).

    The effective sample size is blind to modes that the search did not find. The search climbs from components of the
    shards and from the ends of short chains over k·; anchors of early rounds are also placed far out.

    Attributes:
        num_samples: number of weighted components returned.
        num_anchors: number of anchors, in addition to the modes.
        rounds: how many times anchors are placed.
    """

    # Components. Judgement: in the example of docs/products.md (M = 200, K = 4, d = 19) their ESS is about 1,400.
    num_samples: int = 2000
    # Points. Judgement: with 256, `python benchmarks/modes.py` finds mode masses to 0.004 at M = 200.
    num_anchors: int = 256
    # Placements. Judgement: around the modes, around the first round's components, and the final one.
    rounds: int = 3

    def __post_init__(self) -> None:
        validation.check_settings(self, num_samples=2, num_anchors=1, rounds=1)

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """Components with normalised importance weights, and an estimate of the log normaliser."""
        check_memory(self.num_samples, mixtures)
        stacked = stack(fold_singles(mixtures))
        blocks = in_blocks(stacked, max(_CHUNK, self.num_anchors))
        task = _Task(stacked, blocks, find_modes(stacked, blocks, jax.random.fold_in(key, ProductStream.START)))
        source, history = _gaussians_at(task.modes), []
        for number in range(1, self.rounds):
            drawn = self._round(task, source, jax.random.fold_in(key, number), _CHUNK, explore=True)
            history.append(_ess(drawn.log_weights))
            centred = drawn.mixture.means - np.asarray(stacked.centre)
            source = _Weighted(centred, drawn.mixture.roots, drawn.log_weights)
        final_key = jax.random.fold_in(key, self.rounds)
        drawn = self._round(task, source, final_key, self.num_samples, explore=self.rounds == 1)
        return self._result(drawn, len(task.modes.theta), [*history, _ess(drawn.log_weights)])

    def _round(self, task: "_Task", source: "_Weighted", key: AnyArray, size: int, *, explore: bool) -> "_Drawn":
        """Draw an anchor from each of `num_anchors` resampled Gaussians, add the modes, sample `size` components."""
        z, uniforms = _noise(key, self.num_anchors, task.stacked.dim)
        if explore:
            z = z * _reach(self.num_anchors)[:, None]
        at = systematic(float(uniforms[0]), source.log_weights, self.num_anchors)
        placed = _perturbed(task.stacked.structure, source.means[at], source.roots[at], z)
        num_modes = len(task.modes.theta)
        shares = [
            np.full(self.num_anchors, (1 - _MODES_SHARE) / self.num_anchors),
            np.full(num_modes, _MODES_SHARE / num_modes),
        ]
        log_weights = np.log(np.concatenate(shares))
        anchors = _Anchors(np.concatenate([placed, task.modes.theta]), log_weights)
        return _draw(task, anchors, systematic(float(uniforms[1]), log_weights, size), key)

    def _result(self, drawn: "_Drawn", num_modes: int, history: list[float]) -> ProductMixture:
        weights, log_weights = np.exp(drawn.mixture.log_weights), drawn.log_weights
        deviations = drawn.mixture.means - drawn.mixture.mean()
        diagnostics = AnchoredDiagnostics(
            ess=history[-1],
            ess_by_round=tuple(history),
            largest_weight=float(np.max(weights)),
            num_modes=num_modes,
            mean_standard_error=np.sqrt(weights**2 @ deviations**2),
        )
        log_z = np.max(log_weights) + np.log(np.mean(np.exp(log_weights - np.max(log_weights))))
        # Standard error of log Z by the delta method: sd(ω / mean ω) / √S.
        relative = np.std(weights * len(weights), ddof=1) / np.sqrt(len(weights))
        log_normaliser = Estimate(np.asarray(log_z), np.asarray(relative))
        return ProductMixture(drawn.mixture, log_normaliser, diagnostics, self._status(diagnostics))

    def _status(self, found: AnchoredDiagnostics) -> Status:
        modes = f"{found.num_modes} mode" + ("s" if found.num_modes > 1 else "")
        size = f"{found.ess:,.0f} effective of {self.num_samples:,} draws, {modes}"
        # Least acceptable ESS: 5 % of the draws, and 100 (which gives means a standard error of 0.1 sd) or half of the
        # draws, whichever is less. Judgement.
        if not found.ess >= max(min(100.0, self.num_samples / 2), 0.05 * self.num_samples):
            remedy = "raise num_anchors, rounds or num_samples, or merge the shards' components first (reduce)."
            return Status(StatusCode.UNEVEN_WEIGHTS, f"the importance weights are uneven ({size}): {remedy}")
        return Status(StatusCode.SAMPLED, f"sampled: {size}.")


class _Task(NamedTuple):
    """What is to be sampled."""

    stacked: Stack  # the mixtures to multiply
    blocks: Blocks  # the same, cut into blocks of shards
    modes: ProductModes  # modes of their product


class _Anchors(NamedTuple):
    """Anchor points θ_a, and their log proposal weights log v_a."""

    theta: Float[AnyArray, "A d"]
    log_weights: Float[AnyArray, " A"]


class _Weighted(NamedTuple):
    """Weighted Gaussians from which anchors are drawn."""

    means: Float[AnyArray, "n d"]  # in the stack's centred coordinates
    roots: Float[AnyArray, "n *packed"]  # L of the precisions L Lᵀ
    log_weights: Float[AnyArray, " n"]  # up to a constant


class _Drawn(NamedTuple):
    """Sampled product components, weighted in `mixture`; `log_weights` are the unnormalised log W − log proposal."""

    mixture: GaussianMixture
    log_weights: Float[np.ndarray, " S"]


def _reach(num_anchors: int) -> Float[np.ndarray, " A"]:
    """Factors by which anchors' deviations are stretched, to find wide parts of the product around narrow ones.

    A quarter of the anchors is stretched by 1 to 1,000, evenly in the logarithm. Judgement; that a part 100 times as
    wide as the mode is found is tested (`test_anchored_keeps_a_wide_part_around_a_needle`).
    """
    reach = np.ones(num_anchors)
    reach[::4] = np.geomspace(1, 1e3, len(reach[::4]))
    return np.random.default_rng(0).permutation(reach)


def _gaussians_at(modes: ProductModes) -> _Weighted:
    """Gaussians at the modes, weighted by mass, with a minimum weight for each."""
    mass = np.exp(modes.log_mass - np.max(modes.log_mass))
    share = (1 - _MODES_SHARE) * mass / np.sum(mass) + _MODES_SHARE / len(mass)
    return _Weighted(modes.theta, modes.roots, np.log(share))


@compiled
def _noise(key: AnyArray, n: int, d: int) -> tuple[AnyArray, AnyArray]:
    place, deal = jax.random.split(jax.random.fold_in(key, ProductStream.START))
    return jax.random.normal(place, (n, d)), jax.random.uniform(deal, (2,))


@compiled
def _perturbed(structure: Structure, means: AnyArray, roots: AnyArray, z: AnyArray) -> Float[AnyArray, "n d"]:
    return means + jax.vmap(structure.unwhiten)(roots, z)


def _draw(task: _Task, anchors: _Anchors, which: Int[np.ndarray, " S"], key: AnyArray) -> _Drawn:
    """One component proposed from each anchor in `which`, with its importance weight; computed in chunks."""
    size, per_draw = len(which), task.stacked.dim + task.stacked.precisions[0, 0].size
    chunk = max(1, min(_CHUNK, _NUMBERS // per_draw))
    chunks = np.pad(which, (0, -size % chunk)).reshape(-1, chunk)
    table = _table(task.blocks, anchors.theta)
    made = [
        to_numpy(_draw_chunk(task, table, anchors.log_weights, at, (key, np.asarray(number))))
        for number, at in enumerate(chunks, start=1)
    ]
    means, roots, log_weights = (np.concatenate(parts)[:size] for parts in zip(*made, strict=True))
    # Subtract the maximum before normalising: float64 has only eight decimals at a log weight of −10⁸.
    shifted = log_weights - np.max(log_weights)
    normalised = shifted - np.logaddexp.reduce(shifted)
    return _Drawn(GaussianMixture(normalised, means, roots, task.stacked.structure), log_weights)


class _Table(NamedTuple):
    """log p(k_m|θ_a) for every block of shards, and the cumulative probabilities over k."""

    log_p: Float[AnyArray, "*B A m K"]
    cumulative: Float[AnyArray, "*B A m K"]


@compiled
def _table(blocks: Blocks, theta: Float[AnyArray, "A d"]) -> _Table:
    def block(shards: Blocks) -> _Table:
        log_p = jax.nn.log_softmax(jax.vmap(lambda point: log_joint(shards, point))(theta), axis=-1)
        return _Table(jnp.maximum(log_p, _IMPOSSIBLE), jnp.cumsum(jnp.exp(log_p), axis=-1))

    return jax.lax.map(block, blocks)


@compiled
def _draw_chunk(
    task: _Task, table: _Table, log_v: AnyArray, which: Int[AnyArray, " S"], seed: tuple[AnyArray, AnyArray]
) -> tuple[AnyArray, AnyArray, AnyArray]:
    index, log_products = _propose(table, which, jax.random.fold_in(*seed))
    log_w, mixture = finish(task.stacked.structure, task.stacked.num_shards, select(task.blocks, index))
    return mixture.means, mixture.roots, log_w - logsumexp(log_products + log_v[None], axis=1)


def _propose(
    table: _Table, which: Int[AnyArray, " S"], key: AnyArray
) -> tuple[Int[AnyArray, "S M"], Float[AnyArray, "S A"]]:
    """Sample k_m ~ p(k_m|θ_which) for every shard; evaluate log Π_m p(k_m|θ_a) of the sample at every anchor."""
    num_blocks, a, per_block, k = table.log_p.shape
    s = len(which)

    def block(log_products: AnyArray, at: tuple[_Table, AnyArray]) -> tuple[AnyArray, AnyArray]:
        here, uniform = at
        cumulative = here.cumulative[which]
        # Inverse-CDF sampling with u in (0, 1], so that no component of probability zero is chosen at either end.
        index = jnp.sum((1 - uniform)[:, :, None] * cumulative[:, :, -1:] > cumulative, axis=-1)
        one_hot = jax.nn.one_hot(index, k).reshape(s, -1)
        return log_products + one_hot @ here.log_p.reshape(a, -1).T, index

    uniforms = jax.random.uniform(key, (num_blocks, s, per_block))
    log_products, index = jax.lax.scan(block, jnp.zeros((s, a)), (table, uniforms))
    return jnp.moveaxis(index, 0, 1).reshape(s, num_blocks * per_block), log_products


def _ess(log_weights: Float[np.ndarray, " S"]) -> float:
    weights = np.exp(log_weights - np.max(log_weights))
    return float(np.sum(weights) ** 2 / np.sum(weights**2))
