"""Convert supports of parameters (NumPyro constraints) to JSON and back, so that the hub needs no model code.

A support is its name in `numpyro.distributions.constraints`, with its bounds: "positive", {"interval": [0, 5]},
{"independent": ["positive", 1]}. Only names in the lists below are looked up, since files are untrusted.
"""

from typing import Any

import numpy as np
from numpyro.distributions import constraints

from epvi.ground.errors import EpviError
from epvi.ground.float64 import is_traced
from epvi.wire.envelope import Malformed
from epvi.wire.record import as_number

_PLAIN = [
    "circular",
    "corr_cholesky",
    "corr_matrix",
    "l1_ball",
    "lower_cholesky",
    "nonnegative",
    "ordered_vector",
    "positive",
    "positive_definite",
    "positive_ordered_vector",
    "positive_semidefinite",
    "real",
    "real_matrix",
    "real_vector",
    "scaled_unit_lower_cholesky",
    "simplex",
    "softplus_lower_cholesky",
    "softplus_positive",
    "unit_interval",
]
# Supports with bounds: the names of these, in the order of the constructor's arguments.
_BOUNDED = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "interval": ("lower_bound", "upper_bound"),
    "less_than": ("upper_bound",),
    "less_than_eq": ("upper_bound",),
    "open_interval": ("lower_bound", "upper_bound"),
}
# Levels of `independent` around a support, which are read recursively. Judgement: models have one or two.
_MOST_NESTED = 4


def describe(name: str, support: Any) -> Any:
    """The support of the parameter `name` as JSON."""
    for word in _PLAIN:
        if type(support) is type(getattr(constraints, word)):
            return word
    for word, bounds in _BOUNDED.items():
        if type(support) is getattr(constraints, word):
            return {word: [_bound(name, getattr(support, bound)) for bound in bounds]}
    if type(support) is constraints.independent:
        return {"independent": [describe(name, support.base_constraint), int(support.reinterpreted_batch_ndims)]}
    if type(support) is constraints.zero_sum:
        return {"zero_sum": [int(support.event_dim)]}
    raise EpviError(
        f"{name!r} lives in {support}, which a file cannot describe: give it a support of"
        " numpyro.distributions.constraints and a transformation in the model."
    )


def support_of(described: Any, nested: int = 0) -> Any:
    """The support from the JSON of `describe`, checked."""
    if isinstance(described, str) and described in _PLAIN:
        return getattr(constraints, described)
    if not isinstance(described, dict) or len(described) != 1 or nested > _MOST_NESTED:
        raise Malformed("it names a support that this epvi does not know")
    (word, arguments), *_ = described.items()
    if not isinstance(arguments, list):
        raise Malformed(f"its support {word[:20]!r} has no list of bounds")
    if word in _BOUNDED and len(arguments) == len(_BOUNDED[word]):
        return getattr(constraints, word)(*map(_number_or_array, arguments))
    if word == "independent" and len(arguments) == 2:
        return constraints.independent(support_of(arguments[0], nested + 1), _dimensions(arguments[1]))
    if word == "zero_sum" and len(arguments) == 1:
        return constraints.zero_sum(_dimensions(arguments[0]))
    raise Malformed(f"its support {word[:20]!r} is not one that this epvi knows, or has other bounds")


def _bound(name: str, bound: Any) -> Any:
    if is_traced(bound) or not np.all(np.isfinite(np.asarray(bound))):
        raise EpviError(f"the support of {name!r} has a bound that is not a finite number: give it another.")
    if isinstance(bound, int | float):
        return bound
    return {"shape": list(np.shape(bound)), "values": np.asarray(bound, np.float64).ravel().tolist()}


def _number_or_array(described: Any) -> Any:
    if not isinstance(described, dict):
        as_number(described, "bound")
        return described
    shape, values = described.get("shape"), described.get("values")
    if set(described) != {"shape", "values"} or not isinstance(shape, list) or not isinstance(values, list):
        raise Malformed("its support has a bound without shape and values")
    if len(shape) > 8 or not all(type(n) is int and 0 <= n <= len(values) for n in shape):
        raise Malformed("its support has a bound without a valid shape")
    if int(np.prod(shape, dtype=object)) != len(values):
        raise Malformed("its support has a bound of another size than its shape")
    return np.fromiter((as_number(value, "bound") for value in values), np.float64, len(values)).reshape(shape)


def _dimensions(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 8:
        raise Malformed("its support has no valid number of dimensions")
    return value
