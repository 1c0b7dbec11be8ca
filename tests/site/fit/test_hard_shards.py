"""Shards that cannot be fitted: each is refused in one sentence that names what is wrong and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import ShapeDtypeStruct, lax, pure_callback
from numpyro.distributions import constraints

import epvi
from epvi.ground.seeds import SeedStream
from epvi.models import logistic, simulate_logistic
from epvi.site.rows.split import split_evenly

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = (RNG.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)


def flat_logistic(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(constraints.real, (), (x.shape[1],)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def proper_logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


# One object each, so that what is compiled for it is compiled once.
FLAT, PROPER = epvi.Model(flat_logistic), epvi.Model(proper_logistic)


def one_sentence(error):
    text = str(error.value)
    assert len(text) < 500
    assert "\n" not in text
    return text


def test_a_flat_prior_is_fine_where_the_rows_bound_everything():
    fit = epvi.fit_shard(FLAT, {"x": X, "y": Y}, "1/1")
    assert fit.status.ok, fit.status


@pytest.mark.parametrize("merge", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_separable_rows_under_a_flat_prior_have_a_flat_direction(merge):
    separable = (X[:, 0] > 0).astype(int)
    inference = epvi.NVI(2, epvi.Full(), merge=merge)
    fit = epvi.fit_shard(FLAT, {"x": X, "y": separable}, "1/1", inference=inference)
    assert not fit.status.ok
    assert fit.status.text.startswith("flat direction: these rows and their share of the prior do not bound w[0]")
    with pytest.raises(epvi.EpviError, match="shard 1 of 1 did not end well: flat direction"):
        epvi.combine([fit])
    # A proper prior bounds it.
    assert epvi.fit_shard(PROPER, {"x": X, "y": separable}, "1/1", inference=inference).status.ok


@pytest.mark.parametrize(
    "structure",
    [*(pytest.param(s, marks=pytest.mark.slow) for s in (epvi.Spherical(), epvi.Diagonal())), epvi.Full()],
    ids=str,
)
def test_a_column_that_is_another_one_twice_has_a_flat_direction(structure):
    x = np.column_stack([X, 2 * X[:, 0]])
    fit = epvi.fit_shard(FLAT, {"x": x, "y": Y}, "1/1", inference=epvi.NVI(2, structure))
    assert not fit.status.ok
    assert "flat direction" in fit.status.text


def test_a_constant_column_is_named_where_nothing_bounds_it_and_accepted_where_the_prior_does():
    x = np.column_stack([X, np.zeros(60)])
    fit = epvi.fit_shard(FLAT, {"x": x, "y": Y}, "1/1")
    assert not fit.status.ok
    assert "do not bound w[2] (constant here: x[:, 2])" in fit.status.text
    fit = epvi.fit_shard(PROPER, {"x": x, "y": Y}, "1/1")
    assert fit.status.ok
    assert float(fit.mixture.sd()[2]) == pytest.approx(2.0, rel=1e-3)
    intercept = np.column_stack([np.ones(60), X])
    assert epvi.fit_shard(FLAT, {"x": intercept, "y": Y}, "1/1").status.ok


def test_fewer_rows_than_coefficients_under_a_flat_prior():
    rows = {"x": np.random.default_rng(1).normal(size=(3, 5)), "y": np.array([0, 1, 1])}
    fit = epvi.fit_shard(FLAT, rows, "1/1")
    assert not fit.status.ok
    assert "flat direction" in fit.status.text


def test_a_likelihood_of_zero_at_every_start():
    def uniform(y):
        width = numpyro.sample("width", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("y", jnp.where(y < width, -jnp.log(width), -jnp.inf))

    with pytest.raises(epvi.EpviError, match="minus infinity at all 16 starts") as error:
        epvi.fit_shard(uniform, {"y": np.linspace(1e9, 2e9, 20)}, "1/1")
    one_sentence(error)


def test_a_density_that_is_nan():
    def broken(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("y", jnp.sqrt(-1.0 - mu**2) * y)

    with pytest.raises(epvi.EpviError, match="not finite at all 16 starts") as error:
        epvi.fit_shard(broken, {"y": np.ones(5)}, "1/1")
    one_sentence(error)


def looped(mu, y):
    """A while loop, which JAX cannot differentiate backwards."""
    return lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] * mu), (0, y))[1]


def called(mu, y):
    """A call to Python, which JAX cannot differentiate at all."""
    shape = ShapeDtypeStruct(y.shape, y.dtype)
    return pure_callback(lambda m, v: np.asarray(m * v, v.dtype), shape, mu, y, vmap_method="broadcast_all")


@pytest.mark.parametrize("inner", [looped, called])
def test_a_density_without_derivatives(inner):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("y", -0.5 * (y - inner(mu, y)) ** 2)

    with pytest.raises(epvi.EpviError, match="cannot be differentiated twice") as error:
        epvi.fit_shard(model, {"y": np.ones(5)}, "1/1")
    one_sentence(error)


def test_a_density_in_steps_is_flat():
    def model(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("y", -0.5 * (y - jnp.floor(mu)) ** 2)

    fit = epvi.fit_shard(model, {"y": np.ones(5)}, "1/1")
    assert not fit.status.ok
    assert "flat direction" in fit.status.text


@pytest.mark.parametrize("labels", [Y + 1, 2 * Y - 1, Y + 0.5])
def test_labels_outside_the_support_are_counted(labels):
    wrong = int(np.sum((labels != 0) & (labels != 1)))
    with pytest.raises(epvi.EpviError, match=f"column 'y' has {wrong} values outside the support") as error:
        epvi.fit_shard(PROPER, {"x": X, "y": labels}, "1/1")
    one_sentence(error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_in_different_units_are_no_flat_direction(dtype):
    units = np.array([1e4 if dtype == np.float32 else 1e7, 1.0])
    y = X.sum(axis=1) + 0.1 * np.random.default_rng(1).normal(size=60)
    rows = {"x": (X * units).astype(dtype), "y": y.astype(dtype)}

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    fit = epvi.fit_shard(model, rows, "1/1")
    assert fit.status.ok, fit.status
    truth = np.linalg.inv((X * units).T @ (X * units) + np.eye(2) / 100)
    np.testing.assert_allclose(fit.mixture.sd(), np.sqrt(np.diag(truth)), rtol=1e-3)


def test_a_density_without_a_mode_needs_other_shards():
    """One group of five in a shard: the others' spread can shrink to nothing, and the density grows without end."""

    def varying(x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 5):
            a = numpyro.sample("a", dist.Normal(mu, s))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a[x], 0.5), obs=y)

    y = 0.5 * np.random.default_rng(1).normal(size=60)
    fit = epvi.fit_shard(varying, {"x": np.zeros(60, int), "y": y}, "1/5")
    assert not fit.stands_alone
    assert fit.status.text.startswith("needs a second round: ")
    assert "no start converged to a mode" in fit.status.text or "do not bound" in fit.status.text


