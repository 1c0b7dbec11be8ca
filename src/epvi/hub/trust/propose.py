"""Draw from a defensive mixture proposal: the posterior, an inflated copy of it, and modes that it may lack.

Takes a posterior and the size of the request; gives `Draws` for the sites, and for the hub the `Proposal` with its
density. Draws of the posterior alone cannot show what it lacks: a mode that it dropped gets no draw, and the weights of
all others look perfect. So some draws come from the posterior with larger sds, and some from modes of single shards.
"""

import dataclasses
import functools
import hashlib
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import base_draws, draw, log_density, uniform_points
from epvi.ground.seeds import RequestStream, Seed, as_key, request_words
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.modes import joined, one_per_mode, stray_modes
from epvi.parameters.alignment import aligned
from epvi.wire.request import Asked, Draws
from epvi.wire.shard_fit import Part, Provenance

# Sixteenths of the draws from the inflated posterior, and from stray modes (if any). Judgement: enough to detect what
# is missing, while an exact posterior has an effective sample size of at least 13/16 of the draws.
_INFLATED, _STRAY = 2, 1
# The inflated copy has sds larger by exp(3/d), at most 2: the density at its mean is lower by 3 nats (less for d < 5).
# Judgement: wide enough to reach the tails, near enough that draws keep some weight.
_NATS, _WIDEST = 3.0, 2.0
# Sixteenths of the draws, in adaptive rounds, from the inflated posterior, from one Gaussian around the whole with sds
# larger by the factor, and from a copy of the posterior whose components are longer by the factor: a thin ridge goes on
# where they point. Judgement: a banana whose ends have no component shows in its weights.
_ADAPTED_INFLATED, _WHOLE, _WIDE_SDS, _LONG, _LONGER = 1, 1, 2.5, 2, 3.0
# Initial weight of stray modes among the Gaussians to refine; the first natural-gradient step replaces it. Judgement.
_STRAY_WEIGHT = 1e-3
# Version of the way draws are generated, part of the digest: increase it when the same posterior and key give others.
_SCHEME = b"2"


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A mixture proposal: its parts, with the numbers of draws that came from each."""

    parts: tuple[tuple[int, GaussianMixture], ...]

    @property
    def num_draws(self) -> int:
        """The number of draws from all parts."""
        return sum(count for count, _ in self.parts)

    def log_parts(self, theta: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, " n"]]:
        """For each part the log of its share times its density."""
        return [math.log(count / self.num_draws) + log_density(part, theta) for count, part in self.parts]

    def log_density(self, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """log g at every point."""
        return np.logaddexp.reduce(self.log_parts(theta), axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """Draws of the mixture proposal g, with their log densities.

    Attributes:
        theta: the draws; those from the posterior come first.
        num_own: how many came from the posterior.
        log_g: log density of the proposal at every draw.
        log_q: log density of the posterior at every draw.
        modes: one Gaussian per mode of the posterior, followed by the stray modes.
        num_modes: how many of them are modes of the posterior.
        source: the parts of the proposal.
    """

    theta: Float[np.ndarray, "S d"]
    num_own: int
    log_g: Float[np.ndarray, " S"]
    log_q: Float[np.ndarray, " S"]
    modes: GaussianMixture
    num_modes: int
    source: Source


# The last proposal, by its request, which names the posterior by its hash: it is needed to ask, and with the answers.
_LAST: dict[Asked, Proposal] = {}


def propose(posterior: Approximation, asked: Asked) -> Proposal:
    """The draws of a request: the same ones whenever they are generated from the same posterior."""
    made = _LAST.get(asked)
    if made is None:
        made = _proposed(posterior, asked)
        _LAST.clear()
        _LAST[asked] = made
    return made


def _proposed(posterior: Approximation, asked: Asked) -> Proposal:
    q, past = posterior.mixture, 0 if posterior.step is None else posterior.step.adapted
    modes = q if posterior.step is not None and not past else one_per_mode(_whole(posterior))
    shards = aligned(posterior.space, [fit.mixture for fit in posterior.fits if fit.stands_alone])
    stray = stray_modes(shards, modes)
    # What is around the heaviest draws is searched only: its weights are no certificate.
    searches = posterior.step is not None and posterior.step.around > 0
    usual = _source(q, stray, asked.num_draws, adapted=past > 0)
    source = Source(((asked.num_draws, q),)) if searches else usual
    # Each adaptive round has points of its own: a mixture that was fitted to draws looks good on them.
    words = (*request_words(asked.key, RequestStream.DRAWS), *([past] if past else []))
    points = uniform_points(asked.num_draws, q.dim + 1, words)
    # A contiguous part of a Sobol sequence has low discrepancy as well.
    some = np.split(points, np.cumsum([count for count, _ in source.parts])[:-1])
    theta = np.concatenate([draw(part, u) for (_, part), u in zip(source.parts, some, strict=True)])
    logs, own = source.log_parts(theta), source.parts[0][0]
    log_q = logs[0] - math.log(own / asked.num_draws)
    return Proposal(
        theta=theta,
        num_own=own,
        log_g=np.logaddexp.reduce(logs, axis=0),
        log_q=log_q,
        modes=joined(modes, stray, _STRAY_WEIGHT),
        num_modes=modes.num_components,
        source=source,
    )


def _whole(posterior: Approximation) -> GaussianMixture:
    """The posterior's mixture, or that which it is to return to while rounds look around the heaviest draws."""
    step = posterior.step
    return step.first.mixture if step is not None and step.around else posterior.mixture


