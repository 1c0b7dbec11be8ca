"""Caches the Taylor expansions of a batch of shards, so that later rounds near the same point need no new pass.

Stores, by point, the expansions of all shards about it and the sums of outer products of their rows' score vectors
there, in memory or in a file that other processes read as well.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from epvi.gaussian.matrices import positive_definite
from epvi.site.derivatives.expansion import ALIKE, Taylor
from epvi.site.derivatives.expansion_cache import NEAR, ExpansionCache, write_arrays
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.fourth_order import FourthOrder
from epvi.site.derivatives.subposteriors import Subposteriors

_FIELDS = ("centre", "value", "gradient", "hessian")
# Outer products of shards with more than twice as many rows are computed from so many, the number that a shard which
# answers alone uses at first. Judgement.
_ROWS_OF_PRODUCTS = 2**11


@dataclasses.dataclass(eq=False)
class ExpansionsCache:
    """The known expansions of a batch."""

    # Where they are stored; None for memory only.
    file: Path | None = None
    # The expansions, each of all shards about one point.
    known: list[Taylors] = dataclasses.field(default_factory=list)
    # The sums of outer products at the first of these points: they change little over half a standard deviation of a
    # shard, which is many of the posterior's.
    products: Float[np.ndarray, "B d d"] | None = None
    # Terms of third and fourth order of the sums over shards, by the bytes of these points.
    higher: dict[bytes, FourthOrder] = dataclasses.field(default_factory=dict)
    # The points of earlier rounds, where there is no file: what is not known of them is computed again, so that answers
    # do not depend on which process gave the earlier ones.
    earlier: Sequence[Float[np.ndarray, " d"]] = ()
    # Expansions that were computed before, by the bytes of their points: they are taken where they would be computed.
    computed: Mapping[bytes, Taylors] = dataclasses.field(default_factory=dict)

    def about(self, each: Subposteriors, point: Float[np.ndarray, " d"], near: float = NEAR) -> Taylors:
        """The expansions of all shards about a point, or known ones at a squared distance of at most `near` from it."""
        self._read()
        points, self.earlier = self.earlier, ()
        for before in points:
            self._about(each, before, near)
        return self._about(each, point, near)

    def _about(self, each: Subposteriors, point: Float[np.ndarray, " d"], near: float) -> Taylors:
        for one in self.known:
            if _distance(summed(one), point - one.centre[0]) <= near:
                return one
        made = self.computed.get(point.tobytes())
        if made is None:
            centres = np.tile(point, (each.num_shards, 1))
            made = Taylors(centres, *each.second_order(centres, np.arange(each.num_shards)))
        self.known.append(made)
        self._write()
        return made

    def spread(self, each: Subposteriors, one: Taylors) -> Float[np.ndarray, "B d d"]:
        """The sums of outer products at the point of known expansions, or at one that is as near for every shard."""
        first = self.known[0]
        away = one.centre[0] - first.centre[0]
        if np.max(np.abs(np.einsum("i,bij,j->b", away, first.hessian, away, optimize=True))) > NEAR:
            return _spread(each, one)
        if self.products is None:
            self.products = _spread(each, first)
            self._write()
        return self.products

    def one_shard(self, own: list[Taylors]) -> ExpansionCache:
        """The sums over shards of these expansions, as those of one shard."""
        first, *known = [(one.centre[0], summed(one)) for one in (self.known[0], *own)]
        return ExpansionCache(known=known, higher=self.higher.copy(), first=first)

    def keep(self, higher: Mapping[bytes, FourthOrder]) -> None:
        """Store terms of higher order."""
        if higher.keys() - self.higher.keys():
            self.higher.update(higher)
            self._write()

    def _write(self) -> None:
        if self.file is None:
            return
        arrays = {f"{name}{i}": getattr(one, name) for i, one in enumerate(self.known) for name in _FIELDS}
        for i, one in enumerate(self.known):
            more = self.higher.get(one.centre[0].tobytes())
            arrays |= {} if more is None else {f"{name}{i}": part for name, part in more._asdict().items()}
        write_arrays(self.file, arrays if self.products is None else arrays | {"products": self.products})

    def _read(self) -> None:
        if self.known or self.file is None or not self.file.exists():
            return
        with np.load(self.file, allow_pickle=False) as arrays:
            for i in range(sum(name.startswith("centre") for name in arrays)):
                one = Taylors(*(arrays[f"{name}{i}"] for name in _FIELDS))
                self.known.append(one)
                if f"third{i}" in arrays:
                    more = FourthOrder(*(arrays[f"{name}{i}"] for name in FourthOrder._fields))
                    self.higher[one.centre[0].tobytes()] = more
            self.products = arrays.get("products")


def _spread(each: Subposteriors, one: Taylors) -> Float[np.ndarray, "B d d"]:
    """The sums of outer products, of shards with many rows from a subsample, unless it lacks rows that matter.

    By the information identity they are near the negative Hessians; where they are not, all rows are used.
    """
    point, sizes = one.centre[0], each.sizes
    if np.any(sizes > 2 * _ROWS_OF_PRODUCTS):
        rng = np.random.default_rng(0)
        few = np.where(sizes > 2 * _ROWS_OF_PRODUCTS, _ROWS_OF_PRODUCTS, sizes)
        chosen = [np.sort(rng.choice(n, k, replace=False, shuffle=False)) for n, k in zip(sizes, few, strict=True)]
        made = each.thinned(np.arange(each.num_shards), chosen).spread(point)
        alike = positive_definite(ALIKE * made + one.hessian) & positive_definite(-ALIKE * one.hessian - made)
        if np.all(alike):
            return made
    return each.spread(point)


def _distance(one: Taylor, delta: Float[np.ndarray, " d"]) -> float:
    """δᵀ|H|δ, without an eigendecomposition where H is negative-definite, as it is near a mode."""
    if positive_definite(-one.hessian[None])[0]:
        return float(-delta @ one.hessian @ delta)
    return float(one.distances(delta))


def summed(one: Taylors) -> Taylor:
    """The expansion of the sum over shards."""
    return Taylor(float(np.sum(one.value)), np.sum(one.gradient, axis=0), np.sum(one.hessian, axis=0))
