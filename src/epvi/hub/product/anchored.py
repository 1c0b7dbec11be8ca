"""Anchored product sampling: importance sampling of index vectors k·, given points θ_a where the product has mass.

Given θ the indices are independent, p(k_m|θ) ∝ w_mk N(θ|μ_mk, Λ_mk⁻¹), and W_k·/Z = E_{θ~q*} Π_m p(k_m|θ). So k· is
proposed from Σ_a v_a Π_m p(k_m|θ_a) over anchors θ_a and weighed with W_k· over that proposal, which is computable
exactly: its logs are one product of the one-hot indices (S x MK) with the table of log p(k_m|θ_a) (MK x A). The mean
weight estimates Z = ∫ Π q_m without bias. The first anchors are drawn around the modes of Π q_m (`modes.py`), the next
from the weighted result of the round before, some of them many sds out in all rounds but the last, to meet what is
wide; the modes stay anchors, with a small share, so that none is forgotten.
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

# What is spread evenly over the modes: this share of the anchors in every round, and of the Gaussians at the first.
_MODES_SHARE = 0.1
# Draws that are made together, at most, and the numbers that their components may take.
_CHUNK = 1024
_NUMBERS = 2**23
# Instead of −∞, where 0 · (−∞) would be NaN in a matrix product.
_IMPOSSIBLE = -1e30


@dataclasses.dataclass(frozen=True)
class AnchoredDiagnostics:
    """How good the proposal was, by round and at last; `mean_standard_error` is that of the product's mean."""

    ess: float
    ess_by_round: tuple[float, ...]
    largest_weight: float
    num_modes: int
    mean_standard_error: Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True)
class Anchored(Product):
    """`num_samples` weighted components, proposed from `num_anchors` anchors that are placed `rounds` times.

    The effective sample size speaks of the modes that were found; a mode that the search never met is invisible to it.
    The search climbs from shards' components and from short chains over k·, and early anchors reach far out.
    """

    num_samples: int = 2000
    num_anchors: int = 256
    rounds: int = 3

    def __post_init__(self) -> None:
        validation.check_settings(self, num_samples=2, num_anchors=1, rounds=1)

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """Components weighted by importance, with the log normaliser."""
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
        """Place anchors: one draw from each of `num_anchors` resampled Gaussians, and the modes; draw from them."""
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
        # By the delta method: sd(ω / mean ω) / √S.
        relative = np.std(weights * len(weights), ddof=1) / np.sqrt(len(weights))
        log_normaliser = Estimate(np.asarray(log_z), np.asarray(relative))
        return ProductMixture(drawn.mixture, log_normaliser, diagnostics, self._status(diagnostics))

    def _status(self, found: AnchoredDiagnostics) -> Status:
        modes = f"{found.num_modes} mode" + ("s" if found.num_modes > 1 else "")
        size = f"{found.ess:,.0f} effective of {self.num_samples:,} draws, {modes}"
        if not found.ess >= max(min(100.0, self.num_samples / 2), 0.05 * self.num_samples):
            remedy = "raise num_anchors, rounds or num_samples, or merge the shards' components first (reduce)."
            return Status(StatusCode.UNEVEN_WEIGHTS, f"the weights are uneven ({size}): {remedy}")
        return Status(StatusCode.SAMPLED, f"sampled: {size}.")


class _Task(NamedTuple):
    """The mixtures to multiply, and the modes of their product."""

    stacked: Stack
    blocks: Blocks
    modes: ProductModes


class _Anchors(NamedTuple):
    theta: Float[AnyArray, "A d"]
    log_weights: Float[AnyArray, " A"]


class _Weighted(NamedTuple):
    """Weighted Gaussians that anchors are drawn from, in the stack's centred coordinates."""

    means: Float[AnyArray, "n d"]
    roots: Float[AnyArray, "n *packed"]
    log_weights: Float[AnyArray, " n"]


class _Drawn(NamedTuple):
    """Weighted product components: `mixture` holds normalised weights, `log_weights` are log W − log proposal."""

    mixture: GaussianMixture
    log_weights: Float[np.ndarray, " S"]


def _reach(num_anchors: int) -> Float[np.ndarray, " A"]:
    """By how many sds anchors are drawn: every fourth from 1 to 1,000 times as far, so that wider parts are met."""
    reach = np.ones(num_anchors)
    reach[::4] = np.geomspace(1, 1e3, len(reach[::4]))
    return np.random.default_rng(0).permutation(reach)


def _gaussians_at(modes: ProductModes) -> _Weighted:
    """The modes by their mass, and a little of each."""
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
    """One component from each anchor in `which`, with its importance weight, chunk by chunk."""
    size, per_draw = len(which), task.stacked.dim + task.stacked.precisions[0, 0].size
    chunk = max(1, min(_CHUNK, _NUMBERS // per_draw))
    chunks = np.pad(which, (0, -size % chunk)).reshape(-1, chunk)
    table = _table(task.blocks, anchors.theta)
    made = [
        to_numpy(_draw_chunk(task, table, anchors.log_weights, at, (key, np.asarray(number))))
        for number, at in enumerate(chunks, start=1)
    ]
    means, roots, log_weights = (np.concatenate(parts)[:size] for parts in zip(*made, strict=True))
    # The maximum goes first: at a log weight of −10⁸ a float64 has no more than eight decimals.
    shifted = log_weights - np.max(log_weights)
    normalised = shifted - np.logaddexp.reduce(shifted)
    return _Drawn(GaussianMixture(normalised, means, roots, task.stacked.structure), log_weights)


class _Table(NamedTuple):
    """log p(k_m|θ_a), and its running sums over k (not logs), for the shards in blocks."""

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
    """k_m ~ p(k_m|θ_which) for every shard, and log Π_m p(k_m|θ_a) for every anchor at what came out."""
    num_blocks, a, per_block, k = table.log_p.shape
    s = len(which)

    def block(log_products: AnyArray, at: tuple[_Table, AnyArray]) -> tuple[AnyArray, AnyArray]:
        here, uniform = at
        cumulative = here.cumulative[which]
        # u in (0, 1], so that neither end can pick a component of no probability.
        index = jnp.sum((1 - uniform)[:, :, None] * cumulative[:, :, -1:] > cumulative, axis=-1)
        one_hot = jax.nn.one_hot(index, k).reshape(s, -1)
        return log_products + one_hot @ here.log_p.reshape(a, -1).T, index

    uniforms = jax.random.uniform(key, (num_blocks, s, per_block))
    log_products, index = jax.lax.scan(block, jnp.zeros((s, a)), (table, uniforms))
    return jnp.moveaxis(index, 0, 1).reshape(s, num_blocks * per_block), log_products


def _ess(log_weights: Float[np.ndarray, " S"]) -> float:
    weights = np.exp(log_weights - np.max(log_weights))
    return float(np.sum(weights) ** 2 / np.sum(weights**2))
