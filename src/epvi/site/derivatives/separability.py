"""Decides from its jaxpr whether a log likelihood is a sum of separate terms, one per column of its linear predictor.

Takes a program with an (n, C) predictor; the answer is yes only if it holds for all rows and all values. Each value of
the program is one of four kinds: free (does not depend on the predictor); columnwise (has an axis along which entry c
depends on column c only); summed (a sum over that axis, up to linear operations); or mixed. Unknown operations mix.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from epvi.site.derivatives.cuts import MatrixCut
from epvi.site.derivatives.linear_predictors import Predictors

# The kind of a value: the axis of a columnwise one, or one of these.
_Kind = int | str
_FREE, _SUMMED, _MIXED = "free", "summed", "mixed"

_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
_NAMES = (
    "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy cos cosh digamma div"
    " eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma integer_pow is_finite le lgamma log log1p logistic lt max"
    " min mul ne neg nextafter not or polygamma pow rem round rsqrt select_n sign sin sinh sqrt square stop_gradient"
    " sub tan tanh xor"
)
_ENTRY_BY_ENTRY = frozenset(_NAMES.split())
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
# Linear operations, which map a summed value to a summed value; products and quotients do so only with a free value.
_LINEAR = ("add", "sub", "neg", "convert_element_type", "copy", "reduce_sum", "reshape", "squeeze", "broadcast_in_dim")


def is_separate(found: Predictors) -> bool:
    """Whether the program's output is a sum of terms that each depend on one column of its only predictor."""
    (cut,), program = found.cuts, found.program
    if not isinstance(cut, MatrixCut) or len(cut.shape) != 2 or not isinstance(program.output, int):
        return False
    kinds: dict[Any, _Kind] = {cut.output: 1 if cut.rows_first else 0}
    for step in program.steps:
        if cut.output not in step.outputs:
            made = _of_step(
                step.equation, [kinds.get(one, _FREE) if isinstance(one, int) else _FREE for one in step.inputs]
            )
            kinds.update(zip(step.outputs, made, strict=True))
    return kinds.get(program.output, _FREE) == _SUMMED


def _of_step(equation: Any, given: Sequence[_Kind]) -> list[_Kind]:
    name, parameters, count = equation.primitive.name, equation.params, len(equation.outvars)
    if all(kind == _FREE for kind in given):
        return [_FREE] * count
    if name in _CALLS:
        inner = parameters.get("jaxpr", parameters.get("call_jaxpr"))
        return [_MIXED] * count if inner is None else _of_call(inner, given)
    kinds = set(given) - {_FREE}
    if len(kinds) > 1 or _MIXED in kinds:
        return [_MIXED] * count
    (kind,) = kinds
    if isinstance(kind, str):
        return [_SUMMED if _keeps_a_sum(name, given) else _MIXED] * count
    shape = equation.invars[list(given).index(kind)].aval.shape
    return [_axis_after(name, parameters, kind, shape, equation.outvars[0].aval.shape)] * count


def _of_call(inner: Any, given: Sequence[_Kind]) -> list[_Kind]:
    jaxpr = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
    kinds: dict[Any, _Kind] = dict(zip(jaxpr.invars, given, strict=True))

    def kind_of(atom: Any) -> _Kind:
        return _FREE if isinstance(atom, Literal) else kinds.get(atom, _FREE)

    for equation in jaxpr.eqns:
        made = _of_step(equation, [kind_of(atom) for atom in equation.invars])
        kinds.update(zip(equation.outvars, made, strict=True))
    return [kind_of(atom) for atom in jaxpr.outvars]


def _keeps_a_sum(name: str, given: Sequence[_Kind]) -> bool:
    if name == "mul":
        return _FREE in given
    if name in ("div", "select_n"):
        # The divisor, or the condition of a selection, must be free.
        return given[1 if name == "div" else 0] == _FREE
    return name in _LINEAR


def _axis_after(
    name: str, parameters: Mapping[str, Any], axis: int, shape: tuple[int, ...], made: tuple[int, ...]
) -> _Kind:
    """The kind of an operation's output if its input is columnwise: the new axis of the columns, summed, or mixed."""
    if name in _ENTRY_BY_ENTRY:
        return axis
    if name in _REDUCTIONS:
        axes = parameters["axes"]
        if axis in axes:
            return _SUMMED if name == "reduce_sum" else _MIXED
        return axis - sum(one < axis for one in axes)
    if name == "broadcast_in_dim":
        return parameters["broadcast_dimensions"][axis]
    if name == "transpose":
        return list(parameters["permutation"]).index(axis)
    if name in ("reshape", "squeeze") and (name == "squeeze" or parameters["dimensions"] is None):
        before = math.prod(shape[:axis])
        same = [i for i, size in enumerate(made) if size == shape[axis] and math.prod(made[:i]) == before]
        return same[0] if same else _MIXED
    if name == "slice":
        is_whole = parameters["start_indices"][axis] == 0 and parameters["limit_indices"][axis] == shape[axis]
        return axis if is_whole and (parameters["strides"] or [1] * len(shape))[axis] == 1 else _MIXED
    return _MIXED
