"""Caches Taylor expansions of a shard with many rows, so that later rounds near the same point need no new pass.

Stores points with value, gradient and Hessian, in memory or in a file that other processes read as well.
"""

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from epvi.site.derivatives.expansion import Taylor
from epvi.site.derivatives.fourth_order import FourthOrder

# Largest squared distance δᵀ|H|δ at which an expansion is reused: half a standard deviation of the subposterior.
# Judgement; the error is estimated again whenever an expansion is used.
NEAR = 0.25
# Names in the file of the point of the influences, and of these.
_INFLUENCE = "about", "influence"


@dataclasses.dataclass(eq=False)
class ExpansionCache:
    """The known Taylor expansions of one shard's log density."""

    # Where they are stored; None for memory only.
    file: Path | None = None
    # The points with their expansions.
    known: list[tuple[Float[np.ndarray, " d"], Taylor]] = dataclasses.field(default_factory=list)
    # Terms of third and fourth order, by the bytes of these points; in memory only.
    higher: dict[bytes, FourthOrder] = dataclasses.field(default_factory=dict)
    # The first point with its expansion, near which terms of higher order may be taken over from it.
    first: tuple[Float[np.ndarray, " d"], Taylor] | None = None
    # A point and the influence of each row about it (see `subsamples.py`), where it was needed.
    influence: tuple[Float[np.ndarray, " d"], Float[np.ndarray, " N"]] | None = None

    def near(self, point: Float[np.ndarray, " d"]) -> tuple[np.ndarray, Taylor] | None:
        """The nearest known point with its expansion; None if it is too far."""
        self._read()
        found = [(float(taylor.distances(point - centre)), i) for i, (centre, taylor) in enumerate(self.known)]
        if not found or min(found)[0] > NEAR:
            return None
        return self.known[min(found)[1]]

    def add(self, centre: Float[np.ndarray, " d"], taylor: Taylor) -> None:
        """Store an expansion."""
        self.known.append((centre, taylor))
        self._write()

    def influence_near(self, centre: Float[np.ndarray, " d"], taylor: Taylor) -> Float[np.ndarray, " N"] | None:
        """The known influence of each row, if it is about a point no farther from the centre than draws are."""
        self._read()
        if self.influence is None or taylor.distances(centre - self.influence[0]) > len(centre):
            return None
        return self.influence[1]

    def add_influence(self, centre: Float[np.ndarray, " d"], influence: Float[np.ndarray, " N"]) -> None:
        """Store the influence of each row about a point."""
        self.influence = centre, influence
        self._write()

    def _write(self) -> None:
        if self.file is None:
            return
        arrays = {f"{name}{i}": x for i, (c, t) in enumerate(self.known) for name, x in _named(c, t).items()}
        if self.influence is not None:
            arrays |= dict(zip(_INFLUENCE, self.influence, strict=True))
        write_arrays(self.file, arrays)

    def _read(self) -> None:
        if self.known or self.file is None or not self.file.exists():
            return
        with np.load(self.file, allow_pickle=False) as arrays:
            for i in range(sum(name.startswith("centre") for name in arrays)):
                taylor = Taylor(float(arrays[f"value{i}"]), arrays[f"gradient{i}"], arrays[f"hessian{i}"])
                self.known.append((arrays[f"centre{i}"], taylor))
            if all(name in arrays for name in _INFLUENCE):
                about, influence = (arrays[name] for name in _INFLUENCE)
                self.influence = about, influence


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays by atomic rename; failing to is harmless, since the next round then makes one more pass."""
    part = file.with_name(f"{file.stem}-{secrets.token_hex(4)}.npz")
    with contextlib.suppress(OSError):
        np.savez(part, allow_pickle=False, **arrays)
        os.replace(part, file)


def _named(centre: np.ndarray, taylor: Taylor) -> dict[str, np.ndarray]:
    named = {"centre": centre, "value": taylor.value, "gradient": taylor.gradient, "hessian": taylor.hessian}
    return {name: np.asarray(x) for name, x in named.items()}
