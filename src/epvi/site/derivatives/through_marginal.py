"""Differentiates a likelihood with group effects integrated out through the linear predictors of its rows.

Takes the marginal likelihood of bundles (`integrated.py`); gives sums over bundles of value and derivatives in φ, as
`through_predictors.py` does for rows. With J_gq the log joint density of group g at node q of its integral, weighted,
and r_gq = exp J_gq / Σ_q exp J_gq,

    ∇ log Σ_q exp J_gq = Σ_q r_gq ∇J_gq,   ∇² log Σ_q exp J_gq = Σ_q r_gq ∇²J_gq + Cov_{q ~ r_g} ∇J_gq

The derivatives of the link are averaged over nodes row by row, before the products with the rows' matrices; only ∇J_gq
is needed group by group. Nodes are constants for derivatives.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.argument_sums import ArgumentSums, Sums
from epvi.site.derivatives.cuts import levels
from epvi.site.derivatives.flat_program import flattened
from epvi.site.derivatives.groups import Groups, own
from epvi.site.derivatives.integral import Nodes, joint_at
from epvi.site.derivatives.kinds import kind_of, rows_dtype
from epvi.site.derivatives.linear_predictors import Predictors, find_predictors
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.through_predictors import Linked

# Columns that rows have besides their own: the effects of their level, and its number.
_EFFECTS, _LEVEL = "epvi: effects", "epvi: level"
# Number of rows on which linear predictors are searched for in float64. Judgement.
_ROWS_TO_LOOK = 8


class MarginalSums(NamedTuple):
    """Sums over bundles."""

    # Values, and link derivatives averaged over nodes.
    rows: Sums
    # Derivatives in φ of the effects' prior; the Hessian has the covariances of ∇J besides.
    gradient: Any
    hessian: Any


@dataclasses.dataclass(frozen=True, eq=False)
class LinkedMarginal:
    """A likelihood of bundles whose rows have few linear predictors, given the effects of their groups."""

    # The densities by level: a `Marginal` of `integrated.py`.
    marginal: Any
    # The likelihood of rows, with the effects of their level as further columns.
    linked: Linked

    def gives(self, order: Order) -> bool:
        """Whether derivatives of this order can be computed."""
        return order in (Order.GRADIENT, Order.SCORES, Order.FULL) and self.linked.gives(Order.FULL)

    @property
    def held(self) -> int:
        """Intermediate numbers per bundle that are in memory at once."""
        return self.marginal.size * self.linked.held

    @property
    def _dim(self) -> int:
        return len(self.marginal.places.shared)

    def _layout(self, order: Order) -> ArgumentSums:
        return ArgumentSums(self.linked.found.arguments, Order.FULL if order is Order.FULL else Order.GRADIENT)

    def zero(self, order: Order, num_points: int) -> Any:
        """The sums over no bundles."""
        gradient, hessian = (np.zeros((num_points, *[self._dim] * axes)) for axes in (1, 2))
        if order is Order.SCORES:
            return (hessian,)
        made = MarginalSums(self._layout(order).zero(num_points), gradient, hessian)
        return made if order is Order.FULL else made._replace(hessian=np.zeros((num_points, 0)))

    def add(self, order: Order, total: Any, at: tuple[Any, ...], point: Any, block: Any, weights: Any) -> Any:
        """The total with a block added at an index of its leading axes, for one point φ."""
        with promotion_allowed():
            groups = Groups(block)
            joint, nodes = self.marginal.at(point.astype(self.linked.dtype), groups)
            logs = joint_at(joint, nodes)
            log_integral = jax.nn.logsumexp(logs, axis=0)
            among = jnp.exp(logs - log_integral)
            counted = jnp.where(groups.present, jnp.repeat(weights, groups.width), 0.0)
            if order is Order.SCORES:
                each = jnp.einsum("ql,qlp->lp", among, self.gradients(point, groups, nodes))
                return (total[0].at[at].add(_outer(groups, each, weights)),)
            value = jnp.sum(jnp.where(counted > 0, counted * log_integral, 0.0))
            shares = jnp.where(counted > 0, counted * among, 0.0)
            layout, rows = self._layout(order), _GivenEffects.of(self.linked, point, groups, nodes)
            scales, away = self._over_nodes(layout, rows, shares)
            sums = layout.add(total.rows, at, value, lambda a, b: scales[a, b], rows.matrices, rows.codes)
            slope, bend = self._of_prior(point, groups, nodes, shares)
            made = MarginalSums(sums, total.gradient.at[at].add(slope), total.hessian)
            if order is Order.GRADIENT:
                return made
            away = self._in_phi(point, groups, nodes, away)
            away = away - jnp.einsum("ql,qlp->lp", among, away)
            away = jnp.where(shares[..., None] > 0, jnp.sqrt(shares)[..., None] * away, 0.0)
            spread = jnp.reshape(away, (-1, self._dim))
            return made._replace(hessian=total.hessian.at[at].add(bend + spread.T @ spread))

    def curve(self, order: Order, sums: Any, point: Any) -> tuple[Any, ...]:
        """Value, gradient and Hessian with respect to φ, from sums over all bundles."""
        if order is Order.SCORES:
            return sums
        value, gradient, *hessian = self.linked.curve(order, sums.rows, point)
        return value, gradient + sums.gradient, *(one + sums.hessian for one in hessian)

    def gradients(self, point: Any, groups: Groups, nodes: Nodes) -> Any:
        """∇J of each node and group in φ, (Q, L, p)."""
        rows = _GivenEffects.of(self.linked, point, groups, nodes)
        away = nodes.each(lambda z: rows.by_group(rows.scale(Order.GRADIENT, z)), 0.0)
        return self._in_phi(point, groups, nodes, away)

    def _over_nodes(self, layout: ArgumentSums, rows: "_GivenEffects", shares: Any) -> tuple[dict, Any]:
        """Link derivatives averaged over nodes, by arguments; for a Hessian also Σ_i A_iᵀ φ'_i by node and group."""
        full, dtype = layout.order is Order.FULL, self.linked.dtype

        def one(total: Any, node: Any) -> Any:
            z, share = node
            scale = rows.scale(layout.order, z)
            counts = rows.groups.of_rows(share.astype(dtype)) * jnp.reshape(rows.groups.used, -1).astype(dtype)
            more = [jnp.where(counts > 0, counts * scale(term.a, term.b), 0).astype(dtype) for term in layout.terms]
            return [a + b for a, b in zip(total, more, strict=True)], rows.by_group(scale) if full else None

        def if_used(total: Any, given: Any) -> Any:
            i, *node = given
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, total, node)[1])
            return jax.lax.cond(i < used, one, lambda total, _: (total, nothing), total, node)

        used, zero = rows.nodes.used, [jnp.zeros(rows.groups.num_rows, dtype) for _ in layout.terms]
        each = rows.nodes.z, shares
        if used is None:
            found, away = jax.lax.scan(one, zero, each)
        else:
            found, away = jax.lax.scan(if_used, zero, (jnp.arange(len(shares)), *each))
        return {(term.a, term.b): part for term, part in zip(layout.terms, found, strict=True)}, away

    def _in_phi(self, point: Any, groups: Groups, nodes: Nodes, away: Any) -> Any:
        """∇J in φ, (Q, L, p), from its part in the coefficients of the rows' predictors (Q, L, ·) and the prior's."""
        chosen = self._of_effects

        def prior(z: Any) -> Any:
            return jax.jacfwd(lambda part: self.marginal.prior_of_effects(self._with(point, part), z, groups.levels))(
                point[chosen]
            )

        jacobian = jax.jacfwd(lambda phi: jnp.concatenate(self.linked.coefficients(phi)))(point)
        return (away @ jacobian).at[..., chosen].add(jax.vmap(prior)(nodes.z))

    def _of_prior(self, point: Any, groups: Groups, nodes: Nodes, shares: Any) -> tuple[Any, Any]:
        """Gradient and Hessian in φ of the effects' prior, averaged over nodes."""
        chosen = self._of_effects

        def average(part: Any) -> Any:
            each = jax.vmap(lambda z: self.marginal.prior_of_effects(self._with(point, part), z, groups.levels))(
                nodes.z
            )
            return jnp.sum(jnp.where(shares > 0, shares * each, 0.0))

        d = self._dim
        bend, slope = jax.jacfwd(lambda part: (jax.grad(average)(part),) * 2, has_aux=True)(point[chosen])
        return jnp.zeros(d).at[chosen].add(slope), jnp.zeros((d, d)).at[np.ix_(chosen, chosen)].add(bend)

    def _with(self, point: Any, part: Any) -> Any:
        return point.at[self._of_effects].set(part)

    @functools.cached_property
    def _of_effects(self) -> np.ndarray:
        """The coordinates of φ that the effects' prior depends on."""
        return self.marginal.prior.shared_of_sums


