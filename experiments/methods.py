"""All methods of combining posteriors: errors against long NUTS runs on all rows, by the number of shards.

Run: python experiments/methods.py [--full] [--seed 0]

Two logistic regressions on 2,000 rows with 8 correlated columns: one with a Gaussian prior, where the methods that need
one apply too, and the paper's hierarchical one. NUTS draws 1,000 times from every shard's subposterior (and, for the
exponential family, from its posterior with the full prior), and `epvi.combine_draws` combines the draws. All methods
have the same rows in the same shards. Answers that a method itself reports as not usable are marked. Errors are the
worst over all parameters, in constrained coordinates: of means in sds of the reference, of sds as the lowest and the
highest ratio.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lab.experiment import Experiment, Said, run
from lab.look import BLACK, BLUE, GREEN, GREY, MARKS, ORANGE, PURPLE, SKY, VERMILION, Mark, legend_below, panels
from lab.results import Case, Row, by_strategy
from lab.strategies import PRODUCTS, papers, timed

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from accuracy_peers import shards_of
from made import cached_chains
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from nuts import Lengths, Sampler
from posteriors import flattened

import epvi
from epvi.models import logistic, simulate_logistic
from epvi.models.logistic import SmoothBernoulli

Rows = dict[str, np.ndarray]

PER_SHARD = Lengths(500, 1000, 1)
# Seed of the rows; --seed is that of the methods.
ROWS_SEED = 2
PRIOR_SD = 2.0
NUM_DRAWS = 20_000


def gaussian_prior(x: Any, y: Any = None) -> None:
    """Logistic regression with w ~ N(0, 4 I)."""
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", SmoothBernoulli(x @ w), obs=y)


MODELS: dict[str, Callable] = {"Gaussian prior": gaussian_prior, "hierarchical prior (the paper's)": logistic}
DRAWN = {
    "consensus, diagonal": epvi.Consensus(epvi.Diagonal()),
    "consensus, full": epvi.Consensus(epvi.Full()),
    "parametric": epvi.Parametric(),
    "nonparametric": epvi.Nonparametric(),
    "semiparametric": epvi.Semiparametric(),
    "Weierstrass": epvi.Weierstrass(),
}
QUOTIENT = "exponential family"
FITTED: dict[str, dict[str, Any]] = {
    "EPVI_sample": {"inference": papers(4), "product": PRODUCTS["EPVI_sample"], "certify": False},
    "EPVI, full covariance": {"certify": False},
    "EPVI_refined": {},
}
LOOKS = {
    "consensus, diagonal": Mark(ORANGE, "v", "--"),
    "consensus, full": Mark(ORANGE, "^"),
    "parametric": Mark(SKY, "s"),
    "nonparametric": Mark(GREEN, "P", "--"),
    "semiparametric": Mark(GREEN, "X"),
    "Weierstrass": Mark(PURPLE, "D", "-."),
    QUOTIENT: Mark(GREY, "h", ":"),
    "EPVI_sample": MARKS["EPVI_sample"],
    "EPVI, full covariance": Mark(BLUE, "p", "--"),
    "EPVI_refined": MARKS["EPVI_refined"],
}
# A ring around answers that the method itself reports as not usable.
DOUBTED: Any = {"s": 110, "facecolors": "none", "edgecolors": VERMILION, "linewidths": 1.2}


class Task(NamedTuple):
    """A posterior to approximate."""

    model: epvi.Model
    rows: Rows
    start: Rows  # where NUTS starts
    moments: dict[str, tuple[float, float]]  # mean and sd of the reference, by scalar


def cases(said: Said) -> list[Case]:
    sizes = (2, 4, 8, 16, 32) if said.full else (2, 5, 20)
    return [{"seed": said.seed, "full": int(said.full), "model": name, "M": m} for name in MODELS for m in sizes]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    lengths = Lengths(1000, 20_000, 2) if said.full else Lengths(500, 5_000, 2)
    task_of = functools.cache(lambda name: _task(name, lengths))

    def measure(case: Case) -> list[Row]:
        task, m = task_of(case["model"]), int(case["M"])
        return [*_combined(task, m, said.seed), *_fitted(task, m, said.seed)]

    return measure


def _task(name: str, lengths: Lengths) -> Task:
    rows, truth = simulate_logistic(2000, 8, condition=80, seed=ROWS_SEED)
    model = epvi.Model(MODELS[name])
    start = {key: np.asarray(value) for key, value in truth.items() if name != "Gaussian prior" or key != "alpha"}
    chains = cached_chains(name, model, rows, start, lengths)
    scalars = flattened({key: values.reshape(-1, *values.shape[2:]) for key, values in chains.items()})
    moments = {key: (float(np.mean(values)), float(np.std(values))) for key, values in scalars.items()}
    return Task(model, rows, start, moments)


def _combined(task: Task, m: int, seed: int) -> Iterator[Row]:
    """NUTS on every shard, and the methods that combine draws."""
    sampler = Sampler(task.model, task.rows, task.start, PER_SHARD)
    keys = jax.random.split(jax.random.key(seed), m)
    parts = shards_of(task.rows, m, seed)

    def drawn(share: float) -> list[np.ndarray]:
        return [sampler.draws(part, share, key)[0] for part, key in zip(parts, keys, strict=True)]

    subposteriors = drawn(1 / m)
    for name, method in DRAWN.items():
        yield _by_draws(task, name, subposteriors, method, sampler.space, seed)
    if "alpha" not in task.start:
        quotient = epvi.ExponentialFamily(0.0, PRIOR_SD**2)
        yield _by_draws(task, QUOTIENT, drawn(1.0), quotient, sampler.space, seed)


def _by_draws(task: Task, name: str, draws: list[np.ndarray], method: Any, space: epvi.Space, seed: int) -> Row:
    try:
        made, seconds = timed(lambda: epvi.combine_draws(draws, method, seed=seed))
    except epvi.EpviError as error:
        return {"strategy": name, "ok": 0, "said": str(error)}
    found = {"ok": int(made.status.ok), "seconds": seconds, "said": str(made.status)}
    return {"strategy": name, **_errors(task, space.constrain(made.theta)), **found}


def _fitted(task: Task, m: int, seed: int) -> Iterator[Row]:
    """epvi's own fits: the paper's family, full covariances, and with refinement."""
    for name, settings in FITTED.items():
        made = epvi.fit(task.model, task.rows, m, executor=2, seed=seed, progress=False, **settings)
        trusted = made.product.status.ok if made.certificate is None else made.certificate.verdict != "do not trust"
        said = str(made.product.status if made.certificate is None else made.certificate.verdict)
        yield {"strategy": name, **_errors(task, made.sample(NUM_DRAWS, seed=seed)), "ok": int(trusted), "said": said}


def _errors(task: Task, draws: dict[str, np.ndarray]) -> Row:
    found = flattened(draws)
    means = [abs(float(np.mean(found[key])) - mean) / sd for key, (mean, sd) in task.moments.items()]
    ratios = [float(np.std(found[key])) / sd for key, (_, sd) in task.moments.items()]
    return {"mean_error": max(means), "lowest_sd": min(ratios), "highest_sd": max(ratios)}


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 2, (5.6, 3.5), sharex=True)
    for column, name in enumerate(MODELS):
        found = by_strategy([row for row in rows if row["model"] == name])
        for i, (method, look) in enumerate(LOOKS.items()):
            mine = [row for row in found.get(method, []) if "mean_error" in row]
            across = np.array([float(row["M"]) for row in mine]) * 1.035 ** (i - len(LOOKS) / 2)
            _means(axes[0, column], across, mine, method, look)
            _sds(axes[1, column], across, mine, look)
        axes[0, column].set_title(f"logistic regression, {name}")
        axes[1, column].set_xlabel("number of shards M (points are shifted a little to be told apart)")
        _scale(axes[1, column], sorted({int(row["M"]) for row in rows}))
    axes[0, 0].set_ylabel("worst mean, in sds of NUTS on all rows")
    axes[1, 0].set_ylabel("sds relative to NUTS: lowest to highest")
    axes[0, 0].scatter([], [], **DOUBTED, label="doubts its own answer")
    legend_below(figure, axes[:1], columns=6)
    return figure


def _means(axis: Axes, across: np.ndarray, rows: list[Row], name: str, look: Mark) -> None:
    errors = [float(row["mean_error"]) for row in rows]
    axis.plot(across, errors, color=look.color, linestyle=look.linestyle, marker=look.marker, label=name, linewidth=1.3)
    doubted = [(x, y) for x, y, row in zip(across, errors, rows, strict=True) if not row["ok"]]
    if doubted:
        axis.scatter(*zip(*doubted, strict=True), **DOUBTED)
    axis.set_yscale("log")
    axis.set_xscale("log")
    axis.axhline(0.1, color="0.8", linewidth=1, zorder=0)


def _sds(axis: Axes, across: np.ndarray, rows: list[Row], look: Mark) -> None:
    low, high = ([float(row[key]) for row in rows] for key in ("lowest_sd", "highest_sd"))
    axis.vlines(across, low, high, color=look.color, linewidth=2)
    for ends in (low, high):
        axis.plot(across, ends, color=look.color, marker=look.marker, linestyle="none", markersize=4)
    axis.axhline(1, color=BLACK, linewidth=0.8, zorder=0)
    axis.set_yscale("log")


def _scale(axis: Axes, sizes: list[int]) -> None:
    axis.set_xticks(sizes, [str(m) for m in sizes])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_yticks([0.1, 0.25, 0.5, 1, 2], ["0.1", "0.25", "0.5", "1", "2"])
    axis.yaxis.set_minor_formatter(NullFormatter())


def report(rows: list[Row]) -> list[str]:
    lines = [f"{'model':34s}{'M':>4s}  {'method':23s}{'worst mean':>11s}{'sds':>14s}  what it said"]
    for row in rows:
        numbers = " " * 25
        if "mean_error" in row:
            sds = f"{float(row['lowest_sd']):.2f}-{float(row['highest_sd']):.2f}"
            numbers = f"{float(row['mean_error']):11.3f}{sds:>14s}"
        lines.append(f"{row['model']:34s}{row['M']:4d}  {row['strategy']:23s}{numbers}  {str(row['said'])[:90]}")
    return lines


if __name__ == "__main__":
    run(Experiment("methods", __doc__, cases, measuring, draw, report))
