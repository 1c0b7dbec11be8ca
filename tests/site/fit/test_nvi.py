"""Local inference: the paper's method against its plain transliteration, and what the defaults do for products."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize

import epvi

ONE_ROW = {"x": np.zeros(1)}


@functools.cache
def density_model(f, d):
    """A model whose subposterior is exp f, in one row that says nothing; one object, so that it is compiled once."""
    return epvi.Model.from_log_density(
        lambda values: f(values["theta"]), lambda values, rows: 0.0 * rows["x"], {"theta": (d,)}
    )


def fit_one(f, d, inference):
    return epvi.fit_shard(density_model(f, d), ONE_ROW, "1/1", inference=inference)


# A skewed density of three parameters: x and y of a small logistic regression with one label turned.
X = np.array(
    [[1.0, 0.3, -0.5], [1.0, -1.2, 0.4], [1.0, 0.8, 1.5], [1.0, 2.0, -0.7], [1.0, -0.4, -1.1], [1.0, 0.1, 0.9]]
)
Y = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])


def skewed(theta):
    logits = X @ theta
    return jnp.sum(Y * logits - jnp.logaddexp(0.0, logits)) - 0.25 * jnp.sum(theta**2)


def skewed_numpy(theta):
    logits = X @ theta
    p = 1 / (1 + np.exp(-logits))
    value = np.sum(Y * logits - np.logaddexp(0.0, logits)) - 0.25 * theta @ theta
    gradient = X.T @ (Y - p) - 0.5 * theta
    hessian = -(X.T * (p * (1 - p))) @ X - 0.5 * np.eye(3)
    return value, gradient, hessian


def transliterated(means, variances, sweeps):
    """L1 and L2 of the paper as they are written, with SciPy's optimisers and numerical gradients of the entropy."""
    k, d = means.shape

    def log_q(mu, var):
        total = 0.0
        for i in range(k):
            s = var[i] + var
            normals = np.exp(-0.5 * np.sum((mu[i] - mu) ** 2, axis=1) / s) * (2 * np.pi * s) ** (-d / 2)
            total += np.log(np.mean(normals))
        return total / k

    for _ in range(sweeps):

        def minus_l1(flat, variances=variances):
            mu = flat.reshape(k, d)
            return -(np.mean([skewed_numpy(m)[0] for m in mu]) - log_q(mu, variances))

        means = minimize(minus_l1, means.ravel(), method="BFGS", options={"gtol": 1e-7}).x.reshape(k, d)
        traces = np.array([np.trace(skewed_numpy(m)[2]) for m in means])

        def minus_l2(log_variances, means=means, traces=traces):
            return -(np.mean(0.5 * np.exp(log_variances) * traces) - log_q(means, np.exp(log_variances)))

        variances = np.exp(minimize(minus_l2, np.log(variances), method="BFGS", options={"gtol": 1e-9}).x)
    bound = np.mean([skewed_numpy(m)[0] for m in means] + 0.5 * variances * traces) - log_q(means, variances)
    return means, variances, bound


def test_without_merging_it_finds_the_papers_optimum():
    inference = epvi.NVI(3, epvi.Spherical(), merge=False, tolerance=1e-9, max_sweeps=400)
    fit = fit_one(skewed, 3, inference)
    assert fit.status.ok, fit.status
    # From a start beside it (the collapsed saddle draws in starts that are far away), so that it has to come back.
    rng = np.random.default_rng(1)
    start = np.asarray(fit.mixture.means) + 0.1 * rng.normal(size=(3, 3))
    means, variances, bound = transliterated(start, 1.1 * fit.mixture.covariances(), 60)
    np.testing.assert_allclose(fit.mixture.means, means, atol=1e-4)
    np.testing.assert_allclose(fit.mixture.covariances(), variances, atol=1e-4)
    assert fit.history[-1] == pytest.approx(bound, abs=1e-5)


def test_without_merging_weights_are_equal_and_the_bound_never_falls():
    fit = fit_one(skewed, 3, epvi.NVI(4, epvi.Diagonal(), merge=False, tolerance=1e-7, max_sweeps=30))
    np.testing.assert_allclose(fit.mixture.weights, 0.25)
    # The first sweeps may leave the collapsed saddle; from then on the bound rises or stands.
    assert np.all(np.diff(fit.history[3:]) > -1e-6)


