"""The joint modes of the effects of nested groups, by Newton's method for all larger groups at once.

Takes the log joint density of each group in its own effect a_g and that of its larger group b_h, and both priors. The
Hessian of a larger group is an arrow: eliminating the a_g leaves one number for each h,

    S_h = −∂²/∂b² + Σ_{g in h} (C_g − B_g² / A_g),   A, B, C = −∂²/∂a², −∂²/∂a∂b, −∂²/∂b² of group g.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from epvi.site.derivatives.group_modes import GroupModes, Joint, expanded

# As in `group_modes.py`.
_MOST_STEPS, _NEAR, _SHORTER, _STEPS_OF_PRIOR = 40, 0.05, 4.0, 3
# Least curvature, relative to its size: below, the density is not concave there. Judgement.
_LEAST = 1e-6


class InnerModes(NamedTuple):
    """The modes of a_g, which move linearly with b_h, and minus the second derivative there."""

    a: Any
    b: Any
    # The change of the mode of a_g with b_h, −B/A.
    slope: Any
    curvature: Any
    # The Newton step of a_g alone from there.
    step: Any

    def as_modes(self, value: Any) -> GroupModes:
        """The modes given the larger groups' effects, as those of a single factor."""
        nothing = jnp.zeros_like(self.a)
        return GroupModes(
            jnp.zeros((), jnp.int32),
            self.a[:, None],
            value,
            self.step[:, None],
            self.curvature[:, None, None],
            nothing,
            nothing == 0,
        )


class NestedModes(NamedTuple):
    """The modes of both factors' effects."""

    inner: InnerModes
    outer: GroupModes


class _State(NamedTuple):
    """The state of Newton's method for all larger groups."""

    steps: Any
    a: Any
    b: Any
    value: Any
    step_a: Any
    step_b: Any
    # The derivative in a_g.
    slope: Any
    # Minus second derivatives: of a_g alone, mixed, and of b_h with the a_g eliminated.
    curvature: Any
    mixed: Any
    schur: Any
    # Part of a Newton step that is taken next, by larger group.
    part: Any
    arrived: Any


def nested_modes(both: Callable[[Any, Any], Any], prior_a: Joint, prior_b: Joint, groups: Any) -> NestedModes:
    """The modes of the effects of groups and larger groups, and the curvature there."""

    def go(old: _State) -> _State:
        a = old.a + groups.of_inner(old.part) * old.step_a
        b = old.b + old.part * old.step_b
        new = _newton(both, prior_b, groups, a, b)
        part = jnp.minimum(old.part * _SHORTER, 1.0)
        new = new._replace(steps=old.steps + 1, part=part)
        # Comparisons are False for NaN.
        better = new.value >= old.value - _NEAR**2
        shorter = old._replace(steps=new.steps, part=old.part / _SHORTER)
        chosen = _where(better, new, shorter, groups)
        return _where(old.arrived, old, chosen, groups)._replace(steps=new.steps)

    a, b = (
        _at_prior(prior, count) for prior, count in ((prior_a, groups.inner.num_groups), (prior_b, groups.num_groups))
    )
    flat_a, flat_b = jnp.zeros_like(a), jnp.zeros_like(b)
    first = _State(
        *(jnp.zeros((), jnp.int32), a, b, jnp.full_like(b, -jnp.inf), flat_a, flat_b, flat_a),
        *(flat_a, flat_a, flat_b, jnp.ones_like(b), ~groups.present),
    )
    end = jax.lax.while_loop(lambda now: (now.steps <= _MOST_STEPS) & ~jnp.all(now.arrived), go, first)
    # Groups and larger groups that are absent have some curvature, too.
    curvature, schur = (jnp.where(x > 0, x, 1.0) for x in (end.curvature, end.schur))
    outer = GroupModes(
        end.steps,
        end.b[:, None],
        end.value,
        end.step_b[:, None],
        schur[:, None, None],
        end.part,
        end.arrived,
    )
    return NestedModes(InnerModes(end.a, end.b, -end.mixed / curvature, curvature, end.slope / curvature), outer)


def _newton(both: Callable[[Any, Any], Any], prior_b: Joint, groups: Any, a: Any, b: Any) -> _State:
    """Value, Newton step and curvature at some effects."""
    # All groups are displaced alike, which moves each by its own effects only.
    value, slope, bend = expanded(lambda s: both(a + s[0, 0], b + s[0, 1]), jnp.zeros((1, 2), a.dtype))
    of_prior, slope_b, bend_b = expanded(prior_b, b[:, None])
    curvature, mixed = _positive(-bend[:, 0, 0]), -bend[:, 0, 1]
    schur = _positive(-bend_b[:, 0, 0] + groups.summed_inner(-bend[:, 1, 1] - mixed**2 / curvature))
    ahead = slope_b[:, 0] + groups.summed_inner(slope[:, 1] - mixed / curvature * slope[:, 0])
    step_b = ahead / schur
    step_a = (slope[:, 0] - mixed * groups.of_inner(step_b)) / curvature
    gain = groups.summed_inner(slope[:, 0] ** 2 / curvature) + ahead * step_b
    total = of_prior + groups.summed_inner(value)
    arrived = jnp.abs(gain) < _NEAR**2
    none = jnp.zeros((), jnp.int32)
    return _State(none, a, b, total, step_a, step_b, slope[:, 0], curvature, mixed, schur, jnp.ones_like(b), arrived)


def _where(mask: Any, one: _State, other: _State, groups: Any) -> _State:
    """One state or the other, by larger group."""
    inner = groups.of_inner(mask)

    def chosen(name: str) -> Any:
        a, b = getattr(one, name), getattr(other, name)
        return a if name == "steps" else jnp.where(inner if name in _OF_GROUPS else mask, a, b)

    return _State(*(chosen(name) for name in _State._fields))


_OF_GROUPS = ("a", "step_a", "slope", "curvature", "mixed")


def _at_prior(prior: Joint, count: int) -> Any:
    """Where the prior alone has its mode, or on the way there."""

    def towards(_: Any, z: Any) -> Any:
        _, slope, bend = expanded(prior, z)
        return z + slope / _positive(-bend[:, 0])

    return jax.lax.fori_loop(0, _STEPS_OF_PRIOR, towards, jnp.zeros((count, 1)))[:, 0]


def _positive(x: Any) -> Any:
    """The curvature, with what is not positive replaced by its size."""
    return jnp.where(x > _LEAST, x, jnp.maximum(jnp.abs(x), _LEAST))
