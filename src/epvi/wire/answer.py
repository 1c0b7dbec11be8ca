"""A site's answer to a request: log p_m at the draws, its derivatives at the centres, its expectations under Gaussians.

Takes and gives `Scores`, in an envelope of the kind "scores", or "moments" when the expectations are included.
"""

import dataclasses
import functools
import os
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.structures import DIAGONALS, WHOLE, form_of
from epvi.ground.printable import shown
from epvi.wire import envelope
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, printable
from epvi.wire.request import Asked, describe_asked, read_asked
from epvi.wire.shard_fit import MOST_SHARDS, Provenance, describe_provenance, read_provenance

# The largest absolute value of a number in a file: its square is still finite in float64.
_MOST = 1e150


class Derivatives(NamedTuple):
    """log p_m with its derivatives at P points.

    Attributes:
        value: log p_m.
        gradient: its gradient.
        hessian: its Hessian, a matrix or its diagonal.
    """

    value: Float[np.ndarray, " P"]
    gradient: Float[np.ndarray, "P d"]
    hessian: Float[np.ndarray, "P ..."]


class Variation(NamedTuple):
    """Score and empirical Fisher information of a shard at the first centre, for the score test.

    `gradient` is the sum over rows of the gradients of their log likelihoods, `products` the sum of the outer products
    of these gradients: a matrix, or its diagonal where Hessians are diagonal.
    """

    gradient: Float[np.ndarray, " d"]
    products: Float[np.ndarray, "d ..."]


class Expected(NamedTuple):
    """Expectations of log p_m and its derivatives under C Gaussians, by averages over R base draws.

    Attributes:
        values: log p_m at every base draw of every Gaussian.
        gradient: average gradient.
        hessian: average Hessian, a matrix or its diagonal.
    """

    values: Float[np.ndarray, "C R"]
    gradient: Float[np.ndarray, "C d"]
    hessian: Float[np.ndarray, "C ..."]


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """One shard's answer to a request, with log p_m(θ) = f log prior(θ) (with Jacobian) + log likelihood of its rows.

    Attributes:
        asked: the request that it answers.
        shard: number of the shard, from 1.
        num_shards: how many shards there are.
        label: name of the shard in messages.
        prior: the shard's share f of the prior.
        num_rows: number of its rows.
        made_of: fingerprints of model, coding and rows.
        values: log p_m at every draw.
        errors: their standard errors; 0 if `exact`.
        echo: the last draw as the site received it, to check that hub and site have the same draws.
        centres: log p_m and its derivatives at the centres.
        rows: score and empirical Fisher information at the first centre.
        moments: expectations under the Gaussians; None if not asked for.
        exact: whether all rows were evaluated at every draw.
        proper: whether the prior is a proper density, so that the evidence is defined.
        integral: sd over some of the draws of the error of the integrals over the effects of groups, in nats.
        passes: passes over all rows.
        seconds: wall-clock time.
        slopes: gradients of log p_m at the base draws of the first Gaussian; None if not asked for.
        file: the file that it was read from, if any.
    """

    asked: Asked
    shard: int
    num_shards: int
    label: str
    prior: Fraction
    num_rows: int
    made_of: Provenance
    values: Float[np.ndarray, " S"]
    errors: Float[np.ndarray, " S"]
    echo: Float[np.ndarray, " d"]
    centres: Derivatives
    rows: Variation
    moments: Expected | None
    exact: bool
    proper: bool
    integral: float = 0.0
    passes: int = 0
    seconds: float = 0.0
    slopes: Float[np.ndarray, "R d"] | None = None
    file: str = ""

    def __repr__(self) -> str:
        return f"Scores(shard {shown(self.label)}, {self.num_rows:,} rows, {len(self.values):,} draws)"

    @property
    def called(self) -> str:
        """Its name in messages: the file that it was read from, if any, and the shard."""
        shard = f"shard {printable(self.label, 80)}"
        return f"{shown(self.file)} ({shard})" if self.file else shard

    @property
    def account(self) -> str:
        """How it went, in a line for a log."""
        went = f"{self.num_rows:,} rows, {self.passes} passes, {self.seconds:.2f} s"
        return f"shard {shown(self.label)} scored {len(self.values):,} draws: {went}"

    @property
    def num_numbers(self) -> int:
        """How many float64 numbers it has in a file."""
        parts = [self.centres, *([] if self.moments is None else [self.moments])]
        plain = [self.values, self.echo, self.rows.gradient, *(array for part in parts for array in part[:2])]
        plain += [] if self.exact else [self.errors]
        plain += [] if self.slopes is None else [self.slopes]
        hessians = [self.rows.products[None], *(part.hessian for part in parts)]
        return sum(array.size for array in plain) + sum(_num_free(array.shape) for array in hessians)

    def save(self, path: str | os.PathLike) -> Path:
        """Write it to a `.epvi` file, by atomic rename."""
        return envelope.save(path, pack_scores(self), unpack_scores)


@functools.lru_cache
def _num_free(shape: tuple[int, ...]) -> int:
    """How many numbers Hessians of this shape have in a file."""
    some = np.zeros(shape)
    return form_of(some[0]).flat(some).size


def pack_scores(scores: Scores) -> Envelope:
    """The envelope of a shard's scores."""
    record = {
        "asked": describe_asked(scores.asked),
        "shard": scores.shard,
        "num_shards": scores.num_shards,
        "label": printable(scores.label),
        "prior": str(scores.prior),
        "num_rows": scores.num_rows,
        "made_of": describe_provenance(scores.made_of),
        "exact": scores.exact,
        "proper": scores.proper,
        "integral": scores.integral,
        "passes": scores.passes,
        "seconds": round(scores.seconds, 3),
    }
    return Envelope("scores" if scores.moments is None else "moments", record, _arrays(scores))


