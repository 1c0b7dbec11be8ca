"""Simulate a table with the columns, units and defects of the UCI heart disease data: `python simulate.py heart.csv`.

The rows are drawn from the round figures below and describe no real person. They have four baselines, of which
Switzerland's is far from the others; cholesterol of 0 where it was not measured (all of Switzerland, a quarter of VA);
one blood pressure of 0; diagnoses that Hungary writes as 0 and 1 only; and missing values.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

# Coefficients of (age − 54) / 9, sex, (trestbps − 132) / 18, (thalach − 138) / 25, exang, oldpeak; and of chest pain.
COEFFICIENTS = {"age": 0.2, "sex": 1.0, "trestbps": 0.1, "thalach": -0.3, "exang": 1.0, "oldpeak": 0.6}
CHEST_PAIN = np.array([0.0, -0.8, -0.5, 0.9])


class Hospital(NamedTuple):
    """The patients of one hospital."""

    rows: int
    age: float  # mean
    men: float  # proportion
    pain: tuple[float, float, float, float]  # proportions of the four kinds of chest pain
    baseline: float  # log odds of disease
    missing: float  # proportion of missing exercise tests


HOSPITALS = {
    "cleveland": Hospital(303, 54, 0.7, (0.1, 0.2, 0.25, 0.45), -2.0, 0.0),
    "hungarian": Hospital(294, 48, 0.7, (0.05, 0.35, 0.2, 0.4), -2.2, 0.01),
    "switzerland": Hospital(123, 55, 0.9, (0.05, 0.05, 0.15, 0.75), 0.7, 0.04),
    "va": Hospital(200, 59, 0.95, (0.05, 0.05, 0.25, 0.65), -1.7, 0.25),
}


def simulate(seed: int = 0) -> pd.DataFrame:
    """All rows; the column `site` is the hospital."""
    rng = np.random.default_rng(seed)
    return pd.concat([_rows(rng, name, hospital) for name, hospital in HOSPITALS.items()], ignore_index=True)


def _rows(rng: np.random.Generator, name: str, hospital: Hospital) -> pd.DataFrame:
    n = hospital.rows
    table = pd.DataFrame({"age": np.clip(rng.normal(hospital.age, 8.5, n), 28, 77).round()})
    table["sex"] = (rng.random(n) < hospital.men).astype(int)
    table["cp"] = rng.choice(4, n, p=hospital.pain) + 1
    table["trestbps"] = np.clip(rng.normal(132 + 0.4 * (table["age"] - 54), 18), 90, 200).round()
    table["chol"] = np.clip(rng.normal(245, 50, n), 110, 500).round()
    table["thalach"] = np.clip(rng.normal(140 - 0.9 * (table["age"] - 54), 22), 70, 200).round()
    table["exang"] = (rng.random(n) < np.where(table["cp"] == 4, 0.55, 0.15)).astype(int)
    table["oldpeak"] = np.clip(rng.exponential(1.0, n) - 0.1, 0, 6).round(1)
    table["num"] = _diagnoses(rng, table, hospital.baseline, binary=name == "hungarian")
    table["site"] = name
    return _with_defects(rng, table, name, hospital)


def _diagnoses(rng: np.random.Generator, table: pd.DataFrame, baseline: float, *, binary: bool) -> np.ndarray:
    scaled = table.assign(
        age=(table["age"] - 54) / 9, trestbps=(table["trestbps"] - 132) / 18, thalach=(table["thalach"] - 138) / 25
    )
    logits = baseline + CHEST_PAIN[table["cp"] - 1] + sum(w * scaled[name] for name, w in COEFFICIENTS.items())
    ill = rng.logistic(size=len(table)) < logits
    return np.where(ill, 1 if binary else rng.choice([1, 1, 2, 3, 4], len(table)), 0)


def _with_defects(rng: np.random.Generator, table: pd.DataFrame, name: str, hospital: Hospital) -> pd.DataFrame:
    untested = rng.random(len(table)) < hospital.missing
    table.loc[untested, ["trestbps", "thalach", "exang", "oldpeak"]] = np.nan
    if name == "switzerland":
        table["chol"] = 0.0
    if name == "va":
        table.loc[rng.random(len(table)) < 0.25, "chol"] = 0.0
        table.loc[np.flatnonzero(~untested)[0], "trestbps"] = 0.0
    return table


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "heart.csv")
    simulate().to_csv(path, index=False)
    print(f"Wrote {path}.")
