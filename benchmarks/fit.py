"""Hierarchical logistic regression by EPVI against NUTS: one table of numbers of shards M x variational families.

Run: python benchmarks/fit.py (about seven minutes on two cores; --quick for a small one in less than one). Each family
is fitted to all rows (M = 1) and to M shards; the fits are multiplied by four product methods. All runs use one worker
process, so that a shard has a core to itself. Every fit is run twice, and the second, warm one is timed. `merge=False`
is the paper's method, which needs more sweeps than the default allows.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import jax
import numpy as np
from numpyro.diagnostics import summary
from numpyro.infer import MCMC, NUTS

import epvi
from epvi.models import logistic, simulate_logistic

Rows = dict[str, np.ndarray]

K, V, CONDITION = 4, 8, 80
FAMILIES = {
    "Full()": epvi.NVI(K, epvi.Full()),
    "Spherical()": epvi.NVI(K, epvi.Spherical()),
    "Spherical(), merge=False": epvi.NVI(K, epvi.Spherical(), merge=False, max_sweeps=200),
    "Full(), merge=False": epvi.NVI(K, epvi.Full(), merge=False, max_sweeps=200),
}
WAYS = {"Exact": epvi.Exact(), "Chain": epvi.Chain(), "Subset": epvi.Subset(), "Anchored": epvi.Anchored()}
DEFAULT = "Full()"
# Targets: held-out NLL per row relative to the full-data fit, in nats, and ratios of sds to those of NUTS.
NATS, SD_RATIOS = 0.001, (0.9, 1.1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The size of a run."""

    num_rows: int = 20_000
    sizes: tuple[int, ...] = (2, 5, 10, 20)  # numbers of shards
    chains: int = 2  # of NUTS
    warm_up: int = 1000
    draws: int = 2000
    families: tuple[str, ...] = tuple(FAMILIES)


QUICK = Plan(2000, (2, 4), chains=1, warm_up=200, draws=500, families=(DEFAULT,))


class Truth(NamedTuple):
    """The coefficients by NUTS."""

    mean: np.ndarray
    sd: np.ndarray
    error: float  # Monte Carlo standard error of a mean, in sds
    text: str  # length and diagnostics of the run


class Figures(NamedTuple):
    """The figures of one posterior."""

    nll: float  # held-out, per row
    ratios: np.ndarray  # of sds, epvi's to NUTS'
    away: float  # the worst |difference of means| in NUTS' sds
    trusted: bool  # whether its status says that it can be used as it is


class Seconds(NamedTuple):
    """Time of a warm fit: the slowest shard's, and the mean over shards."""

    slowest: float
    mean: float


@dataclasses.dataclass(frozen=True)
class Task:
    """Rows to fit, held-out rows, and the reference."""

    rows: Rows
    held_out: Rows
    truth: Truth
    seed: int

    def fit(self, family: epvi.NVI, shards: int) -> tuple[epvi.Posterior, Seconds]:
        """The second of two equal fits."""
        epvi.fit(logistic, self.rows, shards, inference=family, certify=False, executor=1, seed=self.seed)
        posterior = epvi.fit(logistic, self.rows, shards, inference=family, certify=False, executor=1, seed=self.seed)
        seconds = [fit.seconds for fit in posterior.fits]
        return posterior, Seconds(max(seconds), float(np.mean(seconds)))

    def nll(self, posterior: epvi.Posterior) -> float:
        """The held-out negative log-likelihood per row; all posteriors use the same random numbers."""
        return -epvi.log_predictive(logistic, posterior, self.held_out, num_samples=1000, seed=self.seed)

    def figures(self, posterior: epvi.Posterior) -> Figures:
        w = posterior.space.slices["w"]
        mean, sd = np.asarray(posterior.mixture.mean())[w], np.asarray(posterior.mixture.sd())[w]
        away = float(np.max(np.abs(mean - self.truth.mean) / self.truth.sd))
        return Figures(self.nll(posterior), sd / self.truth.sd, away, posterior.product.status.ok)

    def subposteriors_nll(self, fits: Sequence[epvi.ShardFit]) -> float:
        """The paper's "Subposteriors": each shard's fit taken as the posterior, averaged over shards."""
        alone = [dataclasses.replace(fit, shard=1, num_shards=1, prior=Fraction(1)) for fit in fits]
        return float(np.mean([self.nll(epvi.combine([fit])) for fit in alone]))

    def products(self, fits: Sequence[epvi.ShardFit]) -> dict[str, Figures]:
        """The figures of every product method; `Exact` is left out where it refuses the size."""
        components = math.prod(fit.mixture.num_components for fit in fits)
        ways = {n: way for n, way in WAYS.items() if n != "Exact" or components <= epvi.Exact().max_components}
        return {name: self.figures(epvi.combine(fits, way, seed=self.seed)) for name, way in ways.items()}


