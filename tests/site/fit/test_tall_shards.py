"""Tall shards: few passes over the rows, and the same fit as if there had been many."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import epvi
from epvi.models import logistic, poisson, simulate_logistic, simulate_poisson
from epvi.site.derivatives.expansion import PARTS, ROWS_PER_PART, TALL, expand, taylors
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subsamples import uniform
from epvi.site.fit import nvi_run, regular
from epvi.site.fit.newton import Tolerances, climb

N, V = 60_000, 3


@functools.cache
def tall_rows(kind="logistic"):
    simulate = {"logistic": simulate_logistic, "poisson": simulate_poisson}[kind]
    rows, _ = simulate(N, V, condition=20, seed=5)
    return {"x": rows["x"].astype(np.float32), "y": rows["y"]}


@functools.cache
def subposterior():
    rows = tall_rows()
    return Subposterior.of(Programs(epvi.Model(logistic).on(rows)), rows, Fraction(1, 2), 2**12)


@functools.cache
def mode():
    """The mode, with Newton's method on all rows."""
    return climb(
        lambda theta, active: subposterior().second_order(theta), np.zeros((1, V + 1)), Tolerances(1e-6, 1e-6, 1e-9)
    )


def drawn_around(num_draws):
    at = mode()
    root = np.linalg.cholesky(np.linalg.inv(-at.hessian[0]))
    return at.points[0] + np.random.default_rng(2).normal(size=(num_draws, V + 1)) @ root.T


def test_values_around_a_mode_are_as_certain_as_they_say():
    sub, theta = subposterior(), drawn_around(200)
    exact = sub.value(theta, 50)
    curve = sub.full(mode().points)
    off, said = [], []
    for seed in range(20):
        (around,) = expand(
            mode().points, taylors(curve), uniform(sub, ROWS_PER_PART, PARTS, np.random.default_rng(seed))
        )
        near = around.near(theta, 64)
        off.append(near.value - exact)
        said.append(near.error)
    # The root mean square of 20 errors with 7 degrees of freedom each is within a third of what they say.
    ratio = np.sqrt(np.mean(np.square(off), axis=0) / np.mean(np.square(said), axis=0))
    assert 0.67 < np.median(ratio) < 1.5
    # And the expansion alone is much worse than the expansion with its remainder.
    alone = taylors(curve)[0].at(theta - mode().points[0]) - exact
    assert np.sqrt(np.mean(np.square(off))) < 0.3 * np.sqrt(np.mean(alone**2))


def test_an_expansion_of_the_diagonal_alone_is_right_too():
    sub, theta = subposterior(), drawn_around(50)
    curve = sub.diagonal(mode().points)
    (around,) = expand(mode().points, taylors(curve), uniform(sub, ROWS_PER_PART, PARTS, np.random.default_rng(0)))
    near = around.near(theta, 64)
    assert np.all(np.abs(near.value - sub.value(theta, 50)) < 6 * near.error + 1e-6)


