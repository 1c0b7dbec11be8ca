"""Exchangeable things: the order nearest to a reference against all orders, relabelled mixtures, and bad groups."""

import itertools
import math

import naive
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.stats import multivariate_normal

from epvi import EpviError, Parameter, Space
from epvi.parameters.alignment import order_like, relabelled

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


def orders():
    """All relabellings of the sources, as coordinates of θ."""
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
        found = order_like(SOURCES, theta, reference, precision)
        np.testing.assert_array_equal(found, np.argsort(order))
    plain = Space(SOURCES.parameters)
    np.testing.assert_array_equal(order_like(plain, theta, reference, precision), np.arange(SOURCES.dim))


def test_the_order_is_the_nearest_of_all_in_units_of_the_precisions():
    rng = np.random.default_rng(1)
    for _ in range(20):
        theta, reference = rng.normal(size=(2, SOURCES.dim))
        precision = rng.uniform(0.1, 10, SOURCES.dim)
        costs = [np.sum(precision * (theta[order] - reference) ** 2) for order in orders()]
        found = theta[order_like(SOURCES, theta, reference, precision)]
        np.testing.assert_allclose(np.sum(precision * (found - reference) ** 2), min(costs), rtol=1e-12)


def test_things_that_are_endlessly_far_apart_still_get_an_order():
    theta = np.arange(float(SOURCES.dim))
    far = 1e150 * theta
    order = order_like(SOURCES, theta, far, np.full(SOURCES.dim, 1e150))
    np.testing.assert_array_equal(np.sort(order), np.arange(SOURCES.dim))


@pytest.mark.parametrize("structure", naive.STRUCTURES)
def test_a_relabelled_mixture_is_the_mixture_at_relabelled_points(structure):
    rng = np.random.default_rng(2)
    d, listed = SOURCES.dim, list(orders())
    mixture = naive.random_mixture(rng, structure, 3, d)
    order, theta = listed[7], rng.normal(size=(5, d))
    moved = relabelled(mixture, [order] * 3)
    assert moved.structure == mixture.structure
    np.testing.assert_allclose(moved.log_density(theta[:, order]), mixture.log_density(theta), rtol=1e-10)
    own = relabelled(mixture, listed[3:6])
    weights, means, covariances = naive.dense(mixture)
    for point in theta:
        terms = zip(weights, means, covariances, listed[3:6], strict=True)
        density = sum(w * multivariate_normal.pdf(point[np.argsort(o)], m, c) for w, m, c, o in terms)
        np.testing.assert_allclose(own.log_density(point), math.log(density), rtol=1e-10)
    back = relabelled(own, [np.argsort(o) for o in listed[3:6]])
    np.testing.assert_allclose(back.covariances(), mixture.covariances(), rtol=1e-10, atol=1e-12)


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
    "simplex": ((3,), constraints.simplex),
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
