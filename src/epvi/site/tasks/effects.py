"""A site's answer about group effects that were integrated out: their moments given the other parameters φ.

Takes bundles of groups and points φ, the supports; gives mean, covariance and shape of each group's effects at each of
them, and at a single one also derivatives in φ. At a few draws of φ the effects of some groups are compared with what
many nodes say (`site/derivatives/effect_audit.py`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.conditional import (
    Conditional,
    Values,
    conditional_moments,
    conditional_values,
    few_sizes,
    taken,
    with_levels,
)
from epvi.site.derivatives.effect_audit import standardised
from epvi.site.derivatives.integral import wide_scores
from epvi.site.model.target import Target
from epvi.site.rows.bundles import LEVELS, LOCAL
from epvi.site.rows.columns import Columns
from epvi.wire.effect_answer import Audited, LevelMoments

# Rows of which effects are audited, counted once for each node and draw: where there are so many rows that moments are
# known at one support, and otherwise. Judgement: a fiftieth of a second, and a twentieth.
_ROWS_TO_AUDIT, _FEW_ROWS_TO_AUDIT = 2**21, 2**22


def effects_given(
    target: Target,
    columns: Columns,
    phi: Float[np.ndarray, "S p"],
    empty: Int[np.ndarray, " n"],
    among: Float[np.ndarray, "K p"],
) -> LevelMoments:
    """The moments of the effects of all groups in these bundles, and of levels without rows.

    They are audited at the draws `among`; if there are several supports, these are some of them.
    """
    columns = with_levels(columns, empty)
    levels = columns[LEVELS].ravel()
    there = levels >= 0
    if len(phi) > 1:
        values = conditional_values(target, columns, phi)
        audited = _audited(target, columns, among, _some(values, _places(phi, among)), exact=True)
        mean, root, shape = (part[:, there] for part in values[:3])
        return LevelMoments(levels[there], mean, root, shape, None, audited)
    found = conditional_moments(target, columns, phi[0])
    audited = _audited(target, columns, among, _extended(found, among - phi[0]), exact=False)
    mean, root, shape, *slopes = (part[there] for part in found)
    return LevelMoments(levels[there], mean[None], root[None], shape[None], (slopes[0], slopes[1]), audited)


def _places(phi: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where some of the points are among all of them."""
    return np.array([int(np.argmin(np.sum((phi - one) ** 2, axis=1))) for one in among])


def _some(values: Values, chosen: np.ndarray) -> Values:
    return Values(*(part[chosen] for part in values))


def _extended(found: Conditional, away: Float[np.ndarray, "K p"]) -> Values:
    """The moments at displacements of φ."""
    mean = found.mean + np.einsum("lsp,kp->kls", found.mean_slope, away)
    root = found.root + np.einsum("ltp,kp->klt", found.root_slope, away)
    shape = np.broadcast_to(found.shape, (len(away), *found.shape.shape))
    return Values(mean, root, shape, np.zeros(mean.shape[:2]))


def _audited(target: Target, columns: Columns, phi: np.ndarray, values: Values, *, exact: bool) -> Audited:
    """The audit of as many bundles as are affordable; with `exact` also that of the log integrals."""
    assert target.audit is not None
    (number, size), width, s = columns[LOCAL].shape, columns[LEVELS].shape[1], values.mean.shape[2]
    nodes, affordable = len(wide_scores(s)) ** s, _FEW_ROWS_TO_AUDIT if exact else _ROWS_TO_AUDIT
    count = min(max(affordable // (nodes * len(phi) * size), 1), number)
    chosen = np.unique(np.linspace(0, number - 1, count).astype(int))
    if not exact and count < number:
        # Half of them those with the levels that are least like normal ones.
        odd = np.max(np.abs(values.shape[0]), axis=(1, 2)) * (columns[LEVELS].ravel() >= 0)
        worst = np.argsort(-np.max(odd.reshape(number, width), axis=1), kind="stable")[: (count + 1) // 2]
        chosen = np.unique(np.concatenate([chosen[::2], worst]))
    # Filled with the last one, so that few programs serve all numbers of bundles.
    filled = chosen[np.minimum(np.arange(few_sizes(len(chosen))), len(chosen) - 1)]
    places = (filled[:, None] * width + np.arange(width)).ravel()
    mean, root, shape, known = (part[:, places] for part in values)
    block = taken(columns, filled)
    with jax.enable_x64(True), promotion_allowed():
        given = (jnp.asarray(one, jnp.float64) for one in (phi, mean, root, standardised(shape)))
        found = [np.asarray(part) for part in target.audit(*given, block, len(chosen))]
    there = (columns[LEVELS].ravel()[places] >= 0) & (np.arange(len(places)) < len(chosen) * width)
    off = known - found[0] if exact else np.zeros_like(known)
    return Audited(*(part[:, there] for part in (off, *found[1:])))
