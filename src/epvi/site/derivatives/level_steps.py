"""Operations of a program that treat the levels of a factor alike: how to run them for some of the levels only.

Takes an operation of a jaxpr whose inputs have an axis of all G levels, along which it computes each entry from the
same entry of its inputs; gives its output for a few chosen levels. Operations that mix levels are not among them: for
these `axis_of` gives None.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Primitives that compute each entry of their output from the same entry of their inputs.
_ELEMENTWISE = (
    *("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp"),
    *("convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp"),
    *("exp2", "expm1", "floor", "ge", "gt", "igamma", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p"),
    *("logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n"),
    *("sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"),
)
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


@dataclasses.dataclass(frozen=True)
class Along:
    """A value of the program with an axis of levels."""

    axis: int


def axis_of(equation: Any, given: Sequence[Along | None], levels: int) -> int | None:
    """The axis of levels of the output; None if the operation may mix levels, or is not known."""
    name, parameters = equation.primitive.name, equation.params
    shapes = [atom.aval.shape for atom in equation.invars]
    axes = {one.axis for one in given if one is not None}
    if len(axes) != 1 or len(equation.outvars) != 1:
        return None
    (axis,), out = axes, equation.outvars[0].aval.shape
    if name in _ELEMENTWISE or _is_elementwise(equation):
        return axis if len(out) > axis and all(_spreads(shape, out) for shape in shapes) else None
    if name == "broadcast_in_dim":
        made = parameters["broadcast_dimensions"][axis]
        return made if len(shapes) == 1 and out[made] == levels else None
    if name == "reshape":
        return _reshaped(shapes[0], out, axis) if parameters["dimensions"] is None else None
    if name == "squeeze":
        gone = parameters["dimensions"]
        return None if axis in gone else axis - sum(one < axis for one in gone)
    if name == "transpose":
        return parameters["permutation"].index(axis)
    if name in _REDUCTIONS:
        gone = parameters["axes"]
        return None if axis in gone else axis - sum(one < axis for one in gone)
    if name == "slice":
        strides = parameters["strides"] or (1,) * len(out)
        return axis if out[axis] == levels and strides[axis] == 1 else None
    if name == "concatenate":
        return axis if parameters["dimension"] != axis else None
    if name == "stack":
        return axis + (parameters["axis"] <= axis)
    if name == "triangular_solve":
        # The columns of the right-hand side, each solved for by itself.
        last = len(shapes[1]) - 1
        return last if parameters["left_side"] and given[0] is None and axis == last else None
    return _product_axis(parameters, shapes, given, axis) if name == "dot_general" else None


def _is_elementwise(equation: Any) -> bool:
    """Whether a function with a derivative of its own, such as `xlogy`, consists of elementwise operations."""
    if equation.primitive.name not in ("custom_jvp_call", "jit"):
        return False
    inner = equation.params["call_jaxpr" if equation.primitive.name == "custom_jvp_call" else "jaxpr"]
    spread = (*_ELEMENTWISE, "broadcast_in_dim")
    return all(
        (one.primitive.name in spread and _keeps_places(one)) or _is_elementwise(one) for one in inner.jaxpr.eqns
    )


def _keeps_places(equation: Any) -> bool:
    """Whether an operation inside such a function has the shape of its inputs, or spreads a number."""
    if equation.primitive.name == "broadcast_in_dim":
        return equation.invars[0].aval.shape == ()
    return all(_spreads(atom.aval.shape, equation.outvars[0].aval.shape) for atom in equation.invars)


def _spreads(shape: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Whether an elementwise operation may spread an array of this shape over its output."""
    return not shape or (len(shape) == len(out) and all(a in (1, b) for a, b in zip(shape, out, strict=True)))


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    ahead = math.prod(before[:axis])
    for place, size in enumerate(after):
        if size == before[axis] and math.prod(after[:place]) == ahead:
            return place
    return None


def _product_axis(parameters: Any, shapes: Any, given: Sequence[Along | None], axis: int) -> int | None:
    contracted, batch = parameters["dimension_numbers"]
    if any(map(len, batch)) or sum(one is not None for one in given) != 1:
        return None
    which = 0 if given[0] is not None else 1
    if axis in contracted[which]:
        return None
    place = axis - sum(one < axis for one in contracted[which])
    return place if which == 0 else len(shapes[0]) - len(contracted[0]) + place


def run_at(equation: Any, inputs: list[Any], given: Sequence[Along | None], axis: int, levels: Any) -> Any:
    """The output at some levels, from inputs at these levels; inputs that are the same for all θ are sliced here."""
    name, parameters, count = equation.primitive.name, dict(equation.params), levels.shape[0]
    out = equation.outvars[0].aval.shape
    some = (*out[:axis], count, *out[axis + 1 :])
    if name in (*_ELEMENTWISE, "concatenate", "stack", "custom_jvp_call"):
        own = axis - (parameters["axis"] <= axis) if name == "stack" else axis
        whole = [at is None and jnp.ndim(x) and x.shape[own] == out[axis] for x, at in zip(inputs, given, strict=True)]
        inputs = [jnp.take(x, levels, axis=own) if all_of else x for x, all_of in zip(inputs, whole, strict=True)]
    if name == "custom_jvp_call":
        return _in_chunks(equation, inputs, axis, count)
    if name == "broadcast_in_dim":
        return lax.broadcast_in_dim(inputs[0], some, parameters["broadcast_dimensions"])
    if name == "reshape":
        return lax.reshape(inputs[0], some)
    if name == "slice":
        limits = list(parameters["limit_indices"])
        limits[axis] = count
        return lax.slice(inputs[0], parameters["start_indices"], limits, parameters["strides"])
    with equation.ctx.manager:
        return equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(parameters))


def _in_chunks(equation: Any, inputs: list[Any], axis: int, count: int) -> Any:
    """The output of an elementwise function that only takes all levels at once: of chunks of so many entries."""
    size = equation.outvars[0].aval.shape[axis]
    chunks = -(-count // size)
    along = [jnp.ndim(x) > 0 and x.shape[axis] == count for x in inputs]

    def cut(x: Any) -> Any:
        # The last entries are repeated, so that derivatives there are as finite as elsewhere.
        padded = jnp.take(x, jnp.minimum(jnp.arange(chunks * size), count - 1), axis=axis)
        return jnp.moveaxis(jnp.reshape(padded, (*x.shape[:axis], chunks, size, *x.shape[axis + 1 :])), axis, 0)

    def one(*some: Any) -> Any:
        with equation.ctx.manager:
            (made,) = equation.primitive.bind(*some, **equation.primitive.get_bind_params(equation.params))
        return made

    given = [cut(x) if chosen else x for x, chosen in zip(inputs, along, strict=True)]
    made = jnp.moveaxis(jax.vmap(one, in_axes=[0 if chosen else None for chosen in along])(*given), 0, axis)
    flat = jnp.reshape(made, (*made.shape[:axis], chunks * size, *made.shape[axis + 2 :]))
    return lax.slice_in_dim(flat, 0, count, axis=axis)
