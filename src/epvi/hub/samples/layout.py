"""Names and shapes of the parameters in a flat θ, and the conversion between flat arrays and arrays by name."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError

# Parameter name for the columns of arrays without names.
COLUMNS = "theta"


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The parameters in the order of θ.

    Attributes:
        shapes: shape of each parameter by name.
        named: False if the draws came as arrays without names.
        dims: names of each parameter's axes, as in ArviZ.
        coords: coordinates along each named axis, as in ArviZ.
    """

    shapes: Mapping[str, tuple[int, ...]]
    named: bool
    dims: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Name of each coordinate of θ, such as `w[0]`."""
        return tuple(
            f"{name}[{','.join(map(str, index))}]" if index else name
            for name, shape in self.shapes.items()
            for index in np.ndindex(shape)
        )

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def describe(self) -> str:
        """Names and shapes, for a message."""
        return ", ".join(f"{name} {shape}" if shape else name for name, shape in self.shapes.items())

    def flat(self, values: Mapping[str, np.ndarray]) -> Float[np.ndarray, "n d"]:
        """Flat θ from values by name, (n, *shape) each."""
        return np.concatenate([values[name].reshape(len(values[name]), -1) for name in self.shapes], axis=1)

    def by_name(self, theta: Float[np.ndarray, "n d"]) -> dict[str, np.ndarray]:
        """Values by name, (n, *shape) each, from flat θ."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(theta, ends[:-1], axis=1)
        return {name: part.reshape(-1, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def per_coordinate(self, what: str, value: Any) -> Float[np.ndarray, " d"]:
        """One number per coordinate, from one number for all, d numbers, or a mapping of names to values."""
        if isinstance(value, Mapping):
            if set(value) != set(self.shapes):
                raise EpviError(f"{what} names {', '.join(map(str, value))}: the draws have {self.describe()}.")
            parts = {name: numbers(f"{what}'s {name}", part) for name, part in value.items()}
            for name, shape in self.shapes.items():
                if parts[name].shape not in ((), shape):
                    raise EpviError(f"{what}'s {name} has shape {parts[name].shape}: pass one number, or {shape}.")
            return np.concatenate([np.broadcast_to(parts[name], shape).ravel() for name, shape in self.shapes.items()])
        array = numbers(what, value)
        if array.shape not in ((), (self.dim,)):
            raise EpviError(f"{what} has shape {array.shape}: pass one number, or {self.dim}, one per coordinate.")
        return np.broadcast_to(array, (self.dim,)).copy()


def numbers(what: str, value: Any) -> np.ndarray:
    """`value` as an array of finite floats."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise EpviError(f"{what} cannot be read as numbers: pass a number or an array of floats.") from None
    if not np.all(np.isfinite(array)):
        raise EpviError(f"{what} has NaN or infinite values: pass finite numbers.")
    return array
