"""What the centre asks about a posterior: draws, most of them its own and some that would find it out.

Takes a posterior and how much to ask; gives `Draws` for the sites, and for the centre the `Proposal` that they came
from. Draws of the posterior alone cannot tell what it lacks: a mode that it dropped gets no draw, and all others look
perfect. So some come from the posterior inflated, and some from places where shards had something else.
"""

import dataclasses
import hashlib
import math

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import base_draws, draw, log_density, uniform_points
from epvi.ground.seeds import RequestStream, request_words
from epvi.hub.trust.approximation import Approximation
from epvi.hub.trust.modes import joined, one_per_mode, stray_modes
from epvi.parameters.alignment import aligned
from epvi.wire.request import Asked, Draws
from epvi.wire.shard_fit import Part, Provenance

# Sixteenths of the draws that are inflated, and that are stray.
_INFLATED, _STRAY = 2, 1
# Inflated draws are this many nats less dense at the mean, and at most twice as wide.
_NATS, _WIDEST = 3.0, 2.0
# What stray modes weigh among the Gaussians until their moments are known.
_STRAY_WEIGHT = 1e-3
# Changes when the same posterior and key no longer give the same draws.
_SCHEME = b"1"


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """Draws, the first `num_own` of them from the posterior, with the log densities of where they came from and of it.

    `modes` are the posterior's, one Gaussian each, and after the first `num_modes` stray ones.
    """

    theta: Float[np.ndarray, "S d"]
    num_own: int
    log_g: Float[np.ndarray, " S"]
    log_q: Float[np.ndarray, " S"]
    modes: GaussianMixture
    num_modes: int


def propose(posterior: Approximation, asked: Asked) -> Proposal:
    """The draws that belong to a request, made again from the posterior."""
    q = posterior.mixture
    settled = posterior.step is not None
    modes = q if settled else one_per_mode(q)
    shards = aligned(posterior.space, [fit.mixture for fit in posterior.fits])
    stray = stray_modes(shards, modes)
    counts = _counts(asked.num_draws, stray is not None)
    scale = min(_WIDEST, math.exp(_NATS / q.dim))
    wide = GaussianMixture(q.log_weights, q.means, np.asarray(q.roots) / scale, q.structure)
    points = uniform_points(asked.num_draws, q.dim + 1, request_words(asked.key, RequestStream.DRAWS))
    # Runs of a Sobol sequence are spread as well as the whole.
    parts = np.split(points, np.cumsum(counts)[:-1])
    sources = [q, wide, *([stray] if stray is not None else [])]
    theta = np.concatenate([draw(source, u) for source, u in zip(sources, parts, strict=False)])
    logs = [log_density(source, theta) for source in sources]
    shares = np.log(np.array(counts[: len(sources)]) / asked.num_draws)
    log_g = np.logaddexp.reduce([share + log for share, log in zip(shares, logs, strict=True)], axis=0)
    return Proposal(theta, counts[0], log_g, logs[0], joined(modes, stray, _STRAY_WEIGHT), modes.num_components)


def _counts(num_draws: int, stray: bool) -> tuple[int, int, int]:
    inflated, others = num_draws * _INFLATED // 16, num_draws * _STRAY // 16 if stray else 0
    return num_draws - inflated - others, inflated, others


def draws_of(posterior: Approximation, asked: Asked) -> Draws:
    """What the sites are sent."""
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


def base_of(asked: Asked, dim: int) -> Float[np.ndarray, "R d"]:
    """The base draws that belong to a request: the same in every round."""
    if not asked.num_base:
        return np.zeros((0, dim))
    return base_draws(asked.num_base, dim, request_words(asked.key, RequestStream.BASE))


def _without_rows(made_of: Provenance) -> Provenance:
    return dataclasses.replace(made_of, rows="")


def usual_base(dim: int) -> int:
    """Base draws of a Gaussian: enough for an exact covariance, up to what derivatives at them may cost."""
    return min(256, max(64, 2 ** math.ceil(math.log2(4 * dim))))


def digest_of(posterior: Approximation) -> str:
    """What tells a posterior from another: its mixture and the fits that it was made of."""
    digest = hashlib.sha256(_SCHEME)
    for mixture in (posterior.mixture, *(fit.mixture for fit in posterior.fits)):
        for array in (mixture.log_weights, mixture.means, mixture.roots):
            digest.update(np.ascontiguousarray(array, "<f8").tobytes())
    digest.update(repr([(fit.shard, str(fit.prior), fit.num_rows) for fit in posterior.fits]).encode())
    digest.update(repr(posterior.step is not None).encode())
    return digest.hexdigest()[:32]