class _GivenEffects(NamedTuple):
    """The rows of groups, and what does not depend on their effects."""

    linked: Linked
    theta: Any
    groups: Groups
    nodes: Nodes
    etas: list[Any]
    matrices: dict[int, Any]
    codes: dict[Any, Any]

    @classmethod
    def of(cls, linked: Linked, point: Any, groups: Groups, nodes: Nodes) -> "_GivenEffects":
        values = linked.found.of_rows(_with_effects(groups, nodes.z[0].astype(linked.dtype)))
        matrices = {j: x.astype(linked.dtype) for j, x in linked.found.matrices(values).items()}
        etas, codes = linked.etas(point, values, matrices), linked.found.codes(values)
        return cls(linked, point.astype(linked.dtype), groups, nodes, etas, matrices, codes)

    def scale(self, order: Order, z: Any) -> Callable[[int, int | None], Any]:
        """The link derivatives of all rows by arguments, for effects (L, s) of their groups."""
        block = _with_effects(self.groups, z.astype(self.linked.dtype))
        return self.linked.derivatives(order, self.etas, self.theta, block)

    def by_group(self, scale: Callable[[int, int | None], Any]) -> Any:
        """Σ_i A_iᵀ φ'_i over the rows of each group, (L, ·)."""
        parts = []
        for a, argument in enumerate(self.linked.found.arguments):
            slope = jnp.broadcast_to(scale(a, None), (self.groups.num_rows,))
            if argument.matrix is not None:
                parts.append(self.groups.summed(slope[:, None] * self.matrices[argument.matrix]))
            elif argument.codes:
                level = levels(argument.codes, [self.codes[code] for code in argument.codes])
                parts.append(self.groups.tabulated(slope, level, argument.height))
            else:
                parts.append(self.groups.summed(slope)[:, None])
        return jnp.concatenate(parts, axis=1)


