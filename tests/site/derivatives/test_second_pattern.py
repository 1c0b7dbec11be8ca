"""Which second derivatives are not zero, against all derivatives by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epvi.site.derivatives.flat_program import flattened
from epvi.site.derivatives.second_pattern import Pattern, free_of, of_product, patterns

D = 8


def bilinear(theta):
    return theta[:4].reshape(2, 2) @ theta[4:].reshape(2, 2)


def curved_factor(theta):
    basis = jnp.exp(-((theta[4:6, None] - jnp.arange(3.0)[None]) ** 2))
    return theta[:4].reshape(2, 2).T @ basis / jax.nn.softplus(theta[7])


def scaled(theta):
    return theta[0] * theta[1:5] + theta[5:6] ** 2 - theta[7]


def linear(theta):
    return jnp.concatenate([3.0 * theta[:4] + theta[4:], -theta[2:6] / 2])


def chosen(theta):
    return jnp.where(theta > 0, theta, 0.1 * theta) + jnp.cumsum(theta)


CASES = {bilinear: 4, curved_factor: 3, scaled: 2, linear: 0, chosen: D}


def found_by_program(function):
    with jax.enable_x64(True):
        program = flattened(lambda theta, block: function(theta), jax.ShapeDtypeStruct((D,), np.float64), {})
    return program, patterns(program, [program.output])


@pytest.mark.parametrize("function", CASES, ids=lambda one: one.__name__)
def test_derivatives_outside_the_pattern_are_zero(function):
    _, found = found_by_program(function)
    pattern = found[found_by_program(function)[0].output]
    with jax.enable_x64(True):
        for theta in np.random.default_rng(0).standard_normal((2, D)):
            first = np.any(np.asarray(jax.jacfwd(function)(theta)).reshape(-1, D) != 0, axis=0)
            second = np.any(np.asarray(jax.hessian(function)(theta)).reshape(-1, D, D) != 0, axis=0)
            assert not np.any(first & ~pattern.first)
            assert not np.any(second & ~pattern.second)


@pytest.mark.parametrize("function", CASES, ids=lambda one: one.__name__)
def test_curved_coordinates_are_few_and_cover_all_pairs(function):
    program, found = found_by_program(function)
    pattern = found[program.output]
    rest = np.setdiff1d(np.arange(D), pattern.curved)
    assert not np.any(pattern.second[np.ix_(rest, rest)])
    assert len(pattern.curved) == CASES[function]


def test_a_product_of_factors_has_the_pattern_of_the_product():
    program, found = found_by_program(bilinear)
    (step,) = [one for one in program.steps if one.name == "dot_general"]
    made = of_product([found[one] for one in step.inputs])
    np.testing.assert_array_equal(made.second, found[program.output].second)
    np.testing.assert_array_equal(of_product([Pattern.nothing(D)]).second, False)


def test_values_that_are_free_of_coordinates_do_not_change_with_them():
    program, found = found_by_program(curved_factor)
    free = free_of(found, np.arange(4))
    assert free
    theta = np.random.default_rng(1).standard_normal(D)
    with jax.enable_x64(True):
        before = program.run({program.theta: jnp.asarray(theta)}, free)
        after = program.run({program.theta: jnp.asarray(theta).at[:4].add(1.0)}, free)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
