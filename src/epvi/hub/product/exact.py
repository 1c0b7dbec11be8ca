"""Exact product: all Π K_m components (the paper, eq. 5-8), and the exact log ∫ Π q_m.

The shards are multiplied in a balanced binary tree. A node costs O(d) per component that it produces (d³ for `Full`),
and the last node produces all of them, so the total cost is O(d Π K_m) instead of O(d M Π K_m). Components are in the
order of `itertools.product`: the last shard's index changes fastest.
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import Executor

import jax
import numpy as np
from scipy.special import logsumexp

from epvi.gaussian.in_blocks import over_blocks
from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.ground import validation
from epvi.ground.compiled import compiled
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray
from epvi.ground.status import Status, StatusCode
from epvi.hub.product.fold import fold_singles
from epvi.hub.product.result import Product, ProductMixture, exactly
from epvi.hub.product.stack import StackedComponents, check_memory, components_of, constant, finish


@dataclasses.dataclass(frozen=True)
class Exact(Product):
    """Enumerate the product; refuse when it has more than `max_components`, or needs more than `max_gigabytes`."""

    # Components: 4^10, which take 0.24 s and 0.9 GB in 19 dimensions (`python benchmarks/products.py`).
    max_components: int = 2**20
    # GB (10⁹ bytes), as in stack.py.
    max_gigabytes: float | int = 4.0

    def __post_init__(self) -> None:
        validation.check_settings(self, max_components=1)
        if not (isinstance(self.max_gigabytes, int | float) and self.max_gigabytes > 0):
            raise EpviError(f"max_gigabytes is {self.max_gigabytes!r}: pass a positive number.")

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """All components with their weights."""
        self._check_budget(mixtures)
        factors = fold_singles(mixtures)
        structure = factors[0].structure
        log_w, mixture = finish(structure, len(factors), pairs(structure, *halves(factors)))
        status = Status(StatusCode.EXACT, _said(mixture.num_components))
        return ProductMixture(mixture, exactly(np.asarray(logsumexp(np.asarray(log_w)))), None, status)

    def _check_budget(self, mixtures: Sequence[GaussianMixture]) -> None:
        counts = [mixture.num_components for mixture in mixtures]
        total = math.prod(counts)
        ks = f"K = {counts[0]}" if len(set(counts)) == 1 else f"K from {min(counts)} to {max(counts)}"
        number = f"{total:,}" if total < 10**15 else f"about 10^{sum(map(math.log10, counts)):.0f}"
        if total > self.max_components:
            raise EpviError(
                f"the product has {number} components ({ks}, M = {len(counts)}), over the budget of"
                f" {self.max_components:,}: use Anchored() (or Chain, Subset), or raise max_components."
            )
        check_memory(total, mixtures, self.max_gigabytes)


def halves(mixtures: Sequence[GaussianMixture]) -> tuple[StackedComponents, StackedComponents]:
    """The products over two parts of the shards; all pairs of their components make up the whole product."""
    factors = [components_of(mixture) for mixture in mixtures]
    middle = _middle([len(factor.log_mass) for factor in factors])
    structure = mixtures[0].structure
    return _tree(structure, factors[:middle]), _tree(structure, factors[middle:])


def _middle(sizes: Sequence[int]) -> int:
    """Where to cut a list of factors so that both sides have products of about the same size."""
    logs = np.cumsum(np.log(sizes))
    return 1 + int(np.argmin(np.abs(logs[:-1] - logs[-1] / 2)))


def _tree(structure: Structure, shards: list[StackedComponents]) -> StackedComponents:
    if len(shards) == 1:
        return shards[0]
    middle = _middle([len(shard.log_mass) for shard in shards])
    return pairs(structure, _tree(structure, shards[:middle]), _tree(structure, shards[middle:]))


def fuse(structure: Structure, a: StackedComponents, b: StackedComponents) -> StackedComponents:
    """The product of two components."""
    precision, _, mean, q = structure.fuse(a.precision, a.mean, b.precision, b.mean)
    return StackedComponents(a.log_mass + b.log_mass - 0.5 * q, mean, precision)


@compiled
def pairs(structure: Structure, left: StackedComponents, right: StackedComponents) -> StackedComponents:
    """The products of every component of `left` with every component of `right`, computed in blocks."""

    def row(a: StackedComponents) -> StackedComponents:
        return jax.vmap(lambda b: fuse(structure, a, b))(right)

    made = over_blocks(row, left, right.mean.size + right.precision.size)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), made)


@compiled
def pair_log_weights(
    structure: Structure, num_shards: int, left: StackedComponents, right: StackedComponents
) -> AnyArray:
    """log W of all pairs, without storing their means and precisions."""
    d = left.mean.shape[-1]

    def weight(a: StackedComponents, b: StackedComponents) -> AnyArray:
        _, root, _, q = structure.fuse(a.precision, a.mean, b.precision, b.mean)
        return a.log_mass + b.log_mass - structure.half_log_det(root, d) - 0.5 * q

    def row(a: StackedComponents) -> AnyArray:
        return jax.vmap(lambda b: weight(a, b))(right)

    return over_blocks(row, left, right.mean.size + right.precision.size).reshape(-1) + constant(num_shards, d)


def _said(count: int) -> str:
    return "exact: the product has one component." if count == 1 else f"exact: all {count:,} components of the product."
