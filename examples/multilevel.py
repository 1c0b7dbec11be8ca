"""Radon in the houses of 85 counties with levels of their own: what a multilevel model says of those with few houses.

    python examples/multilevel.py [picture.png] [--rows radon_mn.json]

Prints the shared parameters and the counties with the fewest houses, and draws multilevel.png: the mean of each
county's own houses, and its level in the posterior of all of them. Without --rows the houses are made up; the file of
that name in posteriordb (stan-dev/posteriordb, BSD-3) has those of Minnesota. Counties are counted from 0.
"""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist

import epvi
from epvi.ground.atomic import write_whole

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

NUM_COUNTIES, NUM_SHARDS = 85, 5
OWN, POOLED = "#999999", "#0072B2"
FEWEST = 5


def radon(floor, county, log_radon=None):
    """Radon is lower on the ground floor than in a basement, and counties have levels of their own."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    level: Any = numpyro.sample("level", dist.Normal(mu, tau).expand([NUM_COUNTIES]).to_event(1))
    with numpyro.plate("rows", county.shape[0]):
        numpyro.sample("log_radon", dist.Normal(level[county] + slope * floor, sigma), obs=log_radon)


def made_up(seed: int) -> dict[str, np.ndarray]:
    """Houses with the sizes of counties as they are in such surveys: a few are large, many have two or three houses."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.round(rng.lognormal(1.7, 0.9, NUM_COUNTIES)), 1, 120).astype(int)
    county = np.repeat(np.arange(NUM_COUNTIES), sizes)
    level = rng.normal(1.5, 0.3, NUM_COUNTIES)
    floor = (rng.random(len(county)) < 0.17).astype(float)
    return {"floor": floor, "county": county, "log_radon": rng.normal(level[county] - 0.7 * floor, 0.75)}


def read(path: Path) -> dict[str, np.ndarray]:
    """The houses in posteriordb's file, whose counties count from 1."""
    found = json.loads(path.read_text())
    return {
        "floor": np.array(found["floor_measure"], float),
        "county": np.array(found["county_idx"]) - 1,
        "log_radon": np.array(found["log_radon"]),
    }


def own_means(rows: dict[str, np.ndarray], slope: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each county's own houses, brought to the basement, and the number of them; NaN without houses."""
    count = np.bincount(rows["county"], minlength=NUM_COUNTIES)
    total = np.bincount(rows["county"], rows["log_radon"] - slope * rows["floor"], NUM_COUNTIES)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), count


def draw(ax: Axes, own: np.ndarray, count: np.ndarray, mean: np.ndarray, sd: np.ndarray, mu: float) -> None:
    """Counties by their number of houses: from the mean of their own houses to their level in the posterior."""
    jitter = np.exp(np.random.default_rng(0).uniform(-0.08, 0.08, len(count)))
    there = np.maximum(count, 0.7) * jitter
    for x, before, after in zip(there, own, mean, strict=True):
        ax.plot([x, x], [before, after], color=OWN, lw=0.6, zorder=1)
    ax.scatter(there, own, s=14, color=OWN, label="mean of the county's own houses", zorder=2)
    ax.errorbar(there, mean, sd, fmt="o", ms=3.5, lw=0.9, color=POOLED, label="its level, given all counties (± 1 sd)")
    ax.axhline(mu, color="black", lw=0.8, ls="--", label="mean of all counties, mu")
    ax.set(xscale="log", xlabel="houses in the county", ylabel="log radon in the basement")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", type=Path, default=Path("multilevel.png"))
    parser.add_argument("--rows", type=Path, help="posteriordb's radon_mn.json")
    chosen = parser.parse_args(arguments)
    rows = read(chosen.rows) if chosen.rows else made_up(seed=0)

    posterior = epvi.fit(radon, rows, shards=NUM_SHARDS)
    assert posterior.certificate is not None
    print(posterior.certificate.text)
    summary = posterior.summary()
    at = {name: i for i, name in enumerate(summary.names)}
    for name in ("mu", "tau", "slope", "sigma"):
        print(f"{name:6s} {summary.mean[at[name]]:6.3f} ± {summary.sd[at[name]]:.3f}")

    levels = [at[f"level[{g}]"] for g in range(NUM_COUNTIES)]
    mean, sd = summary.mean[levels], summary.sd[levels]
    own, count = own_means(rows, summary.mean[at["slope"]])
    print("county  houses  own mean  level")
    for g in np.argsort(count, kind="stable")[:FEWEST]:
        print(f"{g:6d}  {count[g]:6d}  {own[g]:8.2f}  {mean[g]:.2f} ± {sd[g]:.2f}")

    figure, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    draw(ax, own, count, mean, sd, float(summary.mean[at["mu"]]))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_whole(chosen.picture, image.getvalue())
    print(f"drawn: {chosen.picture}")


if __name__ == "__main__":
    main()
