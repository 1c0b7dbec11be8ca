"""Likelihoods with group effects integrated out, against closed forms and fine quadrature; effects given the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import multivariate_normal
from some_groups import logistic_groups, normal_groups, rows_of_groups, slopes

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.conditional import prepared
from epvi.site.derivatives.group_effects import EffectSearch
from epvi.site.derivatives.integral import log_integrals, nodes_of
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.rows.bundles import bundle, size_of_bundles
from epvi.site.tasks.effects import effects_given

G = 21


def integrated(model, rows):
    model = epvi.Model(model)
    found = EffectSearch(model.on(rows)).find(rows)
    counts = np.bincount(found.codes)
    made = bundle(found.codes, np.arange(len(found.codes)), size_of_bundles(counts[counts > 0]))
    columns = made.columns(rows)
    return IntegratedModel(model, found.effects).on(columns), columns


def values(target, columns, phi):
    with jax.enable_x64(True), promotion_allowed():
        return np.asarray(jax.jit(target.log_likelihood)(jnp.asarray(phi), columns))


@pytest.fixture(scope="module")
def normal():
    rows, _ = rows_of_groups(150, G, binary=False)
    rows = {"g": rows["g"], "y": rows["y"]}
    return rows, *integrated(normal_groups(G), rows)


def exact_normal(rows, phi):
    """The log likelihood of all rows: jointly normal, with equal covariances tau² within a group."""
    mu, tau = phi[0], np.exp(phi[1])
    same = rows["g"][:, None] == rows["g"]
    return multivariate_normal(np.full(len(same), mu), 0.49 * np.eye(len(same)) + tau**2 * same).logpdf(rows["y"])


def test_normal_groups_are_exact(normal):
    rows, target, columns = normal
    for phi in ([0.3, -0.2], [-1.0, 1.0], [2.0, -2.5]):
        np.testing.assert_allclose(np.sum(values(target, columns, phi)), exact_normal(rows, phi), rtol=1e-10)


def test_derivatives_are_those_of_the_integral(normal):
    rows, target, columns = normal
    phi, step = np.array([0.3, -0.2]), 1e-4
    with jax.enable_x64(True), promotion_allowed():
        total = jax.jit(lambda phi: jnp.sum(target.log_likelihood(phi, columns)))
        gradient, hessian = np.asarray(jax.grad(total)(phi)), np.asarray(jax.hessian(total)(phi))
    axes = step * np.eye(2)
    numeric = [(exact_normal(rows, phi + h) - exact_normal(rows, phi - h)) / (2 * step) for h in axes]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6)
    at = exact_normal(rows, phi)
    second = [(exact_normal(rows, phi + h) - 2 * at + exact_normal(rows, phi - h)) / step**2 for h in axes]
    np.testing.assert_allclose(np.diag(hessian), second, rtol=1e-4)


def test_the_prior_of_the_shared_parameters(normal):
    rows, target, _ = normal
    base = epvi.Model(normal_groups(G)).on(rows)
    theta = np.concatenate([[0.3, -0.2], np.linspace(-1, 1, G)])
    tau = np.exp(-0.2)
    effects = np.sum(-0.5 * ((theta[2:] - 0.3) / tau) ** 2 - np.log(tau) - 0.5 * np.log(2 * np.pi))
    with jax.enable_x64(True), promotion_allowed():
        np.testing.assert_allclose(target.log_prior(theta[:2]), base.log_prior(theta) - effects, rtol=1e-12)


def fine(rows, phi, tau):
    """Log integrals of the logistic groups, by a fine grid."""
    total = 0.0
    z = np.linspace(-8, 8, 4001)
    for level in np.unique(rows["g"]):
        own = rows["g"] == level
        eta = (rows["x"][own] @ phi[:2])[:, None] + phi[2] + tau * z
        log = np.sum(rows["y"][own][:, None] * eta - np.logaddexp(0, eta), axis=0) - 0.5 * z**2
        total += np.log(np.trapezoid(np.exp(log - log.max()), z)) + log.max() - 0.5 * np.log(2 * np.pi)
    return total


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("sizes", ["even", "heavy"])
def test_logistic_groups_against_fine_quadrature(centred, sizes):
    rows, _ = rows_of_groups(300, G, seed=1)
    if sizes == "heavy":
        # Half of the rows in one group, and many groups with a single row; some levels have none.
        rows["g"] = np.concatenate([np.zeros(150, int), np.repeat([3, 5], 68), np.arange(7, G)])[:300]
        rows["g"] = np.resize(rows["g"], 300)
    target, columns = integrated(logistic_groups(G, centred=centred), rows)
    for phi in ([0.4, -0.1, 0.3, np.log(0.8)], [0.0, 0.5, -1.0, np.log(1.5)]):
        found = np.sum(values(target, columns, phi))
        np.testing.assert_allclose(found, fine(rows, phi, np.exp(phi[3])), atol=2e-3)


@pytest.mark.parametrize("together", [False, True])
def test_two_effects_per_level_are_exact_for_normal_rows(together):
    rows, _ = rows_of_groups(80, G, binary=False)
    target, columns = integrated(slopes(G, together=together), rows)
    phi = np.array([-0.3, 0.2, *([0.4] if together else [])])
    tau, rho = np.exp(phi[:2]), np.tanh(phi[2]) if together else 0.0
    within = np.outer(tau, tau) * np.array([[1, rho], [rho, 1]])
    design = np.stack([np.ones(80), rows["x"][:, 0]], axis=1)
    same = rows["g"][:, None] == rows["g"]
    mean = np.zeros(80) if together else 0.3 - 0.2 * rows["x"][:, 0]
    exact = multivariate_normal(mean, 0.25 * np.eye(80) + same * (design @ within @ design.T)).logpdf(rows["y"])
    np.testing.assert_allclose(np.sum(values(target, columns, phi)), exact, rtol=1e-9)


def test_effects_given_the_rest(normal):
    rows, target, columns = normal
    phi = np.array([0.3, -0.2])
    made = by_level(effects_given(target, columns, phi[None], np.zeros(0, int), phi[None]))
    counts = np.bincount(rows["g"], minlength=G)
    sums = np.bincount(rows["g"], rows["y"], minlength=G)

    def exact(phi):
        precision = counts / 0.49 + np.exp(-2 * phi[1])
        return (sums / 0.49 + phi[0] * np.exp(-2 * phi[1])) / precision, -0.5 * np.log(precision)

    mean, root = exact(phi)
    np.testing.assert_allclose(made["mean"][0, :, 0], mean, rtol=1e-8)
    np.testing.assert_allclose(made["root"][0, :, 0], root, rtol=1e-7, atol=1e-9)
    for i, step in enumerate(1e-5 * np.eye(2)):
        slopes_of = [(a - b) / 2e-5 for a, b in zip(exact(phi + step), exact(phi - step), strict=True)]
        np.testing.assert_allclose(made["slopes"][0][:, 0, i], slopes_of[0], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(made["slopes"][1][:, 0, i], slopes_of[1], rtol=1e-4, atol=1e-7)
    several = np.random.default_rng(0).normal(size=(70, 2))
    made = by_level(effects_given(target, columns, several, np.zeros(0, int), several[:2]))
    wanted = [exact(one) for one in several]
    np.testing.assert_allclose(made["mean"][..., 0], [one for one, _ in wanted], rtol=1e-8)
    np.testing.assert_allclose(made["root"][..., 0], [one for _, one in wanted], rtol=1e-7, atol=1e-9)
    assert made["slopes"] is None


def by_level(made):
    order = np.argsort(made.levels)
    np.testing.assert_array_equal(made.levels[order], np.arange(G))
    slopes = None if made.slopes is None else [one[order] for one in made.slopes]
    return {"mean": made.mean[:, order], "root": made.root[:, order], "slopes": slopes}


def test_levels_without_rows_have_their_prior():
    rows, _ = rows_of_groups(150, G, binary=False)
    rows = {"g": np.where(rows["g"] == 4, 5, rows["g"]), "y": rows["y"]}
    target, columns = integrated(normal_groups(G), rows)
    made = by_level(effects_given(target, columns, np.array([[0.3, -0.2]]), np.array([4]), np.array([[0.3, -0.2]])))
    np.testing.assert_allclose([made["mean"][0, 4, 0], made["root"][0, 4, 0]], [0.3, -0.2], atol=1e-9)
    np.testing.assert_allclose(made["slopes"][0][4, 0], [1.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(made["slopes"][1][4, 0], [0.0, 1.0], atol=1e-7)


def test_integrals_near_a_known_point(normal):
    _, target, columns = normal
    near = prepared(target, columns, np.array([0.3, -0.2]))
    phi = [0.35, -0.1]
    np.testing.assert_allclose(values(target, near, phi), values(target, columns, phi), rtol=1e-6)


# How many nodes count for effects that are log gamma variables of these shapes, whose skewness is about -shape^(-1/2).
@pytest.mark.parametrize(
    ("shapes", "used"),
    [((400, 900, 100), 5), ((400, 15), 7), ((400, 8), 9), (199 * (400,) + (40,), 5), (19 * (400,) + (8,), 7)],
)
def test_the_sum_of_errors_decides_how_many_nodes_there_are(shapes, used):
    shapes = np.array(shapes, float)

    def joint(z):
        return shapes * z[:, 0] - jnp.exp(z[:, 0])

    def prior(z):
        return -0.5 * z[:, 0] ** 2

    with jax.enable_x64(True), promotion_allowed():
        start = jnp.zeros((len(shapes), 1))
        nodes = nodes_of(joint, prior, start, np.ones(len(shapes), bool))
        found = np.asarray(log_integrals(joint, nodes))
        without = nodes_of(joint, prior, start, shapes > 50)
    assert np.mean(np.abs(found - gammaln(shapes))) < 1e-4
    assert int(nodes.used) == used
    assert int(without.used) == 5
