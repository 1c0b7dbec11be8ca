"""Draw the two journeys of docs/architecture.md: which modules a fit, and a study, pass through, in order.

Run: python docs/journeys.py (needs matplotlib); it writes docs/images/journey_fit.svg and journey_study.svg.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent / "images"
# Colours of the three places, and inches of a box.
PLACES = {"run": "#dbe9f6", "site": "#e3f1dc", "hub": "#fbe6d0"}
WIDTH, HEIGHT, GAP = 3.5, 0.62, 0.24
COLUMNS = 3


class Stop(NamedTuple):
    """A module on the way, the place that it belongs to, and what happens there."""

    module: str
    place: str
    what: str


FIT = (
    Stop("run/fit", "run", "epvi.fit: checks the call"),
    Stop("site/rows/rows", "site", "columns, levels, units of the rows"),
    Stop("site/rows/split", "site", "deals rows to shards"),
    Stop("site/model/model", "site", "NumPyro function → target"),
    Stop("site/derivatives/passes", "site", "compiles passes over rows"),
    Stop("run/shards", "run", "places shards, retries lost ones"),
    Stop("engines/local", "run", "worker processes"),
    Stop("run/worker", "run", "one shard's task"),
    Stop("site/tasks/fit_shard", "site", "fits one shard"),
    Stop("site/fit/nvi_run", "site", "modes, components, weights"),
    Stop("hub/posterior/multiplied", "hub", "sorted fits → mixtures"),
    Stop("hub/product/multiply", "hub", "Π q_m"),
    Stop("run/rounds", "run", "certificate, refinement rounds"),
    Stop("hub/trust/propose", "hub", "draws to score"),
    Stop("site/tasks/score", "site", "log p_m at the draws"),
    Stop("hub/trust/collect", "hub", "answers, checked and summed"),
    Stop("hub/trust/certify", "hub", "importance weights, verdict"),
    Stop("hub/refine/refine", "hub", "natural-gradient step, undone or kept"),
    Stop("hub/posterior/posterior", "hub", "Posterior: draws, summary, files"),
)
STUDY = (
    Stop("study/study", "run", "study.toml, the same at all sites"),
    Stop("site/tasks/fit_shard", "site", "epvi shard: fits the site's rows"),
    Stop("wire/shard_fit", "site", "site-3.epvi leaves the site"),
    Stop("wire/envelope", "hub", "checks what arrives"),
    Stop("hub/agreement/compatibility", "hub", "do the fits belong together?"),
    Stop("hub/posterior/combine", "hub", "epvi combine: multiplies"),
    Stop("hub/agreement/conflict", "hub", "--check: do the sites agree?"),
    Stop("wire/request", "hub", "epvi certify --draws: draws.epvi"),
    Stop("site/tasks/score", "site", "epvi score at every site"),
    Stop("wire/answer", "site", "scores-3.epvi leaves the site"),
    Stop("hub/trust/certify", "hub", "epvi certify: verdict"),
    Stop("hub/refine/refine", "hub", "epvi refine: next draws, or done"),
)


def draw(stops: tuple[Stop, ...], path: Path) -> None:
    """Boxes row by row in reading order, with arrows between them."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    plt.rcParams.update({"svg.hashsalt": "epvi", "svg.fonttype": "none"})
    rows = -(-len(stops) // COLUMNS)
    figure, axes = plt.subplots(figsize=(COLUMNS * (WIDTH + GAP), rows * (HEIGHT + 2 * GAP)))
    places = []
    for i, stop in enumerate(stops):
        x, y = (i % COLUMNS) * (WIDTH + 2 * GAP), -(i // COLUMNS) * (HEIGHT + 2 * GAP)
        places.append((x, y))
        axes.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, "round,pad=0.04", fc=PLACES[stop.place], ec="#555555"))
        middle = {"ha": "center", "va": "center"}
        axes.text(x + WIDTH / 2, y + 0.40, stop.module, family="monospace", size=9, weight="bold", **middle)
        axes.text(x + WIDTH / 2, y + 0.15, stop.what, size=8, **middle)
    arrow = {"arrowstyle": "->", "color": "#555555"}
    for (x, y), (u, v) in itertools.pairwise(places):
        same = y == v
        start = (x + WIDTH + 0.06, y + HEIGHT / 2) if same else (x + WIDTH / 2, y - 0.06)
        end = (u - 0.06, v + HEIGHT / 2) if same else (u + WIDTH / 2, v + HEIGHT + 0.08)
        axes.annotate("", end, start, arrowprops=arrow)
    axes.set_xlim(-0.2, COLUMNS * (WIDTH + 2 * GAP))
    axes.set_ylim(places[-1][1] - 0.2, HEIGHT + 0.2)
    axes.axis("off")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    draw(FIT, IMAGES / "journey_fit.svg")
    draw(STUDY, IMAGES / "journey_study.svg")
