"""Which parameters are effects of the levels of a factor, and which coordinates of θ belong to each level."""

import dataclasses

import numpy as np
from jaxtyping import Int

from epvi.parameters.space import Space


@dataclasses.dataclass(frozen=True)
class GroupEffects:
    """Parameters with one entry, or a few, for each of G levels; `axes` are the axes of levels of their coordinates."""

    names: tuple[str, ...]
    axes: tuple[int, ...]
    num_levels: int

    def places(self, space: Space) -> Int[np.ndarray, "G s"]:
        """The coordinates of θ that are the effects of each level."""
        found = []
        for name, axis in zip(self.names, self.axes, strict=True):
            own = np.arange(space.dim)[space.slices[name]].reshape(space.by_name[name].flat_shape)
            found.append(np.moveaxis(own, axis, 0).reshape(self.num_levels, -1))
        return np.concatenate(found, axis=1)

    def shared_space(self, space: Space) -> Space:
        """The space of the other parameters."""
        own = {name for name in space.by_name if name in self.names}
        groups = (group for group in space.exchangeable if not own & {space.axis_of(one)[0].name for one in group})
        return Space(tuple(one for one in space.parameters if one.name not in own), tuple(groups))