def simulated(num_rows: int, seed: int) -> tuple[Rows, Rows]:
    """Rows to fit and a tenth as many held out."""
    rows, _ = simulate_logistic(num_rows + num_rows // 10, V, condition=CONDITION, seed=seed)
    return {n: c[:num_rows] for n, c in rows.items()}, {n: c[num_rows:] for n, c in rows.items()}


def by_nuts(rows: Rows, plan: Plan, seed: int) -> Truth:
    start = time.perf_counter()
    with jax.enable_x64(True):
        chains = MCMC(
            NUTS(logistic),
            num_warmup=plan.warm_up,
            num_samples=plan.draws,
            num_chains=plan.chains,
            chain_method="sequential",
            progress_bar=False,
        )
        chains.run(jax.random.key(seed), **rows)
        draws = np.asarray(chains.get_samples(group_by_chain=True)["w"])
    found = summary({"w": draws})["w"]
    r_hat, ess = float(np.max(found["r_hat"])), float(np.min(found["n_eff"]))
    text = (
        f"NUTS, {plan.chains} x {plan.draws:,} draws after {plan.warm_up:,}: {time.perf_counter() - start:.0f} s,"
        f" R-hat up to {r_hat:.3f}, at least {ess:,.0f} effective draws of a coefficient"
    )
    flat = draws.reshape(-1, V)
    return Truth(flat.mean(axis=0), flat.std(axis=0, ddof=1), ess**-0.5, text)


HEAD = (
    f"{'M':>3s}  {'family':26s}{'Subpost.':>9s}{''.join(f'{name:>10s}' for name in WAYS)}"
    f"{'sd ratios':>17s}{'means off':>11s}{'worst by':>10s}{'slowest':>9s}{'mean':>7s}{'full/slowest':>14s}"
)


def full_line(family: str, figures: Figures, seconds: Seconds) -> str:
    low, high = np.min(figures.ratios), np.max(figures.ratios)
    nll = f"NLL of full-data NVI {figures.nll:.5f}"
    accuracy = f"{low:8.3f} to {high:.3f}{figures.away:11.3f}{'':10s}"
    return f"{1:3d}  {family:26s}{nll:>49s}{accuracy}{seconds.slowest:9.2f}{seconds.mean:7.2f}{'':14s}"


def line(
    m: int, family: str, subposteriors: float, full: Figures, made: dict[str, Figures], times: tuple[Seconds, Seconds]
) -> str:
    """A row of the table; `times` are those of the shards and of the full-data fit."""
    cells = ""
    for name in WAYS:
        mark = "" if name not in made or made[name].trusted else "?"
        cells += f"{made[name].nll - full.nll:+.5f}{mark}".rjust(10) if name in made else f"{'-':>10s}"
    ratios = np.concatenate([one.ratios for one in made.values()])
    worst = max(made, key=lambda name: made[name].away)
    seconds, whole = times
    return (
        f"{m:3d}  {family:26s}{subposteriors - full.nll:+9.5f}{cells}"
        f"{np.min(ratios):8.3f} to {np.max(ratios):.3f}{made[worst].away:11.3f}{worst:>10s}"
        f"{seconds.slowest:9.2f}{seconds.mean:7.2f}{whole.slowest / seconds.slowest:13.1f}x"
    )


def verdicts(full: Figures, products: dict[int, dict[str, Figures]]) -> list[str]:
    """Whether the default family meets its targets."""
    refused = [m for m, made in products.items() if not made]
    if refused:
        return [f"MISSED: both targets of {DEFAULT}, which epvi refused at M = {', '.join(map(str, refused))}"]
    loss = {(m, name): one.nll - full.nll for m, made in products.items() for name, one in made.items()}
    ratios = {(m, name): one.ratios for m, made in products.items() for name, one in made.items()}
    at = max(loss, key=lambda case: abs(loss[case]))
    low = min(ratios, key=lambda case: float(np.min(ratios[case])))
    high = max(ratios, key=lambda case: float(np.max(ratios[case])))
    least, most = float(np.min(ratios[low])), float(np.max(ratios[high]))
    met = {True: "met", False: "MISSED"}
    return [
        f"{met[abs(loss[at]) <= NATS]}: {DEFAULT} within {NATS} nats of full-data NVI at every M by every product;"
        f" the worst is {loss[at]:+.5f} (M = {at[0]}, {at[1]})",
        f"{met[SD_RATIOS[0] <= least and most <= SD_RATIOS[1]]}: {DEFAULT} sd ratios of coefficients within"
        f" {SD_RATIOS[0]} to {SD_RATIOS[1]} at every M by every product; they are {least:.3f} (M = {low[0]}, {low[1]})"
        f" to {most:.3f} (M = {high[0]}, {high[1]})",
    ]


def table(plan: Plan, seed: int) -> None:
    rows, held_out = simulated(plan.num_rows, seed)
    print(
        f"Hierarchical logistic regression: N = {plan.num_rows:,} rows (and {len(held_out['y']):,} held out), V = {V}"
        f" columns, condition {CONDITION}, K = {K}, seed {seed}\n"
        "Subpost., Exact ... Anchored: held-out NLL per row minus that of full-data NVI of the same family, in nats; ?"
        " when the product doubts itself\n"
        "sd ratios, means off: of coefficients to NUTS, over all products; means off in NUTS' sds. slowest, mean:"
        " seconds of a shard's fit, warm"
    )
    truth = by_nuts(rows, plan, seed)
    print(f"{truth.text}, so means are known to {truth.error:.3f} sds\n\n{HEAD}", flush=True)
    task = Task(rows, held_out, truth, seed)
    full: dict[str, tuple[Figures, Seconds]] = {}
    for name in plan.families:
        posterior, seconds = task.fit(FAMILIES[name], 1)
        full[name] = task.figures(posterior), seconds
        print(full_line(name, *full[name]), flush=True)
    products: dict[str, dict[int, dict[str, Figures]]] = {name: {} for name in plan.families}
    for m in plan.sizes:
        print()
        for name in plan.families:
            try:
                posterior, seconds = task.fit(FAMILIES[name], m)
            except epvi.EpviError as refusal:
                products[name][m] = {}
                print(f"{m:3d}  {name:26s}  refused: {refusal}", flush=True)
                continue
            whole, whole_seconds = full[name]
            products[name][m] = task.products(posterior.fits)
            alone = task.subposteriors_nll(posterior.fits)
            print(line(m, name, alone, whole, products[name][m], (seconds, whole_seconds)), flush=True)
    print("\n" + "\n".join(verdicts(full[DEFAULT][0], products[DEFAULT])))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, M = 2 and 4, one family, short NUTS")
    parser.add_argument("--seed", type=int, default=0, help="of the rows, the fits, NUTS and the draws")
    chosen = parser.parse_args(arguments)
    table(QUICK if chosen.quick else Plan(), chosen.seed)


if __name__ == "__main__":
    main()
