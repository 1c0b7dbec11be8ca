"""Metropolis-within-Gibbs sampling of component indices k· (the paper, Algorithm 2), many chains in parallel.

A step picks a shard m, proposes one of its components c uniformly, and accepts with probability min(1, W_c·/W_k·).
With the sums over the other shards, Λ₋ and η₋ (μ₋ = Λ₋⁻¹η₋), the ratio needs only the terms that change:

    W_k· ∝ w_mk |Λ_mk|^½ |Λ₋ + Λ_mk|^-½ exp(−½ (μ_mk − μ₋)ᵀ (Λ₋⁻¹ + Λ_mk⁻¹)⁻¹ (μ_mk − μ₋))

so a step costs O(d) (d³ for `Full`), independent of M. Removing a shard from a running sum is a subtraction. In plain
float64 it would cancel catastrophically where a narrow component is removed from wide ones, and rounding errors would
accumulate over many steps. The sums are therefore kept in double-double arithmetic (Knuth's two-sum, 106 bits).
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.ground import validation
from epvi.ground.compiled import compiled
from epvi.ground.float64 import AnyArray
from epvi.ground.seeds import ProductStream
from epvi.ground.status import Status, StatusCode
from epvi.hub.product.blocks import Blocks, in_blocks, select
from epvi.hub.product.mixing import effective_size, split_r_hat
from epvi.hub.product.result import Product, ProductMixture
from epvi.hub.product.stack import Stack, StackedComponents, check_memory, finish, stack

# Steps per chain in one call of the compiled loop, so that one compilation serves any number of steps. Judgement.
_STRETCH = 1024


@dataclasses.dataclass(frozen=True)
class ChainDiagnostics:
    """How well the chains mixed.

    Attributes:
        acceptance_rate: share of proposals accepted, after burn-in.
        r_hat_log_weight: split R̂ of log W.
        r_hat_means: largest split R̂ of the components' means over coordinates.
        ess_log_weight: effective sample size of log W.
        ess_means: smallest effective sample size of the components' means over coordinates.
        mean_standard_error: Monte Carlo standard error of the product's mean.
        index: sampled index vectors k· with `keep_index`, else None.
    """

    acceptance_rate: float
    r_hat_log_weight: float
    r_hat_means: float
    ess_log_weight: float
    ess_means: float
    mean_standard_error: Float[np.ndarray, " d"]
    index: Int[np.ndarray, "R M"] | None


@dataclasses.dataclass(frozen=True)
class Chain(Product):
    """The paper's Algorithm 2: equally weighted components sampled by Markov chains over k·.

    Attributes:
        num_samples: number R of components kept, rounded up to a multiple of `num_chains`.
        burn_in: sweeps of M steps discarded at the start of every chain.
        num_chains: number of chains run in parallel.
        thin: steps from one kept component to the next; 1 as in the paper, None for one sweep.
        keep_index: whether to store the R x M component indices in the diagnostics.
    """

    # Components. Judgement: as many as `Anchored` returns.
    num_samples: int = 2000
    # Sweeps. Judgement; split R̂ reports when it is too short.
    burn_in: int = 20
    # Chains. Judgement: enough for split R̂ to compare, and 100 components from each at the default `num_samples`.
    num_chains: int = 20
    thin: int | None = None
    keep_index: bool = False

    def __post_init__(self) -> None:
        validation.check_settings(self, num_samples=1, burn_in=0, num_chains=1)
        if self.thin is not None:
            validation.check_settings(self, thin=1)

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """R equally weighted components, sampled with probability proportional to W."""
        check_memory(self.num_samples, mixtures)
        stacked = stack(mixtures)
        m = stacked.num_shards
        per_chain = -(-self.num_samples // self.num_chains)
        plan = _Plan(self.num_chains, self.burn_in * m, per_chain, self.thin or m, self.keep_index)
        run = _run(stacked, key, plan)
        diagnostics = _diagnose(run)
        return ProductMixture(run.mixture, None, diagnostics, self._status(diagnostics, run.mixture.num_components))

    def _status(self, found: ChainDiagnostics, r: int) -> Status:
        r_hat, ess = max(found.r_hat_log_weight, found.r_hat_means), min(found.ess_log_weight, found.ess_means)
        # The customary limit of R̂ (Gelman & Rubin 1992).
        if not r_hat < 1.1:
            return Status(
                StatusCode.UNMIXED,
                f"the chains disagree (split R-hat {r_hat:.2f}): use Anchored(), which keeps separate modes,"
                " or raise burn_in, thin and num_samples.",
            )
        # With 100 effective components a mean has a standard error of 0.1 sd. Judgement.
        if ess < 100:
            text = f"only {ess:.0f} effective of {r:,} components: raise thin or num_samples."
            return Status(StatusCode.FEW_EFFECTIVE, text)
        text = f"mixed: split R-hat {r_hat:.3f}, {ess:,.0f} effective of {r:,} components."
        return Status(StatusCode.MIXED, text)


class _Pair(NamedTuple):
    """A double-double number: the unevaluated sum high + low of two floats.

    A term that is added and later subtracted must be read from a table both times. If it were computed in place, the
    compiler could contract its product with the addition (FMA), and the two terms would differ in their last bits.
    """

    high: AnyArray
    low: AnyArray

    def plus(self, x: AnyArray) -> "_Pair":
        total = self.high + x
        seen = total - self.high
        low = self.low + ((self.high - (total - seen)) + (x - seen))
        high = total + low
        return _Pair(high, low - (high - total))


class _ChainState(NamedTuple):
    """State of one chain."""

    indices: Int[AnyArray, " M"]  # k·
    precision: _Pair  # Σ_m Λ_mk, packed
    eta: _Pair  # Σ_m Λ_mk μ_mk
    log_w: Float[AnyArray, ""]  # log W_k·


class _Plan(NamedTuple):
    """Length of a run."""

    num_chains: int
    burn_in: int  # steps discarded per chain
    per_chain: int  # components kept per chain
    thin: int  # steps from one kept component to the next
    keep_index: bool  # whether to keep k·


class _Run(NamedTuple):
    """What the chains kept."""

    mixture: GaussianMixture  # the kept components, chain after chain, equally weighted
    means: Float[AnyArray, "C n d"]  # their means by chain, in the stack's centred coordinates
    log_w: Float[AnyArray, "C n 1"]  # their log W by chain
    component_sd: Float[AnyArray, " d"]  # sds of one component, the scale on which means are compared
    acceptance_rate: Float[AnyArray, ""]
    indices: Int[AnyArray, "R M"] | None  # their k·


def _diagnose(run: _Run) -> ChainDiagnostics:
    means, log_w, sd, one = np.asarray(run.means), np.asarray(run.log_w), np.asarray(run.component_sd), np.ones(1)
    ess_means = effective_size(means, sd)
    return ChainDiagnostics(
        acceptance_rate=float(run.acceptance_rate),
        r_hat_log_weight=float(split_r_hat(log_w, one)[0]),
        r_hat_means=float(np.max(split_r_hat(means, sd))),
        ess_log_weight=float(effective_size(log_w, one)[0]),
        ess_means=float(np.min(ess_means)),
        mean_standard_error=np.std(means, axis=(0, 1)) / np.sqrt(ess_means),
        index=None if run.indices is None else np.asarray(run.indices),
    )


class _ChainStep(NamedTuple):
    """Random numbers of one step."""

    shard: Int[AnyArray, "*C"]  # shard m to update
    proposal: Int[AnyArray, "*C"]  # component proposed for it
    log_u: Float[AnyArray, "*C"]  # log of the uniform number that decides acceptance


def _draw_steps(stacked: Stack, key: AnyArray, shape: tuple[int, ...]) -> _ChainStep:
    where, what, whether = jax.random.uniform(key, (3, *shape))
    shard = _scaled(where, jnp.full(shape, stacked.num_shards))
    proposal = _scaled(what, stacked.counts[shard])
    return _ChainStep(shard, proposal, jnp.log(whether))


def _scaled(uniform: AnyArray, count: Int[AnyArray, "..."]) -> Int[AnyArray, "..."]:
    """Uniform numbers in [0, 1) as integers from 0 to count − 1."""
    return jnp.floor(uniform * count.astype(uniform.dtype)).astype(count.dtype)


def _begin(stacked: Stack, index: Int[AnyArray, " M"], log_w: Float[AnyArray, ""]) -> _ChainState:
    def add(sums: tuple[_Pair, _Pair], at: tuple) -> tuple[tuple[_Pair, _Pair], None]:
        etas, precisions, k = at
        return (sums[0].plus(precisions[k]), sums[1].plus(etas[k])), None

    zero, zeros = jnp.zeros(stacked.structure.packed_shape(stacked.dim)), jnp.zeros(stacked.dim)
    start = _Pair(zero, zero), _Pair(zeros, zeros)
    (precision, eta), _ = jax.lax.scan(add, start, (stacked.etas, stacked.precisions, index))
    return _ChainState(index, precision, eta, log_w)


class _Entry(NamedTuple):
    """One component of one shard."""

    log_mass: Float[AnyArray, ""]  # log w_mk + ½ log|Λ_mk|
    mean: Float[AnyArray, " d"]  # μ_mk
    eta: Float[AnyArray, " d"]  # Λ_mk μ_mk
    precision: Float[AnyArray, "*packed"]  # Λ_mk


def _as_table(stacked: Stack) -> Float[AnyArray, "M K numbers"]:
    """All components' parameters in contiguous rows, so that a step reads two rows of memory whatever M is."""
    log_mass = (stacked.log_weights + stacked.half_log_dets)[:, :, None]
    packed = stacked.precisions.reshape(*log_mass.shape[:2], -1)
    return jnp.concatenate([log_mass, stacked.means, stacked.etas, packed], axis=2)


