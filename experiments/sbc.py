"""Simulation-based calibration (Talts et al. 2018) of the whole pipeline: fit, combine, certify, refine.

Run: python experiments/sbc.py [--case groups] [--quick]. Parameters are drawn from the prior, rows given the
parameters, and the posterior of these rows is computed with epvi's defaults. If it is right, the rank of the true
value among posterior draws is uniform over data sets. The case `regression` is a hierarchical logistic regression;
`groups` has groups of one to twenty rows whose effects are integrated out where their rows are (`epvi.Model(f,
groups=...)`), and ranks the shared parameters and the effects of three groups. Finished data sets are kept in the
work folder, and only missing ones are run. Prints a chi-square test for every parameter, and draws the ranks with a
band that contains 99 % of the bins of uniform ranks.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
from rich.progress import track
from scipy.stats import binom, chisquare

import epvi
from epvi.models import logistic, simulate_logistic

ROOT = Path(__file__).parents[1]
SHARDS = 5
# Prior Gamma(a, b) of alpha, chosen so that data sets drawn from the prior have labels of both kinds.
A, B = 2.0, 2.0
COLUMNS, ROWS = 3, 500
# Groups, of which group g has 1 + g mod 20 rows, and those whose effects are ranked: of 1, 5 and 20 rows.
GROUPS, RANKED = 40, (0, 4, 19)
# Posterior draws per data set, for 100 possible ranks in 20 bins of five.
DRAWS, BINS = 99, 20
FAILED = "refused"


class Done(NamedTuple):
    """The result of one data set: the verdict (or an error message), and the rank of every true value."""

    verdict: str
    ranks: list[int]


class Case(NamedTuple):
    """A model with its data sets: what is ranked, the rows of a data set, and how one is run."""

    names: list[str]
    rows: str
    run: Callable[[int, int, int], Done]


def regression(number: int, seed: int, executor: int) -> Done:
    """Simulate one data set of the logistic regression and rank its true values."""
    rng = np.random.default_rng([seed, number])
    alpha = float(rng.gamma(A, 1 / B))
    rows, truth = simulate_logistic(ROWS, COLUMNS, alpha=alpha, intercept=True, seed=int(rng.integers(2**31)))
    try:
        posterior = epvi.fit(REGRESSION, rows, SHARDS, executor=executor, seed=int(rng.integers(2**31)), progress=False)
    except epvi.EpviError as error:
        return Done(f"{FAILED}: {error}", [])
    assert posterior.certificate is not None
    draws = posterior.sample(DRAWS, seed=int(rng.integers(2**31)))
    below = np.column_stack([draws["alpha"], draws["w"]]) < np.array([alpha, *truth["w"]])
    return Done(posterior.certificate.verdict, np.sum(below, axis=0).tolist())


def hierarchy(group, num_group, x, y=None):
    """Binary rows with an intercept for each group, and a slope for all."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("group", num_group):
        a: Any = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group] + slope * x), obs=y)


def groups(number: int, seed: int, executor: int) -> Done:
    """Simulate one data set of the hierarchy and rank its true values."""
    rng = np.random.default_rng([seed, number])
    mu, tau, slope = rng.normal(), abs(rng.normal()), rng.normal()
    a = rng.normal(mu, tau, GROUPS)
    group = rng.permutation(np.repeat(np.arange(GROUPS), 1 + np.arange(GROUPS) % 20))
    x = rng.normal(size=len(group))
    rows = {"group": group, "x": x, "y": (rng.logistic(size=len(group)) < a[group] + slope * x).astype(float)}
    try:
        posterior = epvi.fit(HIERARCHY, rows, SHARDS, executor=executor, seed=int(rng.integers(2**31)), progress=False)
    except epvi.EpviError as error:
        return Done(f"{FAILED}: {error}", [])
    assert posterior.certificate is not None
    draws = posterior.sample(DRAWS, seed=int(rng.integers(2**31)))
    effects = posterior.groups(HIERARCHY, rows, num_samples=DRAWS, seed=int(rng.integers(2**31))).draws["a"]
    found = np.column_stack([draws["mu"], draws["tau"], draws["slope"], effects[:, RANKED]])
    below = found < np.array([mu, tau, slope, *a[list(RANKED)]])
    return Done(posterior.certificate.verdict, np.sum(below, axis=0).tolist())


