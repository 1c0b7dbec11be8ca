"""A forest plot of each hospital's fit alone and of the combined posterior."""

from pathlib import Path

import matplotlib
import numpy as np
from model import NAMES, SITES

import epvi

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = dict(zip(SITES, ("#0072B2", "#E69F00", "#009E73", "#CC79A7"), strict=True))
WORDS = {
    "w_age": "age, by one sd",
    "w_sex": "male",
    "w_cp_2": "atypical angina",
    "w_cp_3": "other chest pain",
    "w_cp_4": "no chest pain",
    "w_trestbps": "blood pressure, by one sd",
    "w_thalach": "highest heart rate, by one sd",
    "w_exang": "angina under exercise",
    "w_oldpeak": "ST depression, by one sd",
    **{f"baseline_{name}": f"baseline, {name}" for name in SITES},
}
# Half width of a 90 % interval of a normal distribution, in sds.
NINETY = 1.645


def draw(posterior: epvi.Posterior, path: Path, nuts: dict[str, np.ndarray] | None = None) -> Path:
    """Coefficients on the left, baselines on the right; of a hospital's fit only its own baseline is drawn."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 6.4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    _panel(left, posterior, [f"w_{name}" for name in NAMES[:9]], nuts)
    _panel(right, posterior, [f"baseline_{name}" for name in SITES], nuts)
    left.set_title("change in log odds of heart disease", fontsize=10)
    right.set_title("baseline log odds", fontsize=10)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    figure.suptitle("Four hospitals, each alone with its quarter of the prior, and all four together (means and 90 %)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _panel(panel: Axes, posterior: epvi.Posterior, names: list[str], nuts: dict[str, np.ndarray] | None) -> None:
    places = np.array([posterior.space.slices[name].start for name in names])
    lines = np.arange(len(names))[::-1].astype(float)
    for m, (fit, site) in enumerate(zip(posterior.fits, SITES, strict=True)):
        mine = np.array([not name.startswith("baseline") or name.endswith(site) for name in names])
        mean, sd = np.asarray(fit.mixture.mean())[places][mine], np.asarray(fit.mixture.sd())[places][mine]
        y = lines[mine] + 0.28 - 0.14 * m
        label = f"{site} ({fit.num_rows} rows)"
        panel.errorbar(mean, y, xerr=NINETY * sd, fmt="o", ms=3.5, lw=1.2, color=COLOURS[site], label=label)
    mean, sd = np.asarray(posterior.mixture.mean())[places], np.asarray(posterior.mixture.sd())[places]
    panel.errorbar(mean, lines - 0.28, xerr=NINETY * sd, fmt="D", ms=5, lw=2.6, color="black", label="all four")
    if nuts is not None:
        middle = [np.mean(nuts[name]) for name in names]
        panel.plot(middle, lines - 0.28, "|", ms=13, mew=2, color="#D55E00", label="NUTS on all rows")
    panel.axvline(0, color="0.6", lw=0.8, zorder=0)
    for line in lines[:-1]:
        panel.axhline(line - 0.5, color="0.9", lw=0.8, zorder=0)
    panel.set_yticks(lines, [WORDS[name] for name in names])
    panel.set_ylim(-0.6, len(names) - 0.4)
