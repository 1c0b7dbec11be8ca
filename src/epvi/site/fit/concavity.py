"""Whether log densities are concave everywhere, so that a mode is the only one and needs no distant climbs.

Takes the subposterior of a sample of rows and its mode. The log likelihood of a row is a function φ of a few values u
that are linear in θ; where φ is concave in u for every row, and the prior in θ, so is the sum of any rows with any
share of the prior. Both are looked at wherever climbs could lead: φ'' of rows at their fitted values and at shifts of
all lengths from there, the prior's Hessian around the mode at all distances. A climb sees a dozen points, this ten
thousand.
"""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.matrices import positive_definite
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.kinds import kind_of
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.through_predictors import Linked
from epvi.site.rows.columns import Columns

# Lengths of the shifts of θ, and of u in units of 1 + its spread over the rows. Judgement: links change their shape
# between a hundredth and a hundred.
_LENGTHS = np.geomspace(1e-3, 1e3, 25)
# Rows at which φ'' is looked at, at most and in most blocks. Judgement.
_ROWS, _BLOCKS = 512, 16
# A second derivative is positive if it is more than this, relative to the largest of all rows at the same shift and at
# the shortest one. Judgement: far above the rounding of float32.
_POSITIVE = 1e-5
# Least part of all second derivatives that has to be finite. Judgement: exponentials overflow at the longest shifts.
_SEEN = 0.75


def is_concave(sub: Subposteriors, mode: Float[np.ndarray, " d"], starts: Float[np.ndarray, "n d"]) -> bool:
    """Whether no convex direction is found, of rows of the first of some subposteriors or of the prior.

    `starts` are standard normal directions. False also where φ is not known.
    """
    linked = sub.linked(Order.FULL)
    if not isinstance(linked, Linked) or linked.places is None:
        return False
    around = mode + _LENGTHS[:, None] * np.resize(starts, (len(_LENGTHS), len(mode)))
    shifts = _LENGTHS[:, None] * np.resize(starts, (len(_LENGTHS), linked.width))
    with np.errstate(all="ignore"):
        if not _none_positive(sub.whole_prior(around)[2][:, None]):
            return False
        program = sub.programs.once(("bends", kind_of(sub.block)), linked.bends)
        with jax.enable_x64(True), promotion_allowed():
            return all(_none_positive(np.asarray(program(mode, block, shifts))) for block in _blocks(sub))


def _blocks(sub: Subposteriors) -> Iterator[Columns]:
    """Blocks of rows from all over the first subposterior, of the shape for which programs are compiled."""
    size, there = sub.windows.block, int(sub.sizes[0])
    count = min(max(_ROWS // size, 1), _BLOCKS)
    chosen = np.linspace(0, there - 1, size * count).astype(int)
    for places in chosen.reshape(size, count).T:
        yield {name: np.take(sub.rows[name], places, axis=0) for name in sorted(sub.rows)}


def _none_positive(hessians: Float[np.ndarray, "s n p p"]) -> bool:
    """Whether no matrix has a positive eigenvalue, of n at each of s shifts of increasing lengths.

    Beyond the range of floating-point numbers nothing is seen, which must not be at most shifts.
    """
    sizes = np.max(np.abs(hessians), axis=(2, 3))
    seen = np.isfinite(sizes)
    if np.mean(seen) < _SEEN:
        return False
    largest = np.max(sizes, axis=1, initial=0.0, where=seen)
    floor = np.broadcast_to(_POSITIVE * (largest + largest[0])[:, None], sizes.shape)[seen]
    if hessians.shape[-1] == 1:
        return bool(np.all(hessians[seen][:, 0, 0] <= floor))
    # A tiny number more, where all are zero.
    limits = (floor + np.finfo(float).tiny)[:, None, None] * np.eye(hessians.shape[-1])
    return bool(np.all(positive_definite(limits - hessians[seen])))
