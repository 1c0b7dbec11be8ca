"""A model with its group effects integrated out: a target over the other parameters φ, with bundles of groups as rows.

Takes a model and its group effects (`group_effects.py`); gives a `Model` of the same kind, so that everything that fits
and scores models works on it:

    log p(bundle | φ) = Σ_g log ∫ Π_{i in g} p(row_i | z_g, φ) p(z_g | φ) dz_g

over the groups g of the bundle. The prior of the effects is inside the integrals, at full power, because each group
lies in one shard; the prior of φ, which shards share, is that of the target.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.parameters.group_effects import GroupEffects
from epvi.site.derivatives.by_level import LevelProgram, Places, trace_by_level
from epvi.site.derivatives.effect_audit import audit_of
from epvi.site.derivatives.effect_draws import draw_effects, integral_errors
from epvi.site.derivatives.groups import Groups, own
from epvi.site.derivatives.integral import (
    HARDLY_ANY,
    MOST_ON_A_GRID,
    Joint,
    Nodes,
    departure,
    finer_nodes_of,
    joint_at,
    log_integrals,
    moments,
    nodes_about,
    nodes_for_moments,
    nodes_of,
    shapes,
)
from epvi.site.derivatives.through_marginal import LinkedMarginal, linked_marginal
from epvi.site.model.model import Model
from epvi.site.model.target import Block, Target
from epvi.site.rows.bundles import COUNT, LOCAL

# Rows, counted once for each φ, for which moments of effects are computed at a time. Judgement: their numbers at all
# nodes stay in the cache of a core.
_ROWS_AT_ONCE = 2**12


class IntegratedModel(Model):
    """A model whose rows are bundles of groups, with the groups' effects integrated out."""

    def __init__(self, base: Model, effects: GroupEffects) -> None:
        self.base, self.effects = base, effects
        self.name, self.fixed = base.name, base.fixed

    def takes(self, name: str) -> bool:
        """Whether the model of rows has an argument of this name that is not fixed."""
        return self.base.takes(name)

    def columns(self, names: Any) -> None:
        """Accept all columns: those of the rows were checked."""

    def parts(self) -> tuple:
        """Everything that defines the model, for its hash."""
        return "integrated", *self.base.parts(), dataclasses.astuple(self.effects)

    def on(self, rows: Mapping[str, np.ndarray]) -> Target:
        """The target for bundles with these columns."""
        return self.marginal(rows).target()

    def marginal(self, rows: Mapping[str, np.ndarray]) -> "Marginal":
        """The marginal likelihood for bundles with these columns."""
        flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in own(rows).items()}
        base = self.base.on(flat)
        places = Places(self.effects.places(base.space), base.space.dim)
        return Marginal(base, self.effects, places, rows[LOCAL].shape[1])


