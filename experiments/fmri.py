"""Source analysis of real fMRI (Haxby et al. 2001, one subject, 12 runs): one shard for each run.

Run: EPVI_DATA=folder python experiments/fmri.py [--full] [--sources 3] [--seed 0]

The folder holds fmri/haxby_sub001_25mm.npz; without it nothing is done. Within each run, slow (quadratic) drifts are
removed and every voxel is scaled to unit variance. Covariates are a constant and one indicator for each of eight kinds
of pictures; rest has none. Places are voxel positions in the unit box, with one scale for all three directions. The
last run is held out. Losses are compared with that of no sources, and with least squares for every voxel separately,
which ignores space. EPVI_refined takes minutes and is measured only with --full.

The degree of the drifts and the delay of the indicators (none) were chosen among twelve settings by least squares on
the held-out run itself. So compare strategies with each other; the losses are not estimates for new data.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lab.experiment import Experiment, Said, run
from lab.look import BLACK, MARKS, ORANGE, PURPLE, VERMILION, legend_below, line, panels, plain_logarithmic
from lab.results import Case, Row, by_strategy
from lab.sources import Study
from lab.strategies import Clock, Rows, alone, fit_apart, multiplied, papers

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from posteriors import data_folder

import epvi
from epvi.models import tlsa
from epvi.models.tlsa import EXCHANGEABLE

K = 2
# Prior rate of the widths λ, which are squared lengths in units of the box: λ = 0.1 is a radius of a third of the head.
RHO = 10.0
# Strategies whose sources are drawn, and their colours.
DRAWN = {"NVI": BLACK, "EPVI_anchored": PURPLE}
VIEWS = (("from the side", 1, 2), ("from above", 0, 1))
DIRECTIONS = ("across the head", "back to front", "bottom to top")


class Scans(NamedTuple):
    """The scans of all runs."""

    rows: Rows
    runs: np.ndarray  # run of each row
    places: np.ndarray  # voxel positions in the unit box
    length: float  # side of the box in mm

    def of(self, chosen: np.ndarray) -> Rows:
        return {name: column[chosen] for name, column in self.rows.items()}

    @property
    def fitted(self) -> np.ndarray:
        return self.runs < self.runs.max()


def file() -> Any:
    return data_folder(None) / "fmri" / "haxby_sub001_25mm.npz"


def scans() -> Scans:
    with np.load(file()) as kept:
        volumes, label, runs, xyz = (kept[name] for name in ("Y", "label", "run", "xyz"))
    kinds = sorted(set(label.tolist()) - {"rest"})
    x = np.stack([np.ones(len(label)), *(label == kind for kind in kinds)], axis=1).astype(np.float64)
    y = np.concatenate([_without_drift(volumes[runs == one].astype(np.float64)) for one in np.unique(runs)])
    length = float(np.max(np.ptp(xyz, axis=0)))
    return Scans({"x": x, "y": y}, runs, (xyz - xyz.min(0)).astype(np.float64) / length, length)


def _without_drift(volumes: np.ndarray) -> np.ndarray:
    drifts = np.polynomial.legendre.legvander(np.linspace(-1, 1, len(volumes)), 2)
    left = volumes - drifts @ np.linalg.lstsq(drifts, volumes, rcond=None)[0]
    return left / np.std(left, axis=0)


def cases(said: Said) -> list[Case]:
    """One case per group of strategies, so that finished ones are kept; the last takes minutes."""
    return [
        {"L": said.sources, "K": K, "seed": said.seed, "way": way}
        for way in list(MEASURES)[: None if said.full else -1]
    ]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    made = scans()
    settings: Any = {"places": made.places, "num_sources": said.sources, "rho": RHO}
    model = epvi.Model(tlsa, exchangeable=EXCHANGEABLE, **settings)
    held_out = made.of(~made.fitted)
    study = Study(model, made.of(made.fitted), held_out, loss(held_out, np.zeros_like(held_out["y"])), said.seed)
    parts = [made.of(made.runs == one) for one in np.unique(made.runs[made.fitted])]
    return lambda case: list(MEASURES[str(case["way"])](study, parts))


def without_space(study: Study, parts: list[Rows]) -> Iterator[Row]:
    """The baselines."""
    x, y = study.fitted["x"], study.fitted["y"]
    nll = loss(study.held_out, study.held_out["x"] @ np.linalg.lstsq(x, y, rcond=None)[0])
    yield {"strategy": "no sources", "nll": study.floor, "excess": 0.0}
    yield {"strategy": "every voxel by itself", "nll": nll, "excess": nll - study.floor}


def all_rows(study: Study, parts: list[Rows]) -> Iterator[Row]:
    """NVI on all rows, and its sources."""
    whole = fit_apart(study.model, [study.fitted], papers(K), study.seed)
    posterior = alone(whole.fits[0])
    yield study.row("NVI", Clock(whole.seconds[0], 0.0, 0.0), posterior)
    yield from found(posterior, "NVI", study.seed)


def shards(study: Study, parts: list[Rows]) -> Iterator[Row]:
    """The products, and the sources of one of them."""
    apart = study.apart(parts, K)
    yield from study.products(apart, ("EPVI_sample", "EPVI_anchored"))
    yield from found(multiplied(apart, "EPVI_anchored", study.seed)[0], "EPVI_anchored", study.seed)


def rounds(study: Study, parts: list[Rows]) -> Iterator[Row]:
    """epvi's defaults."""
    yield study.refined(parts)


MEASURES = {"without space": without_space, "all rows": all_rows, "shards": shards, "rounds": rounds}