def _read(row: Float[AnyArray, " numbers"], d: int, packed_shape: tuple[int, ...]) -> _Entry:
    return _Entry(row[0], row[1 : d + 1], row[d + 1 : 2 * d + 1], row[2 * d + 1 :].reshape(packed_shape))


def _move(structure: Structure, table: AnyArray, state: _ChainState, step: _ChainStep) -> tuple[_ChainState, AnyArray]:
    """One step of one chain, and whether its proposal was accepted."""
    m, d = step.shard, state.eta.high.shape[0]
    k = state.indices[m]
    old, new = (_read(table[m, at], d, structure.packed_shape(d)) for at in (k, step.proposal))
    precision, eta = state.precision.plus(-old.precision), state.eta.plus(-old.eta)
    rest = precision.high
    # All three factorisations in one batch: see gaussian/structure.py.
    roots = jax.vmap(structure.root)(jnp.stack([rest, rest + old.precision, rest + new.precision]))
    rest_mean = structure.solve(roots[0], eta.high)

    def log_weight(entry: _Entry, root: AnyArray) -> AnyArray:
        _, q = structure.meet(root, rest, rest_mean, entry.precision, entry.mean)
        return entry.log_mass - structure.half_log_det(root, d) - 0.5 * q

    both = jax.tree.map(lambda *entries: jnp.stack(entries), old, new)
    log_weights = jax.vmap(log_weight)(both, roots[1:])
    log_ratio = log_weights[1] - log_weights[0]
    accept = step.log_u < log_ratio
    now = jax.tree.map(lambda one, other: jnp.where(accept, one, other), new, old)
    indices = jnp.asarray(state.indices).at[m].set(jnp.where(accept, step.proposal, k))
    log_w = state.log_w + jnp.where(accept, log_ratio, 0.0)
    return _ChainState(indices, precision.plus(now.precision), eta.plus(now.eta), log_w), accept


