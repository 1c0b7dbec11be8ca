"""Judges approximate distributions of group effects given the other parameters φ, group by group.

Takes points φ, and at each an approximation of every group's effects z = m + C h (`gaussian/skewed.py`); compares it
with the conditional density itself at many nodes, equidistant and far into the tails. Means and sds are compared of
constrained values, which users see: an error in the tail of a logarithm is one of the mean of what it is taken of.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.gaussian.skewed import Skewed
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.space import Parameter
from epvi.site.derivatives.groups import Groups
from epvi.site.derivatives.integral import root_entries, wide_nodes, wide_scores
from epvi.site.model.target import Block
from epvi.site.rows.bundles import LEVELS, LOCAL

# Rows, counted once for each node, of which numbers are in memory at a time, and rows of the bundles that are judged at
# a time. Judgement: both stay in the cache of a core.
_ROWS_AT_ONCE, _ROWS_OF_SOME = 2**16, 2**11


class EffectAudit(NamedTuple):
    """What wide nodes say at K points φ of L groups, absent ones among them."""

    log_integral: Any
    # Means and variances of the constrained effects, and those of their approximation, (K, L, s) each.
    mean: Any
    variance: Any
    approximate_mean: Any
    approximate_variance: Any


def audit_of(marginal: Any) -> Callable[..., EffectAudit]:
    """The compiled function of φ (K, p), mean (K, L, s), root (K, L, t), h (K, Q₁, L, s), a block and a number.

    `h` are the values of `Skewed` at the scores of wide nodes; the marginal is one of `integrated.py`. Only so many
    bundles of the block, the first ones, are judged, a power of two of them at a time.
    """
    base, names = marginal.base.space, marginal.effects.names
    per_level = [base.by_name[name].size // marginal.effects.num_levels for name in names]
    changes = [change for name, n in zip(names, per_level, strict=True) for change in [_change(base.by_name[name])] * n]

    def one(given: tuple, groups: Groups) -> EffectAudit:
        phi, mean, root, h = given
        joint, nodes = marginal.joint(phi, groups)[0], wide_nodes(mean, root)
        # A divisor of the number of nodes: the rest would be a second program.
        count = math.gcd(2 ** int(math.log2(max(_ROWS_AT_ONCE // groups.num_rows, 1))), len(nodes.z))
        logs = jax.lax.map(joint, nodes.z, batch_size=count) + nodes.log_weight
        true = _moments(jax.nn.softmax(logs, axis=0), _changed(changes, nodes.z))
        at, weights = _approximate(mean, root, h)
        return EffectAudit(jax.nn.logsumexp(logs, axis=0), *true, *_moments(weights, _changed(changes, at)))

    def audit(phi: Any, mean: Any, root: Any, h: Any, block: Block, number: Any) -> EffectAudit:
        places, bundles = block[LOCAL].shape[1], block[LEVELS].shape[0]
        some = math.gcd(2 ** int(math.log2(max(_ROWS_OF_SOME // places, 1))), bundles)

        def judged(own: Any) -> EffectAudit:
            *approximate, few = own
            groups = marginal.groups(few)
            return jax.lax.map(lambda given: one(given, groups), (phi, *(jnp.moveaxis(x, 0, -2) for x in approximate)))

        def if_there(given: Any) -> EffectAudit:
            i, own = given
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(judged, own))
            return jax.lax.cond(i * some < number, judged, lambda _: nothing, own)

        def parts(x: Any) -> Any:
            return jnp.reshape(x, (bundles // some, -1, *x.shape[1:]))

        with promotion_allowed():
            # Levels first, in equal parts.
            by_level = [parts(jnp.moveaxis(x, -2, 0)) for x in (mean, root, h)]
            own = (*by_level, {name: parts(jnp.asarray(x)) for name, x in block.items()})
            found = jax.lax.map(if_there, (jnp.arange(bundles // some), own))
            # (parts, K, levels of a part, ...)
            return jax.tree.map(lambda x: jnp.reshape(jnp.moveaxis(x, 0, 1), (len(phi), -1, *x.shape[3:])), found)

    return jax.jit(audit)


def standardised(shape: Float[np.ndarray, "K L s 2"]) -> Float[np.ndarray, "K Q L s"]:
    """h at the scores of wide nodes."""
    made = Skewed.of(shape[:, None, ..., 0], shape[:, None, ..., 1])
    return made(wide_scores(shape.shape[2])[:, None, None])


def _change(parameter: Parameter) -> Callable[[Any], Any]:
    """The map of a parameter's entries to their constrained values; none where it is not one of single entries."""
    support = parameter.support_of_one
    single = support.event_dim == 0 and all(np.ndim(bound) == 0 for bound in jax.tree.leaves(support))
    return parameter.transform if single and not parameter.is_real else lambda z: z


def _changed(changes: list[Callable[[Any], Any]], z: Any) -> Any:
    return jnp.stack([change(z[..., i]) for i, change in enumerate(changes)], axis=-1)


def _moments(weights: Any, values: Any) -> tuple[Any, Any]:
    mean = jnp.sum(weights[..., None] * values, axis=0)
    return mean, jnp.sum(weights[..., None] * (values - mean) ** 2, axis=0)


def _approximate(mean: Any, root: Any, h: Any) -> tuple[Any, Any]:
    """Nodes (Q, L, s) of the approximation, and their weights (Q, 1): every combination of the scores."""
    s = mean.shape[1]
    scores = wide_scores(s)
    places = np.stack(np.meshgrid(*[np.arange(len(scores))] * s, indexing="ij"), axis=-1).reshape(-1, s)
    weights = np.exp(-0.5 * np.sum(scores[places] ** 2, axis=1))
    entries = root_entries(root, s)
    away = [sum(h[places[:, j], :, j] * entries[i, j] for j in range(i + 1)) for i in range(s)]
    return mean + jnp.stack(away, axis=-1), (weights / np.sum(weights))[:, None]
