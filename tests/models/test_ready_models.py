"""The ready models: each against its formula in plain NumPy and SciPy, and against the rows of its own simulator."""

import functools
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import Predictive
from scipy import special, stats

import epvi.models
from epvi import EpviError
from epvi.models import (
    grid_places,
    logistic,
    multinomial,
    poisson,
    robust_linear,
    simulate_logistic,
    simulate_multinomial,
    simulate_poisson,
    simulate_robust_linear,
    simulate_tlsa,
    tlsa,
)
from epvi.models.tlsa import EXCHANGEABLE

PLACES = grid_places(9)


@pytest.fixture(autouse=True)
def _as_numpyro_expects():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.enable_x64(True):
        yield


def naive_logistic(rows, alpha, w):
    prior = stats.gamma.logpdf(alpha, 1.0, scale=1 / 0.01) + sum(
        stats.norm.logpdf(v, 0, 1 / math.sqrt(alpha)) for v in w
    )
    return prior, [stats.bernoulli.logpmf(y, special.expit(w @ x)) for x, y in zip(rows["x"], rows["y"], strict=True)]


def naive_robust_linear(rows, w, sigma, nu, fixed_nu=False):
    prior = sum(stats.norm.logpdf(v, 0, 10) for v in w) + stats.halfcauchy.logpdf(sigma, 0, 2.5)
    prior += 0 if fixed_nu else stats.gamma.logpdf(nu, 2, scale=10)
    return prior, [stats.t.logpdf(y, nu, w @ x, sigma) for x, y in zip(rows["x"], rows["y"], strict=True)]


def naive_poisson(rows, w):
    exposure = rows.get("exposure", np.ones(len(rows["y"])))
    prior = sum(stats.norm.logpdf(v, 0, math.sqrt(10)) for v in w)
    triples = zip(rows["x"], rows["y"], exposure, strict=True)
    return prior, [stats.poisson.logpmf(y, e * math.exp(w @ x)) for x, y, e in triples]


def naive_multinomial(rows, w):
    logs = []
    for x, y in zip(rows["x"], rows["y"], strict=True):
        odds = [1.0] + [math.exp(v @ x) for v in w]
        logs.append(math.log(odds[y] / sum(odds)))
    return sum(stats.norm.logpdf(v, 0, math.sqrt(10)) for v in w.ravel()), logs


def naive_tlsa(rows, weights, centres, widths):
    prior = sum(stats.norm.logpdf(v, 0, math.sqrt(5)) for v in weights.ravel())
    prior += sum(stats.beta.logpdf(c, 1, 1) for c in centres.ravel()) + sum(stats.expon.logpdf(v) for v in widths)
    logs = []
    for x, y in zip(rows["x"], rows["y"], strict=True):
        total = 0.0
        for v, place in enumerate(PLACES):
            mean = 0.0
            for w, centre, width in zip(weights, centres, widths, strict=True):
                mean += (x @ w) * math.exp(-np.sum((place - centre) ** 2) / width)
            total += stats.norm.logpdf(y[v], mean, 1.0)
        logs.append(total)
    return prior, logs


@dataclass(frozen=True)
class Case:
    """A model, its simulator and its formulas; `settings` go to the model, `making` to the simulator."""

    model: Callable
    simulate: Callable
    naive: Callable
    settings: dict[str, Any] = field(default_factory=dict)
    making: dict[str, Any] = field(default_factory=dict)
    known: tuple[str, ...] = ()

    def rows(self, num_rows, seed=0):
        return self.simulate(num_rows, 3, **self.making, seed=seed)

    def sites(self, rows, values, key=0):
        seeded = handlers.substitute(handlers.seed(self.model, key), values)
        return handlers.trace(seeded).get_trace(**rows, **self.settings)

    @functools.cached_property
    def densities(self):
        """The compiled log prior, and log likelihood of each row, by NumPyro."""

        @jax.jit
        def densities(rows, values):
            sites = [site for site in self.sites(rows, values).values() if site["type"] == "sample"]
            logs = {site["name"]: site["fn"].log_prob(site["value"]) for site in sites}
            per_row = logs.pop("y")
            return sum(logs.values()), per_row

        return densities

    def log_likelihood(self, rows, values):
        return np.asarray(self.densities(rows, values)[1])

    def draw(self, rows, values):
        """The observed column once more, as a user draws it: by `Predictive`, in float32."""
        draws = {name: np.asarray(value)[None] for name, value in values.items()}
        unseen = {name: column for name, column in rows.items() if name != "y"}
        with jax.enable_x64(False):
            predict = jax.jit(lambda key: Predictive(self.model, draws)(key, **unseen, **self.settings))
            return np.asarray(predict(jax.random.key(0))["y"][0])


