"""Published reference posteriors: models and data of posteriordb and of German credit, with moments of long NUTS runs.

Reads a folder of data (`posteriordb/<name>/data.json` and `reference_draws.npz`, `german_credit/*.npz`), which is not
part of the project, and returns `Gold` records. Indices in names start at 0, as in epvi.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.distributions import constraints

import epvi
from epvi.models.logistic import SmoothBernoulli
from epvi.site.derivatives.passes import programs_of

Rows = dict[str, np.ndarray]
Draws = Mapping[str, np.ndarray]

ROOT = Path(__file__).parents[1]


class Moments(NamedTuple):
    """Means and sds of named scalars, with their Monte Carlo standard errors."""

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray

    def of(self, names: Sequence[str]) -> "Moments":
        """The moments of these scalars, in this order."""
        places = {name: i for i, name in enumerate(self.names)}
        index = [places[name] for name in names]
        return Moments(tuple(names), *(array[index] for array in self[1:]))


def _unchanged(draws: Draws) -> Draws:
    return draws


@dataclasses.dataclass(frozen=True, eq=False)
class Gold:
    """A reference posterior."""

    name: str
    kind: str  # linear, logistic, mixture, hierarchical or source analysis
    model: epvi.Model
    rows: Rows
    reference: Moments  # of all scalars that are compared
    start: Rows  # constrained values in the middle of the posterior, where peers start
    derive: Callable[[Draws], Draws] | None = None  # compared scalars from draws of the parameters; None: the same

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def dim(self) -> int:
        return programs_of(self.model, self.rows).target.space.dim

    @property
    def is_linear(self) -> bool:
        """Whether the stricter targets apply."""
        return self.kind in ("linear", "logistic")

    def moments(self, draws: Draws, num_effective: float | None = None) -> Moments:
        """Moments of the compared scalars, from draws (n, ...) of the parameters with this effective sample size."""
        values = flattened((self.derive or _unchanged)(draws))
        n = len(next(iter(values.values())))
        array = np.stack([values[name] for name in self.reference.names], axis=1)
        sd = np.std(array, axis=0, ddof=1)
        worth = n if num_effective is None else num_effective
        return Moments(self.reference.names, np.mean(array, axis=0), sd, sd / worth**0.5, sd / (2 * worth) ** 0.5)


def flattened(draws: Draws) -> dict[str, np.ndarray]:
    """Every scalar of every parameter under its own name, such as `w[0]`, from draws (n, ...)."""
    found = {}
    for name, values in draws.items():
        for index in np.ndindex(values.shape[1:]):
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            found[label] = np.asarray(values[(slice(None), *index)], np.float64)
    return found


def moments_of_chains(chains: Draws) -> Moments:
    """Moments from draws (chains, n) of named scalars; errors by the ESS of the draws and of their squares."""
    array = np.stack(list(chains.values()), axis=-1)
    mean, sd = np.mean(array, axis=(0, 1)), np.std(array, axis=(0, 1), ddof=1)
    square = (array - mean) ** 2
    mean_error = sd / np.sqrt(effective_sample_size(array))
    sd_error = np.std(square, axis=(0, 1)) / np.sqrt(effective_sample_size(square)) / (2 * sd)
    return Moments(tuple(chains), mean, sd, np.asarray(mean_error), np.asarray(sd_error))


# The models. Positional arguments are columns of rows, keyword-only ones are fixed.


def _flat(name: str, *shape: int, support: Any = constraints.real) -> Any:
    return numpyro.sample(name, dist.ImproperUniform(support, (), shape))


def _normal(mean: Any, sigma: Any, y: Any) -> None:
    with numpyro.plate("rows", mean.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def flat_regression(x: Any, y: Any = None) -> None:
    beta = _flat("beta", x.shape[1])
    _normal(x @ beta, _flat("sigma", support=constraints.positive), y)


def kidscore(x: Any, y: Any = None) -> None:
    beta = _flat("beta", x.shape[1])
    _normal(x @ beta, numpyro.sample("sigma", dist.HalfCauchy(2.5)), y)


def kilpisjarvi(x: Any, y: Any = None, *, pmualpha: float, psalpha: float, pmubeta: float, psbeta: float) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(pmualpha, psalpha))
    beta = numpyro.sample("beta", dist.Normal(pmubeta, psbeta))
    _normal(alpha + beta * x, _flat("sigma", support=constraints.positive), y)


def blr(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    _normal(x @ beta, numpyro.sample("sigma", dist.HalfNormal(10.0)), y)


def diamonds(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    _normal(intercept + x @ b, sigma, y)


def two_normals(y: Any) -> None:
    mu = _flat("mu", 2, support=constraints.ordered_vector)
    numpyro.factor("mu is normal", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    which = dist.Categorical(probs=jax.numpy.stack([theta, 1 - theta]))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(which, dist.Normal(mu, sigma)), obs=y)


def eight_schools(school: Any, error: Any, y: Any = None, *, num_schools: int) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([num_schools]).to_event(1))
    _normal(mu + tau * z[school], error, y)


def schools_effects(draws: Draws) -> Draws:
    """theta_j = mu + tau z_j, the scalars of the reference."""
    mu, tau = draws["mu"], draws["tau"]
    return {"theta": mu[:, None] + tau[:, None] * draws["z"], "mu": mu, "tau": tau}


def credit(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", SmoothBernoulli(x @ w), obs=y)


# Rows and fixed arguments from posteriordb's data.json.


def _columns(*columns: Any) -> np.ndarray:
    return np.column_stack([np.asarray(column, np.float64) for column in columns])


def _nes(d: dict[str, Any]) -> Rows:
    age = np.asarray(d["age_discrete"])
    ages = [age == group for group in (2, 3, 4)]
    columns = [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]
    return {"x": _columns(np.ones(len(age)), *columns), "y": np.asarray(d["partyid7"], np.float64)}


def _interaction(one: Any, other: Any, y: Any) -> Rows:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return {"x": _columns(np.ones(len(a)), a, b, a * b), "y": np.asarray(y, np.float64)}


def _centred(d: dict[str, Any]) -> Rows:
    """Without the column of ones, and centred with the means of all rows."""
    x = np.asarray(d["X"], np.float64)[:, 1:]
    return {"x": x - x.mean(axis=0), "y": np.asarray(d["Y"], np.float64)}


def _schools(d: dict[str, Any]) -> Rows:
    return {
        "school": np.arange(d["J"]),
        **{n: np.asarray(d[c], np.float64) for n, c in (("error", "sigma"), ("y", "y"))},
    }


class Recipe(NamedTuple):
    """How to build a posterior of posteriordb from its data."""

    kind: str
    function: Callable
    rows: Callable[[dict[str, Any]], Rows]
    fixed: Callable[[dict[str, Any]], dict[str, Any]] = lambda d: {}
    derive: Callable[[Draws], Draws] | None = None


RECIPES = {
    "nes1996-nes": Recipe("linear", flat_regression, _nes),
    "earnings-logearn_interaction": Recipe(
        "linear", flat_regression, lambda d: _interaction(d["height"], d["male"], np.log(d["earn"]))
    ),
    "kidiq-kidscore_interaction": Recipe(
        "linear", kidscore, lambda d: _interaction(d["mom_hs"], d["mom_iq"], d["kid_score"])
    ),
    "kilpisjarvi_mod-kilpisjarvi": Recipe(
        "linear",
        kilpisjarvi,
        lambda d: {name: np.asarray(d[name], np.float64) for name in "xy"},
        lambda d: {name: float(d[name]) for name in ("pmualpha", "psalpha", "pmubeta", "psbeta")},
    ),
    "sblrc-blr": Recipe("linear", blr, lambda d: {"x": np.asarray(d["X"], np.float64), "y": np.asarray(d["y"])}),
    "diamonds-diamonds": Recipe("linear", diamonds, _centred),
    "low_dim_gauss_mix-low_dim_gauss_mix": Recipe("mixture", two_normals, lambda d: {"y": np.asarray(d["y"])}),
    "eight_schools-eight_schools_noncentered": Recipe(
        "hierarchical", eight_schools, _schools, lambda d: {"num_schools": int(d["J"])}, schools_effects
    ),
}
GERMAN = "german_credit"


def data_folder(said: str | os.PathLike | None = None) -> Path:
    """The given folder, else that of EPVI_DATA, else `../shared/data` beside the repository."""
    return Path(said or os.environ.get("EPVI_DATA") or ROOT.parent / "shared" / "data")


def reference_chains(folder: Path) -> dict[str, np.ndarray]:
    """Draws (chains, n) of every scalar of posteriordb, with indices from 0: `beta[1]` becomes `beta[0]`."""
    with np.load(folder / "reference_draws.npz") as file:
        draws, names = np.asarray(file["draws"], np.float64), [str(name) for name in file["names"]]
    labels = [re.sub(r"\d+(?=[\],])", lambda digits: str(int(digits[0]) - 1), name) for name in names]
    return {label: draws[:, :, i] for i, label in enumerate(labels)}


def from_posteriordb(folder: Path) -> Gold:
    """The posterior whose data and reference draws are in a folder with its name."""
    recipe = RECIPES[folder.name]
    data = json.loads((folder / "data.json").read_text())
    rows, model = recipe.rows(data), epvi.Model(recipe.function, **recipe.fixed(data))
    reference = moments_of_chains(reference_chains(folder))
    return Gold(folder.name, recipe.kind, model, rows, reference, _start(model, rows, reference), recipe.derive)


def german_credit(folder: Path) -> Gold:
    """Logistic regression with published means, sds and standard errors of means; the last weight is the intercept."""
    with np.load(folder / "german_credit_numeric.npz") as file:
        x, y = np.asarray(file["X"], np.float64), np.asarray(file["y"], np.int64)
        mean, sd, error = (np.asarray(file[f"gold_{name}"]) for name in ("mean", "sd", "mcse"))
    rows, model = {"x": np.column_stack([x, np.ones(len(x))]), "y": y}, epvi.Model(credit)
    reference = Moments(tuple(f"w[{i}]" for i in range(len(mean))), mean, sd, error, error / 2**0.5)
    return Gold(GERMAN, "logistic", model, rows, reference, _start(model, rows, reference))


def _start(model: epvi.Model, rows: Rows, reference: Moments) -> Rows:
    """The means of the reference; zero for parameters that it lacks."""
    known = dict(zip(reference.names, reference.mean, strict=True))
    start = {}
    for parameter in programs_of(model, rows).target.space.parameters:
        values = [known.get(label, 0.0) for _, label in parameter.elements()]
        start[parameter.name] = np.reshape(np.asarray(values), parameter.shape)
    return start
