"""Validates callers' arguments: arrays become finite float64, and an error says what is wrong with them.

Takes anything; gives NumPy arrays (or, inside a trace, the traced array with its shape checked).
"""

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, is_traced

# Least variance; its inverse is the largest. Squares of precisions up to 1e150 are below 1.8e308, the largest float64.
_LEAST_VARIANCE = 1e-150


def finite_array(name: str, value: Any, ndim: int | None = None) -> np.ndarray:
    """`value` as a float64 array with `ndim` axes and no NaN or infinity."""
    if is_traced(value):
        raise EpviError(f"{name} is being traced by JAX: make the mixture outside jit and pass it in.")
    array = _numbers(name, value)
    if ndim is not None and array.ndim != ndim:
        raise EpviError(f"{name} has shape {array.shape}: pass an array with {ndim} axes.")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise EpviError(f"{name} has {bad} NaN or infinite values: remove or mend them first.")
    return array


def _numbers(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 array."""
    try:
        if np.iscomplexobj(value):
            raise TypeError
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise EpviError(f"{name} cannot be read as an array of numbers: pass a rectangular array of floats.") from None


def log_weights(weights: Any, k: int) -> np.ndarray:
    """The logs of k non-negative weights that sum to 1; equal weights for None."""
    if weights is None:
        return np.full(k, -np.log(k))
    weights = finite_array("weights", weights, ndim=1)
    if len(weights) != k:
        raise EpviError(f"there are {len(weights)} weights for {k} components: pass one weight per component.")
    if np.any(weights < 0):
        raise EpviError(f"weight {int(np.argmin(weights))} is {weights.min():.3g}: weights cannot be negative.")
    total = weights.sum()
    # 1e-6, above the rounding of float32 weights; docs/handover.md promises it to other writers of files.
    if abs(total - 1) > 1e-6:
        raise EpviError(f"the weights sum to {total:.6g}, not to 1: divide them by their sum.")
    with np.errstate(divide="ignore"):
        return np.log(weights / total)


def positive_variances(variances: np.ndarray) -> None:
    """Refuse (K, ...) variances that are not positive, or whose squares would overflow or underflow."""
    rows = variances.reshape(len(variances), -1)
    bad = np.nonzero(np.any(rows <= 0, axis=1))[0]
    if len(bad):
        raise EpviError(f"component {bad[0]} has a variance that is not positive: variances must be above zero.")
    bad = np.nonzero(np.any((rows < _LEAST_VARIANCE) | (rows > 1 / _LEAST_VARIANCE), axis=1))[0]
    if len(bad):
        raise EpviError(f"component {bad[0]} has a variance outside 1e-150 to 1e150: rescale the parameter.")


def positive_definite(covariances: np.ndarray) -> None:
    """Refuse (K, d, d) covariances that are not all symmetric and positive-definite."""
    for k, covariance in enumerate(covariances):
        # 1e-8, relative to the product of standard deviations: far above the rounding of float64 matrix products.
        scale = np.sqrt(np.abs(np.diag(covariance)))
        if np.any(np.abs(covariance - covariance.T) > 1e-8 * np.outer(scale, scale)):
            raise EpviError(f"component {k}'s covariance is not symmetric: use (C + C.T) / 2.")
        try:
            np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(covariance)[0]
            raise EpviError(
                f"component {k}'s covariance is not positive-definite (least eigenvalue {least:.3g}):"
                " add a small positive number to its diagonal, or check how it was made."
            ) from None
    positive_variances(np.diagonal(covariances, axis1=1, axis2=2))


def points(theta: Any, d: int) -> AnyArray:
    """Check that θ has shape (..., d)."""
    array = theta if is_traced(theta) else _numbers("theta", theta)
    if jnp.ndim(array) == 0 or jnp.shape(array)[-1] != d:
        raise EpviError(f"theta has shape {jnp.shape(array)}: its last axis must have the mixture's {d} coordinates.")
    return array


def coordinate_tuple(coordinates: Sequence[int], d: int) -> tuple[int, ...]:
    """Check that these are distinct coordinates from 0 to d − 1."""
    try:
        chosen = tuple(operator.index(i) for i in coordinates)
    except TypeError:
        raise EpviError(f"coordinates are {coordinates!r}: pass a list of whole numbers from 0 to {d - 1}.") from None
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= d:
        raise EpviError(f"coordinates are {list(chosen)}: pass distinct whole numbers from 0 to {d - 1}.")
    return chosen


def at_least(name: str, value: Any, least: int) -> int:
    """Check that the value is an integer of at least `least`; `name` is the argument's name in the error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise EpviError(f"{name} is {value!r}: pass a whole number of at least {least}.")
    return int(value)


def check_settings(settings: Any, **least: int) -> None:
    """Check the named integer fields of a frozen settings object against their least values; makes them plain ints."""
    for name, bound in least.items():
        object.__setattr__(settings, name, at_least(name, getattr(settings, name), bound))
