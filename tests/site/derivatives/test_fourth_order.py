"""Terms of third and fourth order from Hessians, against polynomials that have no others."""

import itertools

import numpy as np

from epvi.site.derivatives.fourth_order import from_hessians, places

D = 4


def symmetric(array):
    orders = list(itertools.permutations(range(array.ndim)))
    return sum(np.transpose(array, order) for order in orders) / len(orders)


RNG = np.random.default_rng(0)
THIRD, FOURTH = symmetric(RNG.normal(size=(D,) * 3)), symmetric(RNG.normal(size=(D,) * 4))
FOURTH[tuple(np.array(list(itertools.permutations(range(D)))).T)] = 0.0


def gradient(u):
    return np.einsum("ijk,j,k->i", THIRD, u, u) / 2 + np.einsum("ijkl,j,k,l->i", FOURTH, u, u, u) / 6


def hessian(u):
    return np.einsum("ijk,k->ij", THIRD, u) + np.einsum("ijkl,k,l->ij", FOURTH, u, u) / 2


def test_terms_about_another_point_are_exact():
    made = from_hessians(np.stack([hessian(u) for u in places(D)]))
    # Of which no term of four different coordinates comes.
    turn = np.diag([1.0, -0.5, 2.0, 1.5])[[2, 0, 3, 1]]
    by, v = RNG.normal(size=D), RNG.normal(size=(5, D))

    def rest(u):
        # What an expansion of second order about `by` leaves over.
        away = u - by
        return made.at(u[None])[0] - made.at(by[None])[0] - gradient(by) @ away - away @ hessian(by) @ away / 2

    np.testing.assert_allclose(made.moved(by, turn).at(v), [rest(by + turn @ one) for one in v], atol=1e-10)


def test_a_polynomial_of_fourth_order_is_exact():
    # A quadratic term changes all Hessians alike, and no higher term.
    made = from_hessians(np.stack([hessian(u) + np.eye(D) for u in places(D)]))
    u = RNG.normal(size=(5, D))
    cubic = np.einsum("ijk,si,sj,sk->s", THIRD, u, u, u) / 6
    quartic = np.einsum("ijkl,si,sj,sk,sl->s", FOURTH, u, u, u, u) / 24
    np.testing.assert_allclose(made.at(u), cubic + quartic, atol=1e-12)
    slope, bend = made.averages(u)
    np.testing.assert_allclose(slope, np.mean([gradient(one) for one in u], axis=0), atol=1e-12)
    np.testing.assert_allclose(bend, np.mean([hessian(one) for one in u], axis=0), atol=1e-12)
