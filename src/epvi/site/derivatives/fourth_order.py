"""Terms of third and fourth order of a log likelihood about a point, from its Hessians at points around it.

Takes the Hessians of a smooth function f at c and at c ± h r_i, for d directions r_i; gives the higher terms of its
Taylor expansion in coordinates u, with θ = c + Σ_i u_i r_i:

    T_ijk ≈ (H_jk(h r_i) − H_jk(−h r_i)) / 2h,   Q_iijk ≈ (H_jk(h r_i) + H_jk(−h r_i) − 2 H_jk(0)) / h²

A Hessian of integrals over groups costs a few times as much as a value and has d (d + 1)/2 numbers, so that 2d + 1 of
them give more than thousands of values would. Terms Q_ijkl of four different indices are missing.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# h in units of sds. A difference at ±√3 is the average of the third derivative over a standard normal distribution, up
# to terms of the seventh order.
_STEP = float(np.sqrt(3.0))


class FourthOrder(NamedTuple):
    """The function Σ T_ijk u_i u_j u_k / 6 + Σ A_ijk u_i² u_j u_k."""

    # T, symmetric in all indices.
    third: Float[np.ndarray, "d d d"]
    # A_ijk, symmetric in its last two indices: Q_iijk times the part that belongs to it of the number of its orders.
    fourth: Float[np.ndarray, "d d d"]

    def at(self, u: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Values at points."""
        cubic, quartic = (_applied(part, u) for part in self)
        return np.einsum("si,si->s", u, cubic) / 6 + np.einsum("si,si->s", u**2, quartic)

    def averages(self, u: Float[np.ndarray, "S d"]) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Gradient and Hessian, averaged over points."""
        first, second = np.mean(u, axis=0), u.T @ u / len(u)
        bent, quartic = np.einsum("ijk,sk->sij", self.fourth, u), _applied(self.fourth, u)
        slope = 0.5 * np.einsum("ijk,jk->i", self.third, second)
        slope += np.mean(2 * u * quartic + 2 * np.einsum("si,sij->sj", u**2, bent), axis=0)
        crossed = 4 * np.einsum("si,sij->ij", u, bent) / len(u)
        hessian = np.einsum("ijk,k->ij", self.third, first) + np.diag(2 * np.mean(quartic, axis=0))
        return slope, hessian + crossed + crossed.T + 2 * np.einsum("i,ijk->jk", np.mean(u**2, axis=0), self.fourth)

    def moved(self, by: Float[np.ndarray, " d"], turn: Float[np.ndarray, "d d"]) -> "FourthOrder":
        """The terms about another point, with u = by + turn v, in coordinates v; without those of four different v."""
        d, part = len(by), np.zeros((len(by),) * 4)
        part[np.arange(d), np.arange(d)] = self.fourth
        # Fourth derivatives: Q.
        fourth = np.sum([np.transpose(part, order) for order in itertools.permutations(range(4))], axis=0)
        third = self.third + np.einsum("ijkl,l->ijk", fourth, by)
        for axis in range(4):
            # Each product moves the next axis to the front.
            third = third if axis == 3 else np.tensordot(third, turn, axes=(0, 0))
            fourth = np.tensordot(fourth, turn, axes=(0, 0))
        return FourthOrder(third, _orders(d) * fourth[np.arange(d), np.arange(d)] / 24)


def places(d: int) -> Float[np.ndarray, "n d"]:
    """The points u at which Hessians are needed: 0, then ±h e_i."""
    away = _STEP * np.eye(d)
    return np.concatenate([np.zeros((1, d)), away, -away])


def from_hessians(hessians: Float[np.ndarray, "n d d"]) -> FourthOrder:
    """The terms from Hessians in u at `places`."""
    d = hessians.shape[1]
    above, below = hessians[1 : d + 1], hessians[d + 1 :]
    slopes = (above - below) / (2 * _STEP)
    third = (slopes + slopes.transpose(1, 0, 2) + slopes.transpose(1, 2, 0)) / 3
    return FourthOrder(third, _orders(d) * (above + below - 2 * hessians[0]) / (24 * _STEP**2))


def _orders(d: int) -> Float[np.ndarray, "d d d"]:
    """By how much Q_iijk u_i² u_j u_k has to be multiplied so that their sum is that of all orders of the indices.

    There are 1, 4, 6 and 12 orders of iiii, iiij, iijj and iijk; the sum over i, j, k has 1, 2, 2 and 2 of them.
    """
    i, j, k = np.ogrid[:d, :d, :d]
    with_i = (i == j).astype(int) + (i == k)
    return np.where(with_i == 2, 1.0, np.where(with_i == 1, 2.0, np.where(j == k, 3.0, 6.0)))


def _applied(part: Float[np.ndarray, "d d d"], u: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S d"]:
    """Σ_jk part_ijk u_j u_k."""
    return np.einsum("ijk,sj,sk->si", part, u, u, optimize=True)