def _run(stacked: Stack, key: AnyArray, plan: _Plan) -> _Run:
    """Burn in and sample in stretches of a fixed number of steps, so that one compilation serves any run length."""
    rows = min(plan.per_chain, max(1, _STRETCH // plan.thin))
    burn_in, stretches = -(-plan.burn_in // (rows * plan.thin)), -(-plan.per_chain // rows)
    state = _start(
        stacked, in_blocks(stacked, plan.num_chains), jax.random.fold_in(key, ProductStream.START), plan.num_chains
    )
    kept = []
    for number in range(burn_in + stretches):
        state, made = _walk(stacked, state, (key, np.asarray(1 + number)), rows, plan)
        if number >= burn_in:
            kept.append(made)
    kept, index, accepted = jax.tree.map(lambda *parts: np.concatenate(parts)[: plan.per_chain], *kept)
    return _packed(stacked, kept, index, np.mean(accepted))


def wander(stacked: Stack, key: AnyArray, num_chains: int, steps: int) -> Float[np.ndarray, "C d"]:
    """Run short chains from random indices; return the means of their last components, in the stack's coordinates."""
    return np.asarray(_run(stacked, key, _Plan(num_chains, 0, 1, steps, keep_index=False)).means)[:, 0]


@compiled
def _start(stacked: Stack, blocks: Blocks, key: AnyArray, num_chains: int) -> _ChainState:
    # Each shard's index is uniform over its components of positive weight: the argmax of i.i.d. uniform numbers.
    uniform = jax.random.uniform(key, (num_chains, *stacked.log_weights.shape))
    weighted = jnp.isfinite(stacked.log_weights)[None]
    index = jnp.argmax(jnp.where(weighted, uniform, -1.0), axis=-1).astype(stacked.counts.dtype)
    flat = blocks.log_mass[:, :, 0].size - stacked.num_shards
    log_w, _ = finish(stacked.structure, stacked.num_shards, select(blocks, jnp.pad(index, ((0, 0), (0, flat)))))
    return jax.vmap(lambda i, w: _begin(stacked, i, w))(index, log_w)


@compiled
def _walk(
    stacked: Stack, state: _ChainState, seed: tuple[AnyArray, AnyArray], rows: int, plan: _Plan
) -> tuple[_ChainState, tuple]:
    """Run every chain for `rows` x `thin` steps, keeping every `thin`-th."""
    steps = _draw_steps(stacked, jax.random.fold_in(*seed), (rows, plan.thin, plan.num_chains))
    table = _as_table(stacked)
    move = jax.vmap(lambda s, r: _move(stacked.structure, table, s, r))

    def keep(state: _ChainState, steps: _ChainStep) -> tuple[_ChainState, tuple]:
        state, accepted = jax.lax.scan(move, state, steps)
        index = state.indices if plan.keep_index else None
        return state, (StackedComponents(state.log_w, state.eta.high, state.precision.high), index, jnp.mean(accepted))

    return jax.lax.scan(keep, state, steps)


@compiled
def _packed(stacked: Stack, kept: StackedComponents, index: AnyArray | None, acceptance_rate: AnyArray) -> _Run:
    """The kept states, (n, C, ...) with η in place of the mean, as equally weighted components."""
    structure = stacked.structure
    log_w, eta, precision = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), kept)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (eta, precision))
    roots = jax.vmap(structure.root)(flat[1])
    means = jax.vmap(structure.solve)(roots, flat[0])
    mixture = GaussianMixture(
        jnp.full(len(roots), -jnp.log(len(roots))), means + stacked.centre[None], roots, structure
    )
    sd = jnp.sqrt(structure.variances(roots[0], stacked.dim))
    if index is not None:
        index = jnp.swapaxes(index, 0, 1).reshape(-1, stacked.num_shards)
    return _Run(mixture, means.reshape(eta.shape), log_w[:, :, None], sd, acceptance_rate, index)