def test_the_bound_splits_a_gaussian_in_two():
    """Right moments, wrong shape: on N(0, 1) two components sit at ±0.75 with sd 0.67."""
    fit = fit_one(lambda t: -0.5 * jnp.sum(t**2), 1, epvi.NVI(2, epvi.Spherical(), merge=False, tolerance=1e-8))
    np.testing.assert_allclose(np.sort(np.asarray(fit.mixture.means)[:, 0]), [-0.746, 0.746], atol=2e-3)
    np.testing.assert_allclose(np.sqrt(fit.mixture.covariances()), 0.666, atol=2e-3)
    assert float(fit.mixture.sd()[0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("structure", [epvi.Spherical(), epvi.Diagonal(), epvi.Full()], ids=str)
def test_one_component_is_the_laplace_approximation(structure):
    fit = fit_one(skewed, 3, epvi.NVI(1, structure))
    mode = minimize(lambda t: -skewed_numpy(t)[0], np.zeros(3), jac=lambda t: -skewed_numpy(t)[1], tol=1e-12).x
    precision = -skewed_numpy(mode)[2]
    # Climbs stop 1e-9 nats below the mode, which is 4.5e-5 standard deviations from it.
    np.testing.assert_allclose(np.asarray(fit.mixture.means)[0], mode, atol=5e-5)
    expected = {
        "spherical": 1 / np.mean(np.diag(precision)),
        "diagonal": 1 / np.diag(precision),
        "full": np.linalg.inv(precision),
    }[structure.name]
    np.testing.assert_allclose(fit.mixture.covariances()[0], expected, atol=1e-5)


def test_the_monte_carlo_bound_is_below_the_evidence_by_the_divergence():
    fit = fit_one(skewed, 3, epvi.NVI(1, epvi.Full(), num_draws=4000))
    axis = np.linspace(-9, 9, 61)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    logits = grid @ X.T
    f = np.sum(Y * logits - np.logaddexp(0.0, logits), axis=1) - 0.25 * np.sum(grid**2, axis=1)
    log_q = np.asarray(fit.mixture.log_density(grid))
    cell = (axis[1] - axis[0]) ** 3
    truth = np.sum(np.exp(log_q) * (f - log_q)) * cell
    assert abs(float(fit.elbo.value) - truth) < 4 * float(fit.elbo.standard_error)
    assert truth < np.log(np.sum(np.exp(f)) * cell)


def gaussian_shards(d=1):
    """A linear regression with known noise: every subposterior is exactly Gaussian."""
    rng = np.random.default_rng(0)
    # The same rows in every shard (but for 1e-9, or they would be refused): there split components do most harm.
    x = np.tile(rng.normal(size=(20, d)), (20, 1))
    y = x @ np.ones(d) + np.tile(rng.normal(size=20), 20) + 1e-9 * np.repeat(np.arange(20), 20)
    sd = np.sqrt(np.diag(np.linalg.inv(x.T @ x + np.eye(d) / 100)))

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return epvi.Model(model), {"x": x, "y": y}, sd


def fits_of(model, rows, num_shards, inference, seed=0):
    """Every shard in this process, which is quicker than workers for small ones."""
    model = model if isinstance(model, epvi.Model) else epvi.Model(model)
    n = len(next(iter(rows.values())))
    parts = np.array_split(np.arange(n), num_shards)
    return [
        epvi.fit_shard(
            model,
            {name: column[part] for name, column in rows.items()},
            f"{m}/{num_shards}",
            inference=inference,
            seed=seed,
        )
        for m, part in enumerate(parts, start=1)
    ]


@pytest.mark.parametrize("d", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_twenty_gaussian_shards_multiply_to_the_truth_by_default(d):
    model, rows, sd = gaussian_shards(d)
    merged = epvi.combine(fits_of(model, rows, 20, None))
    np.testing.assert_allclose(merged.mixture.sd() / sd, 1.0, atol=0.02)
    assert all(fit.mixture.num_components == 1 for fit in merged.fits)


@pytest.mark.slow
def test_twenty_gaussian_shards_do_not_multiply_to_the_truth_without_merging():
    model, rows, sd = gaussian_shards()
    kept = epvi.combine(fits_of(model, rows, 20, epvi.NVI(2, epvi.Full(), merge=False)))
    ratio = kept.mixture.sd() / sd
    assert np.max(np.abs(ratio - 1)) > 0.5, ratio


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 3), marks=pytest.mark.slow)])
def test_modes_of_three_to_one_keep_their_masses_in_eight_shards(seeds):
    share = 3 ** (1 / 8) / (1 + 3 ** (1 / 8))

    def f(theta):
        high = jnp.log(share) - 2.0 * jnp.sum((theta - 3.0) ** 2)
        low = jnp.log1p(-share) - 2.0 * jnp.sum((theta + 3.0) ** 2)
        return jnp.logaddexp(high, low)

    # One row per shard, each with the same two modes; skewed ones, so that weights are not exact by construction.
    def log_likelihood(values, rows):
        theta = values["theta"]
        return (f(theta) - 0.02 * jnp.sum(theta**4) / 8) * rows["x"]

    model = epvi.Model.from_log_density(lambda values: 0.0, log_likelihood, {"theta": (2,)})
    for seed in seeds:
        posterior = epvi.combine(fits_of(model, {"x": 1 + 1e-9 * np.arange(8)}, 8, epvi.NVI(4), seed=seed), seed=seed)
        log_density = np.asarray(posterior.mixture.log_density(np.zeros((1, 2))))
        assert np.isfinite(log_density).all()
        weights, means = np.asarray(posterior.mixture.weights), np.asarray(posterior.mixture.means)
        high = np.sum(weights[means[:, 0] > 0])
        axis = np.linspace(-7, 7, 561)
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        a = np.log(share) - 2 * np.sum((grid - 3) ** 2, axis=1)
        b = np.log1p(-share) - 2 * np.sum((grid + 3) ** 2, axis=1)
        density = np.exp(8 * np.logaddexp(a, b) - 0.02 * np.sum(grid**4, axis=1))
        truth = np.sum(density[grid.sum(axis=1) > 0]) / np.sum(density)
        assert truth == pytest.approx(0.75, abs=0.01)
        assert abs(high - truth) < 0.05


