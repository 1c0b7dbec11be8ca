"""The fallback of a fit that cannot be trusted: NUTS on all rows, a chain per task.

Takes a posterior whose certificate says no, the model and all rows; gives the posterior with draws of chains, and their
verdict. The chains are preconditioned by the refined posterior and start from its modes.
"""

import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from epvi.engines.local import size_of
from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import SeedStream
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.trust.certify import Certificate, with_chains
from epvi.hub.trust.chains import Chains
from epvi.hub.trust.modes import one_per_mode
from epvi.hub.trust.reasons import Reason, Verdict
from epvi.parameters.alignment import nearest
from epvi.parameters.space import Space
from epvi.run.progress import ShardProgress
from epvi.run.row_files import MappedRows
from epvi.run.shards import shards_of
from epvi.run.submitting import abandon, error_of, submit
from epvi.run.worker import HeldRows, Job, chain_of
from epvi.site.derivatives.passes import programs_of
from epvi.site.rows.columns import Columns
from epvi.site.rows.split import Split
from epvi.site.tasks.chain import NUTS, ChainDraws, Start, gradient_seconds
from epvi.site.tasks.sent_model import model_of

# Draws of the posterior by which coordinates are chosen, at most; and points of which a chain starts at the best.
# Judgement.
_DRAWS, _CANDIDATES = 4000, 16
# Parameters up to which coordinates are whitened by a whole covariance, by sds beyond. Judgement: eight draws for each.
_WHOLE = 500
# Modes with less weight need no chain of their own. Judgement: as in the verdict.
_LIGHT = 0.01
# To say what the fallback would cost: gradients of a step of NUTS, seconds to compile it, and seconds from which on the
# cost is told in minutes. Judgement: trees of four doublings; a workstation.
_GRADIENTS, _TO_START, _MINUTES_FROM = 16, 5.0, 600.0
# What chains can make up for; the others are faults of the fits, or of the model.
_MENDABLE = frozenset({Reason.UNEVEN_WEIGHTS, Reason.UNCERTAIN_SCORES, Reason.NOT_REFINED})
# Seconds between updates of the progress bar.
_POLL_SECONDS = 0.1
# Worker processes that a chain may lose.
_MOST_DEATHS = 2


def checked(fallback: Any, certified: bool) -> NUTS | None:
    """The argument of `epvi.fit`."""
    if fallback is None or (isinstance(fallback, NUTS) and certified):
        return fallback
    raise EpviError(f"fallback is {fallback!r}: pass epvi.NUTS(), and leave certify as it is.")


def helps(certificate: Certificate | None) -> bool:
    """Whether the fallback could turn "do not trust" into an answer."""
    return certificate is not None and certificate.verdict == Verdict.NOT and set(certificate.reasons) <= _MENDABLE


@dataclasses.dataclass(frozen=True, eq=False)
class AllRows:
    """What the fallback needs: the job of the model with all its parameters, all rows, and who computes."""

    job: Job
    columns: Columns
    executor: Executor | int | None
    bar: ShardProgress

    def answer(self, posterior: Posterior, fallback: NUTS | None, key: jax.Array) -> Posterior:
        """The posterior as it is if it can be trusted; otherwise sampled, or with the advice to sample it."""
        if not helps(posterior.certificate):
            return posterior
        return _advised(posterior, self) if fallback is None else _sampled(posterior, self, fallback, key)


def _sampled(posterior: Posterior, rows: AllRows, nuts: NUTS, key: jax.Array) -> Posterior:
    """The posterior with draws of NUTS on all rows, of all parameters."""
    begin, columns, bar = time.perf_counter(), rows.columns, rows.bar
    starts = _starts(posterior, nuts, jax.random.fold_in(key, SeedStream.CHAINS))
    num_rows = len(next(iter(columns.values())))
    whole = Split((slice(0, num_rows),), np.array([num_rows]), ("1 of 1",))
    bar.say("sampling by NUTS")
    with shards_of(rows.job, columns, whole, rows.executor, bar, None) as sites:
        drawn = _each(sites.executor, sites.job, sites.rows[1], starts, nuts, bar)
    made = Chains(
        _in_one_order(posterior.space, np.stack([one.theta for one in drawn])),
        sum(one.divergences for one in drawn),
        nuts.num_warmup,
        time.perf_counter() - begin,
    )
    assert posterior.certificate is not None
    found = with_chains(posterior.certificate, made, posterior.space, _missed(posterior, made))
    logger.info("NUTS on all rows took %.1f s: %s", made.seconds, made.went)
    return posterior.with_certificate(found)


