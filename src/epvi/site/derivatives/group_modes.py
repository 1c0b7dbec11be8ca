"""The mode of each group's log joint density in its own effects, by Newton's method for all groups at once.

Takes a function J of the effects z (L, s) of L groups that gives the log joint density of each group, (L,), where group
g depends on its own z_g only. Each group takes steps of its own length; linear algebra is written out by entries, which
for one to three effects takes less time than a call for each matrix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Most Newton steps for the modes, and the gradient, in units of the group's own sd, at which a group has arrived. The
# nodes need not be centred exactly: a tenth of an sd changes the integral by less than its own error. Judgement.
_MOST_STEPS, _NEAR = 40, 0.05
# A step that lowers J is shortened by this factor, and one that raises it lengthens the next by it, up to a whole
# Newton step. Judgement.
_SHORTER = 4.0
# Least pivot of the curvature, relative to its largest diagonal entry: below, J is not concave there. Judgement.
_LEAST_PIVOT = 1e-6
# Newton steps of the prior alone, from which the search starts; one is enough for a Gaussian. Judgement.
_STEPS_OF_PRIOR = 3

# The log joint density of each of L groups, (L,), at effects (L, s).
Joint = Callable[[Any], Any]


def expanded(joint: Joint, z: Any) -> tuple[Any, Any, Any]:
    """Value (L,), gradient (L, s) and Hessian (L, s, s) of each group's J in its own effects."""

    # All groups are displaced alike, which moves each by its own effects only.
    def moved(shift: Any) -> Any:
        return joint(z + shift)

    def with_slope(shift: Any) -> Any:
        slope, value = jax.jacfwd(lambda shift: (moved(shift),) * 2, has_aux=True)(shift)
        return slope, (value, slope)

    # The density is traced once for all three.
    hessian, (value, slope) = jax.jacfwd(with_slope, has_aux=True)(jnp.zeros(z.shape[1], z.dtype))
    return value, slope, hessian


class GroupModes(NamedTuple):
    """The state of Newton's method for all groups; at its end, their modes."""

    steps: Any
    z: Any
    value: Any
    # The Newton step from there.
    step: Any
    curvature: Any
    # Part of a Newton step that is taken next, by group.
    part: Any
    arrived: Any


def modes(joint: Joint, prior: Joint, start: Any) -> GroupModes:
    """The mode of each group, and J, its Newton step and minus its Hessian there."""

    def towards_prior(_: Any, z: Any) -> Any:
        _, gradient, hessian = expanded(prior, z)
        return z + solved(cholesky(-hessian), gradient)

    def go(old: GroupModes) -> GroupModes:
        z = old.z + old.part[:, None] * old.step
        value, gradient, hessian = expanded(joint, z)
        step = solved(cholesky(-hessian), gradient)
        arrived = jnp.abs(jnp.sum(gradient * step, axis=1)) < _NEAR**2
        part = jnp.minimum(old.part * _SHORTER, 1.0)
        new = GroupModes(old.steps + 1, z, value, step, -hessian, part, arrived)
        # The last comparison is False for NaN.
        better = new.value >= old.value - _NEAR**2
        shorter = old._replace(steps=new.steps, part=old.part / _SHORTER)
        chosen = jax.tree.map(lambda a, b: jnp.where(_like(better, a), a, b), new, shorter)
        kept = jax.tree.map(lambda a, b: jnp.where(_like(old.arrived, a), a, b), old, chosen)
        return kept._replace(steps=new.steps)

    # Loops, and a first step of 0 from a value below any other, so that each density is compiled once.
    z = jax.lax.fori_loop(0, _STEPS_OF_PRIOR, towards_prior, start)
    groups, s = z.shape
    first = GroupModes(
        jnp.zeros((), jnp.int32),
        z,
        jnp.full(groups, -jnp.inf, z.dtype),
        jnp.zeros_like(z),
        jnp.zeros((groups, s, s), z.dtype),
        jnp.ones(groups, z.dtype),
        jnp.zeros(groups, bool),
    )
    return jax.lax.while_loop(lambda now: (now.steps <= _MOST_STEPS) & ~jnp.all(now.arrived), go, first)


def _like(mask: Any, array: Any) -> Any:
    """The mask of groups, with trailing axes as the array has; a number for all groups takes any group's."""
    return jnp.reshape(mask, (*mask.shape, *[1] * (array.ndim - 1))) if array.ndim else mask[0]


def cholesky(matrices: Any) -> list[list[Any]]:
    """Lower triangular roots of matrices (L, s, s) by entries, with pivots that are too small replaced."""
    s = matrices.shape[-1]
    scale = jnp.max(jnp.stack([jnp.abs(matrices[:, i, i]) for i in range(s)]), axis=0)
    least = _LEAST_PIVOT * jnp.maximum(scale, jnp.finfo(matrices.dtype).tiny ** 0.5)
    root: list[list[Any]] = [[None] * s for _ in range(s)]
    for j in range(s):
        pivot = matrices[:, j, j] - sum(root[j][k] ** 2 for k in range(j))
        root[j][j] = jnp.sqrt(jnp.where(pivot > least, pivot, jnp.maximum(jnp.abs(pivot), least)))
        for i in range(j + 1, s):
            root[i][j] = (matrices[:, i, j] - sum(root[i][k] * root[j][k] for k in range(j))) / root[j][j]
    return root


def solve_upper(root: list[list[Any]], right: Any) -> Any:
    """The solution of rootᵀ y = right, (..., L, s)."""
    s = right.shape[-1]
    made: list[Any] = [None] * s
    for i in reversed(range(s)):
        made[i] = (right[..., i] - sum(root[k][i] * made[k] for k in range(i + 1, s))) / root[i][i]
    return jnp.stack(made, axis=-1)


def solved(root: list[list[Any]], right: Any) -> Any:
    """The solution of root rootᵀ y = right, (L, s)."""
    s = right.shape[-1]
    made: list[Any] = []
    for i in range(s):
        made.append((right[:, i] - sum(root[i][k] * made[k] for k in range(i))) / root[i][i])
    return solve_upper(root, jnp.stack(made, axis=1))
