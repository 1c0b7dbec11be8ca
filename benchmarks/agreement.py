"""False alarms and power of the test whether shards agree, on simulated data sets.

Run: python benchmarks/agreement.py [--quick]. Nothing is fitted by epvi: the test gets the rows' derivatives at the
mode of all rows, or half an sd away from it, as shards would answer. Targets: at most 1 % of data sets have a shard
that disagrees when rows are dealt at random, or sites differ in their columns alone; of those where one shard of 5 or
20 has 300 rows with swapped labels or another intercept at least 95 % have it found, in the right shard.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import rounds
from scipy.special import expit

from epvi.hub.trust.agreement import Accord, agreement_of
from epvi.hub.trust.score_test import Curvature, score_test

MOST_FALSE, LEAST_FOUND = 0.01, 0.95


class Rows(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        return np.cumsum(self.sizes)[:-1]


class Family(NamedTuple):
    """Rows' scores and curvatures with respect to their linear predictors, and draws of y."""

    residual: Callable
    weight: Callable
    draw: Callable


FAMILIES = {
    "logistic": Family(
        lambda y, eta: y - expit(eta),
        lambda eta: expit(eta) * expit(-eta),
        lambda rng, eta: (rng.random(len(eta)) < expit(eta)).astype(float),
    ),
    "Poisson": Family(lambda y, eta: y - np.exp(eta), np.exp, lambda rng, eta: rng.poisson(np.exp(eta)).astype(float)),
    "linear": Family(lambda y, eta: y - eta, np.ones_like, lambda rng, eta: eta + rng.standard_t(4, len(eta))),
}