def _starts(posterior: Posterior, nuts: NUTS, key: jax.Array) -> list[Start]:
    """Each chain starts in another mode, from the heaviest on, or where there is one, at draws of its own."""
    keys = [jax.random.fold_in(key, c) for c in range(nuts.num_chains + 1)]
    draws = posterior.theta(_DRAWS, seed=keys[0])
    mean, d = np.mean(draws, axis=0), draws.shape[1]
    sd = np.maximum(np.std(draws, axis=0), 1e-12)
    # Repeated draws can lie in a plane.
    covariance = np.diag(sd**2) if d > _WHOLE else np.cov(draws.T).reshape(d, d) + np.diag(1e-4 * sd**2)
    root = np.linalg.cholesky(covariance)
    mode = _modes_of(posterior, draws)
    starts = []
    for c in range(nuts.num_chains):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(keys[c + 1])).tolist())
        near = np.flatnonzero(mode == c % (int(np.max(mode)) + 1))
        first, second = (int(word) for word in np.asarray(jax.random.key_data(keys[c + 1])))
        starts.append(Start(mean, root, draws[rng.choice(near, _CANDIDATES)], (first, second)))
    return starts


def _modes_of(posterior: Posterior, draws: Float[np.ndarray, "n d"]) -> np.ndarray:
    """The nearest mode of each draw, numbered; one where modes hold few of the draws, or there are group effects."""
    modes = one_per_mode(posterior.mixture)
    if posterior.effects is not None or modes.num_components == 1:
        return np.zeros(len(draws), int)
    means, roots, one = np.asarray(modes.means), np.asarray(modes.roots), np.zeros(1)
    parts = [GaussianMixture(one, means[[k]], roots[[k]], modes.structure) for k in range(len(means))]
    logs = np.stack([np.asarray(part.log_density(draws)) for part in parts])
    logs += np.asarray(modes.log_weights)[:, None]
    counts = np.bincount(np.argmax(logs, axis=0), minlength=len(logs))
    order = np.argsort(-counts, kind="stable")
    kept = order[counts[order] >= _LIGHT * len(draws)]
    return np.argmax(logs[kept], axis=0)


def _missed(posterior: Posterior, chains: Chains) -> int:
    """How many modes of the posterior no chain has visited."""
    drawn = posterior.theta(_DRAWS, seed=0)
    both = _modes_of(posterior, np.concatenate([drawn, chains.draws]))
    return len(set(both[: len(drawn)].tolist()) - set(both[len(drawn) :].tolist()))


def _in_one_order(space: Space, theta: Float[np.ndarray, "C S d"]) -> Float[np.ndarray, "C S d"]:
    """The draws in one labelling of exchangeable parameters: that nearest to the last draw of the first chain."""
    if not space.exchangeable:
        return theta
    flat, reference = theta.reshape(-1, theta.shape[2]), theta[0, -1]
    precision = 1 / np.maximum(np.var(theta[0], axis=0), 1e-12)
    for _ in range(2):
        flat = np.stack([nearest(space, one, reference, precision).point(one) for one in flat])
        reference, precision = np.mean(flat, axis=0), 1 / np.maximum(np.var(flat, axis=0), 1e-12)
    return flat.reshape(theta.shape)


def _each(
    executor: Executor,
    job: Job,
    rows: MappedRows | HeldRows,
    starts: Sequence[Start],
    nuts: NUTS,
    bar: ShardProgress,
) -> list[ChainDraws]:
    """Run all chains; one whose worker process died is run again on another, with the same draws."""
    pending: dict[Future, int] = {}
    drawn: dict[int, ChainDraws] = {}
    deaths = [0] * len(starts)
    try:
        for c, start in enumerate(starts):
            pending[submit(executor, c, chain_of, job, rows, start, nuts)] = c
        while pending:
            if job.passes is not None:
                bar.say(f"NUTS: step {np.load(job.passes)[0]:,} of {nuts.num_warmup + nuts.num_samples:,}")
            for future in wait(pending, timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED").done:
                c, error = pending.pop(future), error_of(future)
                if error is None:
                    drawn[c] = future.result()
                    continue
                deaths[c] += 1
                if not isinstance(error, BrokenExecutor) or deaths[c] >= _MOST_DEATHS:
                    said = error.clause if isinstance(error, EpviError) else f"{type(error).__name__}: {error}"
                    raise EpviError(f"chain {c + 1} of NUTS failed ({said}): leave fallback out.") from error
                logger.warning("chain %d lost its worker, and is run again: %s", c + 1, error)
                pending[submit(executor, c, chain_of, job, rows, starts[c], nuts)] = c
    finally:
        abandon(executor, list(pending))
    return [drawn[c] for c in range(len(starts))]


def _advised(posterior: Posterior, rows: AllRows) -> Posterior:
    """The posterior, whose "do not trust" names the fallback with about what it would cost."""
    found, nuts, executor = posterior.certificate, NUTS(), rows.executor
    assert found is not None
    at_once = nuts.num_chains if isinstance(executor, Executor) else min(size_of(executor), nuts.num_chains)
    target = programs_of(model_of(rows.job.model), rows.columns).target
    steps = -(-nuts.num_chains // at_once) * (nuts.num_warmup + nuts.num_samples)
    seconds = _TO_START + steps * _GRADIENTS * gradient_seconds(target, rows.columns)
    cost = f"{seconds:,.0f} s" if seconds < _MINUTES_FROM else f"{seconds / 60:,.0f} minutes"
    advice = f" Or sample it from all rows: epvi.fit(..., fallback=epvi.NUTS()) would take about {cost}."
    return posterior.with_certificate(dataclasses.replace(found, text=found.text + advice))
