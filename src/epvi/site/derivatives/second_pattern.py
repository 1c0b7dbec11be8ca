"""Which second derivatives of the coefficients of linear predictors can be different from zero, by their program.

Takes a program and values of it that are functions of θ; gives for each the coordinates of θ that it depends on, and
the pairs of coordinates by which its second derivative is not zero for every θ. Of a product W = A(θ_A) B(θ_B), where
entries of A are coordinates themselves, all pairs within θ_A are zero: W is differentiated twice along θ_B only.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from epvi.site.derivatives.flat_program import Operation, Program
from epvi.site.derivatives.natures import moved_places

# Primitives that are linear in all their inputs together.
_SUMS = ("add", "add_any", "concatenate", "copy", "neg", "reduce_sum", "reshape", "sub")
# Primitives that are linear in the first input if no other one depends on θ.
_LINEAR_IN_FIRST = ("broadcast_in_dim", "dynamic_slice", "gather", "slice", "squeeze", "transpose")
# Primitives that are linear in each of two inputs.
_PRODUCTS = ("dot_general", "mul")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """What a value depends on."""

    # Coordinates of θ.
    first: Bool[np.ndarray, " d"]
    # Pairs of coordinates by which it may have second derivatives; symmetric.
    second: Bool[np.ndarray, "d d"]
    # If its entries are coordinates of θ, their indices.
    places: np.ndarray | None = None

    @classmethod
    def nothing(cls, d: int) -> "Pattern":
        """The pattern of a constant."""
        return cls(np.zeros(d, bool), np.zeros((d, d), bool))

    def __or__(self, other: "Pattern") -> "Pattern":
        """The pattern of a sum."""
        return Pattern(self.first | other.first, self.second | other.second)

    def times(self, other: "Pattern") -> "Pattern":
        """The pattern of a product."""
        crossed = np.outer(self.first, other.first)
        both = self | other
        return Pattern(both.first, both.second | crossed | crossed.T)

    @property
    def bent(self) -> "Pattern":
        """The pattern of any function of the value."""
        return Pattern(self.first, np.outer(self.first, self.first))

    @property
    def curved(self) -> Int[np.ndarray, " c"]:
        """Coordinates of which each pair in `second` has at least one: few, chosen by their numbers of pairs."""
        chosen = np.diagonal(self.second).copy()
        left = self.second & ~chosen & ~chosen[:, None]
        while np.any(left):
            most = int(np.argmax(np.sum(left, axis=1)))
            chosen[most], left[most], left[:, most] = True, False, False
        return np.flatnonzero(chosen)


def patterns(program: Program, wanted: Sequence[int]) -> dict[int, Pattern]:
    """The patterns of these values, and of all values of θ that they are computed from."""
    nothing, needed = Pattern.nothing(program.d), program.needed(wanted, ())
    whole = dataclasses.replace(nothing, first=~nothing.first, places=np.arange(program.d))
    found = {program.theta: whole}
    for step in program.steps:
        if any(one in needed for one in step.outputs):
            given = [found.get(one, nothing) if isinstance(one, int) else nothing for one in step.inputs]
            found.update(dict.fromkeys(step.outputs, _after(step, given, nothing)))
    return found


def _after(step: Operation, given: list[Pattern], nothing: Pattern) -> Pattern:
    """The pattern of an operation's outputs."""
    places = moved_places(step, given[0].places) if len(given) == 1 else None
    if places is not None:
        return dataclasses.replace(nothing, first=np.isin(np.arange(len(nothing.first)), places), places=places)
    both = functools.reduce(Pattern.__or__, given, nothing)
    others = functools.reduce(Pattern.__or__, given[1:], nothing)
    if not np.any(both.first):
        return nothing
    if _is_sum(step) or (step.name in _LINEAR_IN_FIRST and not np.any(others.first)):
        return both
    if step.name in _PRODUCTS:
        return given[0].times(given[1])
    return given[0].times(given[1].bent) if step.name == "div" else both.bent


def _is_sum(step: Operation) -> bool:
    if step.name == "convert_element_type":
        return step.equation.outvars[0].aval.dtype.kind == "f"
    return step.name in _SUMS


def of_product(factors: Sequence[Pattern]) -> Pattern:
    """The pattern of a product of matrices."""
    return functools.reduce(Pattern.times, factors)


def free_of(found: dict[int, Any], coordinates: Int[np.ndarray, " c"]) -> list[int]:
    """Numbers of the values that depend on θ, but not on these coordinates."""
    return [number for number, one in found.items() if np.any(one.first) and not np.any(one.first[coordinates])]