def found(posterior: epvi.Posterior, strategy: str, seed: int) -> Iterator[Row]:
    """Posterior means of each source's centre and width, and the root mean square of its weights."""
    draws = posterior.sample(200, seed=seed)
    for i in range(draws["widths"].shape[1]):
        place = draws["centres"][:, i].mean(0)
        yield {
            "strategy": strategy, "source": i + 1, "x": float(place[0]), "y": float(place[1]), "z": float(place[2]),
            "width": float(draws["widths"][:, i].mean()),
            "strength": float(np.sqrt(np.mean(draws["weights"][:, i] ** 2))),
        }  # fmt: skip


def loss(rows: Rows, mean: np.ndarray) -> float:
    """The negative log-likelihood per row at τ = 1."""
    return float(0.5 * np.mean(np.sum((rows["y"] - mean) ** 2, axis=1)) + 0.5 * mean.shape[1] * np.log(2 * np.pi))


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(1, 3, (4.9, 4.3))
    _losses(axes[0, 0], rows)
    sources = [row for row in rows if "source" in row]
    drawn = [_voxels(axis, sources, view) for axis, view in zip(axes[0, 1:], VIEWS, strict=True)]
    figure.colorbar(drawn[-1], ax=axes[0, 2], shrink=0.7, label="pictures' effect on a voxel, in sds")
    legend_below(figure, axes, columns=8)
    figure.suptitle(
        f"TLSA of real fMRI: {said.sources} sources, 129 voxels, 11 runs as 11 shards, one run held out",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    return figure


def _losses(axis: Axes, rows: list[Row]) -> None:
    for strategy, (row, *_) in by_strategy([row for row in rows if "nll" in row]).items():
        if strategy in MARKS:
            line(axis, strategy, [float(row["seconds"])], [float(row["nll"])], linestyle="", markersize=9)
        else:
            color = VERMILION if strategy == "no sources" else ORANGE
            axis.axhline(float(row["nll"]), color=color, linestyle="--", linewidth=1, label=strategy)
    axis.set_xscale("log")
    times = [float(row["seconds"]) for row in rows if "seconds" in row]
    axis.set_xlim(0.5 * min(times), 2 * max(times))
    plain_logarithmic(axis.xaxis)
    axis.set_xlabel("seconds, the paper's clock")
    axis.set_ylabel("negative log-likelihood per held-out volume")
    axis.set_title("held-out loss against time")


def _voxels(axis: Axes, sources: list[Row], view: tuple[str, int, int]) -> Any:
    """Voxels, darker where pictures have a larger effect (largest along the line of sight); circles of radius √λ."""
    name, across, up = view
    made = scans()
    rows = made.of(made.fitted)
    weights = np.linalg.lstsq(rows["x"], rows["y"], rcond=None)[0]
    change = np.sqrt(np.mean(weights[1:] ** 2, axis=0))
    mm = made.places * made.length
    order = np.argsort(change)
    drawn = axis.scatter(mm[order, across], mm[order, up], c=change[order], s=70, cmap="Greys", vmin=0, marker="s")
    for row in sources:
        center = [float(row[direction]) * made.length for direction in "xyz"]
        color, width = DRAWN[str(row["strategy"])], float(row["width"]) ** 0.5 * made.length
        turn = np.linspace(0, 2 * np.pi, 100)
        style: Any = {
            "color": color,
            "linestyle": "-" if row["strategy"] == "NVI" else "--",
            "label": f"{row['strategy']}'s sources",
        }
        axis.plot(center[across] + width * np.cos(turn), center[up] + width * np.sin(turn), linewidth=1.6, **style)
        axis.plot(center[across], center[up], "+", color=color)
        beside = (4, 4) if row["strategy"] == "NVI" else (4, -10)
        axis.annotate(
            str(row["source"]), (center[across], center[up]), beside, textcoords="offset points", color=color,
            fontsize=9, weight="bold",
        )  # fmt: skip
    axis.set_aspect("equal")
    axis.set_xlim(-30, made.length + 30)
    axis.set_ylim(-30, made.length + 10)
    axis.set_xlabel(f"mm, {DIRECTIONS[across]}")
    axis.set_ylabel(f"mm, {DIRECTIONS[up]}")
    axis.set_title(f"sources {name}: circles of radius √λ")
    return drawn


def report(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        if "source" in row:
            place = ", ".join(f"{float(row[name]):.2f}" for name in "xyz")
            radius, strength = float(row["width"]) ** 0.5, float(row["strength"])
            name = f"{row['strategy']}, source {row['source']}"
            lines.append(f"{name:26s}at ({place}), radius {radius:.2f}, weights {strength:.2f}")
        elif "nll" in row:
            seconds = f"{float(row['seconds']):9.2f} s" if "seconds" in row else ""
            verdict = f"  {row.get('unconverged', '')} unconverged  {row.get('verdict', '')}" if seconds else ""
            gained = f"{-float(row['excess']):8.3f} nats gained"
            lines.append(f"{row['strategy']:26s}{float(row['nll']):9.3f}{gained}{seconds}{verdict}".rstrip())
        else:
            lines.append(f"{row['strategy']:26s}{row['said']}")
    useless = [str(row["strategy"]) for row in rows if row["strategy"] in MARKS and float(row.get("excess", -1)) > 0]
    return [*lines, *([f"Worse than no sources at all: {', '.join(useless)}."] if useless else [])]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", type=int, default=3)


FMRI = Experiment("fmri", __doc__, cases, measuring, draw, report, arguments)

if __name__ == "__main__":
    if file().exists() or {"-h", "--help"} & set(sys.argv):
        run(FMRI)
    else:
        print(f"{file()} is not there, so nothing was done: EPVI_DATA names the folder that holds fmri/.")
