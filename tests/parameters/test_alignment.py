"""Exchangeable things: the order nearest to a reference against all orders, relabelled mixtures, and bad groups."""

import itertools
import math

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.stats import multivariate_normal

import epvi
from epvi import EpviError, Parameter, Space
from epvi.parameters import stick_breaking
from epvi.parameters.alignment import Relabelling, nearest, relabelled
from epvi.parameters.one_labelling import OneLabelling

# Three sources with a weight and a place each, and two mixtures with shares of their own.
SOURCES = Space(
    (
        Parameter("noise", (), constraints.positive),
        Parameter("weights", (3,), constraints.real),
        Parameter("places", (3, 2), constraints.unit_interval),
        Parameter("shares", (2, 3), constraints.simplex),
    ),
    (("weights", "places"), ("shares",)),
)


def relabellings():
    """All relabellings of the sources."""
    for three, two in itertools.product(itertools.permutations(range(3)), itertools.permutations(range(2))):
        yield Relabelling(SOURCES, (np.array(three), np.array(two)))


def orders():
    """The same, as coordinates of θ."""
    for three, two in itertools.product(itertools.permutations(range(3)), itertools.permutations(range(2))):
        theta = np.arange(SOURCES.dim)
        parts = [theta[:1], theta[1:4][list(three)], theta[4:10].reshape(3, 2)[list(three)].ravel()]
        yield np.concatenate([*parts, theta[10:].reshape(2, 2)[list(two)].ravel()])


def test_blocks_are_the_coordinates_of_each_thing():
    np.testing.assert_array_equal(SOURCES.blocks(("weights", "places")), [[1, 4, 5], [2, 6, 7], [3, 8, 9]])
    np.testing.assert_array_equal(SOURCES.blocks(("shares",)), [[10, 11], [12, 13]])


def test_a_relabelling_is_found_again():
    rng = np.random.default_rng(0)
    reference, precision = rng.normal(size=SOURCES.dim), rng.uniform(0.5, 2, SOURCES.dim)
    for order in orders():
        theta = reference[order] + 1e-3 * rng.normal(size=SOURCES.dim)
        found = nearest(SOURCES, theta, reference, precision)
        np.testing.assert_array_equal(found.order, np.argsort(order))
        np.testing.assert_array_equal(found.point(theta), theta[found.order])
        np.testing.assert_array_equal(found.inverse().order, order)
    plain = nearest(Space(SOURCES.parameters), theta, reference, precision)
    np.testing.assert_array_equal(plain.order, np.arange(SOURCES.dim))
    assert plain.is_identity


def test_the_order_is_the_nearest_of_all_in_units_of_the_precisions():
    rng = np.random.default_rng(1)
    for _ in range(20):
        theta, reference = rng.normal(size=(2, SOURCES.dim))
        precision = rng.uniform(0.1, 10, SOURCES.dim)
        costs = [np.sum(precision * (theta[order] - reference) ** 2) for order in orders()]
        found = nearest(SOURCES, theta, reference, precision).point(theta)
        np.testing.assert_allclose(np.sum(precision * (found - reference) ** 2), min(costs), rtol=1e-12)


def test_things_that_are_endlessly_far_apart_still_get_an_order():
    theta = np.arange(float(SOURCES.dim))
    far = 1e150 * theta
    found = nearest(SOURCES, theta, far, np.full(SOURCES.dim, 1e150))
    np.testing.assert_array_equal(np.sort(found.order), np.arange(SOURCES.dim))