def test_both_modes_of_a_mixture_model_are_kept_with_the_right_mass():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            parts = dist.Categorical(probs=jnp.array([0.5, 0.5]))
            numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(mu, 1.0)), obs=y)

    rng = np.random.default_rng(2)
    y = np.where(rng.random(400) < 0.5, -1.5, 1.5) + rng.normal(size=400)
    posterior = epvi.combine(fits_of(epvi.Model(model, exchangeable=[]), {"y": y}, 8, None))
    weights, means = np.asarray(posterior.mixture.weights), np.asarray(posterior.mixture.means)
    assert abs(np.sum(weights[means[:, 0] > means[:, 1]]) - 0.5) < 0.05
    assert np.sum(weights[abs(means[:, 0] - means[:, 1]) > 2]) > 0.99


@pytest.mark.parametrize(
    "structure", [pytest.param(epvi.Spherical(), marks=pytest.mark.slow), epvi.Diagonal()], ids=str
)
# Too many for the second derivatives of two points together, and of one.
@pytest.mark.parametrize("d", [450, pytest.param(900, marks=pytest.mark.slow)])
def test_many_parameters_are_fitted_by_first_derivatives(structure, d):
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.5, 2.0, size=d)
    at = rng.normal(size=d)
    fit = fit_one(lambda t: -0.5 * jnp.sum(((t - at) / scale) ** 2), d, epvi.NVI(2, structure, num_draws=16))
    assert fit.status.ok, fit.status
    assert fit.mixture.num_components == 1
    np.testing.assert_allclose(np.asarray(fit.mixture.means)[0], at, atol=1e-2)
    if structure == epvi.Diagonal():
        np.testing.assert_allclose(fit.mixture.covariances()[0], scale**2, rtol=1e-5)


@pytest.mark.slow
def test_spheres_along_a_ridge_are_kept():
    precision = np.linalg.inv(np.array([[1.0, 0.999], [0.999, 1.0]]))
    fits = [
        fit_one(lambda t: -0.5 * t @ (precision @ t), 2, epvi.NVI(k, epvi.Spherical(), num_draws=1000)) for k in (1, 4)
    ]
    assert [fit.mixture.num_components for fit in fits] == [1, 4]
    one, four = (fit.elbo for fit in fits)
    assert float(four.value) > float(one.value) + 2 * np.hypot(float(one.standard_error), float(four.standard_error))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_components": 0}, "num_components is 0"),
        ({"covariance": "full"}, "covariance is 'full'"),
        ({"covariance": epvi.Full}, "pass Spherical"),
        ({"merge": 1}, "merge is 1"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"num_draws": 2}, "num_draws is 2"),
        ({"max_sweeps": 0.5}, "max_sweeps is 0.5"),
    ],
)
def test_bad_settings_are_refused(settings, said, untyped):
    with pytest.raises(epvi.EpviError, match=said):
        epvi.NVI(**settings)
