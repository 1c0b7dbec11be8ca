"""Fits a stand-in for a missing shard: a Gaussian approximation of its share of the prior.

p(θ)^f is approximated by a Gaussian g. With r = f log p − log g the approximation moves a posterior mean by about
Cov(θ_i, r), which is at most sd(r) posterior sds, with the sd of r under the posterior. The posterior is not known
here, but it lies within the prior, and g is √(1/f) times as wide as the prior; so sd(r) is estimated at draws of g, and
at draws twice as wide. Priors that are not close to Gaussian (funnels, scales, heavy tails, several modes) are refused:
then a site that has rows must carry the share.
"""

import dataclasses
import time
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structures import Full
from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed, as_key
from epvi.ground.verb import verb
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.fit.inference import LocalFit
from epvi.site.fit.nvi import NVI
from epvi.site.rows.columns import generator
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.tasks.fit_shard import FitPlan, as_model, as_share, parse_shard
from epvi.site.tasks.prepared import prepared
from epvi.wire.shard_fit import Part, ShardFit

# Largest sd of r, in nats, at draws of the Gaussian and at draws twice as wide. Judgement: the first bounds the shift
# of a posterior mean, in sds, by the accuracy that the certificate asks for (docs/choosing.md).
_CLOSE, _CLOSE_WIDER = 0.05, 0.2
# Draws that estimate each sd. Judgement: they give a relative standard error of a few per cent.
_DRAWS = 1000
# Draws at which the log prior is evaluated at a time. Judgement; it divides _DRAWS, so that no batch is padded.
_AT_ONCE = 50
# Two components, so that a second mode is noticed.
_INFERENCE = NVI(2, Full())


@verb("a stand-in")
def stand_in(
    model: Any, like: Any, shard: str, *, prior: Fraction | str | float | int | None = None, seed: Seed = 0
) -> ShardFit:
    """A fit without rows for shard "3/6": its share of the prior, until its rows are available.

    Only the names, shapes and dtypes of the columns of `like` are used, so any few rows will do. When the shard's own
    fit arrives, `posterior.update(fit)` replaces this one by it.
    """
    start = time.perf_counter()
    model = as_model(model)
    index, num_shards = parse_shard(shard)
    part = Part(index, num_shards, f"{index} of {num_shards}", as_share(prior, num_shards))
    programs, _, made_of = prepared(model, read_grouped(like, model.groups))
    key = as_key(seed)
    plan = FitPlan(_INFERENCE, 1, np.asarray(jax.random.key_data(key)), made_of)
    if part.prior == 0 or plan.made_of.flat_prior:
        raise EpviError(
            f"shard {part.label} holds nothing without rows, because its share of the prior is flat: leave it out."
        )
    prior_alone = Subposterior.without_rows(programs, part.prior)
    made = _as_gaussian(prior_alone, part, jax.random.fold_in(key, index))
    return ShardFit(
        mixture=made.mixture,
        space=programs.target.space,
        **dataclasses.asdict(part),
        num_rows=0,
        status=made.status,
        history=made.history,
        elbo=made.elbo,
        gap=made.gap,
        passes=0,
        seconds=time.perf_counter() - start,
        made_of=plan.provenance(),
    )


def _as_gaussian(prior_alone: Subposterior, part: Part, key: jax.Array) -> LocalFit:
    """Fit one Gaussian to the prior's share, or refuse if the share is not close to Gaussian."""
    try:
        made = _INFERENCE.fit(prior_alone, {}, common=key, key=key)
    except EpviError as error:
        raise _refusal(part, f"it cannot be fitted: {error.clause}") from error
    if not made.status.ok:
        raise _refusal(part, "it has no smooth peak, or is flat in some direction")
    if made.mixture.num_components > 1:
        raise _refusal(part, "it takes more than one")
    away = _away_from_gaussian(prior_alone, made.mixture, generator(key))
    if not (away[0] < _CLOSE and away[1] < _CLOSE_WIDER):
        far = f"{max(away):.2g}" if max(away) < 100 else "more than 100"
        raise _refusal(part, f"its logarithm differs from a Gaussian's by {far} nats")
    return made


def _away_from_gaussian(
    prior_alone: Subposterior, gaussian: GaussianMixture, rng: np.random.Generator
) -> tuple[float, float]:
    """The sd of r = f log prior − log Gaussian, at draws of the Gaussian and at draws twice as wide."""
    root = np.linalg.cholesky(np.asarray(gaussian.covariance()))
    z = rng.standard_normal((_DRAWS, len(root)))
    found = []
    for width in (1.0, 2.0):
        theta = np.asarray(gaussian.mean()) + width * z @ root.T
        with np.errstate(invalid="ignore"):
            found.append(float(np.std(prior_alone.value(theta, _AT_ONCE) + 0.5 * width**2 * np.sum(z**2, axis=1))))
    return found[0], found[1]


def _refusal(part: Part, why: str) -> EpviError:
    return EpviError(
        f"shard {part.label} cannot be stood in for without rows: the prior's share is not close to a Gaussian ({why})."
        f" Let a site that has rows carry {part.prior} of the prior more than its own share (--prior, prior=...)."
    )
