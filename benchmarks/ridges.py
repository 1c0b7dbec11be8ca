"""Thin, curved ridges: what the certificate says of posteriors that no mixture of Gaussians holds well.

Run: python benchmarks/ridges.py [--seeds 3]. Every posterior is the prior of a few parameters, because its rows say
next to nothing, so that means and sds are known from draws. A line is one fit in two shards: its verdict, the worst
error of a mean in sds, and the range of sds relative to the right ones. Counts of fits that are trusted and wrong come
last.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist

import epvi

ROWS, SHARDS, DRAWS = 40, 2, 1_000_000
# The slope of the rows in x_0: rows that say nothing at all would be refused. It moves x_0 by less than 1e-4 sds.
NEXT_TO_NOTHING = 1e-5
# Errors of a mean (in sds) and of an sd beyond which a trusted posterior is wrong, as in `hierarchies.py`.
WRONG_MEAN, WRONG_SD = 0.2, 0.2


class Ridge(NamedTuple):
    """x_0 ~ N(mean, spread²); the others are N(x², width²) of the one before them, or of the first."""

    name: str
    dim: int
    mean: float
    spread: float
    width: float
    chained: bool

    def model(self) -> Callable:
        """The NumPyro model, whose rows are noise, but for next to nothing."""

        def ridge(y):
            x = [numpyro.sample("x0", dist.Normal(self.mean, self.spread))]
            for i in range(1, self.dim):
                before = x[-1] if self.chained else x[0]
                x.append(numpyro.sample(f"x{i}", dist.Normal(before**2, self.width)))
            with numpyro.plate("rows", y.shape[0]):
                numpyro.sample("y", dist.Normal(NEXT_TO_NOTHING * x[0], 1.0), obs=y)

        return ridge

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and sds, from draws."""
        rng = np.random.default_rng(0)
        x = [rng.normal(self.mean, self.spread, DRAWS)]
        for _ in range(1, self.dim):
            x.append(rng.normal((x[-1] if self.chained else x[0]) ** 2, self.width))
        return np.mean(x, axis=1), np.std(x, axis=1)


RIDGES = (
    Ridge("mild, 3", 3, 0.0, 0.7, 1.0, chained=False),
    Ridge("thin, 3", 3, 0.0, 1.0, 0.2, chained=False),
    Ridge("long, 5", 5, 0.0, 1.5, 0.5, chained=False),
    Ridge("chain of 3", 3, 1.0, 0.7, 0.3, chained=True),
    Ridge("thin chain of 3", 3, 1.0, 0.5, 0.2, chained=True),
    Ridge("chain of 4", 4, 0.8, 0.5, 0.3, chained=True),
    Ridge("chain of 5", 5, 0.7, 0.4, 0.3, chained=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="fits of every ridge")
    chosen = parser.parse_args()
    print(f"{'ridge':18s}{'seed':>5s}{'mean off':>10s}{'sds':>13s}{'rounds':>8s}{'s':>8s}  verdict")
    trusted = wrong = total = 0
    for ridge in RIDGES:
        mean, sd = ridge.moments()
        rows = {"y": np.random.default_rng(1).normal(size=ROWS)}
        for seed in range(chosen.seeds):
            start = time.perf_counter()
            posterior = epvi.fit(ridge.model(), rows, SHARDS, seed=seed, progress=False)
            seconds, summary, certificate = time.perf_counter() - start, posterior.summary(), posterior.certificate
            assert certificate is not None
            off, ratio = np.max(np.abs(summary.mean - mean) / sd), summary.sd / sd
            is_trusted = certificate.verdict != "do not trust"
            is_wrong = is_trusted and (off > WRONG_MEAN or max(np.max(ratio), np.max(1 / ratio)) > 1 + WRONG_SD)
            trusted, wrong, total = trusted + is_trusted, wrong + is_wrong, total + 1
            rounds = 0 if posterior.step is None else posterior.step.rounds
            said = f"{np.min(ratio):.3f}-{np.max(ratio):.3f}"
            verdict = f"{certificate.verdict}{' WRONG' if is_wrong else ''}"
            print(f"{ridge.name:18s}{seed:5d}{off:10.3f}{said:>13s}{rounds:8d}{seconds:8.2f}  {verdict}", flush=True)
    print(f"{total} fits: {trusted} trusted, {wrong} of them wrong")


if __name__ == "__main__":
    main()
