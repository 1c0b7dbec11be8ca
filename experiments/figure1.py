"""Figure 1: embarrassingly parallel variational inference of a Bayesian logistic regression, M = 6 shards.

Run: python experiments/figure1.py [--full] [--seed 0]

The first two coefficients of (a) the posterior of all rows, by NUTS; (b) the shards' variational approximations (the
paper's: K = 4 spherical Gaussians of equal weight); (c) their exact product; (d) the posterior with epvi's defaults,
after refinement. Contours contain 50 and 95 per cent; (b), (c) and (d) repeat those of (a) in black. The table holds
the densities on grids, and the mean and sd of every parameter by every method. --full has more draws.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lab.experiment import Experiment, Said, run
from lab.look import BLACK, BLUE, GREEN, MARKS, ORANGE, PURPLE, SKY, VERMILION, panels
from lab.results import Case, Row
from lab.strategies import PRODUCTS, Rows, papers, parts_of

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from nuts import Lengths, Sampler
from scipy.stats import gaussian_kde

import epvi
from epvi.models import logistic, simulate_logistic

M, K, NUM_ROWS, NUM_COLUMNS = 6, 4, 600, 3
# θ holds log α before the coefficients.
FIRST_TWO = (1, 2)
ACROSS, UP = "w[0]", "w[1]"
INSIDE = (0.95, 0.5)
SHARDS = [f"shard {m + 1}" for m in range(M)]
COLORS = dict(zip(SHARDS, (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY), strict=True))


class Made(NamedTuple):
    """A method's draws of θ, and its density of two coordinates as a function of points (n, 2)."""

    draws: np.ndarray
    density: Callable[[np.ndarray], np.ndarray]


def cases(said: Said) -> list[Case]:
    return [{"rows": NUM_ROWS, "draws": 40_000 if said.full else 10_000, "seed": said.seed}]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    rows, _ = simulate_logistic(NUM_ROWS, NUM_COLUMNS, seed=said.seed)
    model = epvi.Model(logistic)

    def measure(case: Case) -> list[Row]:
        made = methods(model, rows, int(case["draws"]), said.seed)
        grids = {
            "near": _grid([made["NUTS"].draws], 49),
            "wide": _grid([made[shard].draws for shard in SHARDS], 57),
        }
        found: list[Row] = []
        for name, one in made.items():
            found += _moments(name, one.draws)
            for grid in ("near", "wide") if name == "NUTS" else ("wide" if name in SHARDS else "near",):
                found += _surface({"of": name, "grid": grid}, one, grids[grid])
        return found

    return measure