def _source(q: GaussianMixture, stray: GaussianMixture | None, num_draws: int, *, adapted: bool) -> Source:
    """The posterior, its inflated copy and stray modes; in adaptive rounds also what reaches beyond its components."""
    scale = min(_WIDEST, math.exp(_NATS / q.dim))
    inflated = GaussianMixture(q.log_weights, q.means, np.asarray(q.roots) / scale, q.structure)
    others = [(_ADAPTED_INFLATED if adapted else _INFLATED, inflated)]
    others += [(_STRAY, stray)] if stray is not None else []
    others += [(_LONG, _lengthened(q)), (_WHOLE, _around(q))] if adapted else []
    counted = [(num_draws * share // 16, part) for share, part in others]
    return Source(((num_draws - sum(count for count, _ in counted), q), *(pair for pair in counted if pair[0])))


def _lengthened(q: GaussianMixture) -> GaussianMixture:
    """The mixture with every component longer along its largest axis, relative to the whole."""
    root = np.linalg.cholesky(np.asarray(q.covariance()))
    covariances = np.asarray(q.covariances())
    white = np.linalg.solve(root, np.swapaxes(np.linalg.solve(root, covariances), 1, 2))
    lengths, axes = np.linalg.eigh(0.5 * (white + np.swapaxes(white, 1, 2)))
    largest = axes[:, :, -1] @ root.T * np.sqrt(lengths[:, -1:])
    covariances = covariances + (_LONGER**2 - 1) * largest[:, :, None] * largest[:, None]
    return GaussianMixture.from_covariances(np.asarray(q.means), covariances, np.asarray(q.weights))


def _around(q: GaussianMixture) -> GaussianMixture:
    """One Gaussian with larger sds than the whole mixture: it reaches where no component does."""
    covariance = np.asarray(q.covariance()) * _WIDE_SDS**2
    return GaussianMixture.from_covariances(np.asarray(q.mean())[None], covariance[None])


def draws_of(posterior: Approximation, asked: Asked) -> Draws:
    """The request that is sent to the sites."""
    made = propose(posterior, asked)
    fits = [fit for fit in posterior.fits if not fit.is_stand_in]
    return Draws(
        asked=asked,
        theta=made.theta,
        centres=np.asarray(made.modes.means),
        gaussians=made.modes,
        base=base_of(asked, posterior.space.dim),
        space=posterior.space,
        made_of=_without_rows(posterior.fits[0].made_of),
        shares=tuple(Part(fit.shard, fit.num_shards, fit.label, fit.prior) for fit in fits),
    )


def asked_of(posterior: Approximation, num_draws: int, num_base: int, *, slopes: bool, seed: Seed) -> Draws:
    """The request for so many draws, and base draws for moments, with gradients at each of these or without."""
    key = tuple(int(word) for word in jax.random.key_data(as_key(seed)))
    return draws_of(posterior, Asked(digest_of(posterior), num_draws, num_base, key, slopes))


def base_of(asked: Asked, dim: int) -> Float[np.ndarray, "R d"]:
    """The base draws that belong to a request: the same in every round."""
    if not asked.num_base:
        return np.zeros((0, dim))
    return base_draws(asked.num_base, dim, request_words(asked.key, RequestStream.BASE))


def _without_rows(made_of: Provenance) -> Provenance:
    return dataclasses.replace(made_of, rows="")


def usual_base(dim: int) -> int:
    """How many base draws each Gaussian gets unless said: the power of 2 from 4d on, within 64 and 256.

    More than d are needed for an invertible sample covariance; sites compute derivatives at each. Judgement.
    """
    return min(256, max(64, 2 ** math.ceil(math.log2(4 * dim))))


def digest_of(posterior: Approximation) -> str:
    """A hash that identifies a posterior: of its mixture and the fits that it was combined from."""
    return _digest(_Same(posterior.mixture), _Same(posterior.fits), posterior.step is not None)


class _Same(NamedTuple):
    """An immutable object, equal only to itself."""

    held: Any

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held


# The last one: it is needed to ask, and with the answers.
@functools.lru_cache(maxsize=1)
def _digest(mixture: _Same, fits: _Same, stepped: bool) -> str:
    digest = hashlib.sha256(_SCHEME)
    for one in (mixture.held, *(fit.mixture for fit in fits.held)):
        for array in (one.log_weights, one.means, one.roots):
            digest.update(np.ascontiguousarray(array, "<f8").tobytes())
    digest.update(repr([(fit.shard, str(fit.prior), fit.num_rows) for fit in fits.held]).encode())
    digest.update(repr(stepped).encode())
    return digest.hexdigest()[:32]
