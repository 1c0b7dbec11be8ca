"""Directions that nothing bounds: separable labels, collinear or constant columns under a flat prior.

Takes the heaviest mode of a subposterior. Two standard deviations from a mode a Gaussian has lost 2 nats; where the
curvature vanishes, or next to nothing is lost although it does not, there is no Gaussian to fit. Besides the widest
axes of the curvature the direction of Newton's next step is tried: towards a maximum at infinity it loses nothing.
"""

from collections.abc import Callable

import numpy as np

from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Space
from epvi.site.derivatives.eigen import eigen_of, units_of
from epvi.site.fit.modes import Modes
from epvi.site.rows.columns import Columns, constant_columns

_LEAST_LOSS = 0.002
_DIRECTIONS_TRIED = 16


def flat_direction(
    space: Space, columns: Columns, modes: Modes, floor: float, value: Callable[[np.ndarray], np.ndarray]
) -> Status | None:
    """What to say when the heaviest mode does not fall off in some direction; None when it does in all."""
    curvature, axes, units = _widest(modes.curvature[0])
    least = floor + 1e-290
    steps = 2 * units * axes / np.sqrt(np.maximum(np.abs(curvature), least))[:, None]
    onwards = _newton_direction(modes.gradient[0], modes.curvature[0], floor)
    if onwards is not None:
        curvature, steps = np.append(curvature, 1.0), np.vstack([steps, 2 * onwards])
    away = value(np.concatenate([modes.points[0] + steps, modes.points[0] - steps]))
    loss = modes.value[0] - np.max(away.reshape(2, -1), axis=0)
    flat = (np.abs(curvature) <= least) | (loss < _LEAST_LOSS)
    if not np.any(flat):
        return None
    name = space.coordinate(int(np.argmax(np.abs(steps[np.argmax(flat)]))))
    constant = constant_columns(columns)
    hint = f" (constant here: {', '.join(constant[:3])})" if constant else ""
    return Status(
        StatusCode.FLAT_DIRECTION,
        f"flat direction: these rows and their share of the prior do not bound {name}{hint}. Take fewer shards,"
        " give a proper prior, or leave out columns that others determine or that separate the labels.",
    )


def _widest(curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least eigenvalues of −H in units of its diagonal (others are about 1), their directions, and the units."""
    if curvature.ndim == 1:
        units = 1 / np.sqrt(np.maximum(np.abs(curvature), 1e-200))
        eigenvalues = curvature * units**2
        order = np.argsort(np.abs(eigenvalues))[:_DIRECTIONS_TRIED]
        return eigenvalues[order], (np.arange(len(curvature)) == order[:, None]).astype(float), units
    units = units_of(curvature)
    eigenvalues, vectors = np.linalg.eigh(curvature * units[:, None] * units)
    order = np.argsort(np.abs(eigenvalues))[:_DIRECTIONS_TRIED]
    return eigenvalues[order], vectors.T[order], units


def _newton_direction(gradient: np.ndarray, curvature: np.ndarray, floor: float) -> np.ndarray | None:
    """Newton's next step, made one standard deviation long; None where the gradient is zero."""
    if curvature.ndim == 1:
        step = gradient / np.maximum(np.abs(curvature), 1e-200)
    else:
        eigen = eigen_of(curvature[None], floor)
        along = (eigen.vectors[0].T @ (gradient * eigen.units[0])) / eigen.size[0]
        step = eigen.units[0] * (eigen.vectors[0] @ along)
    length = np.sqrt(abs(gradient @ step))
    return step / length if np.isfinite(length) and length > 0 else None
