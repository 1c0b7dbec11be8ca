"""Draw docs/images/scaling.png from files that `scaling.py --output FILE` wrote."""

import argparse
import csv
import re
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#777777"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="files that scaling.py wrote")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images" / "scaling.png")
    chosen = parser.parse_args()
    lines = [line for path in chosen.tables for line in csv.DictReader(path.open(encoding="utf-8"))]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    shards(left, lines)
    groups(right, lines)
    figure.savefig(chosen.output, dpi=150)
    print(f"drew {chosen.output}")


def shards(axes: Axes, lines: list[dict[str, str]]) -> None:
    """Seconds against the number of shards."""
    for work, colour, label in (
        ("1,000,000 x 18", BLUE, "1,000,000 x 18"),
        ("300,000 rows, rare categories", ORANGE, "300,000 x 32, rare categories"),
    ):
        found = {}
        for line in lines:
            number = re.fullmatch(r"epvi, M = ([\d,]+)", line["method"])
            if line["work"] == work and number:
                found[int(number[1].replace(",", ""))] = float(line["seconds"])
        axes.loglog(list(found), list(found.values()), "o-", color=colour, label=label)
    axes.set(xlabel="shards M", ylabel="seconds, certificate included", title="The cost of shards")
    finished(axes, "upper left")


def groups(axes: Axes, lines: list[dict[str, str]]) -> None:
    """Seconds against the number of groups, beside peers."""
    found: dict[str, dict[int, float]] = {"epvi, M = 4": {}, "gpboost": {}, "NUTS": {}}
    for line in lines:
        number = re.search(r"rows, ([\d,]+) groups", line["work"])
        if number:
            for name, seconds in ((line["method"], line["seconds"]), (line["beside"], line["its_seconds"])):
                plain = re.match(r"[\d.]+", seconds)
                if name in found and plain:
                    found[name][int(number[1].replace(",", ""))] = float(plain[0])
    for (name, times), colour in zip(found.items(), (BLUE, GREEN, GREY), strict=True):
        axes.loglog(list(times), list(times.values()), "o-", color=colour, label=name)
    axes.set(xlabel="groups, with 100 to 500 rows each", ylabel="seconds", title="Effects of groups, logistic")
    finished(axes, "upper right")


def finished(axes: Axes, corner: Literal["upper left", "upper right"]) -> None:
    """From a tenth of a second on, with plain numbers."""
    axes.set_ylim(0.1, 50)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, loc=corner)


if __name__ == "__main__":
    main()
