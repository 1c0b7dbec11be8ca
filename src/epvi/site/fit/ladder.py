"""Subsamples of increasing size on which a search for modes begins, and the starts of the search."""

import math

import numpy as np
from jaxtyping import Float

from epvi.site.derivatives.expansion import is_tall
from epvi.site.model.target import Target

# Size of the first subsample, on which modes are searched for: observed numbers per parameter, least observed numbers,
# and rows added to them. Judgement: enough to locate the modes, which larger subsamples then refine.
_START_TERMS_PER_PARAMETER, _LEAST_START_TERMS, _LEAST_START_ROWS = 20, 384, 64
# Least number of bundles of groups that are added, where rows are such. Judgement: the spread of effects between groups
# is seen roughly in as many groups; two or three more steps on all rows make up for it.
_LEAST_START_BUNDLES = 8
# The last subsample has one row in P ≤ 16: from there to all rows a mode moves by about √P of its standard deviations,
# which two or three Newton steps cover. On a tall shard the second is not evaluated if little is left after the first:
# of the d(P − 1)/2 nats at the start about (d(P − 1))²/2n, with n observed numbers, since the Hessian changes by 1/√n
# over a standard deviation. P ≥ 4 is chosen so that this is 0.05 nats. Each subsample is at most 64 times as large as
# the one before. Judgement.
_FEWEST_IN_LAST_PART, _MOST_IN_LAST_PART, _LEFT_BY_FIRST_STEP, _NEXT_PART = 4.0, 16.0, 0.05, 64
# Tolerance of a mode on subsamples after the first, in nats: the next one moves it by more. Judgement.
NEAR_ENOUGH = 0.01


# The same with many parameters, where a Hessian of the subsample serves to scale the steps on more rows: observed
# numbers per parameter. Judgement: by the Marchenko-Pastur law its eigenvalues are then off by factors of 0.4 to 1.8.
_FEWER_TERMS_PER_PARAMETER = 8


def fewer_in_first_part(d: int, terms: int) -> int:
    """Rows of the first subsample, for many parameters."""
    return _FEWER_TERMS_PER_PARAMETER * d // terms + _LEAST_START_ROWS


def first_part(d: int, terms: int, bundle: int = 1) -> int:
    """Rows of the first subsample, for d parameters and this many observed numbers per row; `bundle`: see `Target`."""
    more = _LEAST_START_ROWS if bundle == 1 else max(_LEAST_START_ROWS // bundle, _LEAST_START_BUNDLES)
    return max(_LEAST_START_TERMS, _START_TERMS_PER_PARAMETER * d) // terms + more


def represented_by_last(num_rows: int, d: int, target: Target) -> float:
    """How many rows each row of the last subsample stands for, with d parameters."""
    if target.bundle > 1 or not is_tall(num_rows, 1):
        return _MOST_IN_LAST_PART
    found = 1 + math.sqrt(2 * _LEFT_BY_FIRST_STEP * num_rows * target.terms) / d
    return min(max(found, _FEWEST_IN_LAST_PART), _MOST_IN_LAST_PART)


def part_sizes(num_rows: int, first: int, represented: float = _MOST_IN_LAST_PART) -> list[int]:
    """Sizes of the subsamples: geometric, from `first` to one row in `represented`; empty if the rows are few."""
    if num_rows <= 2 * first:
        return []
    last = int(num_rows / represented)
    if last <= 2 * first:
        return [first]
    steps = math.ceil(math.log(last / first, _NEXT_PART))
    return [round(first * (last / first) ** (i / steps)) for i in range(steps + 1)]


def scaled_starts(starts: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Starts from standard normal draws: of four, two are such draws, one is close to the origin and one far."""
    # The factors are judgement.
    return starts * np.resize([1.0, 1.0, 0.1, 3.0], len(starts))[:, None]
