"""The limitations that the paper names in its section 3.4: epvi against exact posteriors, in six panels.

Run: python experiments/scope.py [--seed 0] [--out docs/images/scope.png]. Prints a table and draws one figure, in a
minute or two and without external data; docs/scope.md explains the results. "One round" is `certify=False`.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from lab import ROOT
from lab.look import BLUE, GREEN, ORANGE, VERMILION

import matplotlib.pyplot as plt
import numpy as np
import scope_cases as cases
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Rectangle
from scipy.special import softmax
from scope_cases import Exact

import epvi

ROUND, REFINED = "one round", "defaults"
FAMILIES = {"spherical": epvi.Spherical(), "diagonal": epvi.Diagonal(), "full": epvi.Full()}
SINES = 40
SPARSE = [0.6, 0.25, 0.145, 0.005, 0.0]


class Line(NamedTuple):
    """One line of the table: the errors of one fit of a case against the exact posterior."""

    case: str
    way: str  # settings of the fit
    means: np.ndarray  # errors in exact sds
    sds: np.ndarray  # ratios to the exact ones
    verdict: str  # of the certificate

    def told(self) -> str:
        worst, ratios = np.max(np.abs(self.means)), f"{np.min(self.sds):.3f}-{np.max(self.sds):.3f}"
        return f"{self.case:38s} {self.way:22s} {worst:9.3f}   {ratios:15s} {self.verdict}"


def measured(case: str, way: str, posterior: epvi.Posterior, exact: Exact, **of: Any) -> Line:
    """Errors of the means in exact sds, and sds relative to the exact ones."""
    found = posterior.summary(**of)
    verdict = posterior.certificate.verdict if posterior.certificate else ""
    return Line(case, way, (found.mean - exact.mean) / exact.sd, found.sd / exact.sd, verdict)


def fitted(model: epvi.Model, rows: dict[str, np.ndarray], shards: int, **settings: Any) -> epvi.Posterior:
    """Fit in this process: for many small models, compiling each of them once is faster than worker processes."""
    with ThreadPoolExecutor(1) as executor:
        return epvi.fit(model, rows, shards, executor=executor, progress=False, **settings)


def both(model: epvi.Model, rows: dict[str, np.ndarray], shards: int, **settings: Any) -> dict[str, epvi.Posterior]:
    """The product of the shards' fits, and the posterior with epvi's defaults."""
    return {
        ROUND: fitted(model, rows, shards, certify=False, **settings),
        REFINED: fitted(model, rows, shards, **settings),
    }


def discrete(panel: Axes, seed: int) -> list[Line]:
    rows, lines = cases.simulate_signal(600, seed), []
    share, shift, mass, exact = cases.exact_signal(rows)
    panel.contourf(share, shift, mass.T, levels=[*around(mass), np.max(mass)], colors=["0.85", "0.7"])
    x, y = np.meshgrid(share, shift, indexing="ij")
    found = both(epvi.Model(cases.signal), rows, 6)
    for (way, posterior), colour, dash in zip(found.items(), (ORANGE, BLUE), ("-", "--"), strict=True):
        lines.append(measured("discrete: allocation summed out, M = 6", way, posterior, exact))
        # Convert the density of logit(share) to a density of the share.
        density = np.exp(posterior.log_density({"share": x, "shift": y})) / (x * (1 - x))
        panel.contour(share, shift, density.T, levels=around(density), colors=colour, linestyles=dash)
        panel.plot([], [], color=colour, linestyle=dash, label=way)
    lines.append(model_choice(seed))
    panel.add_patch(Rectangle((0, 0), 0, 0, color="0.75", label="exact: 50 %, 95 %"))
    mean, sd = exact
    panel.set(xlabel="share of signal", ylabel="shift of signal")
    panel.set(xlim=(mean[0] - 3.2 * sd[0], mean[0] + 4 * sd[0]), ylim=(mean[1] - 3.2 * sd[1], mean[1] + 4 * sd[1]))
    panel.set_title("Discrete: a row's own switch is summed out")
    return lines


def around(density: np.ndarray) -> np.ndarray:
    """Levels of the highest-density contours around 95 % and 50 % of the mass."""
    highest = np.sort(density, axis=None)[::-1]
    return highest[np.searchsorted(np.cumsum(highest), np.array([0.95, 0.5]) * np.sum(highest))]


def model_choice(seed: int) -> Line:
    """A discrete parameter shared by all rows: one fit for each of its values, weighted by the evidence."""
    rows = cases.simulate_linear(300, 0.0, [1.0, 1.0], seed)
    rows["y"] = np.random.default_rng(seed).normal(rows["x"] @ np.array([1.0, 0.18]))
    values = [np.array([1.0, 0.0]), np.array([1.0, 1.0])]
    fits = [fitted(epvi.Model(cases.linear, used=used), rows, 6) for used in values]
    found = softmax([log_evidence(fit) for fit in fits])
    exact = softmax([cases.linear_evidence(rows, used) for used in values])
    verdict = f"P(column 2) = {found[1]:.4f}, exact {exact[1]:.4f}"
    return Line("discrete: a switch of all rows", "by log_evidence", found - exact, np.ones(1), verdict)


def log_evidence(posterior: epvi.Posterior) -> float:
    assert posterior.certificate is not None
    assert posterior.certificate.log_evidence is not None
    return float(posterior.certificate.log_evidence.value)


def simplex(panel: Axes, seed: int) -> list[Line]:
    size, lines = len(SPARSE), []
    rows = cases.simulate_proportions(600, SPARSE, seed)
    exact = cases.exact_proportions(rows, size)
    models = [epvi.Model(function, num_categories=size) for function in (cases.proportions, cases.sticks)]
    for shards in (4, 12):
        case = f"simplex: Dirichlet, M = {shards}"
        found = both(models[0], rows, shards)
        lines += [measured(case, way, posterior, exact) for way, posterior in found.items()]
        posterior, of = fitted(models[1], rows, shards), {"of": cases.proportions_of_sticks}
        lines.append(measured(case, "defaults, by quantiles", posterior, exact, **of))
    panel.axhspan(-1, 1, color="0.85", label="exact mean ± sd")
    for offset, line, colour in zip((-0.2, 0, 0.2), lines[3:6], (ORANGE, BLUE, GREEN), strict=True):
        style: dict[str, Any] = {"fmt": "o", "color": colour, "capsize": 3, "markersize": 4}
        panel.errorbar(np.arange(size) + offset, line.means, line.sds, label=line.way, **style)
    panel.set_xticks(np.arange(size), [str(n) for n in np.bincount(rows["y"], minlength=size)])
    panel.set(xlabel="rows in the category", ylabel="proportion, in exact sds")
    panel.set_title("Simplex, 12 shards: refined, as the Dirichlet")
    return lines


def infinite(panel: Axes, seed: int) -> list[Line]:
    rows, at, lines = cases.simulate_smooth(400, seed), np.linspace(-1, 1, 101), []
    for length, size in ((0.25, SINES), (0.125, SINES), (0.5, SINES), (0.25, SINES // 4)):
        exact, evidence = cases.exact_smooth(rows, length, at)
        posterior = fitted(epvi.Model(cases.smooth, length=length, size=size), rows, 8)
        basis = cases.features(at, length, size, np)
        of: dict[str, Any] = {"of": lambda draws, basis=basis: {"f": draws["beta"] @ basis.T}}
        line = measured(f"infinite: {size} sines, length {length}, M = 8", REFINED, posterior, exact, **of)
        told = f"{line.verdict}; log evidence {log_evidence(posterior):.2f}, exact {evidence:.2f}"
        lines.append(line._replace(verdict=told))
        if len(lines) == 1:
            panel.plot(rows["x"], rows["y"], ".", color="0.75", markersize=3)
            panel.fill_between(at, exact.mean - 2 * exact.sd, exact.mean + 2 * exact.sd, color="0.8")
            panel.plot(at, exact.mean, color="black", linewidth=3, label="Gaussian process, all rows")
            found = posterior.summary(**of)
            for y, style in ((found.mean, "-"), (found.mean - 2 * found.sd, "--"), (found.mean + 2 * found.sd, "--")):
                panel.plot(at, y, style, color=BLUE, label=f"{SINES} sines, 8 shards" if style == "-" else None)
    panel.set(xlabel="x", ylabel="f(x) ± 2 sds", ylim=(-2.6, 3.2))
    panel.set_title("Infinite dimensions: a finite basis is as good")
    return lines


def by_family(case: str, rows: dict[str, np.ndarray]) -> tuple[list[Line], dict[str, epvi.Posterior]]:
    mean, covariance = cases.exact_linear(rows)
    exact, lines, first = Exact(mean, np.sqrt(np.diag(covariance))), [], {}
    for name, family in FAMILIES.items():
        found = both(epvi.Model(cases.linear), rows, 6, inference=epvi.NVI(covariance=family))
        first[name] = found[ROUND]
        lines += [measured(f"{case}, M = 6", f"{name}, {way}", posterior, exact) for way, posterior in found.items()]
    return lines, first


def ellipse(panel: Axes, mean: np.ndarray, covariance: np.ndarray, **style: Any) -> None:
    """The 95 % ellipse of a Gaussian in two dimensions."""
    values, vectors = np.linalg.eigh(covariance)
    long, short = 2 * np.sqrt(5.991 * values[::-1])
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    panel.add_patch(Ellipse((mean[0], mean[1]), long, short, angle=angle, **style))


def correlations(panel: Axes, seed: int) -> list[Line]:
    rows = cases.simulate_linear(800, 0.995, [1.0, 1.0], seed)
    mean, covariance = cases.exact_linear(rows)
    lines, first = by_family("correlation of columns 0.995", rows)
    ellipse(panel, mean, covariance, facecolor="0.85", edgecolor="black", linewidth=2.5, label="exact")
    for (name, posterior), colour, dash in zip(
        first.items(), (VERMILION, ORANGE, BLUE), ("-", "--", "--"), strict=True
    ):
        moments = np.asarray(posterior.mixture.mean()), np.asarray(posterior.mixture.covariance())
        ellipse(panel, *moments, fill=False, edgecolor=colour, linestyle=dash, linewidth=1.8, label=f"{name}, {ROUND}")
    width = 3.2 * np.sqrt(covariance[0, 0])
    panel.set(xlim=(mean[0] - width, mean[0] + width), ylim=(mean[1] - width, mean[1] + width))
    panel.set(xlabel="w[0]", ylabel="w[1]")
    panel.set_title("Correlation -0.995: full covariances hold it")
    return lines


def scales(panel: Axes, seed: int) -> list[Line]:
    lines, _ = by_family("scales 1 to 1000", cases.simulate_linear(800, 0.0, [1.0, 10.0, 100.0, 1000.0], seed))
    panel.axhline(1, color="0.6", linewidth=1)
    for i, line in enumerate(lines):
        first = line.way.endswith(ROUND)
        style: dict[str, Any] = {"color": ORANGE, "marker": "o"} if first else {"color": BLUE, "marker": "D"}
        x = np.full(len(line.sds), i // 2 + (-0.12 if first else 0.12))
        panel.plot(x, line.sds, linestyle="", label=(ROUND if first else REFINED) if i < 2 else None, **style)
    panel.set(yscale="log", ylabel="sd, relative to the exact one", xlim=(-0.5, 2.5), ylim=(1e-3, 30))
    panel.set_xticks(range(3), list(FAMILIES))
    panel.set_title("Scales 1 : 1000: diagonal or full, or refined")
    return lines


def labels(panel: Axes, seed: int) -> list[Line]:
    centres = [-6.0, -2.0, 2.0, 6.0]
    rows, lines = cases.simulate_mixture(1200, centres, seed), []
    ordered = cases.exact_mixture(rows, centres, seed)
    for x in ordered.mean:
        panel.axvline(x, color="0.85", linewidth=6, zorder=0)
    for name, groups, colour, top in (("not aligned", (), ORANGE, 10), ("aligned, as by default", None, BLUE, 4)):
        model = epvi.Model(cases.mixture, num_parts=len(centres), exchangeable=groups)
        found = both(model, rows, 6)
        for way, posterior in found.items():
            # For exchangeable labels one order represents the posterior; else it is the mixture of all orders.
            order = np.argsort(np.argsort(posterior.summary().mean))
            exact = Exact(ordered.mean[order], ordered.sd[order]) if groups is None else cases.in_any_order(ordered)
            lines.append(measured(f"labels: {name}, M = 6", way, posterior, exact))
        draws = found[REFINED].theta(400, seed=seed)
        for i in range(len(centres)):
            jitter = np.random.default_rng(i).uniform(-0.3, 0.3, len(draws))
            panel.plot(draws[:, i], top - i + jitter, ".", color=colour, markersize=2)
        panel.text(0, top + 0.7, name, ha="center", fontsize=9)
    panel.set_yticks([top - i for top in (10, 4) for i in range(4)], [f"mu[{i}]" for _ in range(2) for i in range(4)])
    panel.set(xlabel="means of the parts", ylim=(0.4, 11.5))
    panel.set_title("Label switching: found, one order is kept")
    return lines


PANELS = (discrete, simplex, infinite, correlations, scales, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "scope.png")
    said = parser.parse_args()
    figure, axes = plt.subplots(2, 3, figsize=(13.5, 8), layout="constrained")
    print(f"{'case':38s} {'way':22s} worst mean   sds relative   verdict")
    for draw, panel in zip(PANELS, axes.flat, strict=True):
        for line in draw(panel, said.seed):
            print(line.told(), flush=True)
        panel.title.set_fontsize(11)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    figure.savefig(said.out, dpi=110)
    print(f"\npicture: {said.out}")


if __name__ == "__main__":
    main()
