"""Simulation-based calibration (Talts et al. 2018) of the whole pipeline: fit, combine, certify, refine.

Run: python experiments/sbc.py [--quick]. Parameters are drawn from the prior, rows given the parameters, and the
posterior of these rows is computed with epvi's defaults. If it is right, the rank of the true value among posterior
draws is uniform over data sets. Finished data sets are kept in the work folder, and only missing ones are run. Prints a
chi-square test for every parameter, and draws the ranks with a band that contains 99 % of the bins of uniform ranks.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import track
from scipy.stats import binom, chisquare

import epvi
from epvi.models import logistic, simulate_logistic

ROOT = Path(__file__).parents[1]
# Prior Gamma(a, b) of alpha, chosen so that data sets drawn from the prior have labels of both kinds.
A, B = 2.0, 2.0
COLUMNS, ROWS, SHARDS = 3, 500, 5
# Posterior draws per data set, for 100 possible ranks in 20 bins of five.
DRAWS, BINS = 99, 20
NAMES = ["alpha", *(f"w[{i}]" for i in range(COLUMNS))]
FAILED = "refused"


class Done(NamedTuple):
    """The result of one data set: the verdict (or an error message), and the rank of every true value."""

    verdict: str
    ranks: list[int]


def run(model: epvi.Model, number: int, seed: int, executor: int) -> Done:
    """Simulate one data set and rank its true values."""
    rng = np.random.default_rng([seed, number])
    alpha = float(rng.gamma(A, 1 / B))
    rows, truth = simulate_logistic(ROWS, COLUMNS, alpha=alpha, intercept=True, seed=int(rng.integers(2**31)))
    try:
        posterior = epvi.fit(model, rows, SHARDS, executor=executor, seed=int(rng.integers(2**31)), progress=False)
    except epvi.EpviError as error:
        return Done(f"{FAILED}: {error}", [])
    assert posterior.certificate is not None
    draws = posterior.sample(DRAWS, seed=int(rng.integers(2**31)))
    below = np.column_stack([draws["alpha"], draws["w"]]) < np.array([alpha, *truth["w"]])
    return Done(posterior.certificate.verdict, np.sum(below, axis=0).tolist())


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


def draw(counts: np.ndarray, p: np.ndarray, picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    num = int(np.sum(counts[0]))
    low, high = binom.ppf([0.005, 0.995], num, 1 / BINS)
    figure, axes = plt.subplots(1, len(NAMES), figsize=(2.6 * len(NAMES), 2.6), sharey=True, layout="constrained")
    places = (np.arange(BINS) + 0.5) * (DRAWS + 1) / BINS
    for axis, name, bars, value in zip(axes, NAMES, counts, p, strict=True):
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


def report(done: dict[int, Done], picture: Path) -> None:
    for verdict, count in Counter(one.verdict for one in done.values()).most_common():
        print(f"{count:5d}  {verdict}")
    counts = histograms(np.array([one.ranks for one in done.values() if one.ranks]))
    p = np.array([chisquare(bars).pvalue for bars in counts])
    print(f"\n{np.sum(counts[0])} data sets of {ROWS} rows in {SHARDS} shards; chi-square over {BINS} bins")
    for name, value, bars in zip(NAMES, p, counts, strict=True):
        print(f"{name:8s} p = {value:.3f}   {' '.join(f'{bar:2d}' for bar in bars)}")
    draw(counts, p, picture)
    print(f"\npicture: {picture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=400, help="how many data sets there are to be")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", type=int, default=1, help="processes")
    parser.add_argument("--work", type=Path, default=Path("sbc-work"), help="folder in which results are kept")
    parser.add_argument("--picture", type=Path, default=None, help="docs/images/sbc.png unless said")
    parser.add_argument("--quick", action="store_true", help="20 data sets, and the picture in the work folder")
    said = parser.parse_args()
    num = 20 if said.quick else said.datasets
    said.work.mkdir(parents=True, exist_ok=True)
    file = said.work / f"ranks-{ROWS}-{COLUMNS}-{SHARDS}-{said.seed}.csv"
    done = read(file)
    model = epvi.Model(logistic, a=A, b=B)
    for number in track([n for n in range(num) if n not in done], description="data sets"):
        done[number] = run(model, number, said.seed, said.executor)
        append(file, number, done[number])
    default = said.work / "sbc.png" if said.quick else ROOT / "docs" / "images" / "sbc.png"
    report({number: done[number] for number in range(num)}, said.picture or default)


if __name__ == "__main__":
    main()