@pytest.mark.parametrize("structure", naive.STRUCTURES)
def test_a_relabelled_mixture_is_the_mixture_at_relabelled_points(structure):
    rng = np.random.default_rng(2)
    d, listed, moves = SOURCES.dim, list(orders()), list(relabellings())
    mixture = naive.random_mixture(rng, structure, 3, d)
    order, theta = listed[7], rng.normal(size=(5, d))
    moved = relabelled(mixture, [moves[7]] * 3)
    assert moved.structure == mixture.structure
    np.testing.assert_allclose(moved.log_density(theta[:, order]), mixture.log_density(theta), rtol=1e-10)
    own = relabelled(mixture, moves[3:6])
    weights, means, covariances = naive.dense(mixture)
    for point in theta:
        terms = zip(weights, means, covariances, listed[3:6], strict=True)
        density = sum(w * multivariate_normal.pdf(point[np.argsort(o)], m, c) for w, m, c, o in terms)
        np.testing.assert_allclose(own.log_density(point), math.log(density), rtol=1e-10)
    back = relabelled(own, [one.inverse() for one in moves[3:6]])
    np.testing.assert_allclose(back.covariances(), mixture.covariances(), rtol=1e-10, atol=1e-12)


# The components of a mixture, one of them for each category of two simplexes and each column of a matrix.
COMPONENTS = Space(
    (
        Parameter("w", (3,), constraints.simplex),
        Parameter("slopes", (2, 3), constraints.real),
        Parameter("rows", (2, 3), constraints.simplex),
        Parameter("scale", (3,), constraints.positive),
    ),
    (("w", "slopes@1", "rows@1", "scale"),),
)


def test_weights_on_a_simplex_are_permuted_with_their_components():
    rng = np.random.default_rng(3)
    theta = rng.normal(size=COMPONENTS.dim)
    values = COMPONENTS.constrain(theta)
    for units in map(np.array, itertools.permutations(range(3))):
        move = Relabelling(COMPONENTS, (units,))
        moved = COMPONENTS.constrain(move.point(theta))
        for name, axis in (("w", 0), ("slopes", 1), ("rows", 1), ("scale", 0)):
            np.testing.assert_allclose(moved[name], np.take(values[name], units, axis=axis), rtol=1e-12)
        np.testing.assert_allclose(move.inverse().point(move.point(theta)), theta, rtol=1e-10, atol=1e-12)
        found = nearest(COMPONENTS, move.point(theta), theta, rng.uniform(0.5, 2, COMPONENTS.dim))
        np.testing.assert_array_equal(found.units[0], np.argsort(units))


def test_covariances_and_curvatures_on_a_simplex_are_relabelled_by_the_jacobian():
    rng = np.random.default_rng(4)
    d, packing = COMPONENTS.dim, epvi.Full().packing
    theta, root, step = rng.normal(size=d), rng.normal(size=(d, d)), 1e-6
    matrix, gradient = root @ root.T + np.eye(d), rng.normal(size=d)
    move = Relabelling(COMPONENTS, (np.array([2, 0, 1]),))
    jacobian = np.stack([(move.point(theta + e) - move.point(theta - e)) / (2 * step) for e in step * np.eye(d)], 1)
    np.testing.assert_allclose(np.abs(np.linalg.det(jacobian)), 1, rtol=1e-6)
    np.testing.assert_allclose(move.covariance(packing, matrix, theta), jacobian @ matrix @ jacobian.T, rtol=1e-6)
    back = np.linalg.inv(jacobian)
    np.testing.assert_allclose(move.curvature(packing, matrix, theta), back.T @ matrix @ back, rtol=1e-6)
    np.testing.assert_allclose(move.gradient(gradient, theta), back.T @ gradient, rtol=1e-6)
    narrow = epvi.Diagonal().packing
    np.testing.assert_allclose(
        move.covariance(narrow, np.diagonal(matrix), theta),
        np.diagonal(jacobian @ np.diag(np.diagonal(matrix)) @ jacobian.T),
        rtol=1e-6,
    )


