"""Communication: how many numbers shards send, counted in their files, against the paper's M K (d + 2).

Run: python experiments/communication.py [--full] [--seed 0]

Every shard of a small logistic regression is fitted and saved. Counted are the numbers in the arrays of its file, the
numbers in the text of its header, and all bytes. The paper's shards have K spherical Gaussians of equal weight that are
never merged; diagonal and full covariances are counted too. For the later rounds of epvi's defaults, the files that the
hub sends (draws, Gaussians) and the shards' answers are counted until the posterior can be trusted.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.experiment import Experiment, Said, run
from lab.look import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Mark, panels
from lab.results import Case, Row
from lab.strategies import Rows, parts_of

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.numpy import load_file

import epvi
from epvi.ground.seeds import as_key
from epvi.models import logistic, simulate_logistic
from epvi.run.rounds import Rounds, run_rounds
from epvi.wire.answer import Scores
from epvi.wire.request import Draws

# Rows per shard; shards of the same size share compiled programs.
SHARD_ROWS = 250
FAMILIES = {"spherical": epvi.Spherical(), "diagonal": epvi.Diagonal(), "full": epvi.Full()}
MARKS = {"spherical": Mark(BLUE, "o"), "diagonal": Mark(ORANGE, "s"), "full": Mark(GREEN, "^")}


def cases(said: Said) -> list[Case]:
    """Each of M, K, d varied around M = 4, K = 4, d = 10; and the rounds of epvi's defaults."""
    many, components, dims = (2, 4, 16), (1, 4, 8), (3, 10, 30)
    if said.full:
        many, components, dims = (2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (3, 10, 30, 100)
    sizes = dict.fromkeys([*((m, 4, 10) for m in many), *((4, k, 10) for k in components), *((4, 4, d) for d in dims)])
    first = [{"what": family, "M": m, "K": k, "d": d} for family in FAMILIES for m, k, d in sizes]
    asked = [*((4, d) for d in dims), *((m, 10) for m in many if m > 4)]
    later = [{"what": "rounds", "M": m, "K": 0, "d": d} for m, d in asked]
    return [{**case, "seed": said.seed} for case in (*first, *later)]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    model = epvi.Model(logistic)

    def measure(case: Case) -> list[Row]:
        m, d = int(case["M"]), int(case["d"])
        # One of the d parameters is α.
        rows, _ = simulate_logistic(SHARD_ROWS * m, d - 1, seed=said.seed)
        parts = parts_of(rows, m)
        if case["what"] == "rounds":
            return list(_later(model, parts, said.seed))
        inference = epvi.NVI(int(case["K"]), FAMILIES[str(case["what"])], merge=False, max_sweeps=3)
        fits = [
            epvi.fit_shard(model, part, f"{i + 1}/{m}", inference=inference, seed=said.seed)
            for i, part in enumerate(parts)
        ]
        return [{"kind": "fits", **_together([counted(fit) for fit in fits])}]

    return measure


def counted(made: Any) -> dict[str, int]:
    """Counts of a saved file: numbers in every array, numbers in the text of the header, and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = made.save(Path(folder) / "sent.epvi")
        arrays = {f"array {name}": int(array.size) for name, array in load_file(file).items()}
        with safe_open(file, "np") as content:
            header = sum(numbers_in(json.loads(text)) for text in content.metadata().values())
        return {**arrays, "header": header, "bytes": file.stat().st_size}


def numbers_in(record: Any) -> int:
    """How many numbers a JSON value holds."""
    if isinstance(record, dict):
        return sum(map(numbers_in, record.values()))
    if isinstance(record, list):
        return sum(map(numbers_in, record))
    return int(isinstance(record, int | float) and not isinstance(record, bool))


def _together(files: list[dict[str, int]]) -> Row:
    """The sums of all files' counts, and the total of numbers in arrays."""
    total: Row = {name: sum(file[name] for file in files) for name in files[0]}
    numbers = sum(count for file in files for name, count in file.items() if name.startswith("array"))
    return {"files": len(files), "numbers": numbers, **total}


def _later(model: epvi.Model, parts: list[Rows], seed: int) -> Iterator[Row]:
    """What is communicated with epvi's defaults: the fits, and the draws and answers of every round."""
    m = len(parts)
    fits = [epvi.fit_shard(model, part, f"{i + 1}/{m}", seed=seed) for i, part in enumerate(parts)]
    yield {"kind": "fits", "round": 0, **_together([counted(fit) for fit in fits])}
    exchanged: list[Row] = []

    def ask(draws: Draws, scoring: epvi.Scoring) -> list[Scores]:
        number = len(exchanged) // 2 + 1
        # Every shard gets the same file.
        exchanged.append({"kind": "sent", "round": number, **_together([counted(draws)] * m)})
        answers = [epvi.score(model, part, draws, f"{i + 1}/{m}", exact=scoring.exact) for i, part in enumerate(parts)]
        exchanged.append({"kind": "answered", "round": number, **_together([counted(one) for one in answers])})
        return answers

    posterior = run_rounds(epvi.combine(fits, seed=seed), ask, Rounds.of(True, None), as_key(seed))
    yield from exchanged
    yield {"kind": "said", "round": len(exchanged) // 2, "numbers": posterior.bytes_exchanged // 8}


def papers(row: Row) -> int:
    """The paper's M K (d + 2)."""
    return int(row["M"]) * int(row["K"]) * (int(row["d"]) + 2)


def formula(row: Row) -> int:
    """The numbers in M shards' mixtures: weights, means, and the stored entries of the precisions."""
    m, k, d = (int(row[name]) for name in ("M", "K", "d"))
    width = {"spherical": 1, "diagonal": d, "full": d * (d + 1) // 2}[str(row["what"])]
    return m * k * (1 + d + width)


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(1, 3, (4.5, 3.9))
    _counts(axes[0, 0], rows)
    _bytes(axes[0, 1], rows)
    _rounds(axes[0, 2], rows)
    return figure


def _counts(axis: Axes, rows: list[Row]) -> None:
    counts = [papers(row) for row in rows if row["what"] in FAMILIES]
    ends = [0.8 * min(counts), 1.25 * max(counts)]
    axis.plot(ends, ends, color="0.6", linewidth=1, label="as many as M K (d + 2)")
    for family, mark in MARKS.items():
        mine = [row for row in rows if row["what"] == family]
        _dots(axis, [papers(row) for row in mine], [int(row["numbers"]) for row in mine], family, mark)
    axis.set(xscale="log", yscale="log", xlabel="M K (d + 2)", ylabel="numbers counted in all shards' files")
    axis.set_title("(a) one round: numbers sent", loc="left")
    axis.legend(fontsize=8)


def _dots(axis: Axes, x: Any, y: Any, family: str, mark: Mark) -> None:
    axis.plot(x, y, mark.marker, color=mark.color, markerfacecolor="none", label=family)


def _bytes(axis: Axes, rows: list[Row]) -> None:
    """Bytes of a shard's file against the numbers in it."""
    most = 0.0
    for family, mark in MARKS.items():
        mine = [row for row in rows if row["what"] == family]
        x, y = (np.array([float(row[name]) / float(row["files"]) for row in mine]) for name in ("numbers", "bytes"))
        _dots(axis, x, y, family, mark)
        most = max(most, x.max())
    x = np.geomspace(5, most, 50)
    axis.plot(x, 8 * x, color="0.6", linewidth=1, label="8 bytes a number, no header")
    axis.set(xscale="log", yscale="log", xlabel="numbers in a shard's file", ylabel="bytes of the file")
    axis.set_title("(b) one round: bytes per shard", loc="left")
    axis.legend(fontsize=8)


def _rounds(axis: Axes, rows: list[Row]) -> None:
    """Kilobytes per shard over all rounds until the posterior can be trusted, against d (M = 4)."""
    mine = [row for row in rows if row["what"] == "rounds" and row["M"] == 4]
    dims = sorted({int(row["d"]) for row in mine})
    for kind, name, color, marker in (
        ("sent", "draws, from the centre", VERMILION, "*"),
        ("answered", "scores, from the shard", PURPLE, "D"),
        ("fits", "the fit, from the shard", GREEN, "^"),
    ):
        y = [sum(float(r["bytes"]) / 4 for r in mine if (r["kind"], r["d"]) == (kind, d)) / 1000 for d in dims]
        axis.plot(dims, y, color=color, marker=marker, label=name)
    rounds = [max(int(row["round"]) for row in mine if row["d"] == d) for d in dims]
    axis.set(xscale="log", yscale="log", xlabel="d, and rounds that it took (M = 4)", ylabel="kilobytes per shard")
    axis.set_xticks(dims, [f"{d} ({number})" for d, number in zip(dims, rounds, strict=True)])
    axis.minorticks_off()
    axis.set_title("(c) epvi as it comes, refined", loc="left")
    axis.legend(fontsize=8)


def report(rows: list[Row]) -> list[str]:
    lines = []
    for family in FAMILIES:
        mine = [row for row in rows if row["what"] == family]
        ratios = np.array([float(row["numbers"]) / formula(row) for row in mine])
        over = np.array([float(row["numbers"]) / papers(row) for row in mine])
        rest = np.array([(float(row["bytes"]) - 8 * float(row["numbers"])) / float(row["files"]) for row in mine])
        header = np.array([float(row["header"]) / float(row["files"]) for row in mine])
        lines.append(
            f"{family:10s}counted / (weights, means, roots of the family): {ratios.min():g} to {ratios.max():g};"
            f" counted / M K (d + 2): {over.min():.3g} to {over.max():.3g};"
            f" header {rest.min():,.0f} to {rest.max():,.0f} bytes a file,"
            f" with {header.min():.0f} to {header.max():.0f} numbers in its text"
        )
    one = next(row for row in rows if row["what"] == "spherical")
    arrays = ", ".join(f"{name[6:]} {one[name]}" for name in one if name.startswith("array"))
    lines.append(f"spherical, M = {one['M']}, K = {one['K']}, d = {one['d']}: {arrays}; M K (d + 2) = {formula(one)}")
    return [*lines, *_rounds_lines(rows)]


def _rounds_lines(rows: list[Row]) -> list[str]:
    lines = [
        f"{'as it comes':14s}{'rounds':>7s}{'fits':>9s}{'sent':>11s}{'answered':>10s}{'kB/shard':>10s}  Posterior says"
    ]
    later = [row for row in rows if row["what"] == "rounds"]
    for m, d in dict.fromkeys((int(row["M"]), int(row["d"])) for row in later):
        mine = [row for row in later if (row["M"], row["d"]) == (m, d)]
        of = {kind: sum(int(r["numbers"]) for r in mine if r["kind"] == kind) for kind in ("fits", "sent", "answered")}
        said = next(row for row in mine if row["kind"] == "said")
        size = sum(float(row.get("bytes", 0)) for row in mine) / m / 1000
        agrees = "the same" if said["numbers"] == sum(of.values()) else f"{said['numbers']:,} in all"
        counts = f"{of['fits']:9,d}{of['sent']:11,d}{of['answered']:10,d}"
        lines.append(f"M = {m:<3d} d = {d:<3d}{said['round']:6d}{counts}{size:10.1f}  {agrees}")
    return lines


if __name__ == "__main__":
    run(Experiment("communication", __doc__, cases, measuring, draw, report))
