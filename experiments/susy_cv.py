"""Accuracy on 10,000 real rows of SUSY by cross-validation, for epvi and scikit-learn's logistic regression.

Run: python experiments/susy_cv.py [--seed 0]. It needs scikit-learn (pip install '.[bench]') and the rows, which are
susy/susy_10000.npz in the folder that EPVI_DATA names.

Ten folds, M = 10 shards of 900 rows. Columns are standardised with the moments of the fitted rows, and a column of ones
is added. All strategies have the same folds, so that differences are paired.
"""

from collections.abc import Callable
from typing import Any

from lab.experiment import Experiment, Said, run
from lab.look import BLACK, MARKS, ORANGE, Mark, panels
from lab.results import Case, Row, by_strategy
from lab.strategies import PRODUCTS, Rows, papers
from lab.susy import standardised, ten_thousand_rows

import numpy as np
from matplotlib.figure import Figure

import epvi
from epvi.models import logistic

FOLDS, SHARDS = 10, 10
PEER = "scikit-learn"
FITTED: dict[str, dict[str, Any]] = {
    "NVI": {"shards": 1, "inference": papers(4), "certify": False},
    "EPVI_sample": {"shards": SHARDS, "inference": papers(4), "product": PRODUCTS["EPVI_sample"], "certify": False},
    "EPVI_refined": {"shards": SHARDS},
}


def cases(said: Said) -> list[Case]:
    return [{"seed": said.seed, "fold": fold} for fold in range(FOLDS)]


def measuring(said: Said) -> Callable[[Case], list[Row]]:
    rows, model = ten_thousand_rows(said.seed), epvi.Model(logistic)
    folds = np.arange(len(rows["y"])) % FOLDS

    def measure(case: Case) -> list[Row]:
        out = folds == case["fold"]
        fitted, held_out = standardised({n: c[~out] for n, c in rows.items()}, {n: c[out] for n, c in rows.items()})
        found = [_row(PEER, by_peer(fitted, held_out), held_out)]
        for name, settings in FITTED.items():
            posterior = epvi.fit(model, fitted, executor=2, seed=said.seed, progress=False, **settings)
            found.append(_row(name, probabilities(posterior, held_out, said.seed), held_out))
        return found

    return measure


def by_peer(fitted: Rows, held_out: Rows) -> np.ndarray:
    """P(y = 1) by scikit-learn with its defaults, including its own intercept."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

    found = LogisticRegression(max_iter=1000).fit(fitted["x"][:, 1:], fitted["y"])
    return found.predict_proba(held_out["x"][:, 1:])[:, 1]


def probabilities(posterior: epvi.Posterior, rows: Rows, seed: int) -> np.ndarray:
    """P(y = 1), averaged over 1,000 posterior draws."""
    w = posterior.sample(1000, seed=seed)["w"]
    return np.mean(1 / (1 + np.exp(-(rows["x"] @ w.T))), axis=1)


def _row(strategy: str, p: np.ndarray, rows: Rows) -> Row:
    right = np.where(rows["y"] == 1, p, 1 - p)
    return {"strategy": strategy, "accuracy": float(np.mean(right > 0.5)), "nll": -float(np.mean(np.log(right)))}


def draw(rows: list[Row], said: Said) -> Figure:
    figure, axes = panels(1, 2, (5.0, 3.2))
    looks = {PEER: Mark(ORANGE, "P"), **MARKS}
    for axis, key, title in (
        (axes[0, 0], "accuracy", "accuracy"),
        (axes[0, 1], "nll", "negative log-likelihood per row"),
    ):
        found = by_strategy(rows)
        for i, (name, mine) in enumerate(found.items()):
            values = np.array([float(row[key]) for row in mine])
            places = i + np.linspace(-0.25, 0.25, len(values))
            axis.scatter(places, values, color=looks[name].color, marker=looks[name].marker, s=22, alpha=0.7)
            axis.hlines(values.mean(), i - 0.35, i + 0.35, color=BLACK, linewidth=1.6)
            axis.annotate(f"{values.mean():.4f}", (i, values.max()), (0, 6), textcoords="offset points", ha="center")
        axis.set_xticks(range(len(found)), list(found))
        axis.margins(y=0.2)
        axis.set_title(f"{title}: {FOLDS} folds and their mean")
    figure.suptitle("10,000 real rows of SUSY, by cross-validation", x=0.01, ha="left", fontsize=12)
    return figure


def report(rows: list[Row]) -> list[str]:
    found = by_strategy(rows)
    lines = [f"{'':16s}{'accuracy':>10s}{'loss':>10s}   difference in accuracy to {PEER}, and its standard error"]
    for name, mine in found.items():
        accuracy, nll = (np.array([float(row[key]) for row in mine]) for key in ("accuracy", "nll"))
        less = accuracy - np.array([float(row["accuracy"]) for row in found[PEER]])
        told = f"{less.mean():+.4f} ± {less.std(ddof=1) / len(less) ** 0.5:.4f}" if name != PEER else ""
        lines.append(f"{name:16s}{accuracy.mean():10.4f}{nll.mean():10.4f}   {told}")
    return lines


if __name__ == "__main__":
    run(Experiment("susy_cv", __doc__, cases, measuring, draw, report))
