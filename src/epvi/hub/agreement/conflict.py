"""Test every shard against the product of the others (leave-one-out Wald tests), and report which ones conflict.

Takes shard fits and the posterior; gives a `Conflict`. A shard with swapped labels or other units is multiplied like
any other, and the product itself does not show it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import chdtrc, gammaln, log_ndtr

from epvi.gaussian.gaussian import Gaussian, product_of
from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed
from epvi.ground.status import Status, StatusCode
from epvi.ground.text_table import lined_up
from epvi.hub.agreement.leave_one_out import Influence, as_gaussians, leave_one_out
from epvi.parameters.alignment import aligned
from epvi.parameters.space import Space
from epvi.wire.shard_fit import ShardFit

# Probability that any shard is flagged when all agree: the level is Bonferroni-corrected for d z-statistics and one
# Wald statistic per shard. Judgement: the usual 1 %.
_FALSE_ALARMS = 0.01
# Changing signs explains a conflict when it reduces the Wald statistic to less than the first fraction, and to one that
# is not significant or less than the second fraction. Judgement: the hint is only a question to the user.
_PART, _NOTHING = 0.25, 0.01
# Shards that `print` lists, the farthest first. Judgement: with header and verdict they fit a terminal of 24 lines.
_MOST_LINES = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Conflict:
    """Leave-one-out comparison of every shard with the product of the others; `print` it for a table.

    Coordinates are those of unconstrained θ. Shards without rows are listed, but never flagged.

    Attributes:
        shards: numbers of the shards.
        labels: their labels.
        names: names of the coordinates.
        num_rows: rows by shard.
        z: difference between the shard's mean and that of the others, in standard errors, by shard and coordinate.
        mean_shift: change of the posterior mean by including the shard, in posterior sds.
        sd_ratio: posterior sd without the shard over that with it.
        information: the shard's share of the posterior precision.
        distance: Wald statistic δᵀ(Σ_m + Σ₋ₘ)⁻¹δ, about chi-squared with d degrees of freedom when the shards agree.
        log_p: log p-value of `distance`.
        flagged: whether the shard conflicts with the others, after Bonferroni correction.
        status: the verdict, with a remedy.
    """

    shards: tuple[int, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    num_rows: Int[np.ndarray, " M"]
    z: Float[np.ndarray, "M d"]
    mean_shift: Float[np.ndarray, "M d"]
    sd_ratio: Float[np.ndarray, "M d"]
    information: Float[np.ndarray, "M d"]
    distance: Float[np.ndarray, " M"]
    log_p: Float[np.ndarray, " M"]
    flagged: Bool[np.ndarray, " M"]
    status: Status

    def __str__(self) -> str:
        order = np.arange(len(self.labels))
        if len(order) > _MOST_LINES:
            order = np.lexsort([-self.distance, ~self.flagged, self.num_rows == 0])[:_MOST_LINES]
        dof = f"distance ({len(self.names)} dof)"
        rows = [["", "shard", "rows", "information", dof, "farthest in", "z", "mean shift", "sd ratio"]]
        rows += [self._line(m) for m in order.tolist()]
        hidden = len(self.labels) - len(order)
        more = [f"(and {hidden:,} shards that are less far)"] if hidden else []
        return "\n".join([lined_up(rows, left=(0, 1, 5)), *more, str(self.status)])

    __repr__ = __str__

    def _line(self, m: int) -> list[str]:
        head = ["!" if self.flagged[m] else "", self.labels[m], f"{self.num_rows[m]:,}"]
        head.append(f"{100 * np.mean(self.information[m]):.1f} %")
        if self.num_rows[m] == 0 or np.isnan(self.distance[m]):
            return [*head, *["-"] * 5]
        i = self.worst(m)
        return [*head, f"{self.distance[m]:.1f}", self.names[i], *self._cells(m, i)]

    def _cells(self, m: int, i: int) -> list[str]:
        return [f"{self.z[m, i]:+.2f}", f"{self.mean_shift[m, i]:+.2f}", f"{self.sd_ratio[m, i]:.2f}"]

    def worst(self, m: int) -> int:
        """The coordinate with the largest |z| of the shard at position m."""
        return int(np.argmax(np.abs(self.z[m])))

    def shard(self, which: int | str) -> str:
        """The table of one shard, by its number or label: all parameters, largest |z| first."""
        listed = self.labels if isinstance(which, str) else self.shards
        if which not in listed:
            some = ", ".join(map(str, listed[:3])) + (", ..." if len(listed) > 3 else "")
            raise EpviError(f"there is no shard {which!r}: pass a number or a label from the table ({some}).")
        m = listed.index(which)
        if np.isnan(self.distance[m]):
            return str(self.status)
        rows = [["", "z", "mean shift", "sd ratio", "information"]]
        for i in np.argsort(-np.abs(self.z[m]), kind="stable").tolist():
            rows.append([self.names[i], *self._cells(m, i), f"{100 * self.information[m, i]:.1f} %"])
        return lined_up(rows, left=(0,))

    def to_json(self) -> dict[str, Any]:
        """As JSON values: lists, numbers and text; None for NaN."""
        listed = {name: getattr(self, name) for name in ("shards", "labels", "names", "num_rows", *Influence._fields)}
        listed |= {"log_p": self.log_p, "flagged": self.flagged}
        status = {"ok": self.status.ok, "status": self.status.text}
        return {name: _plain(value) for name, value in listed.items()} | status


def conflict_between(fits: Sequence[ShardFit], posterior: GaussianMixture, space: Space, *, seed: Seed = 0) -> Conflict:
    """Compare the shards of a posterior; `fits` in the order in which they were multiplied."""
    try:
        shards = as_gaussians(aligned(space, [fit.mixture for fit in fits]), posterior, seed)
        found = leave_one_out(shards)
    except np.linalg.LinAlgError as error:
        raise EpviError(
            f"the shards cannot be compared, because a precision cannot be factored ({str(error).lower().rstrip('.')}):"
            " standardise columns, or take fewer shards."
        ) from error
    num_rows = np.array([fit.num_rows for fit in fits])
    names = tuple(space.coordinate(i) for i in range(space.dim))
    log_p = _log_chi2_sf(found.distance, space.dim)
    report = Conflict(
        shards=tuple(fit.shard for fit in fits),
        labels=tuple(fit.label for fit in fits),
        names=names,
        num_rows=num_rows,
        **found._asdict(),
        log_p=log_p,
        flagged=_flagged(found, num_rows > 0),
        status=Status(StatusCode.NOTHING_TO_COMPARE, ""),
    )
    return dataclasses.replace(report, status=_verdict(report, shards, np.asarray(posterior.mean()), space))


def _log_level(num_shards: int, dim: int) -> float:
    return float(np.log(_FALSE_ALARMS / (num_shards * (dim + 1))))


def _flagged(found: Influence, judged: Bool[np.ndarray, " M"]) -> Bool[np.ndarray, " M"]:
    """Which of the shards with rows differ significantly from the others, by any z or by the Wald statistic."""
    count, dim = int(np.count_nonzero(judged)), found.z.shape[1]
    if count < 2:
        return np.zeros(len(judged), bool)
    log_p = np.minimum(np.log(2) + np.min(log_ndtr(-np.abs(found.z)), axis=1), _log_chi2_sf(found.distance, dim))
    return judged & (log_p < _log_level(count, dim))


def _log_chi2_sf(distance: Float[np.ndarray, " M"], dim: int) -> Float[np.ndarray, " M"]:
    """The log p-value of chi-squared; where p underflows, by the first term of the continued fraction of Γ(a, x)."""
    p, a, x = np.asarray(chdtrc(dim, distance)), dim / 2, distance / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 1e-290, np.log(p), a * np.log(x) - x - gammaln(a) - np.log(x + 1 - a))


def _verdict(report: Conflict, shards: list[Gaussian], centre: Float[np.ndarray, " d"], space: Space) -> Status:
    judged = np.flatnonzero(report.num_rows > 0)
    if len(judged) < 2:
        return Status(StatusCode.NOTHING_TO_COMPARE, "nothing to compare: fewer than two shards have rows.")
    if not np.any(report.flagged):
        m = int(judged[np.argmax(np.max(np.abs(report.z[judged]), axis=1))])
        where = f"{abs(report.z[m, report.worst(m)]):.1f} sds from the others in {report.names[report.worst(m)]}"
        text = f"the {len(judged)} shards agree: the farthest, {report.labels[m]}, is {where}."
        return Status(StatusCode.AGREEMENT, text)
    m = int(np.argmax(np.where(report.flagged, report.distance, -np.inf)))
    hint = _mirrored(report, shards, m, centre, space)
    if len(judged) == 2:
        return Status(StatusCode.CONFLICT, _two_disagree(report, judged, m) + hint)
    return Status(StatusCode.CONFLICT, _one_is_off(report, m) + _the_rest(report, shards, m) + hint)


def _two_disagree(report: Conflict, judged: Int[np.ndarray, " n"], m: int) -> str:
    i, (first, second) = report.worst(m), (report.labels[n] for n in judged)
    return (
        f"in conflict: shards {first} and {second} are {abs(report.z[m, i]):.1f} sds apart in {report.names[i]}"
        f" (distance {report.distance[m]:,.0f} where {len(report.names)} is usual), and with two shards neither can be"
        " called the wrong one: check the coding and units of the columns, and the labels, in both."
    )


def _one_is_off(report: Conflict, m: int) -> str:
    i = report.worst(m)
    return (
        f"in conflict: shard {report.labels[m]} is {abs(report.z[m, i]):.1f} sds from the others in {report.names[i]}"
        f" (distance {report.distance[m]:,.0f} where {len(report.names)} is usual), and leaving it out moves that mean"
        f" by {-report.mean_shift[m, i]:+,.1f} posterior sds and makes that sd {report.sd_ratio[m, i]:.2f} times as"
        " large: check the coding and units of its columns, and its labels."
    )


def _the_rest(report: Conflict, shards: list[Gaussian], m: int) -> str:
    """Whether the others agree without the worst shard, which can make all of them look different."""
    more = int(np.count_nonzero(report.flagged)) - 1
    rest = [n for n in range(len(shards)) if n != m]
    still = np.count_nonzero(_flagged(leave_one_out([shards[n] for n in rest]), report.num_rows[rest] > 0))
    flagged = f" Flagged with it: {more} more." if more else ""
    return f"{flagged} Without it the others {f'still disagree ({still} flagged)' if still else 'agree'}."


def _mirrored(report: Conflict, shards: list[Gaussian], m: int, centre: Float[np.ndarray, " d"], space: Space) -> str:
    """A hint when the shard would agree with the sign of its worst parameter, or of all real ones, changed."""
    real = np.concatenate([np.full(parameter.size, parameter.is_real) for parameter in space.parameters])
    others = product_of([shard for n, shard in enumerate(shards) if n != m])
    level = _log_level(int(np.count_nonzero(report.num_rows)), len(real))

    def explains(turned: Bool[np.ndarray, " d"]) -> bool:
        left = shards[m].mirrored(np.where(turned, -1.0, 1.0), centre).distance(others)
        usual = _log_chi2_sf(np.array([left]), len(real))[0] >= level
        return bool(left < _PART * report.distance[m] and (usual or left < _NOTHING * report.distance[m]))

    i = report.worst(m)
    if explains(real & (np.arange(len(real)) == i)):
        return f" With {report.names[i]} mirrored it would agree: is a column, or are the labels, the other way round?"
    whose = "one shard's" if np.count_nonzero(report.num_rows) == 2 else "its"
    hint = f" {whose.capitalize()} coefficients look mirrored: are {whose} labels the other way round?"
    return hint if explains(real) else ""


def _plain(value: Any) -> Any:
    """As JSON values, with None for NaN."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if value != value else value