TLSA = {"places": PLACES, "num_sources": 2}
CASES = {
    "logistic": Case(logistic, simulate_logistic, naive_logistic, making={"condition": 10, "intercept": True}),
    "robust_linear": Case(robust_linear, simulate_robust_linear, naive_robust_linear, making={"intercept": True}),
    "robust_linear with nu": Case(
        robust_linear,
        simulate_robust_linear,
        lambda rows, **values: naive_robust_linear(rows, **values, nu=3, fixed_nu=True),
        settings={"nu": 3},
        making={"nu": 3},
        known=("nu",),
    ),
    "poisson": Case(poisson, simulate_poisson, naive_poisson),
    "poisson with exposure": Case(poisson, simulate_poisson, naive_poisson, making={"with_exposure": True}),
    "multinomial": Case(
        multinomial, simulate_multinomial, naive_multinomial, settings={"num_classes": 4}, making={"num_classes": 4}
    ),
    "tlsa": Case(tlsa, simulate_tlsa, naive_tlsa, settings=TLSA, making=TLSA),
}


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]


def perturbed(truth, rng, scale):
    """The truth moved; widths, scales and centres stay where they may be."""
    moved = {}
    for name, value in truth.items():
        noise = scale * rng.normal(size=np.shape(value))
        if name == "centres":
            moved[name] = special.expit(special.logit(value) + noise)
        else:
            moved[name] = value + noise if name in ("w", "weights") else value * np.exp(noise)
    return moved


def parameters(case, truth):
    return {name: value for name, value in truth.items() if name not in case.known}


@pytest.mark.parametrize("num_rows", [12, 5])
def test_the_density_is_the_formula_row_by_row(case, num_rows):
    for seed in range(3):
        rows, truth = case.rows(num_rows, seed)
        values = perturbed(parameters(case, truth), np.random.default_rng(seed), 0.5)
        prior, per_row = case.densities(rows, values)
        naive_prior, naive_per_row = case.naive(rows, **values)
        np.testing.assert_allclose(prior, naive_prior, rtol=1e-10)
        np.testing.assert_allclose(per_row, naive_per_row, rtol=1e-10)


def unconstrained(case, rows):
    """The log joint density on ℝᵈ as a function of one flat vector, and its dimension."""
    sites = case.sites(rows, {})
    latent = {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}
    transforms = {name: biject_to(site["fn"].support) for name, site in latent.items()}
    start = {name: jnp.zeros(np.shape(transforms[name].inv(site["value"]))) for name, site in latent.items()}
    flat, unravel = ravel_pytree(start)

    def log_joint(theta):
        z = unravel(theta)
        values = {name: transforms[name](z[name]) for name in z}
        jacobian = sum(jnp.sum(transforms[name].log_abs_det_jacobian(z[name], values[name])) for name in z)
        prior, per_row = case.densities(rows, values)
        return prior + jnp.sum(per_row) + jacobian

    return log_joint, len(flat)


