"""Standardised distributions with given skewness and kurtosis: functions h of a standard normal variable e.

Cubic polynomials (Fleishman 1978),

    h(e) = a e + b (e² − 1) + c e³,

with coefficients such that h(e) has mean 0, variance 1 and the given skewness and excess kurtosis:

    a² + 6ac + 2b² + 15c² = 1,   skewness = 2b (a² + 24ac + 105c² + 2),
    excess = 24 (ac + b² (1 + a² + 28ac) + c² (12 + 48ac + 141b² + 225c²)).

h increases up to a bound of |e| and is continued by lines from there. Where no increasing cubic has the moments, b and
c are made smaller. With both moments 0, h(e) = e.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# h is a cubic up to this |e|, which one normal variable in 2,000 exceeds. Judgement.
_BOUND = 3.5
# Least slope of h within the bound. Judgement: densities stay finite.
_LEAST_SLOPE = 0.05
# Largest skewness, and excess kurtosis from 1.5 times its square less this, up to this. Judgement: cubics have such
# moments, and Newton's method finds them from the first terms of Cornish and Fisher's expansion.
_MOST_SKEWED, _BELOW, _MOST_EXCESS = 1.8, 0.9, 8.1
# Steps of Newton's method for the coefficients, and for the inverse of h within its bracket. Judgement: both converge
# quadratically, and the tests compare.
_STEPS, _STEPS_BACK = 12, 30
# The error of h at which its inverse is found. Judgement.
_NEAR = 1e-9
# Entries of the table from which b and c are interpolated, in each direction; one of them has the moments of a normal
# variable. Judgement: the tests compare.
_TABLE = 121
# How often coefficients are made smaller: a changes with them. Judgement.
_SHRINKS = 4


class Skewed(NamedTuple):
    """Functions h, one for each of any number of shapes."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    @classmethod
    def of(cls, skewness: Float[np.ndarray, "..."], excess: Float[np.ndarray, "..."]) -> "Skewed":
        """The functions with these skewnesses and excess kurtoses."""
        size = np.minimum(np.abs(skewness), _MOST_SKEWED)
        least = 1.5 * size**2 - _BELOW
        rows = size * (_TABLE - 1) / _MOST_SKEWED
        columns = np.clip((excess - least) / (_MOST_EXCESS - least), 0, 1) * (_TABLE - 1)
        i, j = (np.minimum(one.astype(np.intp), _TABLE - 2) for one in (rows, columns))
        down, along, place = rows - i, columns - j, i * _TABLE + j
        b, c = (
            (1 - down) * ((1 - along) * one[place] + along * one[place + 1])
            + down * ((1 - along) * one[place + _TABLE] + along * one[place + _TABLE + 1])
            for one in _coefficients()
        )
        return cls(_linear(b, c), np.copysign(b, skewness), c)

    def __call__(self, e: np.ndarray) -> np.ndarray:
        """h(e), with the shapes' axes last."""
        inner = np.clip(e, -_BOUND, _BOUND)
        return self._cubic(inner) + self._slope(inner) * (e - inner)

    def inverse(self, h: np.ndarray) -> np.ndarray:
        """e."""
        low, high = np.full(np.shape(h + self.a), -_BOUND), np.full(np.shape(h + self.a), _BOUND)
        below, above = self._cubic(low), self._cubic(high)
        inner = np.clip(h, below, above)
        e = np.clip(inner, low, high)
        for _ in range(_STEPS_BACK):
            rest = self._cubic(e) - inner
            if np.max(np.abs(rest), initial=0.0) < _NEAR:
                break
            low, high = np.where(rest < 0, e, low), np.where(rest < 0, high, e)
            moved = e - rest / self._slope(e)
            e = np.where((moved >= low) & (moved <= high), moved, 0.5 * (low + high))
        return e + (h - inner) / self._slope(e)

    def slope(self, e: np.ndarray) -> np.ndarray:
        """∂h/∂e."""
        return self._slope(np.clip(e, -_BOUND, _BOUND))

    def _cubic(self, e: np.ndarray) -> np.ndarray:
        return self.a * e + self.b * (e**2 - 1) + self.c * e**3

    def _slope(self, e: np.ndarray) -> np.ndarray:
        return self.a + 2 * self.b * e + 3 * self.c * e**2


