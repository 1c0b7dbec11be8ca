"""The hub's request to the sites after fitting: draws to score, and points and Gaussians for derivatives of log p_m.

Takes and gives `Draws`. Of the model it has only the fingerprint. The hub can generate it again from the posterior and
an `Asked`, and so check that answers belong to it.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.packing import Packing
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.parameters.space import Space
from epvi.wire import envelope
from epvi.wire.codec import describe_space, dimension, mixture_arrays, read_mixture, read_space
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, as_text, printable
from epvi.wire.shard_fit import MOST_SHARDS, Part, Provenance, describe_provenance, read_provenance

# Draws that sites are asked to score, unless said. Judgement: a mean is then known to 0.02 sds.
NUM_DRAWS = 2048
# The most that a file may ask a site for: draws to score, points (or Gaussians) to differentiate at, and base draws of
# each Gaussian. Judgement: hundreds of times the usual requests, and still finite work for a site.
MOST_DRAWS, MOST_CENTRES, MOST_BASE = 2**20, 256, 2**16


@dataclasses.dataclass(frozen=True)
class Asked:
    """Identifies a request.

    Attributes:
        posterior: hash of the posterior.
        num_draws: number of draws.
        num_base: number of base draws per Gaussian; 0 when no expectations are asked for.
        key: the two words of the JAX key of the seed.
        slopes: whether the gradients at all base draws of the first Gaussian are asked for, and not only their average.
    """

    posterior: str
    num_draws: int
    num_base: int
    key: tuple[int, ...]
    slopes: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """A request to all sites.

    Attributes:
        asked: identifies the request.
        theta: draws at which log p_m is asked for.
        centres: points at which its value, gradient and Hessian are asked for.
        gaussians: Gaussians under which expectations of these are asked for.
        base: standard normal base draws z; expectations are averages over θ = μ + L⁻ᵀz for each Gaussian.
        space: names, shapes and supports of the parameters.
        made_of: fingerprint of the model, by which sites check that theirs is the same.
        shares: the shards that are asked.
        file: the file that it was read from, if any.
    """

    asked: Asked
    theta: Float[np.ndarray, "S d"]
    centres: Float[np.ndarray, "P d"]
    gaussians: GaussianMixture
    base: Float[np.ndarray, "R d"]
    space: Space
    made_of: Provenance
    shares: tuple[Part, ...]
    file: str = ""

    def __repr__(self) -> str:
        return f"Draws({len(self.theta):,} of {self.space.describe()}, for {len(self.shares)} shards)"

    @property
    def form(self) -> Packing:
        """The form in which Hessians are asked for: full, or their diagonals."""
        return self.gaussians.structure.hessians

    @property
    def called(self) -> str:
        """Their name in messages."""
        return f"the draws in {shown(self.file)}" if self.file else "the draws"

    def points(self) -> Float[np.ndarray, "C R d"]:
        """The base draws mapped to every Gaussian."""
        return mapped(self.gaussians, self.base)

    def share_of(self, shard: int) -> Part:
        """The shard of this number; an error if it is not asked."""
        for share in self.shares:
            if share.shard == shard:
                return share
        there = ", ".join(str(share.shard) for share in self.shares[:10])
        of = self.shares[0].num_shards
        raise EpviError(f"{self.called} do not ask shard {shard}: they ask {there} of {of}, so name one of these.")

    def save(self, path: str | os.PathLike) -> Path:
        """Write it to a `.epvi` file, by atomic rename."""
        return envelope.save(path, pack_draws(self), unpack_draws)


def mapped(gaussians: GaussianMixture, z: Float[np.ndarray, "R d"]) -> Float[np.ndarray, "C R d"]:
    """Standard normal points z mapped to every Gaussian: θ = μ + L⁻ᵀz."""
    made = []
    for mean, root in zip(np.asarray(gaussians.means), np.asarray(gaussians.roots), strict=True):
        made.append(mean + gaussians.structure.packing.unwhiten(root, z))
    return np.stack(made)


def pack_draws(draws: Draws) -> Envelope:
    """The envelope of a request."""
    record = {
        "asked": describe_asked(draws.asked),
        "space": describe_space(draws.space),
        "structure": draws.gaussians.structure.name,
        "made_of": describe_provenance(draws.made_of),
        "shares": [[s.shard, s.num_shards, printable(s.label), str(s.prior)] for s in draws.shares],
    }
    arrays = {"theta": draws.theta, "centres": draws.centres, "base": draws.base}
    return Envelope("draws", record, arrays | mixture_arrays(draws.gaussians))


def unpack_draws(content: Envelope) -> Draws:
    """The request of an envelope, checked."""
    record = Record(content.record)
    space = read_space(record, dimension(content.arrays))
    asked = read_asked(record.table("asked"))
    gaussians = read_mixture(record.text("structure"), content.arrays, space.dim)
    theta = read_points(content, "theta", asked.num_draws, space.dim)
    base = read_points(content, "base", asked.num_base, space.dim)
    centres = read_points(content, "centres", None, space.dim)
    if not 1 <= len(centres) <= MOST_CENTRES or gaussians.num_components > MOST_CENTRES:
        raise Malformed(f"its centres and its Gaussians are not from 1 to {MOST_CENTRES} each")
    shares = record.list("shares", _read_share, MOST_SHARDS)
    if not shares or len({share.shard for share in shares}) < len(shares):
        raise Malformed("its shares are not those of different shards")
    made_of = read_provenance(record.table("made_of"))
    return Draws(asked, theta, centres, gaussians, base, space, made_of, shares)


def describe_asked(asked: Asked) -> dict[str, Any]:
    """As JSON."""
    return {**dataclasses.asdict(asked), "key": list(asked.key)}


def read_asked(record: Record) -> Asked:
    """An `Asked` from JSON, checked."""
    key = record.list("key", lambda word, what: word if type(word) is int and 0 <= word < 2**32 else None, 8)
    if len(key) != 2 or None in key:
        raise Malformed("its key is not a seed")
    draws, base = record.whole("num_draws", 1, MOST_DRAWS), record.whole("num_base", 0, MOST_BASE)
    if base % 2 or base == 2:
        raise Malformed("its num_base is not an even number of at least 4, or 0")
    # Files of earlier versions lack it.
    slopes = record.truth("slopes") if "slopes" in set(record) else False
    if slopes and not base:
        raise Malformed("it asks for gradients at base draws, of which it has none")
    return Asked(record.text("posterior", 64), draws, base, tuple(word for word in key if word is not None), slopes)


def read_points(content: Envelope, name: str, count: int | None, dim: int) -> np.ndarray:
    """An array of `count` finite points (None: any number) in `dim` dimensions."""
    points = content.arrays.get(name)
    if points is None or points.ndim != 2 or points.shape[1] != dim or count not in (None, len(points)):
        raise Malformed(f"its {name} are not points in {dim} dimensions, as many as it says")
    if not np.all(np.isfinite(points)) or np.any(np.abs(points) > 1e150):
        raise Malformed(f"its {name} are not finite")
    return np.array(points)


def _read_share(value: Any, what: str) -> Part:
    if not isinstance(value, list) or len(value) != 4:
        raise Malformed(f"its {what} has something that is not a shard")
    record = Record(dict(zip(("shard", "num_shards", "label", "prior"), value, strict=True)), what)
    num_shards = record.whole("num_shards", 1, MOST_SHARDS)
    label = as_text(record.any("label"), "label")
    return Part(record.whole("shard", 1, num_shards), num_shards, label, record.fraction("prior"))