def test_two_derivatives_are_right_also_at_zero_and_far_away(case):
    rows, _ = case.rows(12)
    log_joint, dim = unconstrained(case, rows)
    both = jax.jit(jax.value_and_grad(log_joint))
    hessian = jax.jit(jax.hessian(log_joint))
    for scale in (0.0, 1.0, 6.0):
        theta = scale * np.random.default_rng(1).normal(size=dim)
        value, gradient = both(theta)
        pairs = [(both(theta + step), both(theta - step)) for step in 1e-5 * np.eye(dim)]
        slopes = np.array([up[0] - down[0] for up, down in pairs]) / 2e-5
        curvatures = np.array([up[1] - down[1] for up, down in pairs]) / 2e-5
        size, steepness = abs(float(value)), float(jnp.abs(gradient).max())
        second = np.asarray(hessian(theta))
        np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6 * (size + steepness))
        np.testing.assert_allclose(second, curvatures, rtol=1e-5, atol=1e-5 * (np.abs(second).max() + steepness))


def test_simulators_are_reproducible_and_fit_their_model(case):
    rows, truth = case.rows(50)
    again, truth_again = case.rows(50)
    other, _ = case.rows(50, seed=1)
    jax.tree.map(np.testing.assert_array_equal, (rows, truth), (again, truth_again))
    assert not np.array_equal(rows["y"], other["y"])
    assert set(rows) <= set(inspect.signature(case.model).parameters)
    assert all(len(column) == 50 and column.dtype in (np.float64, np.int64) for column in rows.values())
    sites = jax.eval_shape(lambda: {name: site["value"] for name, site in case.sites(rows, {}).items()})
    latent = {name: sites[name].shape for name in sites if name not in ("y", "rows")}
    assert latent == {name: np.shape(value) for name, value in parameters(case, truth).items()}


def test_the_truth_is_likelier_than_its_neighbours_and_draws_alike(case):
    rows, truth = case.rows(4000)
    values = parameters(case, truth)
    seen = case.log_likelihood(rows, values)
    for seed in range(3):
        gain = seen - case.log_likelihood(rows, perturbed(values, np.random.default_rng(seed), 0.5))
        assert gain.sum() > 3 * gain.std() * math.sqrt(len(gain))
    y = case.draw(rows, values)
    assert y.shape == rows["y"].shape
    drawn = case.log_likelihood(rows | {"y": y}, values)
    assert abs(seen.mean() - drawn.mean()) < 5 * math.sqrt((seen.var() + drawn.var()) / len(seen))


def test_rows_may_be_float32(case):
    rows, truth = case.rows(12)
    values = parameters(case, truth)
    small = case.log_likelihood({name: column.astype(np.float32) for name, column in rows.items()}, values)
    assert small.dtype == np.float64
    np.testing.assert_allclose(small, case.log_likelihood(rows, values), rtol=1e-5, atol=1e-5)


def test_models_travel_to_other_processes():
    for name in epvi.models.__all__:
        function = getattr(epvi.models, name)
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_the_curvature_is_finite_where_the_rate_underflows(name):
    log_joint, dim = unconstrained(CASES[name], {"x": np.array([[-900.0], [-100.0], [1.0]]), "y": np.array([0, 0, 1])})
    assert np.all(np.isfinite(jax.jit(jax.hessian(log_joint))(np.ones(dim))))


@pytest.mark.parametrize(
    ("name", "labels"),
    [("logistic", [-1, 2, 0.5]), ("poisson", [-1, 0.5, -3]), ("multinomial", [-1, 4, 1.5])],
)
def test_an_impossible_observation_does_not_pass_unnoticed(name, labels):
    case = CASES[name]
    rows, truth = case.rows(3)
    assert not np.any(np.isfinite(case.log_likelihood(rows | {"y": np.array(labels)}, truth)))