REGRESSION, HIERARCHY = epvi.Model(logistic, a=A, b=B), epvi.Model(hierarchy, groups="group")
CASES = {
    "regression": Case(["alpha", *(f"w[{i}]" for i in range(COLUMNS))], f"{ROWS} rows", regression),
    "groups": Case(
        ["mu", "tau", "slope", *(f"a[{g}]" for g in RANKED)],
        f"{sum(1 + g % 20 for g in range(GROUPS))} rows of {GROUPS} groups",
        groups,
    ),
}


def read(file: Path) -> dict[int, Done]:
    """The data sets that are finished."""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        found = list(csv.reader(lines))
    return {int(number): Done(verdict, [int(rank) for rank in ranks if rank]) for number, verdict, *ranks in found}


def append(file: Path, number: int, done: Done) -> None:
    with file.open("a", newline="") as lines:
        csv.writer(lines).writerow([number, done.verdict, *done.ranks])


def histograms(ranks: np.ndarray) -> np.ndarray:
    """Counts of ranks by parameter and bin."""
    edges = np.linspace(0, DRAWS + 1, BINS + 1)
    return np.stack([np.histogram(column, edges)[0] for column in ranks.T])


def draw(names: list[str], counts: np.ndarray, p: np.ndarray, picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    num = int(np.sum(counts[0]))
    low, high = binom.ppf([0.005, 0.995], num, 1 / BINS)
    figure, axes = plt.subplots(1, len(names), figsize=(2.6 * len(names), 2.6), sharey=True, layout="constrained")
    places = (np.arange(BINS) + 0.5) * (DRAWS + 1) / BINS
    for axis, name, bars, value in zip(axes, names, counts, p, strict=True):
        axis.axhspan(low, high, color="0.85", label="99 % of uniform ranks")
        axis.axhline(num / BINS, color="0.4", linewidth=1)
        axis.bar(places, bars, width=0.85 * (DRAWS + 1) / BINS, color="#0072B2")
        axis.set_title(f"{name}   (p = {value:.2f})", fontsize=10)
        axis.set_xlabel(f"rank among {DRAWS} draws")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("data sets")
    axes[0].set_ylim(0, 1.25 * max(high, np.max(counts)))
    axes[0].legend(loc="upper left", fontsize=8, frameon=False)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def report(case: Case, done: dict[int, Done], picture: Path) -> None:
    for verdict, count in Counter(one.verdict for one in done.values()).most_common():
        print(f"{count:5d}  {verdict}")
    counts = histograms(np.array([one.ranks for one in done.values() if one.ranks]))
    p = np.array([chisquare(bars).pvalue for bars in counts])
    print(f"\n{np.sum(counts[0])} data sets of {case.rows} in {SHARDS} shards; chi-square over {BINS} bins")
    for name, value, bars in zip(case.names, p, counts, strict=True):
        print(f"{name:8s} p = {value:.3f}   {' '.join(f'{bar:2d}' for bar in bars)}")
    draw(case.names, counts, p, picture)
    print(f"\npicture: {picture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="regression", help="which model")
    parser.add_argument("--datasets", type=int, default=400, help="how many data sets there are to be")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", type=int, default=1, help="processes")
    parser.add_argument("--work", type=Path, default=Path("sbc-work"), help="folder in which results are kept")
    parser.add_argument("--picture", type=Path, default=None, help="a file of docs/images unless said")
    parser.add_argument("--quick", action="store_true", help="20 data sets, and the picture in the work folder")
    said = parser.parse_args()
    case = CASES[said.case]
    num = 20 if said.quick else said.datasets
    said.work.mkdir(parents=True, exist_ok=True)
    sizes = f"{ROWS}-{COLUMNS}" if said.case == "regression" else f"groups-{GROUPS}"
    file = said.work / f"ranks-{sizes}-{SHARDS}-{said.seed}.csv"
    done = read(file)
    for number in track([n for n in range(num) if n not in done], description="data sets"):
        done[number] = case.run(number, said.seed, said.executor)
        append(file, number, done[number])
    name = "sbc.png" if said.case == "regression" else f"sbc_{said.case}.png"
    default = said.work / name if said.quick else ROOT / "docs" / "images" / name
    report(case, {number: done[number] for number in range(num)}, said.picture or default)


if __name__ == "__main__":
    main()
