"""A model with two nested factors integrated out, such as classes in schools: a target over the other parameters φ.

Takes a model and the effects of both factors, a_g of groups g and b_h of the larger groups h that they lie in; gives a
`Model` of the same kind as that of one factor (`integrated.py`), with bundles of larger groups as rows:

    log p(bundle | φ) = Σ_h log ∫ p(b_h | φ) Π_{g in h} [∫ p(a_g | φ) Π_{i in g} p(row_i | a_g, b_h, φ) da_g] db_h

There is one effect for each level of a factor. The inner integrals are by Gauss-Hermite quadrature about the modes of
the a_g given b_h, which move linearly with b_h near the mode of both (`nested_modes.py`); the outer ones are those of
`integral.py`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.parameters.group_effects import GroupEffects
from epvi.site.derivatives.by_level import LevelProgram, Places
from epvi.site.derivatives.groups import Groups
from epvi.site.derivatives.integral import (
    HARDLY_ANY,
    SLIGHT,
    Joint,
    Nodes,
    departure_at,
    finer_nodes_at,
    nodes_at,
    typical,
)
from epvi.site.derivatives.integrated import IntegratedModel, Marginal
from epvi.site.derivatives.nested_modes import InnerModes, NestedModes, nested_modes
from epvi.site.model.model import Model
from epvi.site.model.target import Block, Target
from epvi.site.rows.bundles import INNER_LEVELS, INNER_LOCAL, LEVELS, LOCAL, PARENT

# Nodes of the inner integrals: where effects given the larger group's are slightly, hardly, and not skewed, there are
# fewer of them. Judgement: as for a single factor.
_NODES, _FEWER_NODES, _FEWEST_NODES, _EXACT_NODES = 9, 7, 5, 3
# Departures that count as none, and the powers with which errors grow: see `integral.py`.
_NONE, _BY_SEVEN, _BY_FIVE, _BY_THREE = 1e-3, 6, 4, 2


class NestedModel(IntegratedModel):
    """A model whose rows are bundles of larger groups, with their effects and those of the groups integrated out."""

    def __init__(self, base: Model, effects: GroupEffects, outer: GroupEffects) -> None:
        super().__init__(base, effects)
        self.outer = outer

    def parts(self) -> tuple:
        """Everything that defines the model, for its hash."""
        return "nested", *super().parts(), self.outer.names, self.outer.axes, self.outer.num_levels

    def marginal(self, rows: Mapping[str, np.ndarray]) -> "NestedMarginal":
        """The marginal likelihood for bundles with these columns."""
        inner = super().marginal(rows)
        space = inner.base.space
        return NestedMarginal(
            inner.base, self.outer, Places(self.outer.places(space), space.dim), rows[LOCAL].shape[1], inner
        )


class NestedGroups(Groups):
    """The larger groups of a block of bundles, and the groups that lie in them."""

    def __init__(self, block: Block) -> None:
        super().__init__({name: column for name, column in block.items() if name not in _INNER})
        self.inner = Groups(inner_columns(block))
        parent = jnp.asarray(block[PARENT])
        first = self.width * jnp.arange(self.bundles, dtype=parent.dtype)
        self._parent = jnp.reshape(parent + first[:, None], -1)

    def of_inner(self, larger: Any) -> Any:
        """What the larger group of each group has."""
        return jnp.take(larger, self._parent, axis=0, mode="clip")

    def summed_inner(self, numbers: Any) -> Any:
        """Sums over the groups of each larger one; absent groups count as zero."""
        there = jnp.where(self.inner.present, numbers, 0.0)
        return jax.ops.segment_sum(there, self._parent, self.num_groups)


_INNER = (INNER_LOCAL, INNER_LEVELS, PARENT)


def inner_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same bundles as bundles of the groups that lie in the larger ones."""
    made = {name: column for name, column in columns.items() if name not in _INNER}
    return dict(sorted({**made, LOCAL: columns[INNER_LOCAL], LEVELS: columns[INNER_LEVELS]}.items()))