def test_columns_have_the_asked_covariance():
    x = simulate_logistic(200_000, 5, condition=100, intercept=True, seed=3)[0]["x"]
    assert np.all(x[:, 0] == 1)
    variances = np.linalg.eigvalsh(np.cov(x[:, 1:].T))
    np.testing.assert_allclose(variances, np.geomspace(0.01, 1, 4), rtol=0.03)
    assert np.abs(np.corrcoef(x[:, 1:].T) - np.eye(4)).max() > 0.2
    assert simulate_logistic(3, 1, intercept=True, seed=0)[0]["x"].tolist() == [[1], [1], [1]]


@pytest.mark.parametrize(("num_columns", "num_dimensions"), [(1, 1), (50, 2), (49, 2), (7, 3), (27, 3), (243, 5)])
def test_places_are_distinct_and_spread_over_the_unit_box(num_columns, num_dimensions):
    places = grid_places(num_columns, num_dimensions)
    assert places.shape == (num_columns, num_dimensions)
    assert len(np.unique(places, axis=0)) == num_columns
    assert np.all((places > 0) & (places < 1))
    np.testing.assert_allclose(places.mean(0), 0.5, atol=0.1)


def test_a_full_grid_is_all_its_cells():
    np.testing.assert_array_equal(grid_places(4), [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])


def test_sources_are_exchangeable():
    case = CASES["tlsa"]
    rows, truth = case.rows(12)
    (group,) = EXCHANGEABLE
    assert set(group) == set(truth)
    swapped = {name: truth[name][::-1] for name in group}
    for one, other in zip(case.densities(rows, swapped), case.densities(rows, truth), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


X, Y = np.ones((4, 2)), np.ones(4)
BAD = {
    "x with one axis": (lambda: logistic(Y, Y), r"x has shape \(4,\): pass rows by columns"),
    "y with two axes": (lambda: robust_linear(X, Y[:, None]), r"y has shape \(4, 1\): .* the 4 rows"),
    "short exposure": (lambda: poisson(X, Y, Y[:2]), r"exposure has shape \(2,\)"),
    "rate": (lambda: logistic(X, Y, b=0), "b is 0: pass a positive number"),
    "nu": (lambda: robust_linear(X, Y, nu=-1.0), "nu is -1.0"),
    "one class": (lambda: multinomial(X, num_classes=1), "num_classes is 1: .* at least 2"),
    "no sources": (lambda: tlsa(X, places=PLACES, num_sources=0), "num_sources is 0: .* at least 1"),
    "places with one axis": (lambda: tlsa(X, places=PLACES[0], num_sources=1), r"places have shape \(2,\)"),
    "no places": (lambda: tlsa(X, places=PLACES[:0], num_sources=1), r"places have shape \(0, 2\)"),
    "places off the box": (lambda: tlsa(X, places=PLACES * 90, num_sources=1), "places run from 15 to 75: rescale"),
    "places with NaN": (lambda: tlsa(X, places=np.full((2, 2), np.nan), num_sources=1), "places has 4 NaN"),
    "covariates with one axis": (lambda: tlsa(Y, places=PLACES, num_sources=1), r"x has shape \(4,\)"),
    "y for other places": (
        lambda: tlsa(X, np.ones((4, 8)), places=PLACES, num_sources=1),
        r"y has shape \(4, 8\): .* must be \(4, 9\)",
    ),
    "tau": (lambda: tlsa(X, places=PLACES, num_sources=1, tau=0.0), "tau is 0.0"),
    "no rows": (lambda: simulate_logistic(0, 2, seed=0), "num_rows is 0"),
    "condition": (lambda: simulate_poisson(5, 2, condition=0.5, seed=0), "condition is 0.5: .* at least 1"),
    "simulated classes": (lambda: simulate_multinomial(5, 2, num_classes=0, seed=0), "num_classes is 0"),
    "simulated sources": (lambda: simulate_tlsa(5, 2, places=PLACES, num_sources=0, seed=0), "num_sources is 0"),
    "grid": (lambda: grid_places(0), "num_columns is 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_get_one_sentence(name):
    call, sentence = BAD[name]
    with pytest.raises(EpviError, match=sentence) as error:
        call()
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)
