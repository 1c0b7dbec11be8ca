"""The style of all figures: a colour and a marker per strategy, distinguishable by colour-blind readers.

The colours are those of Okabe & Ito (2008), Color Universal Design.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8A8A8A"


class Mark(NamedTuple):
    """The style of a strategy's line."""

    color: str
    marker: str
    linestyle: str = "-"


MARKS = {
    "NVI": Mark(BLACK, "s"),
    "Subposteriors": Mark(GREY, "x", ":"),
    "EPVI_exact": Mark(ORANGE, "v", "--"),
    "EPVI_sample": Mark(BLUE, "o"),
    "EPVI_subset": Mark(GREEN, "^", "-."),
    "EPVI_anchored": Mark(PURPLE, "D"),
    "EPVI_refined": Mark(VERMILION, "*"),
}

_SETTINGS: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.markersize": 6,
    "svg.hashsalt": "epvi",
    "svg.fonttype": "none",
}
mpl.rcParams.update(_SETTINGS)


def panels(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> tuple[Figure, Any]:
    """A figure of rows x columns panels, each of `size` in inches, with an array of axes (rows, columns)."""
    shape = (size[0] * columns, size[1] * rows)
    return plt.subplots(rows, columns, figsize=shape, layout="constrained", squeeze=False, **settings)


def line(axis: Axes, strategy: str, x: Any, y: Any, **settings: Any) -> None:
    """Draw the line of one strategy in its style."""
    mark = MARKS[strategy]
    drawn = {"color": mark.color, "marker": mark.marker, "linestyle": mark.linestyle, "label": strategy, **settings}
    axis.plot(x, y, linewidth=1.4, **drawn)


def clock_bars(axis: Axes, sizes: list[int], seconds: Callable[[str], Any]) -> float:
    """Stacked bars of the parts of the paper's clock at each size; returns the largest total."""
    below = np.zeros(len(sizes))
    parts = (("local", BLUE, "slowest shard"), ("transfer", ORANGE, "transfer"), ("product", GREEN, "product"))
    for part, color, name in parts:
        high = np.asarray(seconds(part), float)
        axis.bar([str(size) for size in sizes], high, bottom=below, color=color, label=name)
        below = below + high
    axis.set_xlabel("M")
    axis.set_ylabel("seconds")
    return float(np.max(below))


def legend_below(figure: Figure, axes: Any, columns: int = 7) -> None:
    """One legend for all panels, each name once."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        place = {"loc": "outside lower center", "ncols": min(columns, len(found)), "frameon": False}
        figure.legend(list(found.values()), list(found), fontsize=9, **place)


def plain_logarithmic(axis: Axis) -> None:
    """Tick labels 1, 2, 5, 10, ... without exponents, for logarithmic axes of few decades."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, file: Path) -> None:
    """Save atomically as .svg and .png; the same figure gives the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        part = file.with_name(f"{file.name}.part.{kind}")
        figure.savefig(part, dpi=160, metadata=metadata)
        os.replace(part, file.with_name(f"{file.name}.{kind}"))
    plt.close(figure)
