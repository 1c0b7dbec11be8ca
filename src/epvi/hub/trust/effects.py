"""Judge group effects that were integrated out: their distribution given the other parameters, and the integrals.

Takes what sites found at K draws of the other parameters φ with many nodes per group (`wire/effect_answer.py`); gives
the largest errors, and what is wrong if they are large. Importance weights judge φ only, and by the same integrals.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from epvi.hub.trust.reasons import Fault, Reason
from epvi.wire.effect_answer import Audited

# Effects are trusted if no mean is off by more than this many sds, and no sd by more than this fraction. Judgement: as
# for "trust" of the other parameters.
_SMALL_SHIFT, _SMALL_CHANGE = 0.05, 0.05
# Largest error of the log integrals over all groups, in nats, as it varies with φ: a mean of φ is off by at most so
# many sds then. Judgement: as for means.
_DOUBT = 0.05


class EffectErrors(NamedTuple):
    """The largest errors of means and sds of constrained effects, in sds, and of the integrals, in nats."""

    shift: float
    change: float
    doubt: float
    # How many levels were looked at.
    levels: int

    @property
    def faults(self) -> list[Fault]:
        """What is wrong, if anything is."""
        found = []
        # Comparisons are False for NaN.
        if not (self.shift <= _SMALL_SHIFT and self.change <= _SMALL_CHANGE):
            finding = (
                f"group effects given the other parameters are approximated badly (means are off by up to"
                f" {self.shift:.2f} sds, sds by {self.change:.0%})"
            )
            found.append(Fault(Reason.EFFECTS, finding))
        if not self.doubt <= _DOUBT:
            finding = f"integrals over group effects are known to {self.doubt:.2g} nats only"
            found.append(Fault(Reason.EFFECTS, finding))
        return found


def effect_errors(audits: Sequence[Audited], num_levels: int) -> EffectErrors:
    """The errors from the audits of all shards, of `num_levels` levels with rows or without."""
    levels = sum(one.mean.shape[1] for one in audits)
    # In every shard as many levels are looked at as it can afford; errors of levels are added up as if all were alike.
    off = np.sum([np.sum(one.log_integral, axis=1) for one in audits], axis=0) * num_levels / levels
    shift = change = 0.0
    for one in audits:
        mean, sd = _over_draws(one.mean, one.variance)
        found, spread = _over_draws(one.approximate_mean, one.approximate_variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.maximum(shift, np.max(np.abs(found - mean) / sd, initial=0.0))
            change = np.maximum(change, np.max(np.abs(spread / sd - 1), initial=0.0))
    return EffectErrors(float(shift), float(change), float(np.std(off)), levels)


def _over_draws(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd with φ averaged out."""
    return np.mean(mean, axis=0), np.sqrt(np.mean(variance, axis=0) + np.var(mean, axis=0))