@dataclasses.dataclass(eq=False)
class Marginal:
    """The likelihood of bundles with the groups' effects integrated out."""

    base: Target
    effects: GroupEffects
    places: Places
    # Places for rows in a bundle.
    size: int

    def target(self) -> Target:
        """The target over φ."""
        return Target(
            self.effects.shared_space(self.base.space),
            functools.partial(self._shared_prior, self.prior),
            functools.partial(self._shared_prior, self.prior_again),
            self.log_likelihood,
            None,
            lambda block: {},
            terms=self.base.terms * self.size,
            proper=self.base.proper,
            bundle=self.size,
            counted=COUNT,
            conditional=self.conditional,
            conditional_values=self.conditional_values,
            audit=self.audit,
            links=self.links,
            draw_effects=self.draw_effects,
            integral_errors=self.integral_errors,
        )

    @functools.cached_property
    def prior(self) -> LevelProgram:
        """The log prior by level."""
        return self._traced(lambda theta, _: self.base.log_prior(theta), np.dtype(np.float64), {})

    @functools.cached_property
    def prior_again(self) -> LevelProgram:
        """The same from another number of example rows."""
        return self._traced(lambda theta, _: self.base.log_prior_again(theta), np.dtype(np.float64), {})

    def _traced(self, function: Any, dtype: Any, shapes: Mapping[str, Any]) -> LevelProgram:
        theta = jax.ShapeDtypeStruct((self.places.dim,), dtype)
        with jax.enable_x64(True):
            made = trace_by_level(function, theta, shapes, self.places)
        assert made is not None, "group effects were found in a model that has none"
        return made

    def _shared_prior(self, program: LevelProgram, phi: Any) -> Any:
        """Log p(φ), without the effects' part."""
        nothing = jnp.zeros((1, self.places.per_level), phi.dtype)
        return program.run(nothing, phi, jnp.zeros(1, jnp.int32), {}, None)[0]

    def log_likelihood(self, phi: Any, block: Block) -> Any:
        """The log likelihood of each bundle, with the effects of its groups integrated out."""
        with promotion_allowed():
            groups = self.groups(block)
            joint, nodes = self.at(phi, groups)
            found = jnp.where(groups.present, log_integrals(joint, nodes), 0.0)
            return jnp.sum(jnp.reshape(found, (groups.bundles, groups.width)), axis=1)

    def groups(self, block: Block) -> Groups:
        """The groups of a block."""
        return Groups(block)

    def at(self, phi: Any, groups: Groups) -> tuple[Joint, Nodes]:
        """The joint density of each group and its effects, and the nodes over these."""
        fixed = jax.lax.stop_gradient(phi)
        if groups.pilot is not None:
            return self.joint(phi, groups)[0], self._foreseen(fixed.astype(float), groups)
        start = jnp.zeros((groups.num_groups, self.places.per_level))
        present = groups.present if groups.may_be_gaussian else None
        return self.joint(phi, groups)[0], nodes_of(*self.joint(fixed, groups), start, present)

    def finer_at(self, phi: Any, groups: Groups) -> tuple[Joint, Nodes]:
        """The same with more nodes."""
        start = jnp.zeros((groups.num_groups, self.places.per_level))
        return self.joint(phi, groups)[0], finer_nodes_of(*self.joint(phi, groups), start)

    def joint(self, phi: Any, groups: Groups) -> tuple[Joint, Joint]:
        """The joint density of each group and its effects, and its part that is the effects' prior."""
        levels = groups.of_rows(groups.levels)
        program = self._program(phi, groups.rows)
        # Computed once for all effects at which the density is needed.
        known = program.without_effects(phi, levels, groups.rows)

        def prior(z: Any) -> Any:
            return self.prior_of_effects(phi.astype(float), z, groups.levels)

        def joint(z: Any) -> Any:
            rows = program.run(groups.of_rows(z.astype(phi.dtype)), phi, levels, groups.rows, None, known)[0]
            return groups.summed(rows) + prior(z)

        return joint, prior

    def prior_of_effects(self, phi: Any, z: Any, levels: Any) -> Any:
        """Log p(z | φ) of effects (L, s) of some levels, (L,)."""
        return functools.reduce(jnp.add, self.prior.terms(z, phi, levels))

    def of_rows(self, phi: Any, z: Any, levels: Any, rows: Mapping[str, Any]) -> Any:
        """The log likelihood of each row (n,), given the effects (n, s) of its level and the number of that (n,)."""
        return self._program(phi, rows).run(z, phi, levels, rows, None)[0]

    def _program(self, phi: Any, rows: Mapping[str, Any]) -> LevelProgram:
        """The likelihood by level, for rows of these shapes."""
        shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in rows.items()}
        kind = (phi.dtype, *((name, x.shape, x.dtype) for name, x in shapes.items()))
        if kind not in self._programs:
            self._programs[kind] = self._traced(self.base.log_likelihood, phi.dtype, shapes)
        return self._programs[kind]

    @functools.cached_property
    def _programs(self) -> dict[Any, LevelProgram]:
        """The likelihood by level, by shapes of the rows."""
        return {}

    def links(self, block: Block) -> LinkedMarginal | None:
        """Derivatives through the linear predictors of rows, for blocks of this kind."""
        return linked_marginal(self, block)

    @functools.cached_property
    def conditional(self) -> Any:
        """The function of φ and a block that gives moments of the groups' effects given φ, and derivatives in φ.

        Derivatives of mean, root and log integral, and values of mean, root and shape. A last argument says whether
        shapes are needed; otherwise moments come from the nodes of the integrals.
        """

        def plain(phi: Any, block: Block, shaped: Any) -> tuple[Any, Any]:
            mean, root, shape, log_integral = self._moments(phi, self.groups(block), shaped)
            return (mean, root, log_integral), (mean, root, shape)

        def conditional(phi: Any, block: Block, shaped: Any) -> tuple[Any, Any]:
            with promotion_allowed():
                linked = self.links(block)
                if linked is None:
                    return jax.jacfwd(plain, has_aux=True)(phi, block, shaped)
                groups = self.groups(block)
                nodes, logs = self._for_moments(phi, groups, shaped)[:2]
                weights = jax.nn.softmax(logs, axis=0)
                away = linked.gradients(phi, groups, nodes)
                scores = jnp.einsum("ql,qlp->lp", weights, away)
                moved = weights[..., None] * (away - scores)
                values, along = jax.linearize(lambda weights: moments(weights, nodes.z), weights)
                slopes = jax.vmap(along, -1, -1)(moved)
                return (*slopes, scores), (*values, shapes(weights, nodes.z, *values))

        return jax.jit(conditional)

    @functools.cached_property
    def conditional_values(self) -> Any:
        """The function of several φ (S, p) and a block that gives these moments at each, and the log integrals."""

        def values(phi: Any, block: Block) -> tuple[Any, ...]:
            with promotion_allowed():
                groups = self.groups(block)
                # A divisor of the number of points: the rest would be a second program.
                at_once = math.gcd(2 ** int(math.log2(max(_ROWS_AT_ONCE // groups.num_rows, 1))), phi.shape[0])
                return jax.lax.map(lambda one: self._moments(one, groups), phi, batch_size=at_once)

        return jax.jit(values)

    @functools.cached_property
    def draw_effects(self) -> Any:
        """The function of several φ (S, p), a key and a block that gives moments and a draw of the effects at each."""
        return jax.jit(functools.partial(draw_effects, self))

    @functools.cached_property
    def integral_errors(self) -> Any:
        """The function of several φ (S, p) and a block that gives the error of the sum of its log integrals at each."""
        return jax.jit(functools.partial(integral_errors, self))

    def _moments(self, phi: Any, groups: Groups, shaped: Any = True) -> tuple[Any, Any, Any, Any]:
        """Mean, root of the covariance and shape of the groups' effects given φ, and the log integrals."""
        nodes, logs, log_integral = self._for_moments(phi, groups, shaped)
        weights = jax.nn.softmax(logs, axis=0)
        mean, root = moments(weights, nodes.z)
        return mean, root, shapes(weights, nodes.z, mean, root), log_integral

    def _for_moments(self, phi: Any, groups: Groups, shaped: Any) -> tuple[Nodes, Any, Any]:
        """Nodes and the joint density there, for moments; and the log integrals by the nodes of the integral."""
        joint, nodes = self.at(phi, groups)
        logs = joint_at(joint, nodes)
        log_integral = jax.nn.logsumexp(logs, axis=0)
        if self.places.per_level > MOST_ON_A_GRID:
            return nodes, logs, log_integral
        weights = jax.nn.softmax(logs, axis=0)
        mean, root = moments(weights, nodes.z)
        enough = False if shaped is True else ~shaped
        if groups.may_be_gaussian:
            skewed = jnp.where(groups.present, departure(shapes(weights, nodes.z, mean, root)), 0.0)
            enough |= jnp.max(skewed) <= HARDLY_ANY
        nodes = nodes_for_moments(mean, root, nodes, enough)
        return nodes, joint_at(joint, nodes), log_integral

    @functools.cached_property
    def audit(self) -> Any:
        """The function that judges approximate conditional distributions of effects: see `effect_audit.py`."""
        return audit_of(self)

    def _foreseen(self, phi: Any, groups: Groups) -> Nodes:
        """The nodes from moments that are known near φ, without a search for the modes."""
        s, p = self.places.per_level, phi.shape[0]
        t = s * (s + 1) // 2
        assert groups.pilot is not None
        flat = jnp.reshape(groups.pilot, (groups.num_groups, -1))
        delta = phi - flat[:, :p]
        parts = np.cumsum([s, t, s * p, t * p, 1])
        mean, root, mean_slope, root_slope, skewed, few = jnp.split(flat[:, p:], parts, axis=1)
        mean = mean + jnp.sum(jnp.reshape(mean_slope, (-1, s, p)) * delta[:, None], axis=2)
        root = root + jnp.sum(jnp.reshape(root_slope, (-1, t, p)) * delta[:, None], axis=2)
        if not groups.may_be_gaussian:
            return nodes_about(mean, root)
        return nodes_about(mean, root, skewed[:, 0], groups.present, jnp.all(few > 0))
