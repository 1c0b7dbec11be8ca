"""The cases of `hierarchies.py`: a model, its rows, and the numbers of shards to try."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import hierarchies_models as models
import numpy as np

Rows = dict[str, np.ndarray]


class Case(NamedTuple):
    """One model with its rows; `curved` ones may be refused, but not trusted if they are wrong."""

    name: str
    model: Callable
    rows: Rows
    shards: tuple[int, ...]
    curved: bool = False
    exact: Callable | None = None  # how NUTS samples it well, if not as it is written
    hidden: tuple[str, ...] = ()  # parameters that are not compared
    same_as: str = ""  # the name of its posterior, if other cases have the same one
    exchangeable: tuple[str, ...] = ()  # parameters whose entries are compared in the order of their means
    by: str | None = None  # the column that says which shard a row belongs to

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.rows.values())))


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def grouped(name: str, family: str, size: int, largest: int, kind: str = "intercepts") -> Rows:
    """Rows of groups whose sizes are log-uniform from 1 to `largest`."""
    rng = rng_of(name)
    sizes = np.exp(rng.uniform(0, np.log(largest), size)).astype(int) + 1
    g = np.repeat(np.arange(size), sizes)
    x = rng.normal(size=(len(g), 3))
    eta = x @ [0.5, -0.3, 0.2] + rng.normal(0.3, 0.6, size)[g]
    rows: Rows = {"x": x, "g": g}
    if kind == "slopes":
        eta += rng.normal(0, 0.4, size)[g] * x[:, 0]
    if kind in ("crossed", "nested"):
        h = rng.integers(0, size // 4, len(g)) if kind == "crossed" else g // 4
        eta += rng.normal(0, 0.5, size // 4 + 1)[h]
        rows["h"] = h
    draw = {
        "logistic": lambda: (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(np.int32),
        "poisson": lambda: rng.poisson(np.exp(eta)),
        "normal": lambda: rng.normal(eta, 0.8),
    }[family]
    return {**rows, "y": draw()}


def simulated() -> list[Case]:
    found = []
    for family in ("logistic", "poisson", "normal"):
        for size, largest in ((20, 100), (100, 200), (1000, 1000)):
            for centred in (True, False):
                name = f"{family}, {size} groups"
                rows = grouped(name, family, size, largest)
                model = models.intercepts(family, size, centred)
                # Many rows a group and a well-known scale: the centred model is the one that NUTS samples well.
                exact = models.intercepts(family, size, size == 1000)
                label = f"{name}, {'centred' if centred else 'non-centred'}"
                found.append(Case(label, model, rows, (2, 20), exact=exact, hidden=("a_raw",), same_as=name))
        name = f"{family}, slopes of 60 groups"
        found.append(
            Case(
                name,
                models.slopes(family, 60, True),
                grouped(name, family, 60, 200, "slopes"),
                (2, 20),
                exact=models.slopes(family, 60, False),
                hidden=("a_raw", "b_raw"),
            )
        )
        for kind in ("nested", "crossed"):
            name = f"{family}, {kind} 80 and 20"
            sizes = (80, 21)
            found.append(
                Case(
                    name,
                    models.crossed(family, sizes, True),
                    grouped(name, family, 80, 200, kind),
                    (2, 20),
                    exact=models.crossed(family, sizes, False),
                    hidden=("a_raw", "b_raw"),
                )
            )
    rows = classes("logistic, 600 classes in 150 schools", 600, 150, 12)
    model, exact = (models.crossed("logistic", (600, 150), centred) for centred in (True, False))
    found.append(
        Case("logistic, 600 classes in 150 schools", model, rows, (4,), exact=exact, hidden=("a_raw", "b_raw"))
    )
    return found


def classes(name: str, number: int, schools: int, pupils: int) -> Rows:
    """Binary rows of equally many pupils in each class, and classes in each school."""
    rng = rng_of(name)
    h = np.repeat(np.arange(schools), number // schools)
    g = np.repeat(np.arange(number), pupils)
    x = rng.normal(size=(len(g), 3))
    eta = x @ [0.5, -0.3, 0.2] + 0.3 + rng.normal(0, 0.5, number)[g] + rng.normal(0, 0.4, schools)[h[g]]
    return {"x": x, "g": g, "h": h[g], "y": (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(np.int32)}


def radon(folder: Path) -> list[Case]:
    path = folder / "radon" / "radon_mn.json"
    if not path.is_file():
        return []
    data = json.loads(path.read_text())
    rows = {
        "uranium": np.array(data["log_uppm"], float),
        "floor": np.array(data["floor_measure"], float),
        "county": np.array(data["county_idx"]) - 1,
        "y": np.array(data["log_radon"], float),
    }
    found = []
    for slopes in (False, True):
        exact = models.radon(85, False, slopes)
        for centred in (True, False):
            name = f"radon, {'slopes' if slopes else 'intercepts'}"
            label = f"{name}, {'centred' if centred else 'non-centred'}"
            model = models.radon(85, centred, slopes)
            raw = ("a_raw", "b_raw")
            found.append(Case(label, model, rows, (2, 5, 20), exact=exact, hidden=raw, same_as=name))
    return found


def small() -> list[Case]:
    rng = rng_of("small")
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    school = {"j": np.arange(8), "error": np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), "y": y}
    found = [
        Case(
            f"eight schools, {word}",
            models.schools(centred),
            school,
            (2, 4),
            exact=models.schools(False),
            hidden=("theta_raw",),
            same_as="eight schools",
        )
        for centred, word in ((True, "centred"), (False, "non-centred"))
    ]
    g = np.repeat(np.arange(9), 3)
    found.append(Case("funnel, 9 groups", models.funnel, {"g": g, "y": rng.normal(rng.normal(0, 1, 9)[g])}, (2, 5)))
    found.append(Case("banana", models.banana, {"y": rng.normal(1.0, 1, 40)}, (2, 5), curved=True))
    found.append(Case("ridge a·b", models.ridge, {"y": rng.normal(2.0, 1, 40)}, (2, 5), curved=True))
    n = rng.integers(20, 200, 60)
    rows = {"n": n, "k": rng.binomial(n, rng.beta(0.3, 30, 60))}
    found.append(Case("beta-binomial, rare events", models.rare, rows, (2, 10)))
    found.append(Case("no event in 30 rows", models.none_of, {"y": np.zeros(30, np.int32)}, (2, 5)))
    found.append(
        Case("2 events in 3000 rows", models.none_of, {"y": rng.permutation(np.arange(3000) < 2) * 1}, (2, 20))
    )
    for counts in ((345, 156, 95, 4, 0), (200, 0, 100, 0, 0, 1), (50, 3, 0)):
        y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        found.append(Case(f"simplex {counts}", models.simplex(len(counts)), {"y": y}, (2, 10)))
    return found


def mixtures() -> list[Case]:
    found = []
    for size in (2, 4, 6):
        rng = rng_of(f"mixture {size}")
        y = rng.normal(4.0 * rng.integers(0, size, 200 * size), 1.0)
        found.append(
            Case(f"mixture of {size}, undeclared", models.mixture(size), {"y": y}, (2, 5), exchangeable=("mu",))
        )
    return found


def few_rows() -> list[Case]:
    found = []
    for rows_each, num_columns in ((3, 4), (10, 4), (30, 8)):
        rng = rng_of(f"few {rows_each}")
        x = np.c_[np.ones(20 * rows_each), rng.normal(size=(20 * rows_each, num_columns - 1))]
        w = rng.normal(0, 0.5, num_columns)
        eta = x @ w
        for family, model, y in (
            ("linear, flat", models.flat_linear, rng.normal(eta, 1.0)),
            ("logistic, wide", models.wide_logistic, (rng.random(len(x)) < 1 / (1 + np.exp(-eta))).astype(np.int32)),
            ("Poisson, flat", models.flat_poisson, rng.poisson(np.exp(eta))),
        ):
            found.append(Case(f"{family}, {rows_each} rows a shard", model, {"x": x, "y": y}, (20,)))
    return found


def credit(folder: Path) -> list[Case]:
    path = folder / "german_credit" / "german_credit_numeric.npz"
    if not path.is_file():
        return []
    with np.load(path) as data:
        x = np.c_[data["X"].astype(float), np.ones(len(data["y"]))]
        rows = {"x": x, "y": data["y"].astype(np.int32)}
    return [
        Case("German credit, plain", models.plain_logistic, rows, (2, 5)),
        Case("German credit, horseshoe", models.horseshoe, rows, (2, 5)),
    ]


def textbook() -> list[Case]:
    """Item response, growth curves, and a trial in many countries."""
    rng = rng_of("items")
    person, item = (axis.ravel() for axis in np.meshgrid(np.arange(100), np.arange(20), indexing="ij"))
    slope, easy = rng.lognormal(0.0, 0.4, 20), rng.normal(0.3, 1.0, 20)
    eta = slope[item] * rng.normal(size=100)[person] + easy[item]
    answers = {"person": person, "item": item, "y": (rng.random(2000) < 1 / (1 + np.exp(-eta))).astype(np.int32)}
    found = [Case("item response, 100 persons, 20 items", models.items(100, 20), answers, (2, 5))]
    rng = rng_of("rats")
    animal, age = np.repeat(np.arange(30), 5), np.tile([-14.0, -7.0, 0.0, 7.0, 14.0], 30)
    line = rng.normal(242.0, 14.0, 30)[animal] + rng.normal(6.2, 0.5, 30)[animal] * age
    weights = {"animal": animal, "age": age, "y": rng.normal(line, 6.0)}
    raw = ("a_raw", "b_raw")
    for centred, word in ((True, "centred"), (False, "non-centred")):
        model, exact = models.rats(30, centred), models.rats(30, True)
        found.append(Case(f"rats, {word}", model, weights, (2, 5), exact=exact, hidden=raw, same_as="rats"))
    rng = rng_of("countries")
    sizes = np.exp(rng.uniform(np.log(20), np.log(3000), 36))
    country = rng.choice(36, 19250, p=sizes / np.sum(sizes))
    x = np.c_[np.ones(19250), rng.normal(size=(19250, 9)), rng.random((19250, 6)) < 0.2]
    eta = x @ rng.normal(0, 0.3, 16) - 0.5
    patients = {"x": x, "country": country}
    shifted = eta + rng.normal(0, 0.4, 36)[country]
    with_effects = {**patients, "y": (rng.random(19250) < 1 / (1 + np.exp(-shifted))).astype(np.int32)}
    for centred, word in ((True, "centred"), (False, "non-centred")):
        model, exact = models.countries(36, centred), models.countries(36, True)
        name = f"36 countries, {word}"
        found.append(Case(name, model, with_effects, (5,), exact=exact, hidden=raw, same_as="36 countries"))
    without = {**patients, "y": (rng.random(19250) < 1 / (1 + np.exp(-eta))).astype(np.int32)}
    found.append(Case("shards by country, no effects", models.by_country, without, (36,), by="country"))
    return found


def curved() -> list[Case]:
    """Funnels and shells of several dimensions, a change point, and overdispersed counts in very small shards."""
    found = []
    for size in (4, 9, 14):
        rng = rng_of(f"shrunk {size}")
        x = rng.normal(size=(6, size))
        rows = {"x": x, "y": rng.normal(x @ rng.normal(0, 0.7, size))}
        found.append(
            Case(f"funnel of {size + 1}, 6 rows", models.shrunk, rows, (2,), exact=models.shrunk_raw, hidden=("raw",))
        )
    for size in (2, 5, 10, 20):
        y = rng_of(f"shell {size}").normal(4.0, 1.0, 40)
        found.append(Case(f"shell of {size}", models.shell(size), {"y": y}, (2,), curved=True))
    rng = rng_of("change")
    t = rng.random(300)
    y = rng.normal(1.0 + 1.0 / (1 + np.exp(-(t - 0.6) / 0.02)), 0.7)
    found.append(Case("smooth change point", models.change_point, {"t": t, "y": y}, (2, 10)))
    for rows_each in (2, 3):
        rng = rng_of(f"counts {rows_each}")
        x = np.c_[np.ones(20 * rows_each), rng.normal(size=(20 * rows_each, 2))]
        rate = np.exp(x @ [1.0, 0.4, -0.3])
        y = rng.poisson(rate * rng.gamma(2.0, 0.5, len(x)))
        found.append(Case(f"negative binomial, {rows_each} rows a shard", models.counts, {"x": x, "y": y}, (20, 1)))
    return found


def cases(folder: Path) -> list[Case]:
    """All of them, the slow ones last."""
    return [
        *radon(folder),
        *small(),
        *curved(),
        *mixtures(),
        *few_rows(),
        *credit(folder),
        *textbook(),
        *simulated(),
    ]
