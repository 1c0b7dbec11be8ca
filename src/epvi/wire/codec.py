"""Convert mixtures, parameter spaces and statuses to JSON and float64 arrays, and back with all checks.

Sizes are bounded by those of the arrays in the file, so that a small file cannot cause large allocations.
"""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structures import structures
from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Parameter, Space
from epvi.wire.envelope import Malformed
from epvi.wire.record import Record, as_texts, printable
from epvi.wire.supports import describe, support_of

# Parameters that a file may describe, and those of them that may be exchangeable. Checking one traces its bijection,
# which takes milliseconds, and tens of them when it is exchangeable: reading any file ends within seconds. Judgement.
_MOST_PARAMETERS, _MOST_EXCHANGEABLE = 1000, 64
# Characters of a support's JSON up to which the check of its shape is cached: 1000 entries are then at most 200 kB.
_MOST_REMEMBERED = 200
# Bounds on the diagonals of Cholesky roots of precisions: variances are then between 1e-150 and 1e150, and their
# squares finite in float64.
_LEAST_ROOT, _GREATEST_ROOT = 1e-75, 1e75
# How far log Σ_k w_k may be from 0. Judgement: far above float64 rounding, far below any effect on the posterior.
_WEIGHTS_SUM = 1e-6


def describe_status(status: Status) -> dict[str, Any]:
    """A status as JSON."""
    return {"ok": status.ok, "code": status.code.value, "text": printable(status.text)}


def read_status(record: Record) -> Status:
    """A status; a code that is missing or of a later version becomes USABLE or UNUSABLE."""
    table = record.table("status")
    ok, said = table.truth("ok"), table.text("code") if "code" in set(table) else ""
    known = {code.value: code for code in StatusCode}
    code = known.get(said, StatusCode.USABLE if ok else StatusCode.UNUSABLE)
    if code.ok != ok:
        raise Malformed(f"its status is {code}, which is {'not ' if ok else ''}ok, and it says otherwise")
    return Status(code, table.text("text"))


def describe_space(space: Space) -> dict[str, Any]:
    """A space as JSON."""
    parameters = [
        {"name": p.name, "shape": list(p.shape), "support": describe(p.name, p.support)} for p in space.parameters
    ]
    return {"parameters": parameters, "exchangeable": [list(group) for group in space.exchangeable]}


def dimension(arrays: Mapping[str, np.ndarray]) -> int:
    """The number of parameters, that of the array `means`."""
    means = arrays.get("means")
    if means is None or means.ndim != 2:
        raise Malformed("it has no array means")
    return means.shape[1]


def read_space(record: Record, d: int) -> Space:
    """The space of a record, checked against the number of parameters."""
    table = record.table("space")
    parameters = table.list("parameters", functools.partial(_read_parameter, d=d), _MOST_PARAMETERS)
    if len({p.name for p in parameters}) < len(parameters):
        raise Malformed("its parameters have a name twice")
    if sum(p.size for p in parameters) != d:
        raise Malformed(f"its parameters do not take the {d} dimensions of its means")
    exchangeable = table.list("exchangeable", as_texts, _MOST_EXCHANGEABLE)
    if sum(map(len, exchangeable)) > _MOST_EXCHANGEABLE:
        raise Malformed(f"its exchangeable names more than {_MOST_EXCHANGEABLE} parameters")
    try:
        return Space(parameters, exchangeable)
    except EpviError as error:
        raise Malformed(printable(error.clause, 200)) from None


def _read_parameter(value: Any, what: str, d: int) -> Parameter:
    record = Record(value, what)
    name = record.text("name", 200)
    shape = record.list("shape", _size, 16)
    # No support has many more values than unconstrained coordinates: a 2 x 2 correlation matrix has 4 for 1, a 1 x 1
    # has 1 for 0. Axes of length 0 count as 1, since NumPyro allocates indices even for a shape like [0, 9000, 9000].
    if math.prod(max(n, 1) for n in shape) > 4 * d + 64:
        raise Malformed(f"its parameter {name!r} is larger than its means")
    parameter = Parameter(name, shape, support_of(record.any("support")))
    text = json.dumps(record.any("support"))
    # Cached, since thousands of fits of one model have the same supports; long ones are not, to bound the memory.
    fits = _known_to_fit(text, shape) if len(text) <= _MOST_REMEMBERED else _fits(parameter)
    if not fits or parameter.size > d:
        raise Malformed(f"its parameter {name!r} has a shape that does not fit its support")
    return parameter


@functools.lru_cache(maxsize=1000)
def _known_to_fit(support: str, shape: tuple[int, ...]) -> bool:
    return _fits(Parameter("", shape, support_of(json.loads(support))))


def _fits(parameter: Parameter) -> bool:
    """Whether NumPyro's bijection to the support gives values of the parameter's shape."""
    try:
        with jax.enable_x64(True), promotion_allowed():
            flat = jax.ShapeDtypeStruct(parameter.flat_shape, np.float64)
            given = jax.eval_shape(parameter.transform, flat).shape
    except Exception:
        # NumPyro raises errors of many types when a shape does not fit a support.
        return False
    return given == parameter.shape and min(parameter.flat_shape, default=0) >= 0


def _size(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise Malformed(f"its {what} has no valid shape")
    return value


def mixture_arrays(mixture: GaussianMixture, prefix: str = "") -> dict[str, np.ndarray]:
    """A mixture's arrays by name; full Cholesky roots as their lower triangles, row by row."""
    roots = mixture.structure.packing.flat(np.asarray(mixture.roots))
    arrays = {"log_weights": mixture.log_weights, "means": mixture.means, "roots": roots}
    return {prefix + name: np.asarray(array, np.float64) for name, array in arrays.items()}


def read_mixture(structure: str, arrays: Mapping[str, np.ndarray], d: int, prefix: str = "") -> GaussianMixture:
    """The mixture in d dimensions from its arrays, checked."""
    known = structures()
    if structure not in known:
        raise Malformed(f"its structure is not one of {', '.join(known)}")
    packing = known[structure].packing
    names = [prefix + name for name in ("log_weights", "means", "roots")]
    absent = [name for name in names if name not in arrays]
    if absent:
        raise Malformed(f"it has no array {absent[0]}")
    log_weights, means, flat = (arrays[name] for name in names)
    k = len(means) if means.ndim == 2 else 0
    roots = packing.from_flat(flat, d, symmetric=False) if flat.ndim == 2 and len(flat) == k else None
    if k == 0 or d == 0 or means.shape != (k, d) or log_weights.shape != (k,) or roots is None:
        raise Malformed(f"its {prefix}arrays do not have the shapes of a {structure} mixture in {d} dimensions")
    if not np.all(np.isfinite(means)) or not np.all(np.isfinite(flat)) or np.any(np.abs(means) > 1e150):
        raise Malformed(f"its {prefix}means or roots are not finite")
    if np.any(np.isnan(log_weights)) or not abs(np.logaddexp.reduce(np.minimum(log_weights, 1.0))) < _WEIGHTS_SUM:
        raise Malformed(f"its {prefix}weights do not sum to 1")
    if not packing.are_proper_roots(roots, _LEAST_ROOT, _GREATEST_ROOT):
        raise Malformed(f"its {prefix}roots are not positive-definite, or those of variances above 1e150")
    return GaussianMixture(np.array(log_weights), np.array(means), roots, known[structure])
