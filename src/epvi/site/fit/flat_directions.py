"""Detects flat directions of a subposterior: separable labels, or collinear or constant columns under a flat prior.

Checks the mode with the most mass. The log density of a Gaussian drops by 2 nats two standard deviations from its mode;
where the curvature is zero, or the log density hardly drops at that distance, no Gaussian can be fitted. The directions
checked are the eigenvectors of least curvature and that of the next Newton step, which points towards a maximum at
infinity if there is one.
"""

from collections.abc import Callable

import numpy as np

from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Space
from epvi.site.fit.inference import Lack
from epvi.site.fit.modes import Modes
from epvi.site.rows.columns import Columns, constant_columns

# A direction is flat when the log density drops by less than this many nats two standard deviations from the mode.
# Judgement: a thousandth of the 2 nats by which a Gaussian drops there.
_LEAST_LOSS = 0.002
# How many eigenvectors of least curvature are checked. Judgement: with the Newton direction, and both signs of each,
# these are 34 points, which one pass over the rows evaluates together.
_DIRECTIONS_TRIED = 16


def flat_direction(
    space: Space, columns: Columns, modes: Modes, floor: float, value: Callable[[np.ndarray], np.ndarray]
) -> Lack | None:
    """What to report when the log density does not drop in some direction from the first mode; else None."""
    curvature, axes, units = modes.form.smallest(modes.curvature[0], _DIRECTIONS_TRIED)
    # 1e-290 in place of zero: its inverse is still finite in float64. Judgement.
    least = floor + 1e-290
    steps = 2 * units * axes / np.sqrt(np.maximum(np.abs(curvature), least))[:, None]
    onwards = _newton_direction(modes, floor)
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
    finding = f"these rows and their share of the prior do not bound {name}{hint}"
    remedy = (
        "Take fewer shards, give a proper prior, or leave out columns that others determine or that separate the"
        " labels."
    )
    return Lack(Status(StatusCode.FLAT_DIRECTION, f"flat direction: {finding}. {remedy}"), finding)


def _newton_direction(modes: Modes, floor: float) -> np.ndarray | None:
    """The Newton step from the first mode, rescaled to one standard deviation; None where the gradient is zero."""
    gradient = modes.gradient[0]
    step = modes.form.newton_step(gradient, modes.curvature[0], floor)
    length = np.sqrt(abs(gradient @ step))
    return step / length if np.isfinite(length) and length > 0 else None