def _arrays(scores: Scores) -> dict[str, np.ndarray]:
    arrays = {"values": scores.values, "echo": scores.echo}
    # Errors that are all zero are not written.
    arrays |= {} if scores.exact else {"errors": scores.errors}
    arrays |= {} if scores.slopes is None else {"slopes": scores.slopes}
    products = form_of(scores.rows.products)
    arrays |= {"rows/gradient": scores.rows.gradient, "rows/products": products.flat(scores.rows.products[None])[0]}
    arrays |= {f"centres/{name}": array for name, array in _packed(scores.centres._asdict()).items()}
    if scores.moments is not None:
        arrays |= {f"moments/{name}": array for name, array in _packed(scores.moments._asdict()).items()}
    return arrays


def _packed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with Hessians as in files: the lower triangles of symmetric matrices, row by row."""
    return {name: form_of(x[0]).flat(x) if name == "hessian" else x for name, x in arrays.items()}


def unpack_scores(content: Envelope) -> Scores:
    """The scores of an envelope, checked."""
    record = Record(content.record)
    asked = read_asked(record.table("asked"))
    num_shards = record.whole("num_shards", 1, MOST_SHARDS)
    exact = record.truth("exact")
    echo = read_array(content, "echo", (None,))
    if not len(echo):
        raise Malformed("its echo has no dimensions")
    values = _read_values(content, asked.num_draws)
    errors = np.zeros(len(values)) if exact else read_array(content, "errors", values.shape)
    if np.any(errors < 0):
        raise Malformed("its errors are not positive")
    return Scores(
        asked=asked,
        shard=record.whole("shard", 1, num_shards),
        num_shards=num_shards,
        label=record.text("label"),
        prior=record.fraction("prior"),
        num_rows=record.whole("num_rows", 0, 2**53),
        made_of=read_provenance(record.table("made_of")),
        values=values,
        errors=errors,
        echo=echo,
        centres=_read_centres(content, len(echo)),
        rows=_read_rows(content, len(echo)),
        moments=_read_moments(content, asked.num_base, len(echo)) if content.kind == "moments" else None,
        exact=exact,
        proper=record.truth("proper"),
        integral=_error(record) if "integral" in set(record) else 0.0,
        passes=record.whole("passes", 0, 2**53),
        seconds=record.number("seconds"),
        slopes=_read_slopes(content, asked, len(echo)),
    )


def _error(record: Record) -> float:
    found = record.number("integral")
    if found < 0:
        raise Malformed("its integral is not an error")
    return found


def _read_values(content: Envelope, num_draws: int) -> np.ndarray:
    values = content.arrays.get("values")
    # p_m may be 0 at a draw: −inf is the only value that is not finite.
    if values is None or values.shape != (num_draws,) or not np.all((np.abs(values) <= _MOST) | (values == -np.inf)):
        raise Malformed("its values are not a log density for every draw")
    return np.array(values)


def _read_centres(content: Envelope, d: int) -> Derivatives:
    value, gradient, hessian = (
        read_array(content, f"centres/{name}", shape)
        for name, shape in zip(Derivatives._fields, ((None,), (None, d), (None, None)), strict=True)
    )
    if not len(value) == len(gradient) == len(hessian):
        raise Malformed("its derivatives are not those at the same centres")
    return Derivatives(value, gradient, _unpacked(hessian, d))


def _read_rows(content: Envelope, d: int) -> Variation:
    products = _unpacked(read_array(content, "rows/products", (None,))[None], d)[0]
    if np.any(form_of(products).diagonal(products, d) < 0):
        raise Malformed("its rows/products are not those of a number with itself")
    return Variation(read_array(content, "rows/gradient", (d,)), products)


def _read_moments(content: Envelope, num_base: int, d: int) -> Expected:
    if not num_base:
        raise Malformed("it holds moments without base draws")
    values, gradient, hessian = (
        read_array(content, f"moments/{name}", shape)
        for name, shape in zip(Expected._fields, ((None, num_base), (None, d), (None, None)), strict=True)
    )
    if not len(values) == len(gradient) == len(hessian):
        raise Malformed("its moments are not those of the same Gaussians")
    return Expected(values, gradient, _unpacked(hessian, d))


def _read_slopes(content: Envelope, asked: Asked, d: int) -> np.ndarray | None:
    if not asked.slopes or "slopes" not in content.arrays:
        return None
    return read_array(content, "slopes", (asked.num_base, d))


def read_array(content: Envelope, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """A finite array of this shape, in which None stands for any length."""
    array = content.arrays.get(name)
    if array is None or array.ndim != len(shape):
        raise Malformed(f"it has no array {name}")
    if any(size not in (None, length) for size, length in zip(shape, array.shape, strict=True)):
        raise Malformed(f"its {name} does not have the shape that it says")
    if not np.all(np.isfinite(array)) or np.any(np.abs(array) > _MOST):
        raise Malformed(f"its {name} is not finite")
    return np.array(array)


def _unpacked(packed: np.ndarray, d: int) -> np.ndarray:
    """Symmetric matrices from their lower triangles, or diagonals as they are; for d = 1 both are the same."""
    made = WHOLE.from_flat(packed, d, symmetric=True)
    made = DIAGONALS.from_flat(packed, d, symmetric=True) if made is None else made
    if made is None:
        raise Malformed(f"its Hessians are neither matrices nor diagonals in {d} dimensions")
    return made
