"""Figure 2: how the rows of the two models are split into M shards (a drawing, without measurements).

Run: python experiments/figure2.py

(a) Hierarchical logistic regression: y and X (N × V) by rows. (b) Topographic latent source analysis: U (N × V) and the
covariates X (N × C) by rows. Parameters (grey) are shared by all rows, so each shard has a subposterior of all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lab.experiment import Experiment, Said, run
from lab.look import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, panels
from lab.results import Row

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

GAP = "⋮"
SHARDS = ((BLUE, "1"), (ORANGE, "2"), (GREEN, "3"), (VERMILION, GAP), (PURPLE, "M"))
HEIGHT, RADIUS = 5.0, 0.42
# Left edge of the graphical model.
GRAPH = 12.2


class Node(NamedTuple):
    """A variable of a graphical model, drawn at (x, y)."""

    x: float
    y: float
    name: str
    observed: bool = False


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(2, 1, (10.2, 3.9))
    _logistic(axes[0, 0])
    _tlsa(axes[1, 0])
    for axis in axes.flat:
        axis.set_aspect("equal")
        axis.set_xlim(-1.6, 17.0)
        axis.set_ylim(-1.6, 6.1)
        axis.axis("off")
    return figure


def _logistic(axis: Axes) -> None:
    axis.set_title("(a) hierarchical logistic regression", loc="left")
    _rows(axis)
    _striped(axis, 0, 0.8, "y", "1")
    _words(axis, 2.15, "~ Bernoulli\nlogit⁻¹")
    _striped(axis, 3.5, 2.8, "X", "V")
    _whole(axis, 7.0, 0.6, 2.8, "w", ("1", "V"))
    _whole(axis, 8.6, 0.6, 0.6, "α", ("1", ""))
    _below(axis, "$p_m(α, w) = p(α, w)^{1/M}\\ p(y_m\\,|\\,X_m, w)$")
    alpha, w = Node(GRAPH + 0.5, 4.7, "$α$"), Node(GRAPH + 2.9, 4.7, "$w_v$")
    x, y = Node(GRAPH + 1.1, 1.7, "$x_n$", True), Node(GRAPH + 2.9, 1.7, "$y_n$", True)
    _graph(axis, [alpha, w, x, y], [(alpha, w), (w, y), (x, y)])
    _plate(axis, (GRAPH + 2.2, 3.75), 1.4, 1.55, "V")
    _shards_plates(axis)


def _tlsa(axis: Axes) -> None:
    axis.set_title("(b) topographic latent source analysis", loc="left")
    _rows(axis)
    _striped(axis, 0, 2.6, "U", "V")
    _words(axis, 3.0, "≈")
    _striped(axis, 3.5, 1.3, "X", "C")
    _whole(axis, 5.5, 1.7, 1.3, "W", ("L", "C"))
    _whole(axis, 8.0, 2.6, 1.7, "G(\\bar r, λ)", ("V", "L"))
    _below(axis, "$p_m(W, \\bar r, λ) = p(W, \\bar r, λ)^{1/M}\\ p(U_m\\,|\\,X_m, W, \\bar r, λ)$")
    centre, width = Node(GRAPH + 0.5, 4.7, "$\\bar r_l$"), Node(GRAPH + 1.7, 4.7, "$λ_l$")
    w = Node(GRAPH + 3.2, 4.7, "$w_{cl}$")
    x, u = Node(GRAPH + 1.0, 1.8, "$x_n$", True), Node(GRAPH + 2.9, 1.8, "$u_n$", True)
    _graph(axis, [centre, width, w, x, u], [(centre, u), (width, u), (w, u), (x, u)])
    _plate(axis, (GRAPH + 2.5, 3.9), 1.4, 1.45, "C")
    _plate(axis, (GRAPH - 0.2, 3.6), 4.4, 1.95, "L")
    _shards_plates(axis)


def _striped(axis: Axes, left: float, width: float, name: str, columns: str) -> None:
    """A matrix of N rows in M stripes."""
    high = HEIGHT / len(SHARDS)
    for place, (color, number) in enumerate(SHARDS):
        bottom = HEIGHT - (place + 1) * high
        look = {"facecolor": color, "edgecolor": "white", "linewidth": 2.5, "alpha": 0.25 if number == GAP else 0.75}
        axis.add_patch(Rectangle((left, bottom), width, high, **look))
        label = GAP if number == GAP else f"${name}_{{{number}}}$"
        axis.text(left + width / 2, bottom + high / 2, label, ha="center", va="center", fontsize=12)
    axis.text(left + width / 2, HEIGHT + 0.12, columns, ha="center", va="bottom", fontsize=10, color="0.35")


def _whole(axis: Axes, left: float, width: float, height: float, name: str, sizes: tuple[str, str]) -> None:
    """A parameter, shared by all shards, with its number of columns above and of rows beside it."""
    bottom, middle = (HEIGHT - height) / 2, left + width / 2
    axis.add_patch(Rectangle((left, bottom), width, height, facecolor="0.88", edgecolor="0.4"))
    axis.text(middle, HEIGHT / 2, f"${name}$", ha="center", va="center", fontsize=12)
    axis.text(middle, bottom + height + 0.12, sizes[0], ha="center", va="bottom", fontsize=10, color="0.35")
    axis.text(left - 0.12, HEIGHT / 2, sizes[1], ha="right", va="center", fontsize=10, color="0.35")


def _rows(axis: Axes) -> None:
    """Labels of the shards beside the rows."""
    high = HEIGHT / len(SHARDS)
    for place, (_, number) in enumerate(SHARDS):
        text = GAP if number == GAP else f"shard {number}"
        axis.text(-0.2, HEIGHT - (place + 0.5) * high, text, ha="right", va="center", fontsize=9, color="0.35")
    axis.text(-0.2, HEIGHT + 0.12, "N rows", ha="right", va="bottom", fontsize=9, color="0.35")


def _words(axis: Axes, middle: float, text: str) -> None:
    axis.text(middle, HEIGHT / 2, text, ha="center", va="center", fontsize=10)


def _below(axis: Axes, formula: str) -> None:
    axis.text(0, -0.4, f"shard m alone:  {formula}", ha="left", va="top", fontsize=11)


def _graph(axis: Axes, nodes: Sequence[Node], arrows: Sequence[tuple[Node, Node]]) -> None:
    for start, end in arrows:
        length = ((end.x - start.x) ** 2 + (end.y - start.y) ** 2) ** 0.5
        across, up = (end.x - start.x) / length * RADIUS, (end.y - start.y) / length * RADIUS
        look = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0, "linewidth": 1.1}
        axis.annotate("", (end.x - across, end.y - up), (start.x + across, start.y + up), arrowprops=look, zorder=3)
    for node in nodes:
        color = SKY if node.observed else "white"
        axis.add_patch(Circle((node.x, node.y), RADIUS, facecolor=color, edgecolor="black", zorder=4))
        axis.text(node.x, node.y, node.name, ha="center", va="center", fontsize=12, zorder=5)


def _shards_plates(axis: Axes) -> None:
    """Plates of the rows within a shard, and of the shards."""
    _plate(axis, (GRAPH + 0.1, 0.6), 3.8, 1.9, "rows n of shard m")
    _plate(axis, (GRAPH - 0.2, 0.05), 4.4, 2.7, "shards m = 1, …, M")


def _plate(axis: Axes, corner: tuple[float, float], width: float, height: float, name: str) -> None:
    look = {"boxstyle": "round,pad=0,rounding_size=0.15", "facecolor": "none", "edgecolor": "0.45", "linewidth": 1}
    axis.add_patch(FancyBboxPatch(corner, width, height, **look))
    axis.text(corner[0] + width - 0.12, corner[1] + 0.08, name, ha="right", va="bottom", fontsize=8, color="0.25")


if __name__ == "__main__":
    run(Experiment("figure2", __doc__, lambda said: [], lambda said: lambda case: [], draw))
