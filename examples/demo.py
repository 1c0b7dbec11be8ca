"""A logistic regression fitted in six separate shards and combined, compared with NUTS on all rows: `make demo`.

Prints a table and draws demo.png, similar to the paper's Figure 1: the posterior of all rows, the six shards'
approximations, and their product after refinement.
"""

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
from numpyro.diagnostics import summary
from numpyro.infer import MCMC, NUTS
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import epvi
from epvi.ground.atomic import write_whole
from epvi.models import logistic, simulate_logistic

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

NUM_ROWS, NUM_COLUMNS, NUM_SHARDS = 6000, 6, 6
WARM_UP, DRAWS = 300, 1000
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"]
# Contours contain these shares of the mass.
SHARES = (0.95, 0.5)
LINES, BLUES = (1.4, 0.8), ("#9ECAE1", "#3182BD")


class Answer(NamedTuple):
    """The coefficients by one method."""

    mean: np.ndarray
    sd: np.ndarray
    first: float  # seconds of the first call, which compiles
    again: float  # seconds of the second call


def by_epvi(rows: dict[str, np.ndarray], shards: int, workers: int | None = None) -> tuple[epvi.Posterior, Answer]:
    """The posterior of a first call, which starts workers and compiles; a second call is timed only."""
    start = time.perf_counter()
    posterior = epvi.fit(logistic, rows, shards, executor=workers)
    middle = time.perf_counter()
    epvi.fit(logistic, rows, shards, executor=workers, progress=False)
    again = time.perf_counter() - middle
    summary = posterior.summary()
    w = [summary.names.index(f"w[{i}]") for i in range(NUM_COLUMNS)]
    return posterior, Answer(summary.mean[w], summary.sd[w], middle - start, again)


def by_nuts(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, Answer]:
    """Draws (chains, n, C) of two chains, run one after the other: the first one compiles."""
    with jax.enable_x64(True):
        chain = MCMC(NUTS(logistic), num_warmup=WARM_UP, num_samples=DRAWS, progress_bar=False)
        draws, seconds = [], []
        for seed in range(2):
            start = time.perf_counter()
            with spinner(f"chain {seed + 1} of 2"):
                chain.run(jax.random.key(seed), **rows)
                draws.append(np.asarray(chain.get_samples()["w"]))
            seconds.append(time.perf_counter() - start)
    pooled = np.concatenate(draws)
    return np.stack(draws), Answer(pooled.mean(axis=0), pooled.std(axis=0, ddof=1), *seconds)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """A spinner on stderr, if that is a terminal."""
    columns = SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(text, total=1)
        yield
        progress.update(task, completed=1)


def table(answers: dict[str, Answer]) -> Table:
    """Coefficients by method; below them times, and errors against NUTS, the last method."""
    *fits, truth = answers.values()
    made = Table(*("", *answers))
    for column in made.columns[1:]:
        column.justify = "right"
    for i in range(NUM_COLUMNS):
        cells = (f"{answer.mean[i]:.3f} ± {answer.sd[i]:.3f}" for answer in answers.values())
        made.add_row(f"w[{i}]", *cells, end_section=i == NUM_COLUMNS - 1)
    made.add_row("seconds, first call", *(f"{answer.first:.1f}" for answer in answers.values()))
    made.add_row("seconds, once more", *(f"{answer.again:.1f}" for answer in answers.values()), end_section=True)
    away = (np.max(np.abs(fit.mean - truth.mean) / truth.sd) for fit in fits)
    made.add_row("worst mean error, in sds", *(f"{worst:.2f}" for worst in away))
    ratios = (fit.sd / truth.sd for fit in fits)
    made.add_row("sds, relative to NUTS", *(f"{np.min(ratio):.2f} to {np.max(ratio):.2f}" for ratio in ratios))
    return made


