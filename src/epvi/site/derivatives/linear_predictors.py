"""Finds the linear predictors η = X(rows) W(θ) of a likelihood in its program.

Takes the log likelihood of each row as a program; returns its three pieces X, W and φ, or None without such a form:

    ℓ_i(θ) = φ(η_i, θ_S, row i),   η_i = W(θ)ᵀ x_i,   x_i a function of row i alone

Any matrix product of a function of the rows with a function of θ is a linear predictor, and so is a gather `a[g]` of
parameters by indices made of rows (x_i is one-hot then), whatever the link φ is and however W depends on θ; S are the
few coordinates of θ that φ uses directly (an intercept, a scale). The derivatives of φ are then a few scalars per row,
and matrix products and segment sums do the rest. If φ has too many arguments, this form is not used.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epvi.site.derivatives.cuts import Code, Cut, GatherCut, MatrixCut
from epvi.site.derivatives.flat_program import Operation, Program
from epvi.site.derivatives.gathers import gather_cut
from epvi.site.derivatives.natures import Natures


class LinkArgument(NamedTuple):
    """An argument of φ: one predictor of a row, or a coordinate of θ."""

    # The number of its coefficients: V of a matrix product, the levels of a gather, 1 of a coordinate.
    height: int
    # Which cut has its matrix X, if it is a predictor of a matrix product.
    matrix: int | None = None
    # The codes that its levels are made of, if it is a predictor of a gather.
    codes: tuple[Code, ...] = ()


@dataclasses.dataclass(frozen=True)
class Predictors:
    """The linear predictors of a program."""

    # The log likelihood.
    program: Program
    # The matrix products and gathers X_j W_j.
    cuts: tuple[Cut, ...]
    # For each j, indices in θ of the entries of W_j; None if W_j is not just coordinates of θ.
    places: tuple[np.ndarray | None, ...]
    # S, the coordinates of θ that φ uses directly.
    coordinates: np.ndarray

    @property
    def num_arguments(self) -> int:
        """The number of arguments of φ, other than the row."""
        return sum(self.widths) + len(self.coordinates)

    @property
    def widths(self) -> list[int]:
        """C_j, the number of predictors per row of each product."""
        return [cut.width for cut in self.cuts]

    @property
    def heights(self) -> list[int]:
        """V_j, the number of coefficients of each predictor."""
        return [cut.height for cut in self.cuts]

    @functools.cached_property
    def arguments(self) -> tuple[LinkArgument, ...]:
        """The arguments of φ: the predictors of each cut, and the coordinates."""
        made = []
        for j, cut in enumerate(self.cuts):
            if isinstance(cut, MatrixCut):
                made += [LinkArgument(cut.height, matrix=j)] * cut.width
            else:
                made += [
                    LinkArgument(cut.height, codes=c) for c in cut.codes for _ in range(cut.width // len(cut.codes))
                ]
        return (*made, *[LinkArgument(1)] * len(self.coordinates))

    def of_rows(self, block: Mapping[str, Any]) -> dict[int, Any]:
        """The values of the rows that the cuts are computed from."""
        wanted = [number for cut in self.cuts for number in cut.of_rows]
        return dict(zip(wanted, self.program.run(self.program.columns(block), wanted), strict=True))

    def matrices(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """The matrices X_j, (n, V_j), of the matrix products."""
        return {j: cut.matrix(values) for j, cut in enumerate(self.cuts) if isinstance(cut, MatrixCut)}

    def codes(self, values: Mapping[int, Any]) -> dict[Code, Any]:
        """The indices (n,) of the gathers."""
        gathers = (cut for cut in self.cuts if isinstance(cut, GatherCut))
        return {code: cut.indices(values, code) for cut in gathers for codes in cut.codes for code in codes}

    def weights(self, theta: Any, known: Mapping[int, Any] | None = None) -> list[Any]:
        """The coefficients W_j, (V_j, C_j); `known` are values of θ that need not be computed again."""
        wanted = [number for cut in self.cuts for number in cut.of_theta]
        given = {self.program.theta: theta, **(known or {})}
        values = dict(zip(wanted, self.program.run(given, wanted), strict=True))
        return [cut.coefficients(values) for cut in self.cuts]

    def run(self, etas: Sequence[Any], theta: Any, block: Mapping[str, Any], wanted: Sequence[Any]) -> list[Any]:
        """Values of the program, from η_j (n, C_j)."""
        given = self.program.columns(block)
        given[self.program.theta] = theta
        given.update((cut.output, cut.shaped(eta)) for cut, eta in zip(self.cuts, etas, strict=True))
        return self.program.run(given, wanted)

    def link(self, etas: Sequence[Any], theta: Any, block: Mapping[str, Any]) -> Any:
        """φ per row, from η_j (n, C_j)."""
        return self.run(etas, theta, block, [self.program.output])[0]

    def shifted(self, etas: Sequence[Any], theta: Any, a: int, shift: Any) -> tuple[list[Any], Any]:
        """η and θ with a number added to one argument of φ in all rows."""
        starts, made = np.cumsum([0, *self.widths]), list(etas)
        if a >= starts[-1]:
            return made, theta.at[self.coordinates[a - starts[-1]]].add(shift)
        j = int(np.searchsorted(starts, a, side="right")) - 1
        made[j] = made[j].at[:, a - starts[j]].add(shift)
        return made, theta


def find_predictors(program: Program, *, or_coordinates: bool = False) -> Predictors | None:
    """Find the linear predictors of a likelihood; None if there are none, unless coordinates of θ alone are enough."""
    if not program.goes_forward:
        # Forward-mode derivatives are needed for φ.
        return None
    natures = Natures(program)
    made: dict[int, Cut] = {}
    for step in program.steps:
        cut = _matrix_cut(step, natures, made, program.n) or gather_cut(step, program, natures)
        if cut is not None:
            made[cut.output] = cut
            natures.add_predictor(cut.output)
        else:
            natures.add(step)
    used = program.needed([program.output], made)
    cuts = tuple(cut for output, cut in made.items() if output in used)
    known = {number: nature.places for number, nature in natures.items()}
    found = Predictors(
        program,
        cuts,
        tuple(cut.places(known) for cut in cuts),
        np.flatnonzero(natures.of(program.output).theta),
    )
    return found if cuts or or_coordinates else None


def _matrix_cut(step: Operation, natures: Natures, made: Mapping[int, Cut], n: int) -> MatrixCut | None:
    """The operation as a product of an (n, V) function of the rows, or of such a product, with a function of θ."""
    if step.name != "dot_general" or any(not isinstance(one, int) for one in step.inputs):
        return None
    (left, right), batch = step.equation.params["dimension_numbers"]
    if any(batch) or len(left) != 1:
        return None
    for first in (True, False):
        rows, weights = step.inputs if first else reversed(step.inputs)
        axes = (left[0], right[0]) if first else (right[0], left[0])
        shape = step.equation.invars[0 if first else 1].aval.shape
        out, factor = step.equation.outvars[0].aval, (weights, axes[1])
        if not natures.of(weights).is_of_theta or len(shape) != 2 or shape[1 - axes[0]] != n:
            continue
        before = made.get(rows)
        if isinstance(before, MatrixCut) and axes[0] == (1 if before.rows_first else 0):
            # (X W) B is X (W B).
            return dataclasses.replace(
                before,
                weights=(*before.weights, factor),
                output=step.outputs[0],
                rows_first=first,
                shape=out.shape,
                dtype=out.dtype,
            )
        if natures.of(rows).is_of_rows:
            return MatrixCut(rows, axes[0], (factor,), step.outputs[0], first, out.shape, out.dtype, shape[axes[0]])
    return None
