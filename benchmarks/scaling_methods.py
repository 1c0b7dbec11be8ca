"""The methods of scaling.py: epvi, its peers and the references, each with what it does before, in and after its time.

Packages of the extra `bench` are imported when their method is prepared. Penalties of point estimates are the models'
priors; an intercept has none there.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scaling_figures
import scaling_reference
from loky import cpu_count
from numpyro.infer import MCMC, NUTS
from posteriors import Moments, flattened, moments_of_chains
from scaling_data import CROSSED, PRIOR_SD, Work

import epvi

EPVI, REFERENCE, NUMPYRO = "epvi", "reference", "NUTS"
FIRST_ROUND, PASSES, CLOCK = "epvi, first round", "passes", "paper's clock"
FRESH, MEMORY = "epvi, fresh process", "memory"
NEWTON, LBFGS, GLUM, GPBOOST = "newton-cholesky", "lbfgs", "glum", "gpboost"
# Steps of warm-up and draws of NUTS, in one chain.
NUTS_STEPS = 500
# Seconds that a reference may take, whose time does not count. Judgement.
_REFERENCE_SECONDS = 3600
# Names of gpboost's coefficients, where they are not loc and w. Its sds of groups are s, intercepts first, then slopes.
_PARAMETERS = {CROSSED: ("loc", "slope", "w[0]", "w[1]", "w[2]", "w[3]")}


class Answer(NamedTuple):
    """What a method found: moments, with sds of NaN for points, or other figures by name."""

    moments: Moments | None = None
    figures: Mapping[str, float] | None = None
    verdict: str = ""
    structure: str = ""  # of the covariance
    note: str = ""


class Method(NamedTuple):
    """`prepare(work)` imports and makes rows, and gives what is timed; `answer` reads its result."""

    prepare: Callable[[Work], Callable[[int], Any]]
    answer: Callable[[Work, Any], Answer]
    once: bool = False  # whether it is run only once, not warmed up
    limit: float | None = None  # in seconds, instead of that of the race


def exactly(names: tuple[str, ...], mean: np.ndarray, sd: np.ndarray) -> Moments:
    """Moments without Monte Carlo errors."""
    return Moments(names, mean, sd, np.zeros(len(names)), np.zeros(len(names)))


def _epvi(work: Work) -> Callable[[int], Any]:
    model, rows = work.model(), work.rows()
    # Said, because inside a process that another one started it is one by default.
    workers = cpu_count()
    return lambda num_shards: epvi.fit(model, rows, num_shards, executor=workers, seed=work.seed, progress=False)


def _epvi_answer(work: Work, posterior: epvi.Posterior) -> Answer:
    found, certificate = posterior.summary(), posterior.certificate
    structure = type(posterior.mixture.structure).__name__
    verdict = "" if certificate is None else str(certificate.verdict)
    moments = exactly(found.names, found.mean, found.sd)
    return Answer(moments, verdict=verdict, structure=structure)


def _point(work: Work, fitted: Any) -> Answer:
    """Coefficients of scikit-learn or glum."""
    w = np.ravel(fitted.coef_)
    names, mean = tuple(f"w[{i}]" for i in range(len(w))), w
    if work.has_intercept:
        names, mean = ("intercept", *names), np.concatenate([np.ravel(fitted.intercept_), w])
    return Answer(exactly(names, mean, np.full(len(mean), np.nan)))


def _scikit_learn(solver: str) -> Method:
    def prepare(work: Work) -> Callable[[int], Any]:
        from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

        rows = work.rows()
        settings = {"solver": solver, "C": PRIOR_SD**2, "fit_intercept": work.has_intercept}
        return lambda _: LogisticRegression(**settings).fit(rows["x"], rows["y"])

    return Method(prepare, _point)


def _glum(work: Work) -> Callable[[int], Any]:
    from glum import GeneralizedLinearRegressor  # pyright: ignore[reportMissingImports]

    rows = work.rows()
    # Its loss is a mean over the rows.
    alpha = 1 / (work.num_rows * PRIOR_SD**2)
    settings = {"family": "binomial", "alpha": alpha, "fit_intercept": work.has_intercept}
    y = rows["y"].astype(np.float64)
    return lambda _: GeneralizedLinearRegressor(**settings).fit(rows["x"], y)


def _gpboost(work: Work) -> Callable[[int], Any]:
    """Its maximum of the approximate marginal likelihood, without priors; standard errors are not in its time."""
    import gpboost  # pyright: ignore[reportMissingImports]

    rows, ones = work.rows(), np.ones(work.num_rows)
    y = rows["y"].astype(np.float64)
    settings: dict[str, Any] = {"likelihood": "bernoulli_logit"}
    if work.kind == CROSSED:
        settings |= {
            "group_data": np.column_stack([rows["g"], rows["h"]]),
            "group_rand_coef_data": np.column_stack([rows["t"], rows["t"]]),
            "ind_effect_group_rand_coef": [1, 2],
        }
        x = np.column_stack([ones, rows["t"], rows["x"]])
    else:
        settings["group_data"] = rows["g"]
        x = np.column_stack([ones, rows["x"]])

    def run(_: int) -> Any:
        model = gpboost.GPModel(**settings)
        model.fit(y=y, X=x)
        return model

    return run


def _gpboost_answer(work: Work, model: Any) -> Answer:
    mean, sd = np.asarray(model.get_coef(std_err=True, format_pandas=False))
    names = _PARAMETERS.get(work.kind, ("loc", *(f"w[{i}]" for i in range(len(mean) - 1))))
    s = np.sqrt(np.ravel(model.get_cov_pars(format_pandas=False)))
    labels = tuple(f"s[{i}]" for i in range(len(s))) if len(s) > 1 else ("s",)
    values, spread = np.concatenate([mean, s]), np.concatenate([sd, np.full(len(s), np.nan)])
    return Answer(exactly((*names, *labels), values, spread))


def _nuts(work: Work) -> Callable[[int], Any]:
    model, rows = work.model(), work.rows()

    def run(_: int) -> Any:
        with jax.enable_x64(True):
            chain = MCMC(NUTS(model.function), num_warmup=NUTS_STEPS, num_samples=NUTS_STEPS, progress_bar=False)
            chain.run(jax.random.key(work.seed), **rows, **model.fixed)
            return {name: np.asarray(values) for name, values in chain.get_samples().items()}

    return run


def _nuts_answer(work: Work, draws: dict[str, np.ndarray]) -> Answer:
    chains = {name: values[None] for name, values in flattened(draws).items()}
    said = f"one chain of {NUTS_STEPS} + {NUTS_STEPS}, with compilation"
    return Answer(moments_of_chains(chains), note=said)


def _reference(work: Work) -> Callable[[int], Any]:
    work.rows()
    return lambda _: scaling_reference.cached(work)


def _reference_answer(work: Work, found: scaling_reference.Reference) -> Answer:
    return Answer(found.moments, note=found.text)


def _first_round(work: Work) -> Callable[[int], Any]:
    import tall  # needs scikit-learn

    rows = work.rows()
    return lambda _: tall.fit(rows, tall.TWO, work.seed)


def _measured(figures: Callable[[Work, int], Mapping[str, float]]) -> Method:
    """A method that takes its own times."""

    def prepare(work: Work) -> Callable[[int], Any]:
        return lambda num_shards: figures(work, num_shards)

    return Method(prepare, lambda _, found: Answer(figures=dict(found)), once=True)


METHODS: dict[str, Method] = {
    EPVI: Method(_epvi, _epvi_answer),
    NEWTON: _scikit_learn(NEWTON),
    LBFGS: _scikit_learn(LBFGS),
    GLUM: Method(_glum, _point),
    GPBOOST: Method(_gpboost, _gpboost_answer),
    NUMPYRO: Method(_nuts, _nuts_answer, once=True),
    REFERENCE: Method(_reference, _reference_answer, once=True, limit=_REFERENCE_SECONDS),
    FIRST_ROUND: Method(_first_round, _epvi_answer),
    PASSES: _measured(scaling_figures.passes),
    CLOCK: _measured(scaling_figures.papers_clock),
    FRESH: _measured(scaling_figures.fresh),
    MEMORY: _measured(scaling_figures.memory),
}
