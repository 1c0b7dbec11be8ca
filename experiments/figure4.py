"""Figure 4: sampled products against the exact product, in held-out likelihood and in time.

Run: python experiments/figure4.py [--full] [--seed 0]

The shards' fits are as in Figure 3 (K spherical components each, hierarchical logistic regression), of 27,720 rows.
(a)-(b) M varied at K = 4, (c)-(d) K varied at M = 6, up to the largest sizes whose components fit in memory. R = 500
for the chain and for pairs. Dotted lines are the paper's formulas in plain NumPy, one component after the other, up to
sizes that take a few seconds: from which size on the exact product is too slow also depends on the code.
"""

from collections.abc import Callable
from typing import Any

from lab.experiment import Experiment, Said, run
from lab.look import legend_below, line, panels
from lab.results import Case, Row, by_strategy
from lab.strategies import MOST_COMPONENTS, NUM_SAMPLES, PRODUCTS, first, fit_apart, multiplied, papers, parts_of, timed
from lab.susy import simulated

import numpy as np
import plain
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import epvi
from epvi.models import logistic

# Rows to fit, divisible by 2 to 12 so that all shards of a product have the same size and share compiled programs; and
# held-out rows.
FITTED, SCORED = 27_720, 10_000
# Largest product that the plain loops enumerate.
MOST_BY_LOOP = 50_000
PLAIN = {"EPVI_exact": "EPVI_exact, plain loops", "EPVI_sample": "EPVI_sample, plain loops"}
WAYS = ("EPVI_exact", "EPVI_sample", "EPVI_subset", "EPVI_anchored")


def varied(said: Said) -> dict[str, list[tuple[int, int]]]:
    """(M, K) of each pair of panels, up to the largest that `Exact` accepts."""
    shards = range(2, 12) if said.full else (2, 4, 6, 8, 11)
    components = range(2, 13) if said.full else (2, 4, 8, 12)
    return {"M": [(m, 4) for m in shards], "K": [(6, k) for k in components]}


def cases(said: Said) -> list[Case]:
    sizes = dict.fromkeys(size for some in varied(said).values() for size in some)
    return [{"seed": said.seed, "M": m, "K": k} for m, k in sizes if k**m <= MOST_COMPONENTS]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    divided, model = simulated(10 * SCORED, said.seed), epvi.Model(logistic)
    fitted, scored = first(divided.fitted, FITTED), first(divided.held_out, SCORED)

    def loss(posterior: epvi.Posterior) -> float:
        return -epvi.log_predictive(model, posterior, scored, num_samples=1000, seed=said.seed)

    def measure(case: Case) -> list[Row]:
        m, k = int(case["M"]), int(case["K"])
        apart = fit_apart(model, parts_of(fitted, m), papers(k), said.seed)
        rows: list[Row] = []
        for way in WAYS:
            posterior, clock = multiplied(apart, way, said.seed)
            count = posterior.mixture.num_components
            rows.append({"strategy": way, "components": count, "product": clock.product, "nll": loss(posterior)})
        return rows + by_loops(apart.fits, k**m)

    return measure


def by_loops(fits: list[epvi.ShardFit], num_components: int) -> list[Row]:
    """Seconds of the plain implementation; its chain has the same burn-in as epvi's."""
    means = np.stack([np.asarray(fit.mixture.means) for fit in fits])
    shards = means, np.stack([np.asarray(fit.mixture.covariances()) for fit in fits])
    burn_in = PRODUCTS["EPVI_sample"].burn_in * len(fits)
    seconds = timed(lambda: plain.chain(shards, NUM_SAMPLES, burn_in, 0))[1]
    rows: list[Row] = [{"strategy": PLAIN["EPVI_sample"], "components": NUM_SAMPLES, "product": seconds}]
    if num_components <= MOST_BY_LOOP:
        seconds = timed(lambda: plain.exact(shards))[1]
        rows.append({"strategy": PLAIN["EPVI_exact"], "components": num_components, "product": seconds})
    return rows


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(1, 4, (3.7, 3.4))
    for i, (panel, fixed) in enumerate((("M", "K = 4"), ("K", "M = 6"))):
        shown = by_strategy([row for size in varied(said)[panel] for row in rows if (row["M"], row["K"]) == size])
        losses, times = axes[0, 2 * i], axes[0, 2 * i + 1]
        for way in WAYS:
            across = [row[panel] for row in shown[way]]
            line(losses, way, across, [row["nll"] for row in shown[way]])
            line(times, way, across, [row["product"] for row in shown[way]])
        for way, name in PLAIN.items():
            mine = shown[name]
            dotted: Any = {"linestyle": ":", "markersize": 4, "label": name}
            line(times, way, [row[panel] for row in mine], [row["product"] for row in mine], **dotted)
        _finished(losses, f"({'ac'[i]}) held-out loss, {fixed}", panel, "negative log-likelihood per row")
        _finished(times, f"({'bd'[i]}) time of the product, {fixed}", panel, "processor seconds")
        times.set_yscale("log")
        losses.ticklabel_format(useOffset=False)
    legend_below(figure, axes)
    return figure


def _finished(axis: Axes, title: str, across: str, up: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(across)
    axis.set_ylabel(up)


def report(rows: list[Row]) -> list[str]:
    lines = [f"{'M':>3s}{'K':>4s}  {'strategy':26s}{'components':>11s}{'seconds':>10s}{'loss':>12s}"]
    for row in rows:
        loss = f"{float(row['nll']):12.7f}" if "nll" in row else ""
        first = f"{row['M']:3d}{row['K']:4d}  {row['strategy']:26s}{row['components']:11,d}"
        lines.append(f"{first}{float(row['product']):10.4f}{loss}")
    return lines


if __name__ == "__main__":
    run(Experiment("figure4", __doc__, cases, measuring, draw, report))