def methods(model: epvi.Model, rows: Rows, num_draws: int, seed: int) -> dict[str, Made]:
    """The posterior by every method, and every shard's approximation."""
    parts = parts_of(rows, M)
    fits = [epvi.fit_shard(model, part, f"{m + 1}/{M}", inference=papers(K), seed=seed) for m, part in enumerate(parts)]
    product = epvi.combine(fits, PRODUCTS["EPVI_exact"], seed=seed, accept_unconverged=True)
    with ThreadPoolExecutor(1) as here:
        refined = epvi.fit(model, rows, M, shuffle=False, executor=here, seed=seed, progress=False)
    start = {name: draws.mean(axis=0) for name, draws in refined.sample(1000, seed=seed).items()}
    theta = Sampler(model, rows, start, Lengths(500, num_draws // 2, 2)).draws(rows, 1.0, jax.random.key(seed))
    made = {"NUTS": _drawn(theta.reshape(-1, theta.shape[-1]))}
    made |= {shard: _mixed(fit.mixture, num_draws, seed) for shard, fit in zip(SHARDS, fits, strict=True)}
    made["EPVI_exact"] = _mixed(product.mixture, num_draws, seed)
    made["EPVI_refined"] = _drawn(refined.theta(num_draws, seed=seed))
    return made


def _drawn(draws: np.ndarray) -> Made:
    """A density known only by draws, as a kernel density estimate; smoothing widens its sds by 2 per cent."""
    kernel = gaussian_kde(draws[:, FIRST_TWO].T)
    return Made(draws, lambda points: kernel(points.T))


def _mixed(mixture: epvi.GaussianMixture, num_draws: int, seed: int) -> Made:
    plane = mixture.marginal(FIRST_TWO)
    draws = np.asarray(mixture.sample(num_draws, seed=seed))
    return Made(draws, lambda points: np.asarray(plane.density(points)))


def _grid(draws: list[np.ndarray], size: int) -> np.ndarray:
    """Points (size², 2) on a grid of two coordinates that extends a little beyond the draws."""
    some = np.concatenate(draws)[:, FIRST_TWO]
    low, high = np.quantile(some, [0.0005, 0.9995], axis=0)
    edge = 0.12 * (high - low)
    sides = [np.linspace(low[i] - edge[i], high[i] + edge[i], size) for i in (0, 1)]
    return np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=1)


def _surface(called: Row, one: Made, grid: np.ndarray) -> list[Row]:
    """The density at every point, to five digits."""
    points = zip(grid.round(5).tolist(), one.density(grid).tolist(), strict=True)
    return [{**called, ACROSS: x, UP: y, "density": float(f"{density:.5g}")} for (x, y), density in points]


def _moments(name: str, draws: np.ndarray) -> list[Row]:
    named = ["log alpha", *(f"w[{i}]" for i in range(NUM_COLUMNS))]
    return [
        {"of": name, "parameter": parameter, "mean": float(draws[:, i].mean()), "sd": float(draws[:, i].std(ddof=1))}
        for i, parameter in enumerate(named)
    ]


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 2, (4.6, 4.0))
    (a, b), (c, d) = axes
    _contours(a, rows, "NUTS", "near", BLACK, filled=True)
    a.set_title("(a) posterior of all rows (NUTS)", loc="left")
    for shard, color in COLORS.items():
        _contours(b, rows, shard, "wide", color)
    _contours(b, rows, "NUTS", "wide", BLACK)
    b.set_title(f"(b) approximations of M = {M} subposteriors", loc="left")
    shards = [Line2D([], [], color=color, label=shard) for shard, color in COLORS.items()]
    b.legend(handles=shards, fontsize=8, loc="best")
    for axis, name, title in (
        (c, "EPVI_exact", "(c) product of the six"),
        (d, "EPVI_refined", "(d) epvi as it comes, refined"),
    ):
        _contours(axis, rows, name, "near", MARKS[name].color, filled=True)
        _contours(axis, rows, "NUTS", "near", BLACK)
        axis.set_title(title, loc="left")
        names = [Line2D([], [], color=MARKS[name].color, label=name), Line2D([], [], color=BLACK, label="(a), NUTS")]
        axis.legend(handles=names, fontsize=8, loc="best")
    for axis in axes.flat:
        axis.set_xlabel(ACROSS)
        axis.set_ylabel(UP)
    return figure


def _contours(axis: Axes, rows: list[Row], name: str, grid: str, color: str, *, filled: bool = False) -> None:
    """Highest-density regions that contain the shares `INSIDE` of the mass."""
    mine = [row for row in rows if row["of"] == name and row.get("grid") == grid]
    x, y, density = (np.array([float(row[column]) for row in mine]) for column in (ACROSS, UP, "density"))
    sides = np.unique(x), np.unique(y)
    downwards = np.sort(density)[::-1]
    held = np.cumsum(downwards) / density.sum()
    levels = [float(downwards[np.searchsorted(held, share)]) for share in INSIDE]
    surface = density.reshape(len(sides[0]), len(sides[1])).T
    if filled:
        for level, alpha in zip(levels, (0.2, 0.3), strict=True):
            axis.contourf(*sides, surface, levels=[level, np.inf], colors=[color], alpha=alpha)
    axis.contour(*sides, surface, levels=levels, colors=[color], linewidths=1.3)


def report(rows: list[Row]) -> list[str]:
    """Errors of means and sds against NUTS."""
    found = {(str(row["of"]), str(row["parameter"])): row for row in rows if "parameter" in row}
    names = [parameter for of, parameter in found if of == "NUTS"]
    lines = [f"{'(mean − NUTS) / sd, sd / NUTS':32s}" + "".join(f"{name:>16s}" for name in names)]
    for of in dict.fromkeys(of for of, _ in found if of != "NUTS"):
        cells = []
        for name in names:
            truth, mine = found["NUTS", name], found[of, name]
            away = (float(mine["mean"]) - float(truth["mean"])) / float(truth["sd"])
            cells.append(f"{away:+9.2f}{float(mine['sd']) / float(truth['sd']):7.2f}")
        lines.append(f"{of:32s}" + "".join(cells))
    return lines


if __name__ == "__main__":
    run(Experiment("figure1", __doc__, cases, measuring, draw, report))
