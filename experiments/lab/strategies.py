"""The strategies of the paper's section 5, and epvi's, timed by the paper's clock.

NVI            nonparametric variational inference on all rows
Subposteriors  NVI on each shard's rows, not combined
EPVI_exact     exact product of the shards' fits
EPVI_sample    product by the chain of Algorithm 2, R = 500, one chain, every step kept
EPVI_subset    product by pairs, R = 500
EPVI_anchored  product by anchored sampling, R = 500
EPVI_refined   epvi's defaults: default family, certificate, and rounds of refinement until the posterior can be trusted

The paper's clock adds the time of the slowest shard, the transfer of the files, and the product. Shards are fitted one
after the other on one core, after a fit of the same size has compiled the shared programs. Processor seconds are
counted: on a machine of its own they would be the wall time, and other load on this machine does not affect them. The
transfer is the wall time for writing the slowest file and reading all of them.
"""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import epvi
from epvi.ground.seeds import as_key
from epvi.run.rounds import Rounds, run_rounds
from epvi.wire.answer import Scores
from epvi.wire.request import Draws

Rows = dict[str, np.ndarray]
T = TypeVar("T")

NUM_SAMPLES = 500
# Largest exact product (1.4 GB in 19 dimensions); larger ones are left out, as in the paper.
MOST_COMPONENTS = 2**22

PRODUCTS = {
    "EPVI_exact": epvi.Exact(max_components=MOST_COMPONENTS),
    "EPVI_sample": epvi.Chain(NUM_SAMPLES, num_chains=1, thin=1),
    "EPVI_subset": epvi.Subset(num_samples=NUM_SAMPLES),
    "EPVI_anchored": epvi.Anchored(NUM_SAMPLES),
}


def papers(num_components: int) -> epvi.NVI:
    """The paper's local inference: K spherical Gaussians of equal weight, none merged."""
    return epvi.NVI(num_components, epvi.Spherical(), merge=False, max_sweeps=200)


class Clock(NamedTuple):
    """Seconds by the paper's clock."""

    local: float  # slowest shard
    transfer: float
    product: float

    @property
    def total(self) -> float:
        return self.local + self.transfer + self.product


@dataclasses.dataclass(frozen=True, eq=False)
class Apart:
    """The fits of all shards."""

    fits: list[epvi.ShardFit]
    seconds: list[float]  # of each fit
    transfer: float  # seconds to write and read their files


def timed(call: Callable[[], T], clock: Callable[[], float] = time.process_time) -> tuple[T, float]:
    """The result of a call, and its seconds: of the processor, or by another clock."""
    start = clock()
    made = call()
    return made, clock() - start


def parts_of(rows: Rows, num_shards: int) -> list[Rows]:
    """Consecutive rows in shards of nearly equal size; rows are i.i.d."""
    ends = np.linspace(0, len(next(iter(rows.values()))), num_shards + 1).round().astype(int)
    return [{name: column[start:end] for name, column in rows.items()} for start, end in itertools.pairwise(ends)]


def first(rows: Rows, count: int) -> Rows:
    """The first rows."""
    return {name: column[:count] for name, column in rows.items()}


def fit_apart(model: epvi.Model, parts: Sequence[Rows], inference: epvi.NVI | None, seed: int) -> Apart:
    """Fit every shard and time it, after one untimed fit of each size, which compiles."""

    def fit(m: int) -> epvi.ShardFit:
        return epvi.fit_shard(model, parts[m], f"{m + 1}/{len(parts)}", inference=inference, seed=seed)

    sizes = [len(next(iter(part.values()))) for part in parts]
    for size in set(sizes):
        fit(sizes.index(size))
    made = [timed(lambda m=m: fit(m)) for m in range(len(parts))]
    fits, transfer = carried([one for one, _ in made])
    return Apart(fits, [seconds for _, seconds in made], transfer)


def carried(made: Sequence[Any]) -> tuple[list[Any], float]:
    """The objects after saving and loading, and the seconds of the slowest save and of all loads."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.epvi" for i in range(len(made))]
        written = [
            timed(lambda one=one, file=file: one.save(file), time.perf_counter)[1]
            for one, file in zip(made, files, strict=True)
        ]
        loaded, seconds = timed(lambda: [epvi.load(file) for file in files], time.perf_counter)
    return loaded, max(written) + seconds


def alone(fit: epvi.ShardFit) -> epvi.Posterior:
    """A shard's fit taken as the posterior of all rows: one of the paper's "Subposteriors"."""
    return epvi.combine([dataclasses.replace(fit, shard=1, num_shards=1, prior=Fraction(1))], accept_unconverged=True)


def multiplied(apart: Apart, strategy: str, seed: int) -> tuple[epvi.Posterior, Clock]:
    """The product of the fits by one strategy; the second of two calls is timed, the first compiles."""

    def call() -> epvi.Posterior:
        return epvi.combine(apart.fits, PRODUCTS[strategy], seed=seed, accept_unconverged=True)

    call()
    posterior, seconds = timed(call)
    return posterior, Clock(max(apart.seconds), apart.transfer, seconds)


def fits_exactly(fits: Sequence[epvi.ShardFit]) -> bool:
    """Whether the exact product has at most `MOST_COMPONENTS` components."""
    return sum(np.log(fit.mixture.num_components) for fit in fits) <= np.log(MOST_COMPONENTS) + 1e-9


def refined(model: epvi.Model, parts: Sequence[Rows], seed: int) -> tuple[epvi.Posterior, Clock]:
    """epvi's defaults, all rounds timed by the paper's clock: the slowest site, transfers, the hub."""
    apart = fit_apart(model, parts, None, seed)
    _rounds(model, parts, apart, seed)
    return _rounds(model, parts, apart, seed)


def _rounds(model: epvi.Model, parts: Sequence[Rows], apart: Apart, seed: int) -> tuple[epvi.Posterior, Clock]:
    sites, carrying, away = max(apart.seconds), apart.transfer, 0.0

    def ask(draws: Draws, scoring: epvi.Scoring) -> list[Scores]:
        nonlocal sites, carrying, away
        begin = time.process_time()
        (sent,), there = carried([draws])
        answers = [
            timed(lambda m=m: epvi.score(model, parts[m], sent, f"{m + 1}/{len(parts)}", exact=scoring.exact))
            for m in range(len(parts))
        ]
        scores, back = carried([one for one, _ in answers])
        sites, carrying = sites + max(seconds for _, seconds in answers), carrying + there + back
        away += time.process_time() - begin
        return scores

    def call() -> epvi.Posterior:
        product = epvi.combine(apart.fits, seed=seed)
        return run_rounds(product, ask, Rounds.of(True, None), as_key(seed))

    posterior, seconds = timed(call)
    return posterior, Clock(sites, carrying, seconds - away)
