"""Newton's method for the means of a mixture, against SciPy's BFGS on L1 as it is written."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import epvi
from epvi.site.fit.mean_steps import FirstBound, Placed
from epvi.site.fit.newton import Tolerances

PRECISION = Tolerances(1e-9, 1e-12)
D = 2


def two_hills(theta, xp=np):
    """Two ridges, curved like parabolas, about 12 apart, with different heights."""
    x, y = theta[..., 0], theta[..., 1]
    left = -2.0 * (y - 0.5 * (x + 6) ** 2) ** 2 - 0.5 * (x + 6) ** 2
    right = -2.0 * (y + 0.5 * (x - 6) ** 2) ** 2 - 0.5 * (x - 6) ** 2 - 1.0
    return xp.logaddexp(left, right)


@pytest.fixture(scope="module")
def subposterior():
    model = epvi.Model.from_log_density(
        lambda values: two_hills(values["theta"], jnp), lambda values, rows: 0.0 * rows["x"], {"theta": (D,)}
    )
    return epvi.subposterior(model, {"x": np.zeros(1)}, "1/1")


def naive_l1(means, variances):
    """L1 = (1/K) Σ_k [f(μ_k) − log q_k] with spherical covariances."""
    k = len(means)
    total = 0.0
    for i in range(k):
        s = variances[i] + variances
        normals = np.exp(-0.5 * np.sum((means[i] - means) ** 2, axis=1) / s) / (2 * np.pi * s) ** (D / 2)
        total += float(two_hills(means[i])) - np.log(np.mean(normals))
    return total / k


def maximised(subposterior, means, variances, max_steps=100):
    bound = FirstBound(subposterior, epvi.Spherical().packing, variances[:, None])
    return bound.maximise(Placed.of(means, subposterior.full(means)), PRECISION, max_steps)


@pytest.mark.parametrize(
    ("means", "variances", "interact"),
    [
        # One on each ridge: they do not interact.
        (np.array([[-8.0, 3.0], [7.5, -2.0]]), np.array([0.1, 0.2]), False),
        # All on one ridge.
        (np.array([[-8.0, 3.0], [-6.5, 0.5], [-4.0, 1.0]]), np.array([0.3, 0.5, 0.4]), True),
    ],
)
def test_the_means_maximise_l1(subposterior, means, variances, interact):
    made = maximised(subposterior, means, variances)
    model = FirstBound(subposterior, epvi.Spherical().packing, variances[:, None]).model(made, PRECISION.floor)
    assert len(model.values) == (1 if interact else len(means))

    def minus(flat):
        return -naive_l1(flat.reshape(means.shape), variances)

    near = minimize(minus, made.means.ravel() + 0.01, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(made.means, near.x.reshape(means.shape), atol=1e-4)
    assert -minus(made.means.ravel()) == pytest.approx(-near.fun, abs=1e-8)
    assert naive_l1(made.means, variances) > naive_l1(means, variances) + 1
    np.testing.assert_allclose(made.at.value, two_hills(made.means), atol=1e-12)


def test_l1_never_falls_from_step_to_step(subposterior):
    rng = np.random.default_rng(0)
    placed, variances = Placed.of(*at_points(subposterior, 5 * rng.normal(size=(3, D)))), np.array([0.5, 0.2, 0.1])
    bound = FirstBound(subposterior, epvi.Spherical().packing, variances[:, None])
    values = [naive_l1(placed.means, variances)]
    for _ in range(30):
        placed = bound.maximise(placed, PRECISION, 1)
        values.append(naive_l1(placed.means, variances))
    assert np.all(np.diff(values) > -1e-10)
    assert values[-1] > values[0] + 10


def test_a_mean_alone_takes_the_same_steps_as_beside_others(subposterior):
    """Each mean that does not interact has a trust region of its own."""
    means, variances = np.array([[-9.0, 6.0], [6.2, 0.1]]), np.array([1e-3, 1e-3])
    together = maximised(subposterior, means, variances, 4).means
    # The gradient of L1 has a factor 1/K, which changes neither steps nor ratios.
    alone = [maximised(subposterior, means[i : i + 1], variances[i : i + 1], 4).means[0] for i in range(2)]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_a_mean_without_finite_derivatives_stays(subposterior):
    means, variances = np.array([[np.inf, 0.0], [6.2, 0.1]]), np.array([1e-3, 1e-3])
    at = subposterior.full(np.where(np.isfinite(means), means, 1e200))
    with np.errstate(all="ignore"):
        made = FirstBound(subposterior, epvi.Spherical().packing, variances[:, None]).maximise(
            Placed.of(np.where(np.isfinite(means), means, 1e200), at), PRECISION, 50
        )
    assert made.means[0, 0] == 1e200
    np.testing.assert_allclose(made.means[1], [6.0, 0.0], atol=1e-3)


def at_points(subposterior, means):
    return means, subposterior.full(means)
