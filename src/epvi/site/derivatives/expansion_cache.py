"""Expansions of a tall shard that were made before: another round that asks near one need not pass over the rows again.

Takes points with value, gradient and curvature there; gives them back. With a file, other processes have them too.
"""

import contextlib
import dataclasses
import os
import secrets
from pathlib import Path

import numpy as np
from jaxtyping import Float

from epvi.site.derivatives.expansion import Taylor

# How far from a point its expansion is still used, as δᵀ|H|δ of the shard's own curvature: half of one of its sds.
_NEAR = 0.25


@dataclasses.dataclass(eq=False)
class ExpansionCache:
    """What is known of one shard's log density at some points."""

    file: Path | None = None
    known: list[tuple[Float[np.ndarray, " d"], Taylor]] = dataclasses.field(default_factory=list)

    def near(self, point: Float[np.ndarray, " d"]) -> tuple[np.ndarray, Taylor] | None:
        """The expansion about the nearest known point, if that is near enough."""
        self._read()
        found = [(float(taylor.distances(point - centre)), i) for i, (centre, taylor) in enumerate(self.known)]
        if not found or min(found)[0] > _NEAR:
            return None
        return self.known[min(found)[1]]

    def add(self, centre: Float[np.ndarray, " d"], taylor: Taylor) -> None:
        """Remember an expansion."""
        self.known.append((centre, taylor))
        if self.file is None:
            return
        arrays = {f"{name}{i}": x for i, (c, t) in enumerate(self.known) for name, x in _named(c, t).items()}
        part = self.file.with_name(f"{self.file.stem}-{secrets.token_hex(4)}.npz")
        with contextlib.suppress(OSError):
            # Without it the next round passes over the rows once more.
            np.savez(part, allow_pickle=False, **arrays)
            os.replace(part, self.file)

    def _read(self) -> None:
        if self.known or self.file is None or not self.file.exists():
            return
        with np.load(self.file, allow_pickle=False) as arrays:
            for i in range(sum(name.startswith("centre") for name in arrays)):
                taylor = Taylor(float(arrays[f"value{i}"]), arrays[f"gradient{i}"], arrays[f"hessian{i}"])
                self.known.append((arrays[f"centre{i}"], taylor))


def _named(centre: np.ndarray, taylor: Taylor) -> dict[str, np.ndarray]:
    named = {"centre": centre, "value": taylor.value, "gradient": taylor.gradient, "hessian": taylor.hessian}
    return {name: np.asarray(x) for name, x in named.items()}
