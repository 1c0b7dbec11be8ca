"""The small formulas of NVI against their plain forms: the entropy bound, its derivatives, and Newton's method."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

import epvi
from epvi.site.fit.entropy_bound import (
    best_covariances,
    covariance_gradient,
    mean_gradient,
    mean_hessian,
    overlap,
)
from epvi.site.fit.monte_carlo import base_draws, draw_from, with_best_weights
from epvi.site.fit.newton import Tolerances, climb

K, D = 3, 4
STRUCTURES = [epvi.Spherical(), epvi.Diagonal(), epvi.Full()]


def components(structure, seed=0):
    """Random means, packed covariances, and the same covariances as matrices."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(K, D))
    packed = rng.uniform(0.5, 2.0, size=(K, *structure.packed_shape(D)))
    if isinstance(structure, epvi.Full):
        packed = packed @ np.swapaxes(packed, 1, 2) + np.eye(D)
    return means, packed, as_matrices(structure, packed)


def as_matrices(structure, packed):
    if isinstance(structure, epvi.Full):
        return packed
    return np.stack([np.diag(np.broadcast_to(p, (D,))) for p in packed])


def naive_bound(means, matrices):
    k = len(means)
    total = 0.0
    for i in range(k):
        inner = [multivariate_normal.pdf(means[i], means[j], matrices[i] + matrices[j]) for j in range(k)]
        total -= np.log(np.mean(inner)) / k
    return total


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_the_bound_and_its_derivatives_equal_their_plain_forms(structure):
    packing = structure.packing
    means, packed, matrices = components(structure)
    at = overlap(packing, means, packed)
    assert at.bound == pytest.approx(naive_bound(means, matrices), abs=1e-12)
    assert -np.mean(at.logs) == pytest.approx(at.bound, abs=1e-12)

    def of_means(flat):
        return naive_bound(flat.reshape(K, D), matrices)

    np.testing.assert_allclose(mean_gradient(at).ravel(), approx_fprime(means.ravel(), of_means, 1e-6), atol=1e-6)

    def gradient_of_means(flat):
        return mean_gradient(overlap(packing, flat.reshape(K, D), packed)).ravel()

    step = 1e-6
    columns = [
        (gradient_of_means(means.ravel() + step * e) - gradient_of_means(means.ravel() - step * e)) / (2 * step)
        for e in np.eye(K * D)
    ]
    np.testing.assert_allclose(mean_hessian(packing, at), np.stack(columns), atol=1e-7)

    def of_covariances(flat):
        return naive_bound(means, as_matrices(structure, symmetric(structure, flat.reshape(packed.shape))))

    numeric = approx_fprime(packed.ravel(), of_covariances, 1e-6)
    np.testing.assert_allclose(covariance_gradient(packing, at).ravel(), numeric, atol=1e-5)