def _with_effects(groups: Groups, z: Any) -> dict[str, Any]:
    """The rows of all groups, with the effects of their levels (L, s)."""
    return {**groups.rows, _EFFECTS: groups.of_rows(z), _LEVEL: groups.of_rows(groups.levels)}


def _outer(groups: Groups, each: Any, weights: Any) -> Any:
    """The weighted sum over bundles of the outer products of their score vectors, from those of groups (L, p)."""
    there = jnp.where(groups.present[:, None], each, 0.0)
    scores = jnp.sum(jnp.reshape(there, (groups.bundles, groups.width, -1)), axis=1)
    scores = jnp.where(weights[:, None] > 0, jnp.sqrt(jnp.maximum(weights, 0.0))[:, None] * scores, 0.0)
    return scores.T @ scores


def linked_marginal(marginal: Any, block: Mapping[str, Any]) -> LinkedMarginal | None:
    """The derivatives of bundles of this kind; None if their rows have no such form."""
    flat = {
        name: jax.ShapeDtypeStruct((math.prod(x.shape[:2]), *x.shape[2:]), x.dtype) for name, x in own(block).items()
    }
    dtype = rows_dtype(kind_of(flat))
    few = {
        name: np.zeros((_ROWS_TO_LOOK, *x.shape[1:]), np.float64 if x.dtype.kind == "f" else x.dtype)
        for name, x in flat.items()
    }
    found, exact = _found(marginal, flat, dtype), _found(marginal, few, jnp.float64)
    if found is None or exact is None or not found.num_arguments:
        return None
    if (found.widths, found.heights, *found.coordinates) != (exact.widths, exact.heights, *exact.coordinates):
        # The number of rows is also the length of another axis of some value, which was taken for that of the rows.
        return None
    linked = Linked(found, exact, dtype)
    return LinkedMarginal(marginal, linked) if linked.is_narrow else None


def _found(marginal: Any, rows: Mapping[str, Any], dtype: Any) -> Predictors | None:
    """The linear predictors of rows with given effects, if none of them is a product with these."""
    n = next(iter(rows.values())).shape[0]
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in rows.items()}
    shapes |= {_EFFECTS: jax.ShapeDtypeStruct((n, marginal.places.per_level), dtype)}
    shapes |= {_LEVEL: jax.ShapeDtypeStruct((n,), np.int32)}

    def given_effects(phi: Any, block: Mapping[str, Any]) -> Any:
        plain = {name: block[name] for name in rows}
        return marginal.of_rows(phi, block[_EFFECTS], block[_LEVEL], plain)

    with jax.enable_x64(True):
        program = flattened(given_effects, jax.ShapeDtypeStruct((len(marginal.places.shared),), dtype), shapes)
        found = find_predictors(program, or_coordinates=True)
    if found is None:
        return None
    behind = program.needed([number for cut in found.cuts for number in cut.of_rows], ())
    return None if program.block[_EFFECTS] in behind else found
