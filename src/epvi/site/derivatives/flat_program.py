"""A log likelihood as a flat list of primitive operations: its jaxpr with all calls inlined, and parts of it run.

Takes the log likelihood of each row as a function; gives a `Program`, whose values are identified by numbers. Equal
operations on the same inputs get the same number, so that two uses of one column of indices are known to be the same.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from epvi.ground.float64 import promotion_allowed

# Primitives for calls, which are inlined, so that an operation inside a jitted function is found too.
_CALLS = ("jit", "pjit", "closed_call", "core_call")
# Primitives of which equal ones are recognised: those that indices are computed with.
_NAMES = (
    "add and broadcast_in_dim clamp concatenate convert_element_type eq ge gt le lt max min mul ne rem reshape select_n"
    " slice squeeze sub"
)
_SHARED = frozenset(_NAMES.split())


class Constant(NamedTuple):
    """A literal of the jaxpr."""

    value: Any


class Operation(NamedTuple):
    """One primitive operation of the jaxpr."""

    # The equation of the jaxpr.
    equation: Any
    # Numbers of its inputs, or constants.
    inputs: tuple[Any, ...]
    # Numbers of its outputs.
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.equation.primitive.name

    def run(self, values: dict[int, Any]) -> None:
        """Compute the outputs from the inputs."""
        primitive = self.equation.primitive
        arguments = [values[one] if isinstance(one, int) else one.value for one in self.inputs]
        with self.equation.ctx.manager:
            made = primitive.bind(*arguments, **primitive.get_bind_params(self.equation.params))
        values.update(zip(self.outputs, made if primitive.multiple_results else [made], strict=True))


@dataclasses.dataclass(frozen=True)
class Program:
    """A log likelihood as a flat list of primitive operations, without calls."""

    # The operations, in order.
    steps: tuple[Operation, ...]
    # Number of the argument θ.
    theta: int
    # Numbers of the columns of the block, by name.
    block: dict[str, int]
    # Number of the output, or a constant.
    output: Any
    # Values of the captured constants, by number.
    constants: dict[int, Any]
    # Shapes of the columns of the block, by number.
    shapes: dict[int, tuple[int, ...]]
    # d, the dimension of θ, and n, the number of rows.
    d: int
    n: int
    # Whether it has forward-mode derivatives: a function with its own reverse mode only has none.
    goes_forward: bool

    @functools.cached_property
    def makers(self) -> dict[int, Operation]:
        """The operation that each value is an output of."""
        return {one: step for step in self.steps for one in step.outputs}

    def num_entries(self, value: int) -> int:
        """The number of entries of a column of the block, or of a value that is made of others."""
        return math.prod(self.shapes[value]) if value in self.shapes else self.aval(value).size

    def aval(self, value: int) -> Any:
        """Shape and dtype of a value that is made of others."""
        made = self.makers[value]
        return made.equation.outvars[made.outputs.index(value)].aval

    def columns(self, block: Mapping[str, Any]) -> dict[int, Any]:
        """The columns of a block by their numbers."""
        return {number: block[name] for name, number in self.block.items()}

    def run(self, given: dict[int, Any], wanted: Sequence[Any]) -> list[Any]:
        """Compute the wanted values from given ones, with only the operations that are needed."""
        values = self.constants | given
        needed = self.needed(wanted, given)
        with promotion_allowed():
            for step in self.steps:
                if any(one in needed and one not in given for one in step.outputs):
                    step.run(values)
        return [values[one] if isinstance(one, int) else one.value for one in wanted]

    def needed(self, wanted: Iterable[Any], given: Container[int]) -> set[int]:
        """The numbers of all values that the wanted ones need when some are given."""
        needed = {one for one in wanted if isinstance(one, int)}
        for step in reversed(self.steps):
            if any(one in needed and one not in given for one in step.outputs):
                needed |= {one for one in step.inputs if isinstance(one, int)}
        return needed


def flattened(log_likelihood: Callable, theta: Any, block: Mapping[str, Any]) -> Program:
    """The program of a log likelihood of θ and a block, both given as shapes."""
    names = list(block)

    def of_arrays(theta: Any, *columns: Any) -> Any:
        return log_likelihood(theta, dict(zip(names, columns, strict=True)))

    with promotion_allowed():
        traced = jax.make_jaxpr(of_arrays)(theta, *block.values())
    inliner = _Inliner()
    number, *columns = (inliner.number() for _ in range(len(names) + 1))
    (output,) = inliner.inline(traced.jaxpr, traced.consts, [number, *columns])
    (d,), n = theta.shape, next(iter(block.values())).shape[0] if block else 0
    return Program(
        tuple(inliner.steps),
        number,
        dict(zip(names, columns, strict=True)),
        output,
        inliner.constants,
        {number: column.shape for number, column in zip(columns, block.values(), strict=True)},
        d,
        n,
        "custom_vjp_call" not in str(traced),
    )


@dataclasses.dataclass
class _Inliner:
    """Collects the operations of a jaxpr and of all that it calls."""

    steps: list[Operation] = dataclasses.field(default_factory=list)
    constants: dict[int, Any] = dataclasses.field(default_factory=dict)
    # Outputs of operations that are recognised when they occur again.
    known: dict[Any, list[int]] = dataclasses.field(default_factory=dict)
    # Numbers of captured constants, by their identity.
    captured: dict[int, int] = dataclasses.field(default_factory=dict)
    count: int = 0

    def number(self) -> int:
        """A new number."""
        self.count += 1
        return self.count - 1

    def inline(self, jaxpr: Jaxpr, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Add the operations of a jaxpr with these constants and inputs; the numbers of its outputs."""
        known: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update(zip(jaxpr.constvars, map(self._capture, values), strict=True))

        def read(atom: Any) -> Any:
            return Constant(atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            given = [read(atom) for atom in equation.invars]
            if equation.primitive.name in _CALLS:
                inner: Any = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
                closed = isinstance(inner, ClosedJaxpr)
                made = self.inline(inner.jaxpr if closed else inner, inner.consts if closed else (), given)
            else:
                made = self._add(equation, given)
            known.update(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _capture(self, value: Any) -> int:
        if id(value) not in self.captured:
            self.captured[id(value)] = self.number()
            self.constants[self.captured[id(value)]] = value
        return self.captured[id(value)]

    def _add(self, equation: Any, given: Sequence[Any]) -> list[int]:
        key = _key(equation, given) if equation.primitive.name in _SHARED else None
        if key is not None and key in self.known:
            return self.known[key]
        made = [self.number() for _ in equation.outvars]
        self.steps.append(Operation(equation, tuple(given), tuple(made)))
        if key is not None:
            self.known[key] = made
        return made


def _key(equation: Any, given: Sequence[Any]) -> Any:
    """What equal operations have in common; None if that cannot be said."""
    inputs = tuple(
        one if isinstance(one, int) else (str(np.asarray(one.value).dtype), np.asarray(one.value).tobytes())
        for one in given
    )
    key = (equation.primitive.name, inputs, tuple(sorted(equation.params.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key