def test_stick_breaking_is_that_of_numpyro():
    rng = np.random.default_rng(5)
    theta, transform = rng.normal(size=(4, 5)), Parameter("w", (6,), constraints.simplex).transform
    with jax.enable_x64(True):
        weights = np.asarray(jax.vmap(transform)(theta))
        slope = np.asarray(jax.vmap(jax.jacobian(lambda x: jnp.log(transform(x))))(theta))
    logs = stick_breaking.log_weights(theta)
    np.testing.assert_allclose(np.exp(logs), weights, rtol=1e-12)
    np.testing.assert_allclose(stick_breaking.from_log_weights(logs + 3), theta, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(stick_breaking.slopes(theta), slope, rtol=1e-8, atol=1e-12)
    both = stick_breaking.inverse_slopes(logs) @ slope
    np.testing.assert_allclose(both, np.broadcast_to(np.eye(5), both.shape), atol=1e-10)
    far = np.array([900.0, -900.0, 0.0])
    np.testing.assert_allclose(stick_breaking.from_log_weights(stick_breaking.log_weights(far)), far)


def test_of_all_labellings_of_a_point_one_is_in_the_region():
    rng = np.random.default_rng(6)
    d = COMPONENTS.dim
    region = OneLabelling.around(naive.random_mixture(rng, epvi.Full(), 2, d), COMPONENTS)
    np.testing.assert_allclose(region.log_count, math.log(6))
    moves = [Relabelling(COMPONENTS, (np.array(units),)) for units in itertools.permutations(range(3))]
    for theta in rng.normal(size=(20, d)):
        assert np.sum(region.has(np.stack([move.point(theta) for move in moves]))) == 1


def test_components_that_coincide_are_not_told_apart():
    space = Space((Parameter("mu", (4,), constraints.real),), (("mu",),))
    mixture = epvi.GaussianMixture.from_covariances(np.array([[0.0, 10.0, 0.1, 20.0]]), np.full((1, 4), 0.5), None)
    region = OneLabelling.around(mixture, space)
    np.testing.assert_allclose(region.log_count, math.log(12))
    theta = np.array([[-1.0, 9, 2, 19], [2, 9, -1, 19], [9, 2, -1, 19], [-1, 19, 2, 9]])
    np.testing.assert_array_equal(region.has(theta), [True, True, False, False])


BOUNDS = np.array([0.0, -1.0]), np.array([2.0, 5.0])
LATENT = (
    Parameter("a", (), constraints.real),
    Parameter("b", (2,), constraints.real),
    Parameter("c", (3,), constraints.real),
)
BAD = {
    "unknown": ((("d",),), r"names 'd', which is not a parameter of \(a, b \(2,\), c \(3,\)\)"),
    "scalar": ((("a",),), r"names a: .* leading axes of one length"),
    "nothing": (((),), "leading axes of one length"),
    "two lengths": ((("b", "c"),), r"names b, c: .* leading axes of one length"),
    "two groups": ((("b",), ("b",)), "names b"),
    "twice": ((("b", "b"),), "names b"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_groups_get_one_sentence(name):
    groups, sentence = BAD[name]
    with pytest.raises(EpviError, match=sentence):
        Space(LATENT, groups)


UNALIKE = {
    "zero_sum": ((3,), constraints.zero_sum(1)),
    "lower_cholesky": ((3, 3), constraints.lower_cholesky),
    # As many coordinates as entries, but not one for one.
    "ordered_vector": ((3,), constraints.ordered_vector),
    "corr_cholesky": ((3, 3), constraints.corr_cholesky),
    "bounds of their own": ((2,), constraints.interval(*BOUNDS)),
}


@pytest.mark.parametrize("name", UNALIKE)
def test_supports_that_do_not_treat_entries_alike_are_not_exchangeable(name):
    with pytest.raises(EpviError, match=r"names p: .* supports that treat the entries along it alike"):
        Space((Parameter("p", *UNALIKE[name]),), (("p",),))


def test_supports_that_treat_entries_alike_are_exchangeable():
    alike = [
        Parameter("a", (2, 3), constraints.simplex),
        Parameter("b", (2,), constraints.real_vector),
        Parameter("c", (2, 2), constraints.interval(*BOUNDS)),
        Parameter("d", (2, 2), constraints.interval(BOUNDS[0][:1, None], np.full((2, 1), 3.0))),
        Parameter("e", (2, 3, 3), constraints.corr_cholesky),
    ]
    assert Space(tuple(alike), (("a", "b"), ("c", "d", "e"))).blocks(("c", "d", "e")).shape == (2, 7)