@functools.cache
def _coefficients() -> tuple[np.ndarray, np.ndarray]:
    """b and c on a grid of skewness, from 0 on, by excess kurtosis, from the least one of a skewness on."""
    s = np.linspace(0, _MOST_SKEWED, _TABLE)[:, None]
    least = 1.5 * s**2 - _BELOW
    k = least + np.linspace(0, 1, _TABLE) * (_MOST_EXCESS - least)
    b, c = np.broadcast_to(s / 6, k.shape), k / 24 - s**2 / 18
    for _ in range(_STEPS):
        b, c = _improved(b, c, s, k)
    _, b, c = _increasing(b, c)
    return b.ravel(), c.ravel()


def _linear(b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The coefficient a that makes the variance 1."""
    return -3 * c + np.sqrt(np.maximum(1 - 2 * b**2 - 6 * c**2, 0.01))


def _improved(b: np.ndarray, c: np.ndarray, s: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of Newton's method for the two moments."""
    a = _linear(b, c)
    by_a, by_b, by_c = _derivatives(a, b, c)
    # Of a in b and c.
    along_b, along_c = -2 * b / (a + 3 * c), -(3 * a + 15 * c) / (a + 3 * c)
    first, second = by_b + by_a * along_b, by_c + by_a * along_c
    rest_s, rest_k = _moments(a, b, c) - np.stack(np.broadcast_arrays(s, k))
    det = first[0] * second[1] - first[1] * second[0]
    b = b - (second[1] * rest_s - second[0] * rest_k) / det
    c = c - (first[0] * rest_k - first[1] * rest_s) / det
    return np.clip(b, -0.6, 0.6), np.clip(c, -0.1, 0.25)


def _moments(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Skewness and excess kurtosis."""
    skewness = 2 * b * (a**2 + 24 * a * c + 105 * c**2 + 2)
    inner = 12 + 48 * a * c + 141 * b**2 + 225 * c**2
    return np.stack([skewness, 24 * (a * c + b**2 * (1 + a**2 + 28 * a * c) + c**2 * inner)])


def _derivatives(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Derivatives of skewness and excess kurtosis in a, b and c."""
    inner = 12 + 48 * a * c + 141 * b**2 + 225 * c**2
    by_a = np.stack([2 * b * (2 * a + 24 * c), 24 * (c + b**2 * (2 * a + 28 * c) + 48 * c**3)])
    by_b = np.stack([2 * (a**2 + 24 * a * c + 105 * c**2 + 2), 24 * (2 * b * (1 + a**2 + 28 * a * c) + 282 * b * c**2)])
    last = a + 28 * a * b**2 + 2 * c * inner + c**2 * (48 * a + 450 * c)
    return by_a, by_b, np.stack([2 * b * (24 * a + 210 * c), 24 * last])


def _increasing(b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The coefficients, with b and c made smaller if the cubic does not increase within the bound."""
    for _ in range(_SHRINKS):
        # The least value of 2be + 3ce² within the bound: at one of its ends, or where its slope is 0.
        inner = np.clip(-b / np.where(np.abs(c) > 0, 3 * c, 1.0), -_BOUND, _BOUND)
        least = np.min(np.stack([2 * b * e + 3 * c * e**2 for e in (inner, -_BOUND, _BOUND)]), axis=0)
        factor = np.clip((_linear(b, c) - _LEAST_SLOPE) / np.maximum(-least, 1e-12), 0.0, 1.0)
        b, c = factor * b, factor * c
    return _linear(b, c), b, c
