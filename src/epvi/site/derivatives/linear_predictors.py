"""Finds the linear predictors η = X(rows) W(θ) of a likelihood in its jaxpr.

Takes the log likelihood of each row as a function; returns its three pieces X, W and φ, or None without such a form:

    ℓ_i(θ) = φ(η_i, θ_S, row i),   η_i = W(θ)ᵀ x_i,   x_i a function of row i alone

Any matrix product of a function of the rows with a function of θ is a linear predictor, whatever the link φ is and
however W depends on θ; S are the few coordinates of θ that φ uses directly (an intercept, a scale). The derivatives of
φ are then a few scalars per row, and matrix products do the rest. If φ has too many arguments, this form is not used.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from epvi.ground.float64 import promotion_allowed

# Primitives for calls, which are inlined, so that a product inside a jitted function is found too.
_CALLS = ("jit", "pjit", "closed_call", "core_call")


class _Operation(NamedTuple):
    """One primitive operation of the jaxpr; values are identified by numbers."""

    # The equation of the jaxpr.
    equation: Any
    # Numbers of its inputs, or constants.
    inputs: tuple[Any, ...]
    # Numbers of its outputs.
    outputs: tuple[int, ...]

    def run(self, values: dict[int, Any]) -> None:
        """Compute the outputs from the inputs."""
        primitive = self.equation.primitive
        arguments = [values[one] if isinstance(one, int) else one.value for one in self.inputs]
        with self.equation.ctx.manager:
            made = primitive.bind(*arguments, **primitive.get_bind_params(self.equation.params))
        values.update(zip(self.outputs, made if primitive.multiple_results else [made], strict=True))


def _varies(atom: Any) -> bool:
    return not isinstance(atom, Literal)


class _Constant(NamedTuple):
    value: Any


class _Nature(NamedTuple):
    """What a value depends on."""

    # Which coordinates of θ it depends on, other than through η.
    theta: np.ndarray
    # Whether it depends on the rows.
    rows: bool
    # Whether it depends on η.
    bent: bool
    # If its entries are coordinates of θ, their indices in θ.
    places: np.ndarray | None


class _Cut(NamedTuple):
    """A matrix product X W of a function of the rows with one or more functions of θ: where to cut the program."""

    # Number of the value X.
    rows: int
    # The axis of X that is summed over.
    axis: int
    # Numbers of the factors of W, each with its axis that is summed over.
    weights: tuple[tuple[int, int], ...]
    # Number of the product.
    output: int
    # Whether the row axis of the product comes first.
    rows_first: bool
    # Shape and dtype of the product.
    shape: tuple[int, ...]
    dtype: Any
    # V, the length of the axis that is summed over.
    height: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A log likelihood as a flat list of primitive operations, without calls."""

    # The operations, in order.
    steps: tuple[_Operation, ...]
    # Number of the argument θ.
    theta: int
    # Numbers of the columns of the block, by name.
    block: dict[str, int]
    # Number of the output, or a constant.
    output: Any
    # Values of the captured constants, by number.
    constants: dict[int, Any]

    def run(self, given: dict[int, Any], wanted: Sequence[Any]) -> list[Any]:
        """Compute the wanted values from given ones, with only the operations that are needed."""
        values = self.constants | given
        needed, chosen = {one for one in wanted if isinstance(one, int)}, []
        for step in reversed(self.steps):
            if any(one in needed and one not in given for one in step.outputs):
                chosen.append(step)
                needed |= {one for one in step.inputs if isinstance(one, int)}
        with promotion_allowed():
            for step in reversed(chosen):
                step.run(values)
        return [values[one] if isinstance(one, int) else one.value for one in wanted]


