"""The subposterior in blocks, against the formula on all rows at once; and rows that no θ can have made."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from epvi import EpviError, Model
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.prior_part import Precisions
from epvi.site.derivatives.subposterior import Subposterior, block_size

SHARE, BLOCK, D = Fraction(1, 3), 8, 4


def logistic(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([D - 1]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows_of(n, dtype=np.float64):
    rng = np.random.default_rng(n)
    return {"x": rng.normal(size=(n, D - 1)).astype(dtype), "y": rng.integers(0, 2, n)}


def naive(theta, x, y):
    """A third of the log prior with its Jacobian, and the log likelihood of all rows, in one line each."""
    log_scale, w = theta[0], theta[1:]
    prior = 0.5 * math.log(2 / math.pi) - 0.5 * jnp.exp(2 * log_scale) + log_scale
    prior += jnp.sum(-0.5 * (w / jnp.exp(log_scale)) ** 2 - log_scale - 0.5 * math.log(2 * math.pi))
    odds = jnp.sum(x * w[None, :], axis=1)
    return prior / 3 + jnp.sum(y * odds - jnp.logaddexp(odds, jnp.zeros_like(odds)))


@pytest.fixture(scope="module")
def programs():
    return Programs(Model(logistic).on(rows_of(20)))


@pytest.fixture(scope="module")
def small_programs():
    return Programs(Model(logistic).on(rows_of(20, np.float32)))


@jax.jit
def derivatives(points, x, y):
    return [jax.vmap(f, (0, None, None))(points, x, y) for f in (naive, jax.grad(naive), jax.hessian(naive))]


def expected(points, rows):
    """Value, gradient and Hessian at every point."""
    with jax.enable_x64(True):
        return [np.asarray(d) for d in derivatives(points, rows["x"].astype(np.float64), rows["y"].astype(np.float64))]


POINTS = np.random.default_rng(0).normal(size=(3, D))


@pytest.mark.parametrize("n", [1, 8, 30, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 9, 24))])
def test_blocks_sum_to_the_formula(programs, n):
    rows = rows_of(n)
    value, gradient, hessian = expected(POINTS, rows)
    sub = Subposterior.of(programs, rows, SHARE, BLOCK)
    assert (sub.dim, sub.num_rows) == (D, n)
    first, full, diagonal = sub.gradient(POINTS), sub.full(POINTS), sub.diagonal(POINTS)
    for curve in (first, full, diagonal):
        np.testing.assert_allclose(curve.value, value, rtol=1e-12)
        np.testing.assert_allclose(curve.gradient, gradient, rtol=1e-10, atol=1e-10)
        assert curve.value.dtype == curve.gradient.dtype == np.float64
    assert first.hessian is None
    np.testing.assert_allclose(full.hessian, hessian, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(diagonal.hessian, np.diagonal(hessian, axis1=1, axis2=2), rtol=1e-10, atol=1e-10)
    for plain, named in zip(sub.second_order(POINTS), full[:3], strict=True):
        np.testing.assert_array_equal(plain, named)


def test_precisions_stand_in_the_place_of_the_prior(programs):
    rows, precisions = rows_of(8), np.array([0.5, 0.0, *np.full(D - 2, 2.0)])
    nothing = Subposterior.of(programs, rows, Fraction(0), BLOCK).full(POINTS)
    bounded = Subposterior(programs, rows, Precisions(precisions), BLOCK).full(POINTS)
    np.testing.assert_allclose(bounded.value, nothing.value - 0.5 * POINTS**2 @ precisions, rtol=1e-12)
    np.testing.assert_allclose(bounded.gradient, nothing.gradient - precisions * POINTS, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(bounded.hessian, nothing.hessian - np.diag(precisions), rtol=1e-10, atol=1e-10)


def test_only_a_shard_without_a_share_is_bounded_and_only_where_its_rows_say_nothing(programs):
    some = Subposterior.of(programs, rows_of(8), SHARE, BLOCK)
    assert some.bounded() is some
    assert some.unseen == []
    bounded = Subposterior.of(programs, rows_of(8), Fraction(0), BLOCK).bounded()
    assert isinstance(bounded.prior, Precisions)
    # The first coordinate is the scale of the others' prior, of which no row says anything.
    assert np.flatnonzero(bounded.prior.values).tolist() == [0]
    assert bounded.unseen == [programs.target.space.coordinate(0)]
    assert bounded.bounded() is bounded


def test_values_come_in_batches_and_passes_are_counted(programs):
    rows, sub = rows_of(20), Subposterior.of(programs, rows_of(20), SHARE, BLOCK)
    points = np.random.default_rng(1).normal(size=(7, D))
    for batch in (3, 7):
        values = sub.value(points, batch)
        assert values.shape == (7,)
        np.testing.assert_allclose(values, expected(points, rows)[0], rtol=1e-12)
    assert sub.passes == 4
    sub.full(points[:3])
    assert sub.passes == 5


def test_float32_rows_give_float64_sums(small_programs):
    rows = rows_of(30, np.float32)
    value, gradient, hessian = expected(POINTS, rows)
    curve = Subposterior.of(small_programs, rows, SHARE, BLOCK).full(POINTS)
    assert curve.value.dtype == curve.gradient.dtype == curve.hessian.dtype == np.float64
    np.testing.assert_allclose(curve.value, value, rtol=1e-6)
    np.testing.assert_allclose(curve.gradient, gradient, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(curve.hessian, hessian, rtol=1e-5, atol=1e-5)
    assert np.any(curve.value != value)


def test_many_float32_rows_lose_nothing_in_the_sum(small_programs):
    """One row 100 000 times: a sum in float32 would drift away from a hundred thousand times its part."""
    one = rows_of(1, np.float32)
    many = {name: np.repeat(column, 100_000, axis=0) for name, column in one.items()}
    sizes = {1: one, 100_000: many}
    values = {n: Subposterior.of(small_programs, sizes[n], Fraction(0), 2**14).value(POINTS, 3) for n in sizes}
    np.testing.assert_allclose(values[100_000], 100_000 * values[1], rtol=1e-9)


def test_a_random_part_of_the_rows_is_right_on_average(programs):
    rows, rng = rows_of(200), np.random.default_rng(0)
    whole = Subposterior.of(programs, rows, SHARE, 64)
    at = whole.gradient(POINTS[:1])
    drawn = []
    for _ in range(60):
        thin = whole.thinned(50, rng)
        assert (thin.num_rows, thin.passes, thin.weight) == (50, 0, 4)
        curve = thin.gradient(POINTS[:1])
        drawn.append(np.concatenate([curve.value, curve.gradient[0]]))
    mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1) / math.sqrt(60)
    exact = np.concatenate([at.value, at.gradient[0]])
    # The first coordinate's gradient has no part in the likelihood, so it does not vary.
    assert np.all(np.abs(mean - exact) <= 4 * error + 1e-10)
    assert np.all(error[2:] > 0)
    every = whole.thinned(200, rng).gradient(POINTS[:1])
    np.testing.assert_allclose(every.value, at.value, rtol=1e-12)


def test_padding_turns_no_infinity_into_nan():
    def log_likelihood(values, block):
        return jnp.where(block["y"] > 0, -jnp.inf, values["b"] * block["y"])

    rows = {"y": np.array([-1.0, -2.0, 5.0])}
    model = Model.from_log_density(lambda values: -(values["b"] ** 2), log_likelihood, {"b": ()})
    programs = Programs(model.on(rows))
    points = np.array([[2.0]])
    assert Subposterior.of(programs, rows, Fraction(1), BLOCK).value(points, 1) == -np.inf
    finite = {"y": rows["y"][:2]}
    np.testing.assert_allclose(Subposterior.of(programs, finite, Fraction(1), BLOCK).value(points, 1), [-4.0 - 6.0])


def test_blocks_fit_the_cache_and_the_shard(programs):
    rows = rows_of(20)
    for n, most in ((1, 1), (2, 2), (100, 128), (10**7, 2**14)):
        assert block_size(programs, rows, n, 1) == most
    for points in (1, 10, 1000, 10**6):
        size = block_size(programs, rows, 10**7, points)
        assert 64 <= size <= 2**14
        assert size & (size - 1) == 0
    general = Programs(Model(observing(lambda b, y: (dist.Normal(b, 1.0), y))).on({"y": np.ones(20)}))
    assert block_size(general, {"y": np.ones(100)}, 10**7, 1000) < block_size(general, {"y": np.ones(100)}, 10**7, 10)


def observing(site):
    """A model of one parameter b; `site(b, y)` gives the distribution of y and what is observed of it."""

    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        distribution, seen = site(b, y)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("site", distribution, obs=seen)

    return model


ONE_TO_TWO = np.array([1, 2, 1, 2, 1, 1, 1, 1, 2])
OUTSIDE = {
    "labels 1 and 2": (lambda b, y: (dist.Bernoulli(logits=b), y), ONE_TO_TWO, "column 'y' has 3 values outside"),
    "negative counts": (lambda b, y: (dist.Poisson(jnp.exp(b)), y), np.arange(20) - 2, "column 'y' has 2 values"),
    "broken counts": (lambda b, y: (dist.Poisson(jnp.exp(b)), y), np.arange(20) / 2, "column 'y' has 10 values"),
    "large labels": (
        lambda b, y: (dist.Categorical(logits=b * jnp.arange(3.0)), y),
        np.arange(9) % 4,
        "column 'y' has 2 values outside the support",
    ),
    "times below zero": (lambda b, y: (dist.Exponential(jnp.exp(b)), y), -np.ones(1500), "column 'y' has 1,500 values"),
    "what is not a column": (
        lambda b, y: (dist.Bernoulli(logits=b), y - 1),
        np.append(ONE_TO_TWO, 3),
        "observed NumPyro site 'site' has 1 values outside",
    ),
    "several entries of a row": (
        lambda b, y: (dist.Beta(jnp.exp(b), 2.0).expand([2]).to_event(1), y),
        np.array([[0.5, 0.5], [1.5, -0.5], [0.1, 2.0]]),
        "column 'y' has 2 values outside",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_rows_that_no_parameters_can_have_made_are_counted(name):
    site, y, sentence = OUTSIDE[name]
    programs = Programs(Model(observing(site)).on({"y": y}))
    with pytest.raises(EpviError, match=sentence) as error:
        Subposterior.of(programs, {"y": y}, SHARE, BLOCK).refuse_outside()
    assert "\n" not in str(error.value)


def test_rows_that_some_parameters_can_have_made_are_taken():
    sites = {
        "labels": (lambda b, y: (dist.Bernoulli(logits=b), y), np.array([0, 1, 1])),
        "support that depends on b": (lambda b, y: (dist.Uniform(0.0, jnp.exp(b)), y), np.array([0.5, 7.0])),
        "masked": (lambda b, y: (dist.Poisson(jnp.exp(b)).mask(y >= 0), y), np.array([3, 0, 2])),
    }
    for site, y in sites.values():
        programs = Programs(Model(observing(site)).on({"y": y}))
        Subposterior.of(programs, {"y": y}, SHARE, BLOCK).refuse_outside()
        with jax.enable_x64(True):
            counts = programs.outside()({"y": y}, np.ones(len(y)))
        assert sum(int(count) for count in counts.values()) == 0


def test_rows_that_are_masked_may_hold_anything():
    """−1 for a missing count under a mask is a habit that NumPyro allows."""

    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]), numpyro.handlers.mask(mask=y >= 0):
            numpyro.sample("y", dist.Poisson(jnp.exp(b)), obs=y)

    rows = {"y": np.array([3, -1, 2])}
    sub = Subposterior.of(Programs(Model(model).on(rows)), rows, SHARE, BLOCK)
    assert np.isfinite(sub.value(np.zeros((1, 1)), 1))
    sub.refuse_outside()