def contours(panel: Axes, mixture: epvi.GaussianMixture, fill: bool = False, **style: Any) -> None:
    """Highest-density contours of a mixture in two dimensions, around 95 % and 50 % of its mass."""
    grid = np.stack(np.meshgrid(*(np.linspace(*ends, 150) for ends in (panel.get_xlim(), panel.get_ylim()))), axis=-1)
    density = mixture.density(grid)
    highest = np.sort(density, axis=None)[::-1]
    levels = highest[np.searchsorted(np.cumsum(highest), np.array(SHARES) * np.sum(highest))]
    if fill:
        panel.contourf(grid[..., 0], grid[..., 1], density, levels=[*levels, highest[0]], **style)
    else:
        panel.contour(grid[..., 0], grid[..., 1], density, levels=levels, **style)


def draw(product: epvi.Posterior, full: epvi.Posterior, draws: np.ndarray, path: Path) -> None:
    """Three panels of the first two coefficients; (a) and (c) have the same axes, which (b) marks by a rectangle."""
    first = product.space.slices["w"].start
    pair = [first, first + 1]
    whole = full.mixture.marginal(pair)
    shards = [fit.mixture.marginal(pair) for fit in product.fits]
    near = np.stack([whole.mean() - 4 * whole.sd(), whole.mean() + 4 * whole.sd()])
    means, sds = np.array([shard.mean() for shard in shards]), np.array([shard.sd() for shard in shards])
    wide = np.stack([np.min(means - 3 * sds, axis=0), np.max(means + 3 * sds, axis=0)])
    figure, (a, b, c) = plt.subplots(1, 3, figsize=(12, 4.3), layout="constrained")
    for panel, (low, high) in ((a, near), (b, wide), (c, near)):
        panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="w[0]", ylabel="w[1]")
    dots = a.plot(*draws[:, :2].T, ".", color="0.55", alpha=0.5, markersize=3, markeredgewidth=0)[0]
    contours(a, whole, colors="black", linewidths=LINES)
    for shard, colour in zip(shards, COLOURS, strict=True):
        contours(b, shard, colors=colour, linewidths=LINES)
    b.add_patch(Rectangle((near[0, 0], near[0, 1]), *(near[1] - near[0]), fill=False, linestyle="--", color="0.3"))
    contours(c, product.mixture.marginal(pair), fill=True, colors=BLUES)
    contours(c, whole, colors="black", linewidths=LINES)
    a.set_title("(a) All rows")
    b.set_title("(b) Six shards apart")
    c.set_title("(c) Their product, refined")
    line, patch = Line2D([], [], color="black"), Rectangle((0, 0), 1, 1, color=BLUES[0])
    style: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 9}
    a.legend([dots, line], ["NUTS", "fit of all rows"], markerscale=3, **style)
    b.legend([Line2D([], [], color="0.3", linestyle="--")], ["range of (a) and (c)"], **style)
    c.legend([patch, line], ["product", "fit of all rows"], **style)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format=path.suffix[1:] or "png")
    plt.close(figure)
    write_whole(path, picture.getvalue())


def main(path: str | Path = "demo.png") -> None:
    console = Console(highlight=False)
    rows, _ = simulate_logistic(NUM_ROWS, NUM_COLUMNS, condition=20, seed=10)
    console.print(f"Logistic regression: {NUM_ROWS:,} rows in six shards that never meet, and as a whole.\n")
    console.print(f"[bold]Six shards[/] of {NUM_ROWS // NUM_SHARDS:,} rows, fitted apart on all cores and multiplied")
    product, apart = by_epvi(rows, NUM_SHARDS)
    console.print("[bold]All rows[/] in one fit")
    full, together = by_epvi(rows, 1, workers=1)
    console.print(f"[bold]NUTS[/] on all rows, two chains of {WARM_UP} + {DRAWS:,} draws")
    draws, truth = by_nuts(rows)
    answers = {"six shards": apart, "all rows": together, "NUTS": truth}
    console.print()
    console.print(table(answers))
    error = float(np.min(summary({"w": draws})["w"]["n_eff"])) ** -0.5
    console.print(f"NUTS itself knows a mean to about {error:.2f} sds.")
    assert product.certificate is not None
    console.print(f"[bold]Can the six shards be trusted?[/] {product.certificate.text}")
    draw(product, full, draws.reshape(-1, NUM_COLUMNS), Path(path))
    console.print(f"Picture: {Path(path).resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
