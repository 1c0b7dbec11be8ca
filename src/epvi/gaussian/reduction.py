"""Reduces a mixture to fewer components with the same moments, by greedy pairwise merging (Runnalls 2007).

Takes weights, means and packed covariances; returns fewer of them. The next pair to be merged is the one with the least
upper bound on the Kullback-Leibler divergence between the mixtures before and after (Runnalls 2007, eq. 18):

    B(i, j) = ½ [ (w_i + w_j) log|Σ_ij| − w_i log|Σ_i| − w_j log|Σ_j| ]

where N(μ_ij, Σ_ij) has the mean and (as far as the structure can represent it) the covariance of the pair.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from epvi.gaussian.structure import Structure
from epvi.ground.float64 import AnyArray


class ComponentMoments(NamedTuple):
    """Weighted components by their moments."""

    # w_k.
    weights: Float[AnyArray, "*K"]
    # μ_k.
    means: Float[AnyArray, "*K d"]
    # Σ_k, packed.
    covariances: Float[AnyArray, "..."]


class _MergeState(NamedTuple):
    """State of the merging loop; arrays keep their size, and merged components are marked as dead."""

    # All components; a merged one takes the place of its first member.
    components: ComponentMoments
    # log|Σ_k|.
    log_dets: Float[AnyArray, " K"]
    # Which components are left.
    alive: Bool[AnyArray, " K"]
    # B(i, j); infinite on the diagonal and for dead components.
    costs: Float[AnyArray, "K K"]


def merge_pair(structure: Structure, a: ComponentMoments, b: ComponentMoments) -> ComponentMoments:
    """The single component with the total weight, the mean and the covariance of two."""
    weight = a.weights + b.weights
    share = jnp.where(weight > 0, b.weights / jnp.where(weight > 0, weight, 1.0), 0.5)
    delta = b.means - a.means
    spread = (1 - share) * share * structure.outer(delta)
    return ComponentMoments(
        weight, a.means + share * delta, (1 - share) * a.covariances + share * b.covariances + spread
    )


def greedy_merge(structure: Structure, components: ComponentMoments, num_components: int) -> ComponentMoments:
    """Merge pairs until `num_components` are left, in the order of their first members."""
    k, d = components.means.shape

    def log_det(covariance: AnyArray) -> AnyArray:
        return -2 * structure.half_log_det(structure.root_of_covariance(covariance), d)

    def joint_log_dets(a: ComponentMoments, everything: ComponentMoments) -> Float[AnyArray, " K"]:
        return jax.vmap(lambda b: log_det(merge_pair(structure, a, b).covariances))(everything)

    def merge_cheapest(_: Int[AnyArray, ""], state: _MergeState) -> _MergeState:
        i, j = jnp.unravel_index(jnp.argmin(state.costs), (k, k))
        pair = [jax.tree.map(lambda x, at=at: x[at], state.components) for at in (i, j)]
        joint = merge_pair(structure, pair[0], pair[1])
        everything = jax.tree.map(lambda all_, one: all_.at[i].set(one), state.components, joint)
        # log|Σ_ij| from the known cost: 2B = w_ij log|Σ_ij| − w_i log|Σ_i| − w_j log|Σ_j|.
        own = pair[0].weights * state.log_dets[i] + pair[1].weights * state.log_dets[j]
        weight = jnp.where(joint.weights > 0, joint.weights, 1.0)
        log_det_joint = (2 * state.costs[i, j] + own) / weight
        log_dets = jnp.asarray(state.log_dets).at[i].set(log_det_joint)
        alive = jnp.asarray(state.alive).at[j].set(False)
        parts = joint.weights * log_det_joint + everything.weights * log_dets
        row = 0.5 * ((joint.weights + everything.weights) * joint_log_dets(joint, everything) - parts)
        row = jnp.where(alive, row, jnp.inf).at[i].set(jnp.inf)
        costs = jnp.asarray(state.costs).at[j, :].set(jnp.inf).at[:, j].set(jnp.inf).at[i, :].set(row).at[:, i].set(row)
        return _MergeState(everything, log_dets, alive, costs)

    # A component merged with itself is itself, so the diagonal holds log|Σ_k|.
    joints = jax.lax.map(lambda a: joint_log_dets(a, components), components)
    log_dets, weights = jnp.diag(joints), components.weights
    parts = weights * log_dets
    costs = 0.5 * ((weights[:, None] + weights[None, :]) * joints - parts[:, None] - parts[None, :])
    start = _MergeState(components, log_dets, jnp.ones(k, bool), jnp.where(jnp.eye(k, dtype=bool), jnp.inf, costs))
    end = jax.lax.fori_loop(0, k - num_components, merge_cheapest, start)
    kept = jnp.argsort(~end.alive, stable=True)[:num_components]
    return jax.tree.map(lambda x: x[kept], end.components)
