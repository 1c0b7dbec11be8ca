"""The works of scaling.py: rows that are made from a seed, and the NumPyro models of them, as a user writes them.

`Work` names a problem by its kind and sizes; it is small, so that every process of the benchmark makes the same rows.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
from susy import susy_like

import epvi
from epvi.models import logistic, simulate_logistic

Rows = dict[str, np.ndarray]

DENSE, RARE, GROUPS, CROSSED, SUSY, DEMO = "dense", "rare", "groups", "crossed", "susy", "demo"
# Columns of a model with group effects beside its groups.
SHARED_COLUMNS = 5
# Numeric columns and indicators of the rows with rare categories, and the largest and the smallest share of those.
NUMERIC, INDICATORS, SHARES = 12, 20, (0.2, 0.0001)
# Levels of the second of two crossed factors, relative to the first.
_SECOND = 10
# Prior sds: of coefficients, of an intercept and of the mean of group effects, and the scale of the half-normal prior
# of the groups' sd. They are proper and weak beside the rows.
PRIOR_SD, INTERCEPT_SD, GROUP_SD = 1.0, 3.0, 1.0


def regression(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def with_intercept(x: Any, y: Any = None) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, INTERCEPT_SD))
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ w), obs=y)


def group_intercepts(x: Any, g: Any, y: Any = None, *, num_groups: int) -> None:
    """Centred: a_g ~ N(loc, s)."""
    loc = numpyro.sample("loc", dist.Normal(0.0, INTERCEPT_SD))
    s = numpyro.sample("s", dist.HalfNormal(GROUP_SD))
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("groups", num_groups):
        a: Any = numpyro.sample("a", dist.Normal(loc, s))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[g] + x @ w), obs=y)


def crossed_slopes(t: Any, x: Any, g: Any, h: Any, y: Any = None, *, num_first: int, num_second: int) -> None:
    """An intercept and a slope of t per level of two crossed factors; those of the first have the overall means."""
    loc = numpyro.sample("loc", dist.Normal(0.0, INTERCEPT_SD))
    slope = numpyro.sample("slope", dist.Normal(0.0, PRIOR_SD))
    s: Any = numpyro.sample("s", dist.HalfNormal(GROUP_SD).expand([4]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_SD).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("first", num_first):
        a: Any = numpyro.sample("a", dist.Normal(loc, s[0]))
        b: Any = numpyro.sample("b", dist.Normal(slope, s[2]))
    with numpyro.plate("second", num_second):
        c: Any = numpyro.sample("c", dist.Normal(0.0, s[1]))
        e: Any = numpyro.sample("e", dist.Normal(0.0, s[3]))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[g] + c[h] + (b[g] + e[h]) * t + x @ w), obs=y)


class Work(NamedTuple):
    """A problem: its kind, its number of rows, and its number of columns or groups (levels of the first factor)."""

    kind: str
    num_rows: int
    size: int
    seed: int = 0

    def __str__(self) -> str:
        words = {
            RARE: f"{self.num_rows:,} rows, rare categories",
            GROUPS: f"{self.num_rows:,} rows, {self.size:,} groups",
            CROSSED: f"{self.num_rows:,} rows, {self.size:,} x {self.num_second:,} crossed",
            SUSY: f"{self.num_rows:,} x {self.size:,} like SUSY",
            DEMO: f"demo, {self.num_rows:,} rows",
        }
        return words.get(self.kind, f"{self.num_rows:,} x {self.size:,}")

    @property
    def num_second(self) -> int:
        """Levels of the second factor."""
        return max(2, self.size // _SECOND)

    def rows(self) -> Rows:
        """The rows, made once in a process."""
        return _rows(self)

    def model(self) -> epvi.Model:
        if self.kind == GROUPS:
            return epvi.Model(group_intercepts, num_groups=self.size)
        if self.kind == CROSSED:
            return epvi.Model(crossed_slopes, num_first=self.size, num_second=self.num_second)
        if self.kind in (SUSY, DEMO):
            return epvi.Model(logistic)
        return epvi.Model(with_intercept if self.kind == RARE else regression)

    @property
    def has_intercept(self) -> bool:
        return self.kind == RARE


def work_of(kind: str, num_rows: int, size: int, scale: float, seed: int) -> Work:
    """The work with this share of its rows."""
    return Work(kind, max(int(scale * num_rows), 1), size, seed)


@functools.lru_cache(maxsize=1)
def _rows(work: Work) -> Rows:
    return _MAKERS[work.kind](work, np.random.default_rng([work.seed, work.size]))


def _labels(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (rng.logistic(size=len(logits)) < logits).astype(np.int8)


def _coefficients(rng: np.random.Generator, num: int) -> np.ndarray:
    """Such that the logits of independent standard columns have sd 1."""
    return rng.normal(size=num) / np.sqrt(num)


def _dense(work: Work, rng: np.random.Generator) -> Rows:
    w = _coefficients(rng, work.size)
    x = rng.normal(size=(work.num_rows, work.size))
    return {"x": x, "y": _labels(rng, x @ w)}


def _rare(work: Work, rng: np.random.Generator) -> Rows:
    shares = np.geomspace(*SHARES, INDICATORS)
    w = np.concatenate([_coefficients(rng, NUMERIC), rng.normal(size=INDICATORS)])
    x = np.empty((work.num_rows, NUMERIC + INDICATORS))
    x[:, :NUMERIC] = rng.normal(size=(work.num_rows, NUMERIC))
    x[:, NUMERIC:] = rng.random((work.num_rows, INDICATORS)) < shares
    return {"x": x, "y": _labels(rng, x @ w - 0.5)}


def _groups(work: Work, rng: np.random.Generator) -> Rows:
    w, a = _coefficients(rng, SHARED_COLUMNS), rng.normal(-0.5, 0.7, size=work.size)
    x = rng.normal(size=(work.num_rows, SHARED_COLUMNS))
    g = rng.integers(work.size, size=work.num_rows)
    return {"x": x, "g": g, "y": _labels(rng, a[g] + x @ w)}


def _crossed(work: Work, rng: np.random.Generator) -> Rows:
    w = _coefficients(rng, SHARED_COLUMNS - 1)
    a, b = rng.normal(-0.5, 0.7, size=work.size), rng.normal(0.4, 0.3, size=work.size)
    c, e = rng.normal(0, 0.5, size=work.num_second), rng.normal(0, 0.2, size=work.num_second)
    t, x = rng.normal(size=work.num_rows), rng.normal(size=(work.num_rows, SHARED_COLUMNS - 1))
    g, h = (rng.integers(num, size=work.num_rows) for num in (work.size, work.num_second))
    return {"t": t, "x": x, "g": g, "h": h, "y": _labels(rng, a[g] + c[h] + (b[g] + e[h]) * t + x @ w)}


def _susy(work: Work, rng: np.random.Generator) -> Rows:
    return susy_like(work.num_rows, work.seed)


def _demo(work: Work, rng: np.random.Generator) -> Rows:
    """As in examples/demo.py."""
    return simulate_logistic(work.num_rows, work.size, condition=20, seed=10)[0]


_MAKERS: dict[str, Callable[[Work, np.random.Generator], Rows]] = {
    DENSE: _dense,
    RARE: _rare,
    GROUPS: _groups,
    CROSSED: _crossed,
    SUSY: _susy,
    DEMO: _demo,
}