@pytest.mark.parametrize("kind", ["logistic", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_tall_shard_is_passed_over_at_most_three_times(kind, monkeypatch):
    """And its fit is that of a shard on which nothing is spared."""
    rows, model = tall_rows(kind), {"logistic": logistic, "poisson": poisson}[kind]
    assert TALL <= N
    quick = epvi.fit_shard(model, rows, "1/2")
    monkeypatch.setattr(nvi_run, "is_tall", lambda num_rows, bundle: False)
    for module in (nvi_run, regular):
        monkeypatch.setattr(module, "part_sizes", lambda num_rows, first, represented: [])
    whole = epvi.fit_shard(model, {name: np.asarray(column, np.float64) for name, column in rows.items()}, "1/2")
    assert quick.passes <= 3 < whole.passes
    assert quick.status.text == whole.status.text == "converged: 1 component."
    sds = np.asarray(whole.mixture.sd())
    assert np.all(np.abs(np.asarray(quick.mixture.mean() - whole.mixture.mean())) < 0.003 * sds)
    np.testing.assert_allclose(quick.mixture.sd(), sds, rtol=1e-3)
    error = float(np.hypot(quick.elbo.standard_error, whole.elbo.standard_error))
    # Values of single precision are off by parts in ten million each.
    assert abs(float(quick.elbo.value) - float(whole.elbo.value)) < 5 * error + 1e-8 * abs(float(whole.elbo.value))


def test_the_last_step_is_spared_only_when_the_ones_before_foretell_it():
    calls = []

    def cubic(points, active):
        """−x² + small x³, and −|x|^1.5 whose Newton steps never become quadratic, with their maxima at 1."""
        calls.append(len(points))
        x = points[:, 0] - 1.0
        easy = -(x**2) + 1e-3 * x**3, -2 * x + 3e-3 * x**2, -2 + 6e-3 * x
        size = np.abs(x) + 1e-12
        hard = -(size**1.5), -1.5 * np.sign(x) * size**0.5, -0.75 * size**-0.5
        value, slope, bend = (np.where(np.arange(len(x)) == 0, a, b) for a, b in zip(easy, hard, strict=True))
        return value, slope[:, None], bend[:, None, None]

    ended = {}
    for trusting in (False, True):
        calls.clear()
        ended[trusting] = climb(cubic, np.array([[6.0]]), Tolerances(1e-9, 1e-12, trusting=trusting)), len(calls)
    (careful, many), (quick, few) = ended[False], ended[True]
    assert few == many - 1
    assert np.all(quick.converged)
    # It ends before the last step, whose decrement the one before foretold.
    assert careful.decrement < 1e-9 < quick.decrement < 0.1
    slow = climb(cubic, np.array([[6.0], [3.0]]), Tolerances(1e-9, 1e-12, trusting=True))
    assert slow.decrement[1] < 1e-9


def bisected(along, eigenvalues, radius):
    """The damping by halving, one problem at a time."""

    def length(damping):
        return np.linalg.norm(along / (eigenvalues + damping))

    if length(0.0) <= radius:
        return 0.0
    low, high = 0.0, np.linalg.norm(along) / radius
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if length(middle) > radius else (low, middle)
    return high


def test_damping_keeps_steps_within_their_radius():
    from epvi.site.fit.newton import damping_of

    rng = np.random.default_rng(0)
    along = rng.normal(size=(300, 5)) * 10 ** rng.uniform(-6, 6, size=(300, 1))
    eigenvalues = 10 ** rng.uniform(-9, 3, size=(300, 5))
    radius = 10 ** rng.uniform(-4, 4, size=300)
    made = damping_of(along, eigenvalues, radius)
    steps = np.linalg.norm(along / (eigenvalues + made[:, None]), axis=1)
    assert np.all(steps <= radius * (1 + 2e-3))
    naive = np.array([bisected(*one) for one in zip(along, eigenvalues, radius, strict=True)])
    np.testing.assert_allclose(made, naive, rtol=0.01, atol=1e-12)
    assert np.any(naive > 0)
    assert np.any(naive == 0)


def naive_float32(rows):
    """Value and slope summed in float32, one row after the other, for SciPy's optimiser."""
    x, y = rows["x"], rows["y"].astype(np.float32)

    def loss(w):
        odds = x @ w.astype(np.float32)
        values = y * odds - np.logaddexp(odds, np.float32(0))
        slopes = (y - 1 / (1 + np.exp(-odds)))[:, None] * x
        sums = np.cumsum(values, dtype=np.float32)[-1], np.cumsum(slopes, axis=0, dtype=np.float32)[-1]
        return -float(sums[0]), -sums[1].astype(np.float64)

    return minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x


def left_to_gain(rows, w):
    """What Newton's method in float64 still promises, in nats, without a prior."""
    x = rows["x"].astype(np.float64)
    p = 1 / (1 + np.exp(-(x @ w)))
    slope = x.T @ (rows["y"] - p)
    return 0.5 * slope @ np.linalg.solve((x.T * (p * (1 - p))) @ x, slope)


@pytest.mark.slow
def test_float32_sums_would_stop_early_and_these_do_not():
    rows, _ = simulate_logistic(400_000, V, condition=20, seed=1)
    rows = {"x": rows["x"].astype(np.float32), "y": rows["y"]}
    stopped = left_to_gain(rows, naive_float32(rows))
    flat = epvi.Model.from_log_density(
        lambda values: 0.0 * values["w"][0],
        lambda values, block: block["y"] * (block["x"] @ values["w"]) - jax.nn.softplus(block["x"] @ values["w"]),
        {"w": (V,)},
    )
    fit = epvi.fit_shard(flat, rows, "1/1")
    left = left_to_gain(rows, np.asarray(fit.mixture.mean()))
    assert fit.passes <= 3
    assert left < 1e-5
    assert stopped > 100 * left
    assert stopped > 1e-3


@pytest.mark.slow
def test_shards_of_many_columns_climb_with_the_curvature_of_a_part():
    """Above 128 coordinates: gradients over all rows, in coordinates that a part's curvature whitens."""
    rows, _ = simulate_logistic(40_000, 140, condition=10, seed=3)
    small = {"x": rows["x"].astype(np.float32), "y": rows["y"]}
    fit = epvi.fit_shard(logistic, small, "1/1", inference=epvi.NVI(1))
    assert fit.passes < 30
    assert left_to_gain_with_prior(fit, small) < 1e-3


def left_to_gain_with_prior(fit, rows):
    sub = Subposterior.of(Programs(epvi.Model(logistic).on(rows)), rows, Fraction(1), 2**12)
    _, slope, bend = sub.second_order(np.asarray(fit.mixture.mean())[None])
    return 0.5 * float(slope[0] @ np.linalg.solve(-bend[0], slope[0]))


def test_a_mode_that_is_light_on_a_part_of_the_rows_is_followed_to_all():
    """Two modes at ±1 of a parameter that enters squared; a slight slope makes one of them heavier on all rows."""
    rng = np.random.default_rng(4)
    rows = {"y": rng.normal(1.0, 1.0, 40_000), "z": rng.normal(3e-5, 0.05, 40_000)}
    model = epvi.Model.from_log_density(
        lambda values: -0.5 * values["b"] ** 2 / 100,
        lambda values, block: -0.5 * (block["y"] - values["b"] ** 2) ** 2 + block["z"] * values["b"],
        {"b": ()},
    )
    fit = epvi.fit_shard(model, rows, "1/1")
    heavier = np.sign(np.sum(rows["z"]))
    mass = 1 / (1 + np.exp(-2 * abs(np.sum(rows["z"]))))
    means = np.asarray(fit.mixture.means)[:, 0]
    weights = np.exp(np.asarray(fit.mixture.log_weights))
    assert np.sum(weights[np.sign(means) == heavier]) == pytest.approx(mass, abs=0.02)


def flat_or_weak(precision, v):
    """Logistic regression with a Gaussian prior of this precision, which may be zero."""
    return epvi.Model.from_log_density(
        lambda values: -0.5 * precision * jnp.sum(values["w"] ** 2),
        lambda values, block: block["y"] * (block["x"] @ values["w"]) - jax.nn.softplus(block["x"] @ values["w"]),
        {"w": (v,)},
    )


def with_rare_columns(seed, counts, v):
    """Rows whose last columns are 1 in a few of them and 0 in all others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40_000, v))
    x[:, -len(counts) :] = 0
    for j, count in enumerate(reversed(counts)):
        x[rng.choice(len(x), count), -1 - j] = 1
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ rng.normal(size=v)))).astype(int)
    return {"x": x, "y": y}


@pytest.mark.slow
def test_a_rare_column_that_separates_labels_is_flat_on_a_tall_shard_too():
    """Though a part of the rows had it, and the climb on all of them began far out."""
    rows = with_rare_columns(0, [1], 25)
    rows["y"][rows["x"][:, -1] == 1] = 1
    fit = epvi.fit_shard(flat_or_weak(0.0, 25), rows, "1/1")
    assert not fit.status.ok
    assert "do not bound w[24]" in fit.status.text


@pytest.mark.parametrize("seed", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_rare_columns_have_the_curvature_at_their_mode(seed):
    """Where few rows tell of a coefficient, Newton's method has a way to go when all others are at their mode."""
    rows = with_rare_columns(seed, [12, 5, 2], 12)
    rows["x"] = rows["x"].astype(np.float32)
    fit = epvi.fit_shard(flat_or_weak(0.01, 12), rows, "1/1", inference=epvi.NVI(1))
    x, at = rows["x"].astype(np.float64), np.asarray(fit.mixture.mean())
    p = 1 / (1 + np.exp(-(x @ at)))
    curvature = (x.T * (p * (1 - p))) @ x + 0.01 * np.eye(12)
    left = np.linalg.solve(curvature, x.T @ (rows["y"] - p) - 0.01 * at)
    sds = np.sqrt(np.diag(np.linalg.inv(curvature)))
    assert np.all(np.abs(left) < 0.01 * sds)
    np.testing.assert_allclose(fit.mixture.sd(), sds, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_the_heavier_of_two_modes_is_found_though_a_part_of_the_rows_prefers_the_other(seed):
    """Half of N(t, 1) and half of N(−t, 1.04): rows of t = 2 tell it from t = −2 by some twenty or thirty nats."""
    rng, pdf = np.random.default_rng(seed), jax.scipy.stats.norm.logpdf
    model = epvi.Model.from_log_density(
        lambda values: -0.5 * jnp.sum(values["t"] ** 2) / 9,
        lambda values, block: jnp.logaddexp(pdf(block["y"], values["t"][0], 1), pdf(block["y"], -values["t"][0], 1.04)),
        {"t": (1,)},
    )
    first = rng.random(40_000) < 0.5
    y = np.where(first, 2 + rng.normal(size=40_000), -2 + 1.04 * rng.normal(size=40_000))
    fit = epvi.fit_shard(model, {"y": y}, "1/1", seed=seed)
    assert fit.status.ok
    assert abs(float(fit.mixture.mean()[0]) - 2) < 0.05
