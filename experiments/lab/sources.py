"""Source analysis (TLSA) by all strategies, on simulated or real rows.

A row of the table has a strategy's held-out negative log-likelihood `nll`, its difference `excess` from a given floor,
the seconds by the paper's clock, the number of shards whose fits are `unconverged`, and the `verdict` of the
certificate, if any. For a strategy that raised an error, `said` holds the message instead.

The order of sources is arbitrary. epvi starts all shards at the same points and aligns their sources before it
multiplies; `labels` measures the loss without common starts, without alignment, and without both.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

from lab.results import Row
from lab.strategies import (
    Apart,
    Clock,
    Rows,
    alone,
    carried,
    fit_apart,
    fits_exactly,
    multiplied,
    papers,
    refined,
    timed,
)

import numpy as np

import epvi
from epvi.ground.errors import EpviError
from epvi.site.derivatives.passes import programs_of

WAYS = ("EPVI_sample", "EPVI_subset", "EPVI_anchored", "EPVI_exact")
UNALIGNED = "not aligned"
OWN_STARTS = "own starts"
OWN_STARTS_UNALIGNED = "own starts, not aligned"
FULL = "full covariances"
_NUM_SAMPLES = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A data set, and the measurements of every strategy on it."""

    model: epvi.Model
    fitted: Rows
    held_out: Rows
    floor: float  # loss from which `excess` is counted, such as that of the true parameters
    seed: int

    def nvi(self, k: int) -> Row:
        """NVI on all rows."""

        def measure() -> Row:
            apart = fit_apart(self.model, [self.fitted], papers(k), self.seed)
            return self.row("NVI", Clock(apart.seconds[0], 0.0, 0.0), alone(apart.fits[0]))

        return _or_said("NVI", measure)

    def apart(self, parts: Sequence[Rows], k: int, own_starts: bool = False) -> Apart:
        """The shards' fits by the paper's local inference, with common starts or each with its own."""
        if not own_starts:
            return fit_apart(self.model, parts, papers(k), self.seed)

        def fit(m: int) -> epvi.ShardFit:
            seed = self.seed + 1000 * (m + 1)
            return epvi.fit_shard(self.model, parts[m], f"{m + 1}/{len(parts)}", inference=papers(k), seed=seed)

        made = [timed(lambda m=m: fit(m)) for m in range(len(parts))]
        fits, transfer = carried([one for one, _ in made])
        return Apart(fits, [seconds for _, seconds in made], transfer)

    def products(self, apart: Apart, ways: Sequence[str]) -> Iterator[Row]:
        """The average over single shards, and the product by each of these methods."""
        yield _or_said("Subposteriors", lambda: self._subposteriors(apart))
        for way in ways:
            if way != "EPVI_exact" or fits_exactly(apart.fits):
                yield self._product(apart, way, way)

    def labels(self, parts: Sequence[Rows], apart: Apart, k: int) -> Iterator[Row]:
        """The chain's product without alignment of the sources, without common starts, and without both."""
        yield self._product(_unaligned(apart), "EPVI_sample", UNALIGNED)
        own = self.apart(parts, k, own_starts=True)
        yield self._product(own, "EPVI_sample", OWN_STARTS)
        yield self._product(_unaligned(own), "EPVI_sample", OWN_STARTS_UNALIGNED)

    def full(self, parts: Sequence[Rows], k: int) -> Row:
        """The chain's product of the paper's fits with full instead of spherical covariances."""
        inference = dataclasses.replace(papers(k), covariance=epvi.Full())
        return self._product(fit_apart(self.model, parts, inference, self.seed), "EPVI_sample", FULL)

    def refined(self, parts: Sequence[Rows]) -> Row:
        """epvi's defaults, with the verdict of the certificate."""

        def measure() -> Row:
            posterior, clock = refined(self.model, parts, self.seed)
            row = self.row("EPVI_refined", clock, posterior)
            assert posterior.certificate is not None
            return {**row, "verdict": posterior.certificate.verdict, "said": posterior.certificate.text}

        return _or_said("EPVI_refined", measure)

    def loss(self, posterior: epvi.Posterior) -> float:
        """The held-out negative log-likelihood, per row."""
        posterior = dataclasses.replace(posterior, space=programs_of(self.model, self.held_out).target.space)
        rows = self.held_out
        return float(-epvi.log_predictive(self.model, posterior, rows, num_samples=_NUM_SAMPLES, seed=self.seed))

    def row(self, strategy: str, clock: Clock, posterior: epvi.Posterior) -> Row:
        """The row of the table for a posterior."""
        return self._row(strategy, clock, self.loss(posterior), sum(not fit.status.ok for fit in posterior.fits))

    def _row(self, strategy: str, clock: Clock, nll: float, unconverged: int) -> Row:
        parts = {"local": clock.local, "transfer": clock.transfer, "product": clock.product}
        loss = {"nll": nll, "excess": nll - self.floor, "unconverged": unconverged}
        return {"strategy": strategy, **loss, "seconds": clock.total, **parts}

    def _subposteriors(self, apart: Apart) -> Row:
        losses = [self.loss(alone(fit)) for fit in apart.fits]
        unconverged = sum(not fit.status.ok for fit in apart.fits)
        row = self._row("Subposteriors", Clock(max(apart.seconds), 0.0, 0.0), float(np.mean(losses)), unconverged)
        return {**row, "best": min(losses), "worst": max(losses)}

    def _product(self, apart: Apart, way: str, called: str) -> Row:
        def measure() -> Row:
            posterior, clock = multiplied(apart, way, self.seed)
            return self.row(called, clock, posterior)

        return _or_said(called, measure)


def _or_said(strategy: str, measure: Callable[[], Row]) -> Row:
    """The row, or the error message, without the names of temporary files."""
    try:
        return measure()
    except EpviError as error:
        return {"strategy": strategy, "said": re.sub(r"\S+\.epvi \((shard .*?)\)", r"\1", str(error))}


def _unaligned(apart: Apart) -> Apart:
    """The same fits, as of a model whose sources are not declared exchangeable."""
    fits = [dataclasses.replace(fit, space=dataclasses.replace(fit.space, exchangeable=())) for fit in apart.fits]
    return dataclasses.replace(apart, fits=fits)
