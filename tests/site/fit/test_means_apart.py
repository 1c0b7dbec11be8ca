"""The compiled Newton steps of the means, against the same steps in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.gaussian.eigen import Eigen
from epvi.site.fit.compiled_steps import Pairs, by_cholesky, by_eigenvalues
from epvi.site.fit.entropy_bound import mean_hessian, overlap
from epvi.site.fit.mean_steps import FirstBound, Placed
from epvi.site.fit.means_apart import bound_hessian, maximise
from epvi.site.fit.newton import Tolerances, damped_steps

PRECISION, SINGLE = Tolerances(1e-9, 1e-12), Tolerances(1e-6, 1e-6, 1e-9)
K, D = 3, 2


def bent(x, y=None):
    """A regression on a product of parameters: curved ridges, and two modes that differ in sign."""
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a * b * x + a, 0.5), obs=y)


@pytest.fixture(scope="module", params=[np.float64, np.float32], ids=str)
def subposterior(request):
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    rows = {"x": x.astype(request.param), "y": (2.0 * x + 1.0 + 0.5 * rng.normal(size=30)).astype(request.param)}
    return epvi.subposterior(bent, rows, "1/2")


@pytest.mark.parametrize("structure", [epvi.Spherical(), epvi.Diagonal(), epvi.Full()], ids=str)
@pytest.mark.parametrize("max_steps", [1, 4, 60])
def test_it_takes_the_steps_of_the_plain_form(subposterior, structure, max_steps):
    means = np.array([[3.0, -1.0], [-2.0, 0.5], [0.2, 4.0]])
    covariances = 1e-4 * np.ones((K, *structure.packed_shape(D)))
    if structure == epvi.Full():
        covariances = 1e-4 * np.broadcast_to(np.eye(D), (K, D, D))
    bound = FirstBound(subposterior, structure.packing, covariances)
    placed = Placed.of(means, subposterior.full(means))
    single = subposterior.rows["x"].dtype == np.float32
    precision = SINGLE if single else PRECISION
    quick, plain = maximise(bound, placed, precision, max_steps), bound.maximise(placed, precision, max_steps)
    # Means that meet may have changed places at the end: the plain form moves them together.
    a, b = (np.argsort(one.means[:, 0]) if max_steps == 60 else np.arange(K) for one in (quick, plain))
    np.testing.assert_allclose(quick.means[a], plain.means[b], atol=1e-3 if single else 1e-7)
    np.testing.assert_allclose(quick.at.value[a], plain.at.value[b], rtol=1e-5 if single else 1e-9)
    if not single and max_steps < 60:
        np.testing.assert_allclose(quick.radii, plain.radii, rtol=1e-6)


def test_it_counts_its_passes_and_reports_them(subposterior):
    means = np.array([[3.0, -1.0], [-2.0, 0.5], [0.2, 4.0]])
    placed, before = Placed.of(means, subposterior.full(means)), subposterior.passes
    maximise(FirstBound(subposterior, epvi.Spherical().packing, np.full((K, 1), 1e-4)), placed, PRECISION, 3)
    # For each step of each of the K means a pass with derivatives and one at least without, and one at the start.
    assert subposterior.passes - before >= 7


def test_means_that_interact_end_at_the_maximum_of_l1(subposterior):
    means = np.array([[1.0, 2.0], [1.1, 1.9], [0.9, 2.1]])
    bound = FirstBound(subposterior, epvi.Spherical().packing, np.full((K, 1), 0.01))
    placed = Placed.of(means, subposterior.full(means))
    quick, plain = maximise(bound, placed, PRECISION, 60), bound.maximise(placed, PRECISION, 60)
    assert bound.value(quick.at.value, quick.means) == pytest.approx(bound.value(plain.at.value, plain.means), abs=1e-4)


@pytest.mark.parametrize("covariances", [0.01, 0.1, 1.0])
def test_means_on_a_ridge_that_interact_reach_a_bound_as_high_as_that_of_joint_steps(subposterior, covariances):
    means = np.random.default_rng(3).standard_normal((K, D))
    bound = FirstBound(subposterior, epvi.Spherical().packing, np.full((K, 1), covariances))
    placed = Placed.of(means, subposterior.full(means))
    quick, plain = maximise(bound, placed, PRECISION, 400), bound.maximise(placed, PRECISION, 400)
    assert bound.value(quick.at.value, quick.means) >= bound.value(plain.at.value, plain.means) - 1e-4


@pytest.mark.parametrize("who", [[0], [2], [0, 1, 2]])
def test_the_bounds_hessian_is_a_block_of_the_plain_one(who):
    rng, packing = np.random.default_rng(1), epvi.Diagonal().packing
    means, covariances = rng.standard_normal((K, D)), 0.5 + rng.random((K, D))
    at = overlap(packing, means, covariances)
    inverses = packing.dense(at.inverses, D)
    shares = np.where(np.eye(K, dtype=bool), 0.0, at.shares)
    with jax.enable_x64(True):
        found = bound_hessian(*map(jnp.asarray, (shares, at.slopes, inverses, np.array(who))))
        logs = Pairs(jnp.asarray(inverses), packing.log_det(covariances[:, None] + covariances[None], D))
        np.testing.assert_allclose(logs.bound(jnp.asarray(means)) + np.log(K), at.bound)
    whole = mean_hessian(packing, at).reshape(K, D, K, D)
    np.testing.assert_allclose(found, whole[np.ix_(who, range(D), who, range(D))], atol=1e-14)


@pytest.mark.parametrize("radius", [0.1, 100.0])
@pytest.mark.parametrize("solve", [by_eigenvalues, functools.partial(by_cholesky, least=0.0)], ids=["eigh", "cholesky"])
@pytest.mark.parametrize("least", [-1.0, 0.5], ids=["indefinite", "falls"])
def test_compiled_steps_are_those_of_newton(radius, solve, least):
    rng = np.random.default_rng(2)
    vectors = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    values, gradient = np.array([least, 1.0, 2.0, 3.0]), rng.standard_normal(4)
    eigen = Eigen(np.abs(values)[None], vectors[None], np.ones((1, 4)), np.array([least > 0]))
    step, promised = damped_steps(gradient[None], eigen, np.array([radius]))
    with jax.enable_x64(True):
        found = solve(*map(jnp.asarray, (gradient, -(vectors * values) @ vectors.T, radius, 1e-12)))
    np.testing.assert_allclose(found.step, step[0], rtol=1e-9)
    np.testing.assert_allclose(found.promised, promised[0], rtol=1e-9)
    np.testing.assert_allclose(found.decrement, 0.5 * np.sum((vectors.T @ gradient) ** 2 / np.abs(values)), rtol=1e-9)


@pytest.mark.parametrize("least", [0.0, 0.1, 0.4, 0.6])
def test_steps_without_eigenvalues_know_whether_the_curvature_is_as_high_as_asked_for(least):
    rng = np.random.default_rng(3)
    vectors = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    values, gradient = np.array([0.5, 1.0, 2.0, 3.0]), rng.standard_normal(4)
    with jax.enable_x64(True):
        found = by_cholesky(*map(jnp.asarray, (gradient, -(vectors * values) @ vectors.T, 100.0, 1e-12, least)))
    assert (float(found.least) >= least) == (least <= 0.5)
    assert float(found.least) <= 0.5 * (1 + 1e-9)
    np.testing.assert_allclose(found.step, vectors @ (vectors.T @ gradient / values), rtol=1e-9)
