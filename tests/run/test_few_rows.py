"""Shards that do not stand alone: what they hand over, and that all of them together still give the posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from sentences import refused

import epvi
from epvi.gaussian.structures import Diagonal, Full
from epvi.ground.status import StatusCode
from epvi.hub.product.first_consensus import near_points
from epvi.wire.envelope import seal
from epvi.wire.shard_fit import pack_fit

NUM_SHARDS, ROWS_EACH = 20, 3
RNG = np.random.default_rng(3)
X = np.c_[np.ones(NUM_SHARDS * ROWS_EACH), RNG.normal(size=(NUM_SHARDS * ROWS_EACH, 3))]
LINEAR_ROWS = {"x": X, "y": RNG.normal(X @ [0.3, -0.5, 0.8, 0.1], 1.0)}


def linear(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(constraints.real, (), (x.shape[1],)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(constraints.real, (), (x.shape[1],)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


# One object each, so that what is compiled for it is compiled once.
LINEAR, LOGISTIC = epvi.Model(linear), epvi.Model(logistic)


def part(m):
    return {name: column[ROWS_EACH * m : ROWS_EACH * (m + 1)] for name, column in LINEAR_ROWS.items()}


def exact_coefficients(x, y):
    """Means and sds of the coefficients under flat priors on w and σ: multivariate t with N − p − 1 degrees."""
    precision = x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    dof = len(y) - x.shape[1] - 1
    scale = np.sum((y - x @ mean) ** 2) / dof
    return mean, np.sqrt(scale * np.diag(np.linalg.inv(precision)) * dof / (dof - 2))


def positive_part(matrix):
    """Its part with positive eigenvalues, in coordinates in which it has a unit diagonal."""
    units = 1 / np.sqrt(np.abs(np.diag(matrix)))
    eigenvalues, vectors = np.linalg.eigh(matrix * np.outer(units, units))
    return (vectors * np.maximum(eigenvalues, 0)) @ vectors.T / np.outer(units, units)


@pytest.fixture(scope="module")
def fit():
    return epvi.fit_shard(LINEAR, part(0), f"1/{NUM_SHARDS}")


@pytest.fixture(scope="module")
def fits():
    return [epvi.fit_shard(LINEAR, part(m), f"{m + 1}/{NUM_SHARDS}") for m in range(NUM_SHARDS)]


def test_a_shard_that_its_rows_do_not_bound_hands_over_slope_and_curvature_at_its_point(fit):
    assert fit.status.code is StatusCode.INFORMATION
    assert fit.status.text.startswith("needs a second round: these rows and their share of the prior do not bound")
    assert not fit.stands_alone
    assert fit.can_be_multiplied
    with jax.enable_x64(True):
        log_density = epvi.subposterior(LINEAR, part(0), f"1/{NUM_SHARDS}").log_density
        gradient = np.asarray(jax.grad(log_density)(jnp.asarray(fit.point)))
        hessian = np.asarray(jax.hessian(log_density)(jnp.asarray(fit.point)))
    precision, natural = positive_part(-hessian), fit.mixture.to_natural()
    np.testing.assert_allclose(natural.precisions[0], precision, atol=1e-6 * np.max(precision))
    np.testing.assert_allclose(natural.eta[0], gradient + precision @ fit.point, atol=1e-5 * np.max(precision))
    # The point is the mode under a stand-in prior as strong as the three rows.
    np.testing.assert_allclose(gradient, ROWS_EACH * fit.point, atol=0.1)


@pytest.mark.slow
def test_the_only_shard_is_refused_where_it_does_not_stand_alone():
    fit = epvi.fit_shard(LINEAR, part(0), "1/1")
    assert fit.status.code in (StatusCode.FLAT_DIRECTION, StatusCode.NO_MODE)
    assert fit.stands_alone
    refused(lambda: epvi.combine([fit]), "shard 1 of 1 did not end well", 500)


def test_information_comes_back_from_a_file(fit, tmp_path):
    again = epvi.load(fit.save(tmp_path / "site-1.epvi"))
    np.testing.assert_array_equal(again.point, fit.point)
    np.testing.assert_array_equal(again.mixture.roots, fit.mixture.roots)
    assert again.status == fit.status
    content = pack_fit(fit)
    for point in (None, np.zeros(3), np.full(5, np.nan)):
        arrays = {name: array for name, array in content.arrays.items() if name != "point"}
        arrays |= {} if point is None else {"point": point}
        path = tmp_path / "bad.epvi"
        path.write_bytes(seal(content._replace(arrays=arrays)))
        refused(lambda path=path: epvi.load(path), "its (status does not say|point is not|arrays? point)", 500)


@pytest.mark.slow
def test_rounds_by_files_end_with_the_posterior_of_all_rows(fits, tmp_path):
    posterior = epvi.combine([epvi.load(fit.save(tmp_path / f"{fit.shard}.epvi")) for fit in fits])
    assert posterior.status.code is StatusCode.NEEDS_ROUNDS
    assert "needs a second round: 20 of 20 shards" in posterior.status.text
    assert posterior.product.log_normaliser is None
    for rounds in range(10):
        draws = posterior.ask(256)
        scores = [epvi.score(LINEAR, part(m), draws, f"{m + 1}/{NUM_SHARDS}") for m in range(NUM_SHARDS)]
        if rounds == 0:
            found = epvi.certify(posterior, scores)
            assert found.verdict == "do not trust"
            assert "not-refined" in found.reasons
        posterior = epvi.refine(epvi.load(posterior.save(tmp_path / "posterior.epvi")), scores)
        if posterior.step.before is None:
            break
    assert posterior.step.before is None
    assert posterior.status.ok, posterior.status
    mean, sd = exact_coefficients(**LINEAR_ROWS)
    summary = posterior.summary()
    assert np.max(np.abs(np.array(summary.mean[:4]) - mean) / sd) < 0.05
    np.testing.assert_allclose(summary.sd[:4], sd, rtol=0.05)


@pytest.mark.slow
def test_one_call_gives_the_same_for_few_rows(fits):
    posterior = epvi.fit(LINEAR, LINEAR_ROWS, NUM_SHARDS, shuffle=False, executor=1)
    # Shards that were tried together and then alone are those that were fitted alone.
    np.testing.assert_array_equal(posterior.fits[4].point, fits[4].point)
    np.testing.assert_allclose(posterior.fits[4].mixture.means, fits[4].mixture.means, rtol=1e-6)
    assert posterior.status.ok, posterior.status
    assert posterior.step.rounds <= 10
    mean, sd = exact_coefficients(**LINEAR_ROWS)
    summary = posterior.summary()
    assert np.max(np.abs(np.array(summary.mean[:4]) - mean) / sd) < 0.05
    np.testing.assert_allclose(summary.sd[:4], sd, rtol=0.05)


def logistic_rows(seed=0, count=200, columns=3):
    rng = np.random.default_rng(seed)
    x = np.c_[np.ones(count), rng.normal(size=(count, columns - 1))]
    return {"x": x, "y": (rng.random(count) < 1 / (1 + np.exp(-x[:, 1]))).astype(np.int32)}


@pytest.mark.slow
def test_a_shard_with_one_label_and_one_that_lacks_a_category_are_bounded_by_the_others():
    rows = logistic_rows()
    order = np.argsort(-rows["y"], kind="stable")
    rows = {name: np.concatenate([column[order[:50]], column[order[50:]]]) for name, column in rows.items()}
    rows["x"][:, 2] = np.arange(200) % 4 == 0
    rows["x"][50:100, 2] = 0
    told = epvi.fit(LOGISTIC, rows, 4, shuffle=False, certify=False, executor=1)
    assert not told.fits[0].stands_alone
    assert not told.fits[1].stands_alone
    assert told.status.code is StatusCode.NEEDS_ROUNDS
    mixed = {name: column[np.r_[0:50, 50 + np.random.default_rng(1).permutation(150)]] for name, column in rows.items()}
    posterior = epvi.fit(LOGISTIC, mixed, 4, shuffle=False, executor=1)
    whole = epvi.fit(LOGISTIC, mixed, 1, executor=1)
    assert not posterior.fits[0].stands_alone
    assert posterior.certificate.reasons == ()
    away = np.abs(np.array(posterior.summary().mean) - np.array(whole.summary().mean)) / np.array(whole.summary().sd)
    assert np.max(away) < 0.05


@pytest.mark.slow
def test_what_no_shard_bounds_is_refused_by_name():
    rows = logistic_rows()
    rows["x"][:, 2] = 0.0
    refused(lambda: epvi.fit(LOGISTIC, rows, 4, executor=1), r"do not bound w\[2\].*give a proper prior", 500)
    rows["x"][:, 2] = 2 * rows["x"][:, 1]
    refused(lambda: epvi.fit(LOGISTIC, rows, 4, executor=1), r"do not bound w\[1\] and w\[2\], moved together", 500)


@pytest.mark.slow
def test_labels_that_are_separated_in_all_rows_are_refused():
    rows = logistic_rows()
    rows["y"] = (rows["x"][:, 1] > 0).astype(np.int32)
    refused(lambda: epvi.fit(LOGISTIC, rows, 4, executor=1), r"do not bound w\[1\].*give a proper prior", 500)


@pytest.mark.parametrize("structure", [Full(), Diagonal()])
def test_curvatures_are_raised_to_positive_definite_ones(structure):
    packing, d = structure.packing, 4
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(d, d))
    matrix = matrix + matrix.T
    curvature = packing.kept(matrix, Full().packing, d)
    raised = packing.dense(packing.raised(curvature, 1e-8), d)
    np.testing.assert_allclose(raised, positive_part(packing.dense(curvature, d)), atol=1e-6)
    assert np.min(np.linalg.eigvalsh(raised)) > 0


def test_the_first_consensus_is_held_within_reach_of_the_points():
    """Slopes that point far away along directions without curvature move it little."""
    rng = np.random.default_rng(0)
    for scatter in (0.1, 3.0):
        points = scatter * rng.normal(size=(4, 5))
        covariances = np.diag([1.0, 1.0, 1e6, 1e6, 1e6])[None]
        mixtures = [epvi.GaussianMixture.from_covariances(rng.normal(size=(1, 5)) * 1e6, covariances) for _ in range(4)]
        held = near_points(mixtures, points)
        centre = np.asarray(held.means[0])
        # Coordinates with equal information in all shards: the mean of the points.
        np.testing.assert_allclose(centre, np.mean(points, axis=0), rtol=1e-6)
        product = epvi.multiply([*mixtures, held], epvi.Exact()).mixture
        spread = np.sqrt(np.mean(np.sum((points - centre) ** 2, axis=1)))
        reached = np.linalg.norm(np.asarray(product.means[0]) - centre)
        assert 0.2 * max(1.0, 2 * spread) < reached <= max(1.0, 2 * spread)
        assert np.max(np.asarray(product.sd())) <= 1