def test_a_mixture_model_with_far_apart_scales_is_found():
    """Offsets of 10,000 and scales of 0.001: starts near the origin still get there."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1e5))
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 10.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    y = 1e4 + 1e-3 * np.random.default_rng(1).normal(size=200)
    fit = epvi.fit_shard(model, {"y": y}, "1/1")
    assert fit.status.ok, fit.status
    assert float(fit.mixture.mean()[0]) == pytest.approx(y.mean(), abs=1e-6)
    assert float(fit.mixture.sd()[0]) == pytest.approx(y.std() / np.sqrt(200), rel=0.05)


@pytest.mark.slow
def test_a_small_shard_whose_components_run_off_keeps_its_modes():
    # Forty rows for nine parameters: components that split from the mode find no curvature where they go.
    rows, _ = simulate_logistic(2000, 8, condition=80, seed=0)
    key = jax.random.fold_in(jax.random.key(0), SeedStream.SPLIT)
    part = split_evenly(2000, 50, shuffle=True, key=key).shards[8]
    fit = epvi.fit_shard(logistic, {name: column[part] for name, column in rows.items()}, "9/50")
    assert fit.status.ok


def curved_ridge(y):
    a = numpyro.sample("a", dist.Normal(3.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 30.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(b - a**2, 0.01), obs=y)


def test_a_mode_at_the_end_of_a_long_curved_ridge_is_reached():
    # b = a² to 0.002, so that steps are short, and along it the priors' ½(a − 3)² + ½(b/30)².
    fit = epvi.fit_shard(curved_ridge, {"y": np.linspace(-0.01, 0.01, 20)}, "1/1", inference=epvi.NVI(1, num_starts=4))
    assert fit.status.ok, fit.status
    (a,) = (root.real for root in np.roots([2 / 900, 0, 1, -3]) if abs(root.imag) < 1e-9)
    np.testing.assert_allclose(np.asarray(fit.mixture.means)[0], [a, a**2], rtol=1e-4)