@dataclasses.dataclass(frozen=True)
class Predictors:
    """The linear predictors of a program."""

    # The log likelihood.
    program: Program
    # The matrix products X_j W_j.
    cuts: tuple[_Cut, ...]
    # For each j, indices in θ of the entries of W_j; None if W_j is not just coordinates of θ.
    places: tuple[np.ndarray | None, ...]
    # S, the coordinates of θ that φ uses directly.
    coordinates: np.ndarray

    @property
    def num_arguments(self) -> int:
        """The number of arguments of φ, other than the row."""
        return sum(self.widths) + len(self.coordinates)

    @property
    def widths(self) -> list[int]:
        """C_j, the number of predictors per row of each product."""
        return [math.prod(cut.shape) // cut.shape[0 if cut.rows_first else -1] for cut in self.cuts]

    def matrices(self, block: Mapping[str, Any]) -> list[Any]:
        """The matrices X_j, (n, V_j)."""
        given = {number: block[name] for name, number in self.program.block.items()}
        found = self.program.run(given, [cut.rows for cut in self.cuts])
        return [x if cut.axis == 1 else x.T for x, cut in zip(found, self.cuts, strict=True)]

    def weights(self, theta: Any) -> list[Any]:
        """The coefficients W_j, (V_j, C_j)."""
        wanted = [number for cut in self.cuts for number, _ in cut.weights]
        values = dict(zip(wanted, self.program.run({self.program.theta: theta}, wanted), strict=True))
        made = []
        for cut in self.cuts:
            factors = [jnp.moveaxis(values[number], axis, 0) for number, axis in cut.weights]
            made.append(functools.reduce(jnp.matmul, [w.reshape(w.shape[0], -1) for w in factors]))
        return made

    def link(self, etas: Sequence[Any], theta: Any, block: Mapping[str, Any]) -> Any:
        """φ per row, from η_j (n, C_j)."""
        given = {number: block[name] for name, number in self.program.block.items()}
        given[self.program.theta] = theta
        for cut, eta in zip(self.cuts, etas, strict=True):
            given[cut.output] = (eta if cut.rows_first else eta.T).reshape(cut.shape).astype(cut.dtype)
        return self.program.run(given, [self.program.output])[0]


def find_predictors(log_likelihood: Callable, theta: Any, block: Mapping[str, Any]) -> Predictors | None:
    """Find the linear predictors of a likelihood of θ and a block, both given as shapes; None if there are none."""
    names = list(block)

    def of_arrays(theta: Any, *columns: Any) -> Any:
        return log_likelihood(theta, dict(zip(names, columns, strict=True)))

    with promotion_allowed():
        traced = jax.make_jaxpr(of_arrays)(theta, *block.values())
    if "custom_vjp_call" in str(traced):
        # Such a function has no forward-mode derivative, which is needed for φ.
        return None
    program = _flat(traced, names)
    (d,), n = theta.shape, next(iter(block.values())).shape[0]
    nothing = np.zeros(d, bool)
    natures = {number: _Nature(nothing, True, False, None) for number in program.block.values()}
    natures[program.theta] = _Nature(np.ones(d, bool), False, False, np.arange(d))
    made: dict[int, _Cut] = {}
    for step in program.steps:
        cut = _cut(step, natures, made, n)
        if cut is not None:
            made[cut.output] = cut
            natures[cut.output] = _Nature(nothing, True, True, None)
        else:
            natures.update(zip(step.outputs, _natures(step, natures, nothing), strict=True))
    used = _used(program, made)
    cuts = [cut for output, cut in made.items() if output in used]
    direct = natures[program.output].theta if isinstance(program.output, int) else nothing
    found = Predictors(
        program,
        tuple(cuts),
        tuple(_places(natures, cut) for cut in cuts),
        np.flatnonzero(direct),
    )
    return found if cuts else None


def _places(natures: dict[int, _Nature], cut: _Cut) -> np.ndarray | None:
    (number, axis), *more = cut.weights
    places = natures[number].places
    if places is None or more:
        return None
    moved = np.moveaxis(places, axis, 0)
    return moved.reshape(moved.shape[0], -1)


def _flat(traced: ClosedJaxpr, names: list[str]) -> Program:
    """The jaxpr as a flat program, with all calls inlined."""
    steps: list[_Operation] = []
    constants: dict[int, Any] = {}
    count = iter(range(10**9))

    def inline(jaxpr: Jaxpr, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, values, strict=True):
            known[variable] = next(count)
            constants[known[variable]] = value

        def number(atom: Any) -> Any:
            return known[atom] if _varies(atom) else _Constant(atom.val)

        for equation in jaxpr.eqns:
            given = [number(atom) for atom in equation.invars]
            if equation.primitive.name in _CALLS:
                inner: Any = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
                closed = isinstance(inner, ClosedJaxpr)
                made = inline(inner.jaxpr if closed else inner, inner.consts if closed else (), given)
            else:
                made = [next(count) for _ in equation.outvars]
                steps.append(_Operation(equation, tuple(given), tuple(made)))
            known.update(zip(equation.outvars, made, strict=True))
        return [number(atom) for atom in jaxpr.outvars]

    theta, *columns = (next(count) for _ in range(len(names) + 1))
    (output,) = inline(traced.jaxpr, traced.consts, [theta, *columns])
    return Program(tuple(steps), theta, dict(zip(names, columns, strict=True)), output, constants)


def _used(program: Program, given: Container[int]) -> set[int]:
    """The numbers of the values that the output needs when some are given."""
    used = {program.output}
    for step in reversed(program.steps):
        if any(one in used and one not in given for one in step.outputs):
            used |= {one for one in step.inputs if isinstance(one, int)}
    return used


def _cut(step: _Operation, natures: dict[int, _Nature], made: Mapping[int, _Cut], n: int) -> _Cut | None:
    """The operation as a product of an (n, V) function of the rows, or of such a product, with a function of θ."""
    if step.equation.primitive.name != "dot_general" or any(not isinstance(one, int) for one in step.inputs):
        return None
    (left, right), batch = step.equation.params["dimension_numbers"]
    if any(batch) or len(left) != 1:
        return None
    for first in (True, False):
        rows, weights = step.inputs if first else reversed(step.inputs)
        axes = (left[0], right[0]) if first else (right[0], left[0])
        x, w = natures.get(rows), natures.get(weights)
        shape = step.equation.invars[0 if first else 1].aval.shape
        out, factor = step.equation.outvars[0].aval, (weights, axes[1])
        if w is None or not np.any(w.theta) or w.rows or len(shape) != 2 or shape[1 - axes[0]] != n:
            continue
        before = made.get(rows)
        if before is not None and axes[0] == (1 if before.rows_first else 0):
            # (X W) B is X (W B).
            return before._replace(
                weights=(*before.weights, factor),
                output=step.outputs[0],
                rows_first=first,
                shape=out.shape,
                dtype=out.dtype,
            )
        if x is not None and x.rows and not x.bent and not np.any(x.theta):
            return _Cut(rows, axes[0], (factor,), step.outputs[0], first, out.shape, out.dtype, shape[axes[0]])
    return None


def _natures(step: _Operation, natures: dict[int, _Nature], nothing: np.ndarray) -> list[_Nature]:
    given = [natures[one] for one in step.inputs if isinstance(one, int) and one in natures]
    theta = np.logical_or.reduce([nature.theta for nature in given], axis=0) if given else nothing
    rows, bent = any(nature.rows for nature in given), any(nature.bent for nature in given)
    places = _moved(step, given[0].places) if len(given) == 1 and len(step.inputs) == 1 else None
    if places is not None:
        theta = np.isin(np.arange(len(nothing)), places)
    return [_Nature(theta, rows, bent, places)] * len(step.outputs)


def _moved(step: _Operation, places: np.ndarray | None) -> np.ndarray | None:
    """Track the indices in θ of a value's entries through an operation that only moves them; None otherwise."""
    if places is None:
        return None
    name, parameters = step.equation.primitive.name, step.equation.params
    if name == "slice":
        strides = parameters["strides"] or (1,) * places.ndim
        bounds = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
        return places[tuple(slice(*bound) for bound in bounds)]
    if name in ("reshape", "squeeze") and parameters.get("dimensions") in (None, *_axes(parameters)):
        return places.reshape(step.equation.outvars[0].aval.shape)
    if name == "transpose":
        return places.transpose(parameters["permutation"])
    is_float = step.equation.outvars[0].aval.dtype.kind == "f"
    return places if name == "copy" or (name == "convert_element_type" and is_float) else None


def _axes(parameters: Mapping[str, Any]) -> list[Any]:
    """Allowed `dimensions` besides None: any of a squeeze; none of a reshape, where they mean a transposition."""
    return [] if "new_sizes" in parameters else [parameters.get("dimensions")]
