"""The parameter space: names, shapes and constraints; maps unconstrained θ ∈ ℝᵈ to named constrained values and back.

Takes and gives plain arrays. NumPyro's bijection of a parameter's support maps its part of θ to its value;
`log_jacobian` is the log-determinant that turns a density of the values into a density of θ.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.distributions import biject_to, constraints

from epvi.ground import validation
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, ArrayLike, promotion_allowed
from epvi.ground.printable import shown

# Largest difference, relative to 1 + |value|, that unconstraining and constraining again may make to a value; more
# means that it was outside its support. Judgement: far above the rounding of float32 input (6e-8).
_SAME = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Parameter:
    """A named parameter."""

    name: str
    # Shape of the constrained value.
    shape: tuple[int, ...]
    # A NumPyro constraint.
    support: Any

    @functools.cached_property
    def transform(self) -> Any:
        """NumPyro's bijection from unconstrained space to the support."""
        return biject_to(self.support)

    @functools.cached_property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of the unconstrained value."""
        return tuple(self.transform.inverse_shape(self.shape))

    @property
    def size(self) -> int:
        """The number of coordinates of θ that belong to it."""
        return math.prod(self.flat_shape)

    @property
    def support_of_one(self) -> Any:
        """The support without `independent` wrappers (a real vector becomes real), which do not affect θ."""
        support = self.support
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        return support

    @property
    def is_real(self) -> bool:
        """Whether the support is the reals, so that the value equals its part of θ."""
        core = self.support_of_one
        return core is constraints.real or type(core) is type(constraints.real)

    def is_equivariant(self, axis: int = 0) -> bool:
        """Whether permuting the value along an axis permutes its unconstrained value in the same way."""
        sizes = self.shape[axis : axis + 1]
        if sizes in ((), (0,)) or self.flat_shape[axis : axis + 1] != sizes:
            return False
        # True without a trial if the bijection maps entries along the axis separately and no bound varies along it.
        bounds, after = jax.tree.leaves(self.support), len(self.shape) - axis
        if self.support_of_one.event_dim < after and all(np.ndim(bound) < after for bound in bounds):
            return True
        with jax.enable_x64(True), promotion_allowed():
            flat = jnp.asarray(np.random.default_rng(0).standard_normal(self.flat_shape))
            turned, value = self.transform(jnp.flip(flat, axis)), jnp.flip(self.transform(flat), axis)
        return np.shape(value) == self.shape and bool(np.allclose(turned, value))

    def is_simplex(self, axis: int = 0) -> bool:
        """Whether the entries along an axis are positive and sum to 1."""
        core = self.support_of_one
        return type(core) is type(constraints.simplex) and axis == len(self.shape) - 1

    def elements(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """Every index into the value, with its label, as in `w[0]`."""
        for index in np.ndindex(self.shape):
            yield index, f"{self.name}[{','.join(map(str, index))}]" if index else self.name


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """All parameters of a model, in the order of their coordinates in θ.

    `exchangeable` holds groups of parameters whose axes may be permuted together without changing the model, such as
    the sources of a source analysis. A name stands for the leading axis of the parameter, "name@1" for the next one.
    """

    parameters: tuple[Parameter, ...]
    exchangeable: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for group in self.exchangeable:
            self._check_group(group)
        names = [self.axis_of(entry)[0].name for group in self.exchangeable for entry in group]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise EpviError(f"exchangeable names {twice[0]} more than once: put it into one group.")

    @functools.cached_property
    def dim(self) -> int:
        """The dimension d of θ."""
        return sum(parameter.size for parameter in self.parameters)

    @functools.cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of θ that belongs to each parameter."""
        ends = np.cumsum([parameter.size for parameter in self.parameters])
        return {p.name: slice(int(end) - p.size, int(end)) for p, end in zip(self.parameters, ends, strict=True)}

    @functools.cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def coordinate(self, i: int) -> str:
        """The label of coordinate i of θ for a message, as in `w[2]`; indices are those of the unconstrained value."""
        name = next(name for name, part in self.slices.items() if part.start <= i < part.stop)
        parameter = self.by_name[name]
        if not parameter.flat_shape:
            return name
        index = np.unravel_index(i - self.slices[name].start, parameter.flat_shape)
        return f"{name}[{','.join(str(int(j)) for j in index)}]"

    def describe(self) -> str:
        """Names and shapes of all parameters, for a message."""
        return shown(", ".join(f"{p.name} {p.shape}" if p.shape else p.name for p in self.parameters))

    def signature(self) -> tuple:
        """A value that is equal for two spaces exactly if their θ have the same meaning."""
        supports = [p.support_of_one for p in self.parameters]
        numbers = [tuple(np.asarray(x).ravel().tolist() for x in jax.tree.leaves(support)) for support in supports]
        kinds = [str(jax.tree.structure(support)) for support in supports]
        listed = zip(self.parameters, kinds, numbers, strict=True)
        return tuple((p.name, p.shape, kind, bounds) for p, kind, bounds in listed), self.exchangeable

    # Pure functions of one θ, for tracing.

    def parts(self, theta: Float[AnyArray, " d"]) -> dict[str, jax.Array]:
        """The unconstrained value of each parameter."""
        theta = jnp.asarray(theta)
        return {p.name: jnp.reshape(theta[self.slices[p.name]], p.flat_shape) for p in self.parameters}

    def values(self, theta: Float[AnyArray, " d"]) -> dict[str, jax.Array]:
        """The constrained value of each parameter."""
        parts = self.parts(theta)
        with promotion_allowed():
            return {p.name: p.transform(parts[p.name]) for p in self.parameters}

    def log_jacobian(self, theta: Float[AnyArray, " d"]) -> jax.Array:
        """Log |∂ value / ∂ θ|, summed over the parameters."""
        parts, values = self.parts(theta), self.values(theta)
        with promotion_allowed():
            logs = [p.transform.log_abs_det_jacobian(parts[p.name], values[p.name]) for p in self.parameters]
            return functools.reduce(jnp.add, [jnp.sum(log) for log in logs], jnp.zeros((), theta.dtype))

    # The same for batches of θ from a caller, in float64 and checked.

    def constrain(self, theta: ArrayLike) -> dict[str, np.ndarray]:
        """Named constrained values, each of shape (..., *shape), for θ of shape (..., d)."""
        theta = validation.points(theta, self.dim)
        values, count = {}, math.prod(theta.shape[:-1])
        for p in self.parameters:
            value = np.array(theta[..., self.slices[p.name]]).reshape(count, *p.flat_shape)
            if not p.is_real:
                with jax.enable_x64(True), promotion_allowed():
                    value = np.asarray(jax.vmap(p.transform)(jnp.asarray(value)))
            values[p.name] = value.reshape((*theta.shape[:-1], *value.shape[1:]))
        return values

    def unconstrain(self, values: Mapping[str, ArrayLike]) -> np.ndarray:
        """θ of shape (..., d) for named constrained values of shapes (..., *shape)."""
        missing = [name for name in self.by_name if name not in values]
        unknown = [name for name in values if name not in self.by_name]
        if missing or unknown:
            raise EpviError(
                f"values name {', '.join(map(str, values)) or 'nothing'}: pass exactly {', '.join(self.by_name)}."
            )
        arrays = {name: validation.finite_array(name, values[name]) for name in self.by_name}
        for p in self.parameters:
            if arrays[p.name].shape[arrays[p.name].ndim - len(p.shape) :] != p.shape:
                raise EpviError(f"{p.name} has shape {arrays[p.name].shape}: its last axes must be {p.shape}.")
        batch = {arrays[p.name].shape[: arrays[p.name].ndim - len(p.shape)] for p in self.parameters}
        if len(batch) > 1:
            raise EpviError(f"the values have different leading axes {sorted(batch)}: pass the same for all.")
        with jax.enable_x64(True), promotion_allowed():
            flat = [p.transform.inv(jnp.asarray(arrays[p.name])) for p in self.parameters]
            sizes = [(*next(iter(batch)), p.size) for p in self.parameters]
            theta = np.asarray(jnp.concatenate([jnp.reshape(x, s) for x, s in zip(flat, sizes, strict=True)], axis=-1))
        # Some inverses accept values outside the support (a simplex that does not sum to 1): the round trip tells.
        again = self.constrain(theta)
        for name, value in arrays.items():
            inside = np.all(np.isfinite(theta[..., self.slices[name]]))
            if not inside or np.any(np.abs(again[name] - value) > _SAME * (1 + np.abs(value))):
                raise EpviError(f"{name} is outside or on the edge of its support: pass values inside it.")
        return theta

    # Exchangeable groups.

    def axis_of(self, entry: str) -> tuple[Parameter, int]:
        """The parameter and the axis that an entry of a group stands for: "name", or "name@1"."""
        name, at, axis = entry.rpartition("@")
        if entry not in self.by_name and at and axis.isdecimal() and name in self.by_name:
            return self.by_name[name], int(axis)
        if entry not in self.by_name:
            raise EpviError(f"exchangeable names {entry!r}, which is not a parameter of ({self.describe()}).")
        return self.by_name[entry], 0

    def _check_group(self, group: tuple[str, ...]) -> None:
        axes = [self.axis_of(entry) for entry in group]
        sizes = {parameter.shape[axis : axis + 1] for parameter, axis in axes}
        if len(sizes) != 1 or not all(p.is_equivariant(axis) or p.is_simplex(axis) for p, axis in axes):
            raise EpviError(
                f"exchangeable names {', '.join(group)}: these parameters need leading axes of one length (or others,"
                ' named as in "name@1"), and supports that treat the entries along it alike.'
            )

    def blocks(self, group: tuple[str, ...]) -> np.ndarray:
        """The coordinates of θ of each of the L exchangeable units of a group, of shape (L, coordinates per unit).

        Weights on a simplex have none of their own: what permutes is a function of all of them.
        """
        rows = [np.zeros((self.length(group), 0), np.int64)]
        for parameter, axis in map(self.axis_of, group):
            if not parameter.is_simplex(axis):
                part = np.arange(self.dim)[self.slices[parameter.name]].reshape(parameter.flat_shape)
                rows.append(np.moveaxis(part, axis, 0).reshape(len(rows[0]), -1))
        return np.concatenate(rows, axis=1)

    def length(self, group: tuple[str, ...]) -> int:
        """L, the number of units of a group."""
        parameter, axis = self.axis_of(group[0])
        return parameter.shape[axis]

    def simplexes(self, group: tuple[str, ...]) -> list[np.ndarray]:
        """The coordinates of θ of each simplex whose categories are the units of a group, of shape (L − 1,) each."""
        found = []
        for parameter, axis in map(self.axis_of, group):
            if parameter.is_simplex(axis):
                part = np.arange(self.dim)[self.slices[parameter.name]]
                found.extend(part.reshape(-1, parameter.flat_shape[-1]))
        return found
