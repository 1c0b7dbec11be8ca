"""The groups of a block of bundles: which rows belong to which group, sums over them, and what rows have of groups."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from epvi.site.model.target import Block
from epvi.site.rows.bundles import COUNT, INNER_LEVELS, INNER_LOCAL, LEVELS, LOCAL, PARENT, PILOT

# Places of a bundle from which on it may pay to find out whether effects are nearly Gaussian. Judgement: groups of
# fewer rows hardly ever have such.
_SOME_ROWS = 20


def own(block: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the rows themselves."""
    return {name: column for name, column in block.items() if name not in _OF_BUNDLES}


_OF_BUNDLES = (LOCAL, COUNT, LEVELS, PILOT, INNER_LOCAL, INNER_LEVELS, PARENT)


class Groups:
    """The groups of a block of bundles: where their rows are."""

    def __init__(self, block: Block) -> None:
        local, levels = jnp.asarray(block[LOCAL]), jnp.asarray(block[LEVELS])
        self.bundles, self.places = local.shape
        self.width = levels.shape[1]
        # Absent groups have the number of some level, and no rows.
        self.present = jnp.reshape(levels >= 0, -1)
        self.levels = jnp.reshape(jnp.maximum(levels, 0), -1)
        self.local = local
        first = self.width * jnp.arange(self.bundles, dtype=local.dtype)
        # The group of each row among all of the block.
        self.level = jnp.reshape(local + first[:, None], -1)
        self.used = jnp.arange(self.places)[None] < jnp.asarray(block[COUNT])[:, None]
        # Moments of the groups' effects given φ near some φ₀, if they are known.
        self.pilot = jnp.asarray(block[PILOT]).astype(float) if PILOT in block else None
        self.rows = {name: jnp.reshape(jnp.asarray(x), (-1, *x.shape[2:])) for name, x in own(block).items()}

    @property
    def num_rows(self) -> int:
        """Places for rows, of all bundles."""
        return self.bundles * self.places

    @property
    def num_groups(self) -> int:
        """Groups of all bundles, and room for absent ones."""
        return self.bundles * self.width

    @property
    def may_be_gaussian(self) -> bool:
        """Whether effects may be nearly Gaussian, as far as the number of rows tells."""
        return self.places >= _SOME_ROWS

    def summed(self, rows: Any) -> Any:
        """Sums over the rows of each group, (groups, ...), of numbers of the rows (n, ...).

        They are in float64 if that is enabled.
        """
        others = rows.shape[1:]
        wide = jnp.reshape(rows, (*self.used.shape, *others)).astype(float)
        used = jnp.where(jnp.reshape(self.used, (*self.used.shape, *[1] * len(others))), wide, 0.0)
        if self.width == 1:
            return jnp.sum(used, axis=1)
        flat = jnp.reshape(used, (self.num_rows, *others))
        return jax.ops.segment_sum(flat, self.level, self.num_groups, indices_are_sorted=True)

    def tabulated(self, rows: Any, column: Any, num_columns: int) -> Any:
        """Sums over the rows of each group by a further number that rows have, (groups, num_columns)."""
        used = jnp.where(jnp.reshape(self.used, -1), rows.astype(float), 0.0)
        place = self.level * num_columns + column
        made = jax.ops.segment_sum(used, place, self.num_groups * num_columns)
        return jnp.reshape(made, (self.num_groups, num_columns))

    def of_rows(self, groups: Any) -> Any:
        """What the group of each row has, (n, ...), from numbers of the groups (groups, ...)."""
        others = groups.shape[1:]
        if self.width == 1:
            spread = jnp.broadcast_to(groups[:, None], (self.bundles, self.places, *others))
            return jnp.reshape(spread, (self.num_rows, *others))
        return jnp.take(groups, self.level, axis=0, mode="clip")
