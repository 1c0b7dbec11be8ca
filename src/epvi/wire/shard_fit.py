"""A shard's fit with its provenance, as sites send it to the hub, and its file format.

Takes and gives `ShardFit`. Everything is checked when a file is read: an untrusted file can contain a wrong fit, but
never an invalid one.
"""

import dataclasses
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.ground.printable import shown
from epvi.ground.status import Status, StatusCode
from epvi.parameters.space import Space
from epvi.wire import envelope
from epvi.wire.codec import (
    describe_space,
    describe_status,
    dimension,
    mixture_arrays,
    read_mixture,
    read_space,
    read_status,
)
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, as_number, as_text, as_texts, finite_or_none, number_or_nan, printable

# Shards that a file may claim its data were split into. Judgement: lists by shard stay within memory.
MOST_SHARDS = 1_000_000
# Names of unaligned parameters in a file. Judgement: as many as may be exchangeable.
_MOST_UNALIGNED = 64


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Fingerprints by which the hub checks that fits can be combined; they do not reveal values of rows.

    Attributes:
        study: name of the study.
        model: name of the model function.
        prior_values: log prior at fixed points, followed by its directional derivatives there.
        row_values: log likelihood of synthetic rows at fixed points.
        fixed: hash of every fixed argument.
        columns: source columns of every model argument.
        standardised: centre and scale of every standardised column.
        levels: levels of every categorical column.
        rows: keyed hash of the rows, which does not depend on their order.
        inference: settings of the fit.
        key: the words of the JAX key of its seed.
        version: version of epvi.
        unaligned: parameters whose labels can be exchanged without changing the model, and are not aligned.
        groups: the column of groups whose effects were integrated out at the sites; "" if there is none.
    """

    study: str = ""
    model: str = ""
    prior_values: tuple[float, ...] = ()
    row_values: tuple[float, ...] = ()
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    standardised: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    rows: str = ""
    inference: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    key: tuple[int, ...] = ()
    version: str = ""
    unaligned: tuple[str, ...] = ()
    groups: str = ""

    @property
    def flat_prior(self) -> bool:
        """Whether the prior, with the Jacobian of the constraints, is constant, so that shares of it do not matter."""
        half = len(self.prior_values) // 2
        values, slopes = self.prior_values[:half], self.prior_values[half:]
        # Values alone are not enough: those of a normal prior with an sd of 1e6 can be equal in float64.
        return half > 0 and all(value == values[0] for value in values) and all(slope == 0 for slope in slopes)


def plain_coding(
    columns: Mapping[str, tuple[str, ...]], levels: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Columns and levels in a normal form: the indicator of a column with levels 0 and 1 is the column itself.

    One site may have booleans where another has numbers 0 and 1, and older files have no levels for booleans.
    """
    plain = {f"{name}=1": name for name, names in levels.items() if tuple(names) == ("0", "1")}
    return (
        {argument: tuple(plain.get(name, name) for name in names) for argument, names in columns.items()},
        {name: tuple(names) for name, names in levels.items() if f"{name}=1" not in plain},
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """One shard of a split.

    Attributes:
        shard: its number, from 1.
        num_shards: how many shards there are.
        label: its name in messages.
        prior: its share of the prior.
    """

    shard: int
    num_shards: int
    label: str
    prior: Fraction


@dataclasses.dataclass(frozen=True, eq=False)
class ShardFit:
    """One shard's approximation of its subposterior p(θ)^f p(x_m | θ); without rows, a stand-in for a missing shard.

    Attributes:
        mixture: the approximation over unconstrained θ.
        space: names, shapes and supports of the parameters.
        shard: number of the shard, from 1.
        num_shards: how many shards there are.
        label: name of the shard in messages.
        prior: the shard's share f of the prior.
        num_rows: number of its rows.
        status: whether the fit converged, and what to do if not.
        history: variational bound after each sweep.
        elbo: Monte Carlo estimate of the ELBO, with its standard error.
        gap: estimate of log evidence − ELBO, from draws of the fit, in nats.
        passes: passes over all rows; starting values of a tall shard are found on subsets, which do not count.
        seconds: wall-clock time.
        made_of: fingerprints of model, coding and rows.
        pass_seconds: time of the passes.
        file: the file that it was read from, if any.
        point: given if the subposterior is no density of its own: the mixture is then one Gaussian with the natural
            parameters of the subposterior's quadratic expansion about this point, and its normaliser means nothing.
    """

    mixture: GaussianMixture
    space: Space
    shard: int
    num_shards: int
    label: str
    prior: Fraction
    num_rows: int
    status: Status
    history: tuple[float, ...]
    elbo: Estimate
    gap: float
    passes: int
    seconds: float
    made_of: Provenance = Provenance()
    pass_seconds: float = 0.0
    file: str = ""
    point: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"ShardFit(shard {shown(self.label)}, {self.num_rows:,} rows, {self.mixture!r}, {self.status})"

    @property
    def called(self) -> str:
        """Its name in messages: the file that it was read from, if any, and the shard."""
        shard = f"shard {printable(self.label, 80)}"
        return f"{shown(self.file)} ({shard})" if self.file else shard

    @property
    def account(self) -> str:
        """How it went, in a line for a log."""
        count = self.mixture.num_components
        components = f"{count} component{'s' if count > 1 else ''}"
        went = f"{self.num_rows:,} rows, {components}, {self.passes} passes, {self.seconds:.2f} s"
        return f"shard {shown(self.label)}: {went}; {shown(self.status.text)}"

    @property
    def is_stand_in(self) -> bool:
        """Whether it approximates a share of the prior, without rows."""
        return self.num_rows == 0

    @property
    def stands_alone(self) -> bool:
        """Whether it is a density of its own, and not only information for the other shards."""
        return self.point is None

    @property
    def can_be_multiplied(self) -> bool:
        """Whether it can be multiplied with the fits of other shards: it ended well, or is information for them."""
        return self.status.ok or not self.stands_alone

    def save(self, path: str | os.PathLike) -> Path:
        """Write it to a `.epvi` file, by atomic rename."""
        return envelope.save(path, pack_fit(self), unpack_fit)


def pack_fit(fit: ShardFit) -> Envelope:
    """The envelope of a fit."""
    record = {"space": describe_space(fit.space), "fit": describe_fit(fit)}
    return Envelope("shard", record, fit_arrays(fit))


def unpack_fit(content: Envelope) -> ShardFit:
    """The fit of an envelope, checked."""
    record = Record(content.record)
    space = read_space(record, dimension(content.arrays))
    return read_fit(record.table("fit"), space, content.arrays)


def informs(finding: str) -> Status:
    """The status of a fit that is information for other shards, because of what was found about this one."""
    text = (
        f"needs a second round: {finding}; it is information for the other shards, with which they bound that together,"
        " and no density of its own."
    )
    return Status(StatusCode.INFORMATION, text)


def fit_arrays(fit: ShardFit, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a fit by name."""
    arrays = mixture_arrays(fit.mixture, prefix)
    return arrays if fit.point is None else {**arrays, f"{prefix}point": np.asarray(fit.point, np.float64)}


def describe_fit(fit: ShardFit) -> dict[str, Any]:
    """A fit without its arrays and its space, as JSON."""
    return {
        "structure": fit.mixture.structure.name,
        "shard": fit.shard,
        "num_shards": fit.num_shards,
        "label": printable(fit.label),
        "prior": str(fit.prior),
        "num_rows": fit.num_rows,
        "status": describe_status(fit.status),
        "history": [finite_or_none(bound) for bound in fit.history],
        "elbo": [finite_or_none(x) for x in fit.elbo],
        "gap": finite_or_none(fit.gap),
        "passes": fit.passes,
        "seconds": round(fit.seconds, 3),
        "pass_seconds": round(fit.pass_seconds, 3),
        "made_of": describe_provenance(fit.made_of),
    }


def read_fit(record: Record, space: Space, arrays: Mapping[str, np.ndarray], prefix: str = "") -> ShardFit:
    """The fit from its record and arrays, checked."""
    num_shards = record.whole("num_shards", 1, MOST_SHARDS)
    elbo = record.list("elbo", number_or_nan, 2)
    if len(elbo) != 2:
        raise Malformed("its elbo is not a value and a standard error")
    mixture, status = read_mixture(record.text("structure"), arrays, space.dim, prefix), read_status(record)
    return ShardFit(
        mixture=mixture,
        space=space,
        shard=record.whole("shard", 1, num_shards),
        num_shards=num_shards,
        label=record.text("label"),
        prior=record.fraction("prior"),
        num_rows=record.whole("num_rows", 0, 2**53),
        status=status,
        history=record.list("history", number_or_nan, 100_000),
        elbo=Estimate(np.asarray(elbo[0]), np.asarray(elbo[1])),
        gap=number_or_nan(record.any("gap"), "gap"),
        passes=record.whole("passes", 0, 2**53),
        seconds=record.number("seconds"),
        pass_seconds=record.number("pass_seconds") if "pass_seconds" in set(record) else 0.0,
        made_of=read_provenance(record.table("made_of")),
        point=_read_point(arrays.get(f"{prefix}point"), mixture, status),
    )


def _read_point(point: np.ndarray | None, mixture: GaussianMixture, status: Status) -> np.ndarray | None:
    if (point is None) == (status.code is StatusCode.INFORMATION):
        raise Malformed("its status does not say whether it is information at a point")
    if point is None:
        return None
    if mixture.num_components > 1 or point.shape != (mixture.dim,) or not np.all(np.isfinite(point)):
        raise Malformed("its point is not one of its parameters, or its information not one Gaussian")
    return np.array(point)


def describe_provenance(made_of: Provenance) -> dict[str, Any]:
    """A provenance as JSON."""
    record = dataclasses.asdict(made_of)
    record |= {name: printable(record[name]) for name in ("study", "model", "groups")}
    record["unaligned"] = [printable(name) for name in made_of.unaligned[:_MOST_UNALIGNED]]
    record["prior_values"] = [finite_or_none(value) for value in made_of.prior_values]
    record["row_values"] = [finite_or_none(value) for value in made_of.row_values]
    return record


def read_provenance(record: Record) -> Provenance:
    """A provenance from JSON, checked."""
    return Provenance(
        study=record.text("study"),
        model=record.text("model"),
        prior_values=record.list("prior_values", number_or_nan, 1000),
        row_values=record.list("row_values", number_or_nan, 1000),
        fixed=record.each("fixed", as_text),
        columns=record.each("columns", as_texts),
        standardised=record.each("standardised", _centre_and_scale),
        levels=record.each("levels", as_texts),
        rows=record.text("rows"),
        inference=record.each("inference", _setting),
        key=record.list("key", _key_word, 8),
        version=record.text("version"),
        unaligned=record.list("unaligned", as_text, _MOST_UNALIGNED) if "unaligned" in set(record) else (),
        groups=record.text("groups") if "groups" in set(record) else "",
    )


def _centre_and_scale(value: Any, what: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise Malformed(f"its {what} has something that is not a centre and a scale")
    centre, scale = (as_number(number, what) for number in value)
    if scale <= 0:
        raise Malformed(f"its {what} has a scale that is not positive")
    return centre, scale


def _setting(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return as_text(value, what)
    return value if isinstance(value, int) else as_number(value, what)


def _key_word(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**32:
        raise Malformed(f"its {what} is not a seed")
    return value
