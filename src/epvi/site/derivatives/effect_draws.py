"""Draws of the effects of groups given the other parameters φ, and the errors of the integrals over them.

Takes a marginal likelihood (`integrated.py`), points φ and bundles of groups. A group's effects given φ have the
density exp J_g / ∫ exp J_g: their moments come from the nodes of the integral, and a draw is one of some candidates
from a Gaussian with these moments, chosen by importance weights.
"""

from typing import Any

import jax
import jax.numpy as jnp

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.integral import joint_at, log_integrals, moments, root_entries
from epvi.site.model.target import Block

# Candidates for a draw, and their sds in those of the effects. Judgement: the draws' distribution then differs from the
# effects' by a few per cent of what the Gaussian's did, and the wider candidates reach its tails.
_CANDIDATES, _WIDER = 32, 1.2


def draw_effects(marginal: Any, phi: Any, key: Any, block: Block) -> tuple[Any, Any, Any]:
    """Mean (S, L, s), root of the covariance (S, L, t) and a draw (S, L, s) of each group's effects given each φ."""

    def one(given: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        point, own = given
        joint, nodes = marginal.at(point, groups)
        mean, root = moments(jax.nn.softmax(joint_at(joint, nodes), axis=0), nodes.z)
        s = mean.shape[1]
        away, chosen = jax.random.split(own)
        u = jax.random.normal(away, (_CANDIDATES, *mean.shape))
        entries = root_entries(root, s)
        moved = [sum(u[..., j] * entries[i, j] for j in range(i + 1)) for i in range(s)]
        z = mean + _WIDER * jnp.stack(moved, axis=-1)
        weights = jax.lax.map(joint, z) + 0.5 * jnp.sum(u**2, axis=-1)
        which = jnp.argmax(weights + jax.random.gumbel(chosen, weights.shape), axis=0)
        return mean, root, jnp.take_along_axis(z, which[None, :, None], axis=0)[0]

    with promotion_allowed():
        groups = marginal.groups(block)
        return jax.lax.map(one, (phi, jax.random.split(key, phi.shape[0])))


def integral_errors(marginal: Any, phi: Any, block: Block) -> Any:
    """How far the sum over groups of log integrals is from that by a finer rule, at each φ, (S,)."""

    def one(point: Any) -> Any:
        found = (log_integrals(*at(point, groups)) for at in (marginal.at, marginal.finer_at))
        usual, finer = found
        return jnp.sum(jnp.where(groups.present, usual - finer, 0.0))

    with promotion_allowed():
        groups = marginal.groups(block)
        return jax.lax.map(one, phi)