def sizes_of(kind: str | int, num_shards: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(kind, int):
        return np.full(num_shards, kind)
    return np.exp(rng.uniform(np.log(15), np.log(3000), num_shards)).astype(int)


def columns(rng: np.random.Generator, n: int, d: int, kind: str) -> np.ndarray:
    x = rng.normal(size=(n, d - 1))
    if kind == "heavy":
        x = rng.standard_t(2, size=(n, d - 1))
    if kind == "rare":
        x[:, d // 2 :] = rng.random((n, d - 1 - d // 2)) < 0.01
    return np.concatenate([np.ones((n, 1)), x], axis=1)


def simulated(
    rng, family: str, kind, num_shards: int, d: int, columns_kind: str, intercept: float, apart=False
) -> Rows:
    sizes = sizes_of(kind, num_shards, rng)
    x = columns(rng, int(np.sum(sizes)), d, columns_kind)
    if apart:
        # Sites whose columns have other means and scales.
        site = np.repeat(np.arange(num_shards), sizes)
        x[:, 1:] = (
            x[:, 1:] * rng.uniform(0.3, 2, (num_shards, d - 1))[site] + rng.normal(size=(num_shards, d - 1))[site]
        )
    if family == "Poisson":
        # Where rates overflow nothing could be fitted.
        x = np.clip(x, -5, 5)
    w = np.concatenate([[intercept], rng.normal(0, 0.8 / np.sqrt(d - 1), d - 1)])
    return Rows(x, FAMILIES[family].draw(rng, x @ w), sizes)


def tested(rng, family: str, rows: Rows, away: float) -> tuple[Accord, list[int]]:
    """The test's verdict, and the shards that it flags, at `away` posterior sds from the mode."""
    law, d = FAMILIES[family], rows.x.shape[1]
    prior, w, hessian = np.eye(d) / 2.5**2, np.zeros(d), np.eye(d)
    for _ in range(60):
        eta = rows.x @ w if family == "linear" else np.clip(rows.x @ w, -30, 30)
        hessian = (rows.x * law.weight(eta)[:, None]).T @ rows.x + prior
        step = np.linalg.solve(hessian, rows.x.T @ law.residual(rows.y, eta) - prior @ w)
        w = w + step * min(1.0, 2.0 / np.max(np.abs(step)))
        if np.max(np.abs(step)) < 1e-8:
            break
    w = w + away * np.linalg.solve(np.linalg.cholesky(hessian).T, rng.normal(size=d))
    eta = rows.x @ w
    scores = rows.x * law.residual(rows.y, eta)[:, None]
    num_shards = len(rows.sizes)
    parts = list(zip(*(np.split(part, rows.ends) for part in (scores, rows.x, law.weight(eta))), strict=True))
    gradients = np.stack([np.sum(s, axis=0) for s, _, _ in parts])
    products = np.stack([s.T @ s for s, _, _ in parts])
    hessians = np.stack([-(x * h[:, None]).T @ x - prior / num_shards for _, x, h in parts])
    whole = Curvature(np.sum(gradients, axis=0) - prior @ w, np.sum(hessians, axis=0))
    made = agreement_of(list(map(str, range(num_shards))), score_test(gradients, products, hessians, rows.sizes, whole))
    return made.verdict, [int(label) for label in made.flagged]


HEALTHY = {
    f"{family}, {num_shards} shards of {kind}, d = {d}, {word}{', sites apart' if apart else ''}, at {away} sds": (
        *(family, kind, num_shards, d, columns_kind, intercept, apart),
        away,
    )
    for family, kind, num_shards, d, word, columns_kind, intercept, apart, away in [
        *(("logistic", n, 20, 4, "normal columns", "normal", 0.0, False, 0.5) for n in (3, 10, 30, 100)),
        *(("Poisson", n, 20, 4, "normal columns", "normal", 0.0, False, 0.5) for n in (3, 10, 30, 100)),
        *(("linear", n, 20, 4, "normal columns", "normal", 0.0, False, 0.5) for n in (3, 10, 30, 100)),
        *(("logistic", n, 50, 8, "events 2 %", "normal", -4.0, False, 0.0) for n in (10, 30, 100, 1000)),
        *(("Poisson", n, 50, 8, "rare categories", "rare", -2.0, False, 0.0) for n in (10, 30, 100, 1000)),
        *(("logistic", n, 50, 8, "rare categories", "rare", -2.0, False, 0.5) for n in (10, 30, 100, 1000)),
        *((f, 100, 20, 8, "heavy columns", "heavy", -1.0, False, 0.0) for f in FAMILIES),
        *((f, 30, 20, 8, "heavy columns", "heavy", -1.0, False, 0.5) for f in FAMILIES),
        *(
            (f, "15 to 3,000", 36, 16, "normal columns", "normal", -1.0, apart, 0.0)
            for f in FAMILIES
            for apart in (0, 1)
        ),
        *((f, "15 to 3,000", 36, 16, "rare categories", "rare", -1.0, False, 0.5) for f in FAMILIES),
        *((f, 40, 5, 30, "normal columns", "normal", -1.0, False, 0.0) for f in FAMILIES),
        *((f, 400, 2, 20, "normal columns", "normal", -1.0, False, 1.0) for f in FAMILIES),
    ]
}


def swapped(rng, rows: Rows, part: slice, family: str) -> Rows:
    y = rows.y.copy()
    y[part] = 1 - y[part]
    return rows._replace(y=y)


def other_unit(rng, rows: Rows, part: slice, family: str) -> Rows:
    x = rows.x.copy()
    x[part, 1] *= 10
    return rows._replace(x=x)


def other_intercept(rng, rows: Rows, part: slice, family: str) -> Rows:
    y = rows.y.copy()
    y[part] = FAMILIES[family].draw(rng, rows.x[part] @ np.r_[1.5, np.full(rows.x.shape[1] - 1, 0.1)])
    return rows._replace(y=y)


FAULTS = {
    f"{fault.__name__.replace('_', ' ')}, {family}, {num_shards} shards of {n}": (fault, family, n, num_shards)
    for fault, families in (
        (swapped, ["logistic"]),
        (other_unit, ["linear", "logistic"]),
        (other_intercept, list(FAMILIES)),
    )
    for family in families
    for num_shards in (2, 5, 20)
    for n in (30, 100, 300)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data sets")
    said = parser.parse_args()
    each = 20 if said.quick else 200
    alarms = total = 0
    print(f"{'one model':72s} disagree, agree, not tested")
    for name, (*setting, away) in HEALTHY.items():
        found = []
        for seed in range(each):
            rng = np.random.default_rng([seed, len(name)])
            found.append(tested(rng, setting[0], simulated(rng, *setting), away)[0])
        counts = [found.count(verdict) for verdict in (Accord.DISAGREE, Accord.AGREE, Accord.UNTESTED)]
        alarms, total = alarms + counts[0], total + each
        print(f"{name:72s} {counts[0]:8d} {counts[1]:6d} {counts[2]:11d}", flush=True)
    print(f"\n{'a fault in one shard':60s} found, another shard flagged first, not tested")
    missed = many = 0
    for name, (fault, family, n, num_shards) in FAULTS.items():
        right = wrong = untested = 0
        for seed in range(each // 2):
            rng = np.random.default_rng([seed, 7])
            rows = simulated(rng, family, n, num_shards, 6, "normal", 0.3)
            rows = fault(rng, rows, slice(0, n), family)
            verdict, flagged = tested(rng, family, rows, 0.3)
            # Of two shards neither can be called the wrong one.
            right += bool(flagged) and (flagged[0] == 0 or num_shards == 2)
            wrong += bool(flagged) and flagged[0] != 0 and num_shards > 2
            untested += verdict == Accord.UNTESTED
        if n >= 300 and num_shards > 2 and fault is not other_unit:
            missed, many = missed + each // 2 - right, many + each // 2
        print(f"{name:60s} {right:5d} {wrong:5d} {untested:5d} of {each // 2}", flush=True)
    met = None if said.quick else alarms <= MOST_FALSE * total and missed <= (1 - LEAST_FOUND) * many
    text = (
        f"{alarms} of {total} data sets of one model disagree; {many - missed} of {many} faults in 300 rows are found"
    )
    print(rounds.verdict(met, text))


if __name__ == "__main__":
    main()