class NestedMarginal(Marginal):
    """The likelihood of bundles with the effects of both factors integrated out.

    `base`, `effects` and `places` are those of the larger groups; `inner` has the other factor integrated out.
    """

    def __init__(self, base: Target, effects: GroupEffects, places: Places, size: int, inner: Marginal) -> None:
        super().__init__(base, effects, places, size)
        self.inner = inner
        # The coordinates that remain when the inner effects are integrated out, and among them b and φ.
        self._rest = inner.places.shared
        self._outer = np.searchsorted(self._rest, places.effects[:, 0])
        self._phi = np.setdiff1d(np.arange(len(self._rest)), self._outer)
        # φ among all coordinates but b.
        self._beside = np.searchsorted(places.shared, self._rest[self._phi])

    def target(self) -> Target:
        """The target over φ."""
        return dataclasses.replace(
            super().target(),
            space=self.effects.shared_space(self.inner.effects.shared_space(self.base.space)),
            conditional=None,
            draw_effects=None,
            links=lambda block: None,
            inner=self.inner.target(),
        )

    def groups(self, block: Block) -> NestedGroups:
        """The groups of a block."""
        return NestedGroups(block)

    def _shared_prior(self, program: LevelProgram, phi: Any) -> Any:
        """Log p(φ), without the effects' parts."""
        rest = self.inner.prior if program is self.prior else self.inner.prior_again
        nothing = jnp.zeros(len(self._outer), phi.dtype)
        whole = self.inner._shared_prior(rest, self._beside_b(phi, nothing))
        levels = jnp.arange(len(self._outer))
        return whole - jnp.sum(self._prior_by(program, phi, nothing[:, None], levels))

    def _beside_b(self, phi: Any, b: Any) -> Any:
        """The coordinates that the inner integrals depend on."""
        made = jnp.zeros(len(self._rest), phi.dtype).at[self._phi].set(phi)
        return made.at[self._outer].set(b.astype(phi.dtype))

    def prior_of_effects(self, phi: Any, z: Any, levels: Any) -> Any:
        """Log p(b | φ) of effects (P, 1) of some levels, (P,)."""
        return self._prior_by(self.prior, phi, z, levels)

    def _prior_by(self, program: LevelProgram, phi: Any, z: Any, levels: Any) -> Any:
        others = jnp.zeros(len(self.places.shared), phi.dtype).at[self._beside].set(phi)
        return functools.reduce(jnp.add, program.terms(z, others, levels))

    def joint(self, phi: Any, groups: Groups) -> tuple[Joint, Joint]:
        """The density of each larger group's effect and rows, with the inner effects integrated out."""
        assert isinstance(groups, NestedGroups)
        about = self._about(jax.lax.stop_gradient(phi), groups)
        return self._joint(phi, groups, about), self._prior(phi, groups)

    def at(self, phi: Any, groups: Groups) -> tuple[Joint, Nodes]:
        """The joint density of each larger group and its effect, and the nodes over that."""
        assert isinstance(groups, NestedGroups)
        fixed = jax.lax.stop_gradient(phi)
        about = self._about(fixed, groups)
        near = self._joint(fixed, groups, about)
        found = about.modes.outer._replace(value=near(about.modes.outer.z))
        present = groups.present if groups.may_be_gaussian else None
        return self._joint(phi, groups, about), nodes_at(near, found, present)

    def finer_at(self, phi: Any, groups: Groups) -> tuple[Joint, Nodes]:
        """The same with more nodes."""
        assert isinstance(groups, NestedGroups)
        about = self._about(jax.lax.stop_gradient(phi), groups)
        return self._joint(phi, groups, about), finer_nodes_at(about.modes.outer)

    def _about(self, phi: Any, groups: NestedGroups) -> "_About":
        """The modes, and the inner nodes."""
        both = self._both(phi, groups)
        modes = nested_modes(both, self._prior_of_inner(phi, groups), self._prior(phi, groups), groups)
        return jax.tree.map(jax.lax.stop_gradient, _About(modes, *_inner_rule(both, groups, modes.inner)))

    def _both(self, phi: Any, groups: NestedGroups) -> Any:
        """The function of a (L,) and b (P,) that gives the log joint density of each group and its effect, (L,)."""

        def both(a: Any, b: Any) -> Any:
            return self.inner.joint(self._with(phi, b, groups), groups.inner)[0](a[:, None])

        return both

    def _prior_of_inner(self, phi: Any, groups: NestedGroups) -> Joint:
        rest = self._beside_b(phi, jnp.zeros(len(self._outer)))
        return self.inner.joint(rest, groups.inner)[1]

    def _prior(self, phi: Any, groups: NestedGroups) -> Joint:
        def prior(z: Any) -> Any:
            return self.prior_of_effects(phi.astype(float), z, groups.levels)

        return prior

    def _with(self, phi: Any, b: Any, groups: NestedGroups) -> Any:
        """φ and the effects of the larger groups of a block; all others are 0."""
        beyond = len(self._outer)
        places = jnp.where(groups.present, groups.levels, beyond)
        return self._beside_b(phi, jnp.zeros(beyond + 1, b.dtype).at[places].set(b)[:beyond])

    def _joint(self, phi: Any, groups: NestedGroups, about: "_About") -> Joint:
        """The log density of larger groups at effects (P, 1), by inner nodes about known modes."""
        both, prior, inner = self._both(phi, groups), self._prior(phi, groups), about.modes.inner
        width = np.sqrt(2.0) / jnp.sqrt(inner.curvature)

        def joint(z: Any) -> Any:
            b = z[:, 0]
            centre = inner.a + inner.slope * groups.of_inner(jax.lax.stop_gradient(b) - inner.b)

            def one(given: Any) -> Any:
                number, node, weight = given

                def there(_: Any) -> Any:
                    return both(centre + node * width, b) + weight + jnp.log(width)

                nothing = jax.eval_shape(there, 0)
                return jax.lax.cond(
                    number < about.used, there, lambda _: jnp.full(nothing.shape, -jnp.inf, nothing.dtype), 0
                )

            logs = jax.lax.map(one, (jnp.arange(_NODES), about.x, about.log_weight))
            return prior(z) + groups.summed_inner(jax.nn.logsumexp(logs, axis=0))

        return joint


