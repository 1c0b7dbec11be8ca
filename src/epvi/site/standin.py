"""A shard without rows: a Gaussian that carries a missing shard's share of the prior.

p(θ)^f is multiplied in as a Gaussian, which is right only where it is nearly one. So the Gaussian is compared with the
prior at its own draws and at draws twice as wide, and priors of another shape (funnels, scales, heavy tails) are
refused: there, a site that has rows must carry the share.
"""

import dataclasses
import time
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.errors import EpviError
from epvi.handover import ShardFit
from epvi.seeds import Seed, as_key
from epvi.site.density import Subposterior
from epvi.site.nvi import NVI
from epvi.site.recipe import read_rows
from epvi.site.rows import generator
from epvi.site.shard import Part, Plan, as_model, as_share, parse_shard, provenance
from epvi.structure import Full

# Standard deviation, in nats, of the log of prior over Gaussian: at the Gaussian's draws, and at draws twice as wide.
_CLOSE, _CLOSE_WIDER = 0.05, 0.2
_DRAWS = 1000
_AT_ONCE = 50


def stand_in(
    model: Any, like: Any, shard: str, *, prior: Fraction | str | float | None = None, seed: Seed = 0
) -> ShardFit:
    """A fit without rows for shard "3/6": its share of the prior, until its rows come.

    Of `like` only the names, shapes and types of the columns are used: any few rows will do. When the shard's own fit
    comes, `posterior.update(fit)` puts it in the place of this one.
    """
    start = time.perf_counter()
    model = as_model(model)
    index, num_shards = parse_shard(shard)
    share = as_share(prior, num_shards)
    table = read_rows(like)
    columns = table.columns
    programs = model.programs(columns)
    programs.target.check(columns)
    key_data = np.asarray(jax.random.key_data(as_key(seed)))
    plan = Plan(NVI(1, Full()), 1, key_data, provenance(model, programs.target, table))
    part = Part(index, num_shards, f"{index} of {num_shards}", share)
    if share == 0 or plan.made_of.flat_prior:
        raise EpviError(
            f"shard {part.label} holds nothing without rows, because its share of the prior is flat: leave it out."
        )
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(plan.key)), index)
    empty = Subposterior.without_rows(programs, share)
    try:
        made = plan.inference.fit(empty, columns, common=key, key=key, report=lambda sweep: None)
    except EpviError as error:
        raise _refusal(part, f"it cannot be fitted ({str(error).rstrip('.')})") from error
    if not made.status.ok:
        raise _refusal(part, "it is not proper, or has no mode")
    away = _away_from_gaussian(empty, made.mixture, generator(key))
    if not (away[0] < _CLOSE and away[1] < _CLOSE_WIDER):
        raise _refusal(part, f"its logarithm differs from a Gaussian's by {max(away):.2g} nats")
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


def _away_from_gaussian(prior: Subposterior, mixture: Any, rng: np.random.Generator) -> tuple[float, float]:
    """The standard deviation of log prior − log Gaussian, at the Gaussian's draws and at draws twice as wide."""
    root = np.linalg.cholesky(np.asarray(mixture.covariance()))
    z = rng.standard_normal((_DRAWS, len(root)))
    found = []
    for width in (1.0, 2.0):
        theta = np.asarray(mixture.mean()) + width * z @ root.T
        with np.errstate(invalid="ignore"):
            found.append(float(np.std(prior.value(theta, _AT_ONCE) + 0.5 * width**2 * np.sum(z**2, axis=1))))
    return found[0], found[1]


def _refusal(part: Part, why: str) -> EpviError:
    return EpviError(
        f"shard {part.label} cannot be stood in for without rows: the prior's share is not close to a Gaussian ({why})."
        " Let a site that has rows carry it, with its own share and this one together (prior=..., --prior)."
    )
