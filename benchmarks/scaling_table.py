"""Lines of the table of scaling.py, and what makes a target met."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accuracy_scores import Score, score
from posteriors import Moments
from scaling_methods import METHODS, Answer
from scaling_race import Racer, Result

from epvi.ground.text_table import lined_up

# Largest relative error of an sd, beyond three Monte Carlo standard errors of the reference.
SD_ERROR = 0.03
MET, MISSED, SHOWN, FAILED, OPEN = "met", "MISSED", "shown", "FAILED", "open"


class Line(NamedTuple):
    """A line of the table: cells as they are printed."""

    work: str
    method: str
    seconds: str = ""
    beside: str = ""
    its_seconds: str = ""
    figure: str = ""
    target: str = ""
    verdict: str = ""
    means_off: str = ""
    sd_ratios: str = ""
    outcome: str = SHOWN


HEAD = Line(
    "work", "method", "seconds", "beside", "seconds", "ratio", "target", "verdict", "means off", "sd ratios", "outcome"
)
# Columns flush left.
_LEFT = (0, 1, 3, 7, 10)


def as_text(lines: Sequence[Line]) -> str:
    return lined_up([HEAD, *lines], _LEFT)


def write(lines: Sequence[Line], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Line._fields)
        writer.writerows(lines)


def judged(figure: float, limit: float | None, unit: str, *, at_least: bool = False) -> tuple[str, str, str]:
    """The figure, its target, and whether it is met."""
    shown = "-" if math.isnan(figure) else f"{figure:.3g}{unit}"
    if limit is None:
        return shown, "", SHOWN
    target = f"{'>=' if at_least else '<='} {limit:.3g}{unit}"
    if math.isnan(figure):
        return shown, target, FAILED
    return shown, target, MET if (figure >= limit if at_least else figure <= limit) else MISSED


def scored(answer: Answer | None, reference: Moments | None) -> Score | None:
    """Errors of an answer, over the scalars whose sds the reference knows; None if there are none."""
    if answer is None or answer.moments is None or reference is None:
        return None
    known = {name for name, sd in zip(reference.names, reference.sd, strict=True) if np.isfinite(sd)}
    names = [name for name in answer.moments.names if name in known]
    return score(answer.moments, reference.of(names)) if names else None


def compared(
    ours: tuple[Racer, Result],
    beside: tuple[Racer, Result],
    most: float | None,
    reference: Moments | None,
    *,
    full: bool = False,
) -> Line:
    """The line of a fit beside another racer; `most` limits the ratio of their times, `full` asks for full covariance.

    A target is met only if the certificate does not refuse and all sds are right. A run that took longer than its limit
    bounds the ratio.
    """
    racer, result = ours
    bound = "> " if result.over else "< " if beside[1].over else ""
    ratio = math.nan if result.over and beside[1].over else result.median / beside[1].median
    figure, target, outcome = judged(ratio, most, "x")
    if not (beside[1].seconds or beside[1].over) and outcome == FAILED:
        outcome = SHOWN  # without its peer
    if outcome == MET and not beside[1].compiled and not METHODS[beside[0].method].once:
        outcome = OPEN  # the time of a cold run is too long to be compared with
    errors, answer = scored(result.answer, reference), result.answer
    faults = ["time"] if outcome == MISSED else []
    faults += _faults(answer, errors, full) if answer else []
    return Line(
        str(racer.work),
        str(racer),
        result.said,
        str(beside[0]),
        beside[1].said,
        f"{bound}{figure}",
        target,
        answer.verdict.removeprefix("trust with ") if answer else "",
        f"{errors.mean:.3f}" if errors else "",
        f"{errors.low:.3f} to {errors.high:.3f}" if errors and not math.isnan(errors.low) else "",
        FAILED if result.failure and not result.over else f"{MISSED}: {', '.join(faults)}" if faults else outcome,
    )


def _faults(answer: Answer, errors: Score | None, full: bool) -> list[str]:
    found = ["verdict"] if answer.verdict == "do not trust" else []
    # A ratio that is above 1 although it was moved down by its error is too large; so is it below.
    if errors and (errors.high_excess > 1 + SD_ERROR or errors.low_excess < 1 - SD_ERROR):
        found.append("sds")
    return [*found, "structure"] if full and answer.structure != "Full" else found


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Of log seconds against log size, by least squares; NaN for fewer than two times."""
    known = [(x, y) for x, y in zip(sizes, seconds, strict=True) if not math.isnan(y)]
    if len(known) < 2:
        return math.nan
    x, y = np.log(np.array(known)).T
    return float(np.polyfit(x, y, 1)[0])