class _About(NamedTuple):
    """The modes of both effects, and the nodes of the inner integrals, of which the first ones count."""

    modes: NestedModes
    x: Any
    log_weight: Any
    used: Any


def _inner_rule(both: Any, groups: NestedGroups, about: InnerModes) -> tuple[Any, Any, Any]:
    """Inner nodes, log weights, and how many of them count: fewer where effects are nearly Gaussian."""
    with promotion_allowed():
        found = about.as_modes(both(about.a, about.b))
        away = departure_at(lambda z: both(z[:, 0], about.b), found)
    present = groups.inner.present
    slight, hardly, none = (typical(away, present, power) for power in (_BY_SEVEN, _BY_FIVE, _BY_THREE))
    x, log_w = (jnp.asarray(part) for part in _padded(_NODES))
    used = jnp.asarray(_NODES)
    fewer = (slight <= SLIGHT, _FEWER_NODES), (hardly <= HARDLY_ANY, _FEWEST_NODES), (none <= _NONE, _EXACT_NODES)
    for holds, count in fewer:
        x, log_w = (jnp.where(holds, a, b) for a, b in zip(_padded(count), (x, log_w), strict=True))
        used = jnp.where(holds, count, used)
    return x, log_w, used


def _padded(count: int) -> tuple[np.ndarray, np.ndarray]:
    """So many nodes, and log weights for a density that is not divided by exp(−x²), filled up."""
    x, w = np.polynomial.hermite.hermgauss(count)
    filled = np.minimum(np.arange(_NODES), count - 1)
    return x[filled], (np.log(w) + x**2)[filled]
