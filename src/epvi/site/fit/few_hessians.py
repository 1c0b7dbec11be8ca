"""Finds the mode of a shard with many parameters from gradients and two or three Hessians.

With d parameters a Hessian costs as much as d/2 gradients. So a mode is climbed to by L-BFGS in coordinates in which a
Hessian computed before is −I, and the next Hessian is computed only at the end. Takes the shard's log density on
subsamples of increasing size and on all rows; returns the mode on all rows, or None if there may be several, or if the
density was found not to be concave along the way: then the shard is fitted in another way.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.structures import WHOLE
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.fit.ladder import NEAR_ENOUGH
from epvi.site.fit.modes import SAME_MODE

# Most Hessians on one subsample, most steps of L-BFGS between two of them, and most evaluations in a step. Judgement: a
# log-concave density takes one or two Hessians and some tens of steps of one or two evaluations.
_MOST_HESSIANS, _MOST_STEPS, _MOST_TRIES = 6, 300, 12
# Pairs of steps and changes of the gradient that L-BFGS keeps. Judgement: 5 to 20 are usual.
_PAIRS = 20
# A step is long enough when the slope along it has fallen by a tenth, and too long when it has reached the opposite:
# the usual curvature condition of quasi-Newton methods (Nocedal & Wright 2006, section 3.1).
_FALLEN = 0.9
# Least and most factor by which a step that is too long or too short changes. Judgement.
_SHRINK, _GROW = 0.1, 4.0
# Parts of the way from a mode to a start at which slopes show whether the density is concave along it. Judgement:
# denser near the mode; a second mode between two of them is not seen.
_ON_THE_WAY = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
# A climb is known to end in a mode once it is closer than this part of the distance between different modes. Judgement.
_CLOSE = 0.5
# Relative rounding error of values and of slopes along a step in float32. Judgement: sums over many rows.
_ROUNDING = 1e-6


class OneShard(NamedTuple):
    """The log density of one shard: number `owner` of some subposteriors."""

    subposteriors: Subposteriors
    owner: int

    def gradient(self, point: Float[np.ndarray, " d"]) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        value, gradient = self.subposteriors.gradient(point[None], np.array([self.owner]))
        return float(value[0]), gradient[0]

    def summit(self, point: Float[np.ndarray, " d"]) -> "Summit | None":
        """Value, gradient and Hessian; None where −H is not positive-definite or something is not finite."""
        value, gradient, hessian = (x[0] for x in self.subposteriors.second_order(point[None], np.array([self.owner])))
        if not (np.isfinite(value) and np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
            return None
        try:
            half = WHOLE.inverse_root(-hessian)
        except np.linalg.LinAlgError:
            return None
        white = half @ gradient
        return Summit(point, float(value), gradient, hessian, half, 0.5 * float(white @ white))


class Summit(NamedTuple):
    """A point with its Hessian."""

    point: Float[np.ndarray, " d"]
    value: float
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    # L⁻¹ for L Lᵀ = −H.
    half: Float[np.ndarray, "d d"]
    # ½ gᵀ(−H)⁻¹g: the gain, in nats, that the quadratic model still predicts.
    decrement: float

    def distance(self, point: Float[np.ndarray, " d"]) -> float:
        """The distance of a point, in sds."""
        away = point - self.point
        return float(np.sqrt(-away @ self.hessian @ away))


def only_mode(parts: Sequence[OneShard], starts: Float[np.ndarray, "n d"]) -> Summit | None:
    """The mode of the last of `parts`, all rows; all starts must lead to the same mode of the first, the smallest."""
    at = parts[0].summit(_highest(parts[0], starts))
    found = None if at is None else _climbed(parts[0], at.point, at.half)
    if found is None:
        return None
    for start in starts:
        if _falls_away(parts[0], found, start):
            continue
        end = ascend(parts[0], start, found.half, found)
        if end is None or found.distance(end) >= SAME_MODE:
            return None
    for rows in parts[1:]:
        found = _climbed(rows, found.point, found.half)
        if found is None:
            return None
    return found


def _highest(rows: OneShard, starts: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """The highest of the starts and the origin.

    With many parameters random starts are far out, where a Hessian says little about that at the mode.
    """
    points = np.concatenate([np.zeros((1, starts.shape[1])), starts])
    values = np.array([rows.gradient(point)[0] for point in points])
    return points[np.argmax(np.where(np.isfinite(values), values, -np.inf))]


def _falls_away(rows: OneShard, mode: Summit, start: Float[np.ndarray, " d"]) -> bool:
    """Whether the density is concave on the way from the mode to a start, so that there is no other mode on it.

    Slopes along the way fall from each of some points to the next.
    """
    away = start - mode.point
    slopes = [float(mode.gradient @ away)]
    for part in _ON_THE_WAY:
        value, gradient = rows.gradient(mode.point + part * away)
        slopes.append(float(gradient @ away) if np.isfinite(value) else np.nan)
    return bool(np.all(np.diff(slopes) < 0))


def _climbed(rows: OneShard, start: np.ndarray, half: np.ndarray) -> Summit | None:
    """The mode, from a start and L⁻¹ of a Hessian nearby."""
    for _ in range(_MOST_HESSIANS):
        end = ascend(rows, start, half)
        at = None if end is None else rows.summit(end)
        if at is None or at.decrement <= NEAR_ENOUGH:
            return at
        start, half = at.point, at.half
    return None


def ascend(
    rows: OneShard, start: Float[np.ndarray, " d"], half: Float[np.ndarray, "d d"], known: Summit | None = None
) -> np.ndarray | None:
    """Climb by L-BFGS in coordinates z with θ = L⁻ᵀz until ½|∇f|² there is small; None if f is not concave, or slow.

    It ends early where it comes close to a known mode. Only slopes decide on the length of a step, because differences
    of values are lost in rounding near the mode.
    """
    point, (value, gradient) = start, rows.gradient(start)
    slope, pairs = half @ gradient, deque[tuple[np.ndarray, np.ndarray]](maxlen=_PAIRS)
    for _ in range(_MOST_STEPS):
        if not np.isfinite(value) or not np.all(np.isfinite(slope)):
            return None
        if 0.5 * slope @ slope <= NEAR_ENOUGH or (known is not None and known.distance(point) < _CLOSE * SAME_MODE):
            return point
        step = _direction(slope, pairs)
        made = _searched(rows, point, value, slope, step, half)
        if made is None:
            return None
        length, point, value, new = made
        pairs.append((length * step, slope - new))
        slope = new
    return None


def _searched(
    rows: OneShard, point: np.ndarray, value: float, slope: np.ndarray, step: np.ndarray, half: np.ndarray
) -> tuple[float, np.ndarray, float, np.ndarray] | None:
    """A length of the step, with point, value and slopes there; None if f is not concave along it."""
    begin, along, length = float(slope @ step), half.T @ step, 1.0
    for _ in range(_MOST_TRIES):
        there = point + length * along
        new, gradient = rows.gradient(there)
        after = half @ gradient
        end = float(after @ step)
        if not np.isfinite(new) or not np.isfinite(end):
            length *= _SHRINK
            continue
        if end > begin * (1 + _ROUNDING):
            return None
        if abs(end) <= _FALLEN * begin and new >= value - _ROUNDING * abs(value):
            return length, there, new, after
        # The zero of the slope, if it is linear along the step.
        length *= float(np.clip(begin / max(begin - end, _ROUNDING * begin), _SHRINK, _GROW))
    return None


def _direction(slope: np.ndarray, pairs: deque[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The step of L-BFGS by its two-loop recursion (Nocedal & Wright 2006, algorithm 7.4); the slope if it is none."""
    made, parts = slope.copy(), []
    for moved, fell in reversed(pairs):
        part = float(moved @ made) / float(moved @ fell)
        made -= part * fell
        parts.append(part)
    if pairs:
        moved, fell = pairs[-1]
        made *= float(moved @ fell) / float(fell @ fell)
    for (moved, fell), part in zip(pairs, reversed(parts), strict=True):
        made += (part - float(fell @ made) / float(moved @ fell)) * moved
    return made if float(made @ slope) > 0 else slope
