"""`combine_draws`: draws of the full posterior from draws of subposteriors, by the method that the user chose."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import chdtri

from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed, as_key
from epvi.ground.status import Status, StatusCode
from epvi.ground.validation import at_least
from epvi.ground.verb import verb
from epvi.hub.samples.arrival import arrived
from epvi.hub.samples.halves import split_error
from epvi.hub.samples.method import Combination, DrawsMethod, Shards
from epvi.hub.samples.moments import fit_best, product, sum_of
from epvi.hub.samples.result import CombinedDraws

_METHODS = (
    "Consensus(), Parametric(), Nonparametric(), Semiparametric(), Weierstrass() or ExponentialFamily(mean, covariance)"
)
# Least combined draws for the comparison of two halves: errors are measured in their sds. Judgement.
_LEAST_TO_COMPARE = 10
# p-value of the chi-square test of one shard against the product of the others below which the shard is reported.
# Judgement: small, because subposteriors are only roughly Gaussian.
_FAR = 1e-6


@verb("combining the draws")
def combine_draws(
    draws_per_shard: Sequence[Any], method: DrawsMethod, *, num_samples: int | None = None, seed: Seed = 0
) -> CombinedDraws:
    """Draws of the full posterior from draws of every shard's subposterior p(θ)^(1/M) p(x_m|θ), from any sampler.

    `draws_per_shard` has one entry per shard: an array (n, d) or (chains, n, d), a dict of names to (n, *shape)
    arrays, a data frame, or ArviZ data with a posterior group. All entries have the same form. Draws are combined in
    the coordinates in which they are passed: the subposterior densities in these coordinates must multiply to the
    posterior density. `method` is `Consensus()`, `Parametric()`, `Nonparametric()`, `Semiparametric()` or
    `Weierstrass()`; `ExponentialFamily(prior_mean, prior_covariance)` takes draws of p(θ) p(x_m|θ) instead.
    `num_samples` is the number of draws returned, by default as many as the smallest shard has.
    """
    if not isinstance(method, DrawsMethod):
        shown = method.__name__ if isinstance(method, type) else repr(method)
        raise EpviError(f"method is {shown[:60]}: pass {_METHODS}, with its brackets.")
    key = as_key(seed)
    count = None if num_samples is None else at_least("num_samples", num_samples, 1)
    shards = arrived(draws_per_shard)
    if len(shards.theta) == 1:
        return _single(shards, method, count)
    made = method.combine(shards, count, key)
    if not np.all(np.isfinite(made.theta)):
        raise EpviError("the combined draws left the range of float64: rescale the parameters.")
    status = made.status
    if status.ok:
        status = (None if method.full_prior else _apart(shards)) or _by_halves(made, method, shards, key)
    return CombinedDraws(made.theta, status, made.diagnostics, method, len(shards.theta), shards.layout)


def _by_halves(made: Combination, method: DrawsMethod, shards: Shards, key: jax.Array) -> Status:
    if len(made.theta) < _LEAST_TO_COMPARE:
        return made.status
    found = split_error(method, shards, made.theta, key)
    if found is None:
        told = ", but with too few draws to compare two halves: draw more."
        return made.status.followed_by(StatusCode.FEW_DRAWS, told)
    return found.judge(made.status, method.remedies)


def _single(shards: Shards, method: DrawsMethod, count: int | None) -> CombinedDraws:
    theta = shards.theta[0]
    if count is not None and count > len(theta):
        raise EpviError(
            f"num_samples is {count:,} and the only shard has {len(theta):,} draws: ask for at most as many."
        )
    chosen = theta if count is None else theta[np.arange(count) * len(theta) // count]
    status = Status(StatusCode.EXACT, "exact: the posterior of one shard is that shard's.")
    return CombinedDraws(chosen, status, None, method, 1, shards.layout)


def _apart(shards: Shards) -> Status | None:
    """A warning if a shard is far from the product of the others, in a chi-square test of fitted Gaussians."""
    gaussians = fit_best(shards)
    worst, far = 0.0, 0
    for m, one in enumerate(gaussians):
        rest = product(gaussians[:m] + gaussians[m + 1 :])
        between = sum_of(rest, one, rest.mean)
        worst, far = max((worst, far), (float(between.squares(one.mean[None])[0]), m))
    if worst <= chdtri(shards.dim, _FAR):
        return None
    return Status(
        StatusCode.CONFLICT,
        f"shard {far} is {np.sqrt(worst):.1f} sds from the product of the others, where {np.sqrt(shards.dim):.1f} is"
        " usual: check whether its rows, units or model differ, and whether its sampler has converged.",
    )