def symmetric(structure, packed):
    return 0.5 * (packed + np.swapaxes(packed, 1, 2)) if isinstance(structure, epvi.Full) else packed


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_the_bound_equals_the_mixtures_own(structure):
    means, packed, _ = components(structure)
    given = packed[:, 0] if isinstance(structure, epvi.Spherical) else packed
    mixture = epvi.GaussianMixture.from_covariances(means, given)
    assert overlap(structure.packing, means, packed).bound == pytest.approx(float(mixture.entropy_bound()), abs=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_best_covariances_are_a_maximum_of_the_second_bound(structure):
    packing = structure.packing
    means, precisions, _ = components(structure, seed=1)
    found = best_covariances(packing, means, precisions, 1.0 * precisions)

    def second_bound(covariances):
        traces = packing.half_trace(covariances, precisions, D)
        return float(np.mean(traces) + overlap(packing, means, covariances).bound)

    best = second_bound(found)
    rng = np.random.default_rng(0)
    for _ in range(50):
        shift = symmetric(structure, 1e-3 * rng.normal(size=found.shape) * np.abs(found).mean())
        assert second_bound(found + shift) <= best + 1e-12
    # From another start, the same.
    again = best_covariances(packing, means, precisions, 0.3 * found)
    assert second_bound(again) == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_one_component_has_the_laplace_covariance(structure):
    packing = structure.packing
    means, precisions, _ = components(structure)
    found = best_covariances(packing, means[:1], precisions[:1], precisions[:1])
    np.testing.assert_allclose(found, packing.inverse(precisions[:1]), rtol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_curvature_that_is_not_a_maximums_is_guarded_and_said(structure):
    packing = structure.packing
    _, curvature, _ = components(structure)
    curvature[1] *= -1
    guarded, bad = packing.guarded(curvature, 1e-12)
    assert bad.tolist() == [False, True, False]
    np.testing.assert_allclose(guarded[0], curvature[0])
    packing.covariance_root(guarded)  # positive-definite


def rosenbrock(x, active):
    """−Rosenbrock's valley at B points with its derivatives."""
    a, b = x[:, 0], x[:, 1]
    value = -((1 - a) ** 2 + 100 * (b - a**2) ** 2)
    gradient = -np.stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)], axis=1)
    hessian = -np.stack(
        [np.stack([2 - 400 * (b - 3 * a**2), -400 * a], axis=1), np.stack([-400 * a, np.full_like(a, 200.0)], axis=1)],
        axis=1,
    )
    return value, gradient, hessian


def test_newton_climbs_a_curved_valley_from_many_starts_at_once():
    starts = np.array([[-1.2, 1.0], [3.0, -4.0], [0.0, 0.0], [5.0, 5.0]])
    ended = climb(rosenbrock, starts, Tolerances(1e-12, 1e-12))
    assert ended.converged.all()
    np.testing.assert_allclose(ended.points, 1.0, atol=1e-5)


def test_newton_leaves_a_start_that_is_not_finite_and_a_maximum_at_infinity():
    def one_sided(x, active):
        t = x[:, 0]
        value = np.where(t < -5, -np.inf, -np.exp(-t))
        return value, np.exp(-t)[:, None], -np.exp(-t)[:, None, None]

    ended = climb(one_sided, np.array([[-9.0], [0.0]]), Tolerances(0.0, 1e-12), 30)
    assert not ended.converged.any()
    assert ended.points[0, 0] == -9.0
    assert ended.points[1, 0] > 20


def test_learned_weights_are_the_masses_of_separate_modes():
    packing = epvi.Full().packing
    means = np.array([[-6.0, 0.0], [6.0, 1.0], [0.0, 9.0]])
    covariances = np.stack([np.eye(2), np.diag([0.2, 2.0]), 0.5 * np.eye(2)])
    masses = np.array([0.7, 0.25, 0.05])
    truth = epvi.GaussianMixture.from_covariances(means, covariances, masses)
    z = base_draws(np.random.default_rng(0), 64, 2)
    drawn = with_best_weights(
        draw_from(lambda t: np.asarray(truth.log_density(t)) + 3.0, packing, means, covariances, z)
    )
    np.testing.assert_allclose(np.exp(drawn.log_weights), masses, atol=1e-6)
    assert float(drawn.elbo().value) == pytest.approx(3.0, abs=1e-6)
    assert drawn.log_evidence() == pytest.approx(3.0, abs=1e-6)


def test_the_monte_carlo_bound_is_within_its_standard_error():
    # f − log q = cos 2θ + θ for the standard normal q, so that the bound is e⁻².
    packing = epvi.Spherical().packing

    def f(theta):
        return np.cos(2 * theta[:, 0]) + theta[:, 0] - 0.5 * theta[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)

    errors = []
    for seed in range(400):
        z = base_draws(np.random.default_rng(seed), 256, 1)
        estimate = draw_from(f, packing, np.zeros((1, 1)), np.ones((1, 1)), z).elbo()
        errors.append((float(estimate.value) - np.exp(-2)) / float(estimate.standard_error))
    # 400 standardised errors: mean within 4/√400 of 0, sd within 4/√800 of 1.
    assert abs(np.mean(errors)) < 4 / np.sqrt(400)
    assert abs(np.std(errors) - 1) < 4 / np.sqrt(800)
