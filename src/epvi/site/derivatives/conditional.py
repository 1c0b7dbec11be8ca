"""The effects of each group given the other parameters φ: mean, covariance, and how they change with φ.

Takes the target of bundles with group effects integrated out, and one point φ₀ or several; gives moments of the
conditional distribution of each group's effects from the nodes of the integral (`integral.py`), at one point with
derivatives in φ. Near φ₀ these also tell where the nodes of the integrals have to be.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.integral import departure
from epvi.site.model.target import Target
from epvi.site.rows.bundles import COUNT, LEVELS, LOCAL, PILOT
from epvi.site.rows.columns import Columns

# Most rows of a block, of which the derivatives of all nodes are in memory. Judgement.
_ROWS_AT_ONCE = 2**14
# Fewest bundles of a block, of which some may be there only for its shape. Judgement: compiling takes seconds.
_FEWEST_BUNDLES = 16
# Points φ for which a compiled program computes moments at a time. Judgement.
_POINTS_AT_ONCE = 64


class Conditional(NamedTuple):
    """Moments of the effects of L groups given φ near φ₀, the first two linear in φ.

    The covariance is C Cᵀ with C lower triangular; `root` has the rows of C one after the other, with the logarithms of
    its diagonal.
    """

    mean: Float[np.ndarray, "L s"]
    root: Float[np.ndarray, "L t"]
    # Skewness and excess kurtosis of C⁻¹(z − mean), by coordinate.
    shape: Float[np.ndarray, "L s 2"]
    mean_slope: Float[np.ndarray, "L s p"]
    root_slope: Float[np.ndarray, "L t p"]


def conditional_moments(
    target: Target, columns: Columns, phi: Float[np.ndarray, " p"], *, shaped: bool = True
) -> Conditional:
    """The moments of the effects of all groups of all bundles given φ near the given point, also of absent groups.

    Unless they are to be `shaped`, they come from few nodes, which skewness and kurtosis are not known from.
    """
    assert target.conditional is not None
    pieces = []
    with jax.enable_x64(True), promotion_allowed():
        for block, own in blocks(columns):
            slopes, values = target.conditional(jnp.asarray(phi, jnp.float64), block, np.asarray(shaped))
            pieces.append([np.asarray(part)[own] for part in (*values, *slopes[:2])])
    return Conditional(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def products_of_scores(target: Target, columns: Columns, phi: Float[np.ndarray, " p"]) -> Float[np.ndarray, "p p"]:
    """The sum over bundles of the outer products of their score vectors, by the program that gives the moments."""
    assert target.conditional is not None
    total, width = np.zeros((len(phi), len(phi))), columns[LEVELS].shape[1]
    with jax.enable_x64(True), promotion_allowed():
        for block, own in blocks(columns):
            scores = np.asarray(target.conditional(jnp.asarray(phi, jnp.float64), block, np.asarray(False))[0][2])
            there = np.where(block[LEVELS].reshape(-1, 1) >= 0, scores, 0.0)[own]
            each = np.sum(there.reshape(-1, width, len(phi)), axis=1)
            total += each.T @ each
    return total


class Values(NamedTuple):
    """Moments of the effects of L groups given each of S points φ, and the log integrals over them."""

    mean: Float[np.ndarray, "S L s"]
    root: Float[np.ndarray, "S L t"]
    shape: Float[np.ndarray, "S L s 2"]
    log_integral: Float[np.ndarray, "S L"]


def conditional_values(target: Target, columns: Columns, phi: Float[np.ndarray, "S p"]) -> Values:
    """The moments of the effects of all groups of all bundles given each φ, also of absent groups."""
    assert target.conditional_values is not None
    pieces = []
    # The last points are repeated, so that all calls have the same shape.
    padded = np.concatenate([phi, np.repeat(phi[-1:], -len(phi) % _POINTS_AT_ONCE, axis=0)])
    with jax.enable_x64(True), promotion_allowed():
        for block, own in blocks(columns):
            found = [
                target.conditional_values(jnp.asarray(some, jnp.float64), block)
                for some in padded.reshape(-1, _POINTS_AT_ONCE, phi.shape[1])
            ]
            parts = [np.concatenate(part)[: len(phi)] for part in zip(*found, strict=True)]
            pieces.append([part[:, own] for part in parts])
    return Values(*(np.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True)))


def prepared(target: Target, columns: Columns, phi: Float[np.ndarray, " p"], *, few: bool = False) -> Columns:
    """The columns with a further one that makes integrals near φ cheaper, if group effects are integrated out.

    `few`: only terms of higher order will be made of them, for which the fewest nodes are enough.
    """
    if target.conditional is None:
        return columns
    found = conditional_moments(target, columns, phi, shaped=False)
    # In the order in which `Marginal` reads them.
    known = found.mean, found.root, found.mean_slope, found.root_slope
    parts = [np.broadcast_to(phi, (len(found.mean), len(phi))), *(part.reshape(len(part), -1) for part in known)]
    # Absent groups have no effects that could be skewed.
    skewed = np.where(columns[LEVELS].ravel() >= 0, np.asarray(departure(found.shape)), 0.0)
    parts += [skewed[:, None], np.full((len(found.mean), 1), float(few))]
    flat = np.concatenate(parts, axis=1).reshape(*columns[LEVELS].shape, -1)
    floats = {column.dtype for column in columns.values() if column.dtype.kind == "f"}
    pilot = flat.astype(np.float32) if floats == {np.dtype(np.float32)} else flat
    return dict(sorted({**columns, PILOT: pilot}.items()))


def blocks(columns: Columns) -> Iterator[tuple[Columns, slice]]:
    """Blocks of bundles of one shape, each with the groups in it that count.

    The last one overlaps with the one before; a single one is filled with its last bundle, so that few programs serve
    all numbers of bundles.
    """
    number, width = columns[LEVELS].shape
    size = min(max(_ROWS_AT_ONCE // columns[LOCAL].shape[1], 1), few_sizes(number))
    if number < size:
        yield taken(columns, np.minimum(np.arange(size), number - 1)), slice(0, number * width)
        return
    for start in range(0, number, size):
        first = min(start, number - size)
        block = {name: column[first : first + size] for name, column in columns.items()}
        yield block, slice((start - first) * width, size * width)


def few_sizes(number: int) -> int:
    """The next power of two, or more if that is very small."""
    return max(2 ** math.ceil(math.log2(number)), _FEWEST_BUNDLES)


def taken(columns: Columns, chosen: Int[np.ndarray, " n"]) -> Columns:
    """Some of the bundles."""
    return {name: column[chosen] for name, column in columns.items()}


def with_levels(columns: Columns, levels: Int[np.ndarray, " n"]) -> Columns:
    """The bundles, and further ones without rows for these levels, whose effects then have their prior."""
    width = columns[LEVELS].shape[1]
    count = -(-len(levels) // width)
    if not count:
        return columns
    made = {name: np.concatenate([x, np.repeat(x[:1], count, axis=0)]) for name, x in columns.items()}
    added = np.full(count * width, -1, columns[LEVELS].dtype)
    added[: len(levels)] = levels
    made[LEVELS][-count:], made[COUNT][-count:], made[LOCAL][-count:] = added.reshape(count, width), 0, 0
    return made
