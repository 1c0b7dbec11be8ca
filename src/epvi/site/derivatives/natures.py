"""What the values of a program depend on: which coordinates of θ, the rows, the linear predictors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from epvi.site.derivatives.flat_program import Operation, Program


class Nature(NamedTuple):
    """What a value depends on."""

    # Which coordinates of θ it depends on, other than through η.
    theta: np.ndarray
    # Whether it depends on the rows.
    rows: bool
    # Whether it depends on η.
    bent: bool
    # If its entries are coordinates of θ, their indices in θ.
    places: np.ndarray | None

    @property
    def is_of_theta(self) -> bool:
        """Whether it is made of parameters alone."""
        return bool(np.any(self.theta)) and not self.rows and not self.bent

    @property
    def is_of_rows(self) -> bool:
        """Whether it is made of rows alone."""
        return self.rows and not self.bent and not np.any(self.theta)


class Natures(dict[int, Nature]):
    """The natures of a program's values by number; values made of constants alone may be missing."""

    def __init__(self, program: Program) -> None:
        self._nothing = np.zeros(program.d, bool)
        super().__init__({number: Nature(self._nothing, True, False, None) for number in program.block.values()})
        self[program.theta] = Nature(~self._nothing, False, False, np.arange(program.d))

    def of(self, value: Any) -> Nature:
        """The nature of a value or a constant."""
        plain = Nature(self._nothing, False, False, None)
        return self.get(value, plain) if isinstance(value, int) else plain

    def add(self, step: Operation) -> None:
        """Add the outputs of an operation."""
        given = [self[one] for one in step.inputs if isinstance(one, int) and one in self]
        theta = np.logical_or.reduce([nature.theta for nature in given], axis=0) if given else self._nothing
        rows, bent = any(nature.rows for nature in given), any(nature.bent for nature in given)
        places = moved_places(step, given[0].places) if len(given) == 1 and len(step.inputs) == 1 else None
        if places is not None:
            theta = np.isin(np.arange(len(self._nothing)), places)
        self.update(dict.fromkeys(step.outputs, Nature(theta, rows, bent, places)))

    def add_predictor(self, number: int) -> None:
        """Add a linear predictor."""
        self[number] = Nature(self._nothing, True, True, None)


def moved_places(step: Operation, places: np.ndarray | None) -> np.ndarray | None:
    """Track the indices in θ of a value's entries through an operation that only moves them; None otherwise."""
    if places is None:
        return None
    name, parameters = step.name, step.equation.params
    if name == "slice":
        strides = parameters["strides"] or (1,) * places.ndim
        bounds = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
        return places[tuple(slice(*bound) for bound in bounds)]
    if name in ("reshape", "squeeze") and parameters.get("dimensions") in (None, *_axes(parameters)):
        return places.reshape(step.equation.outvars[0].aval.shape)
    if name == "transpose":
        return places.transpose(parameters["permutation"])
    is_float = step.equation.outvars[0].aval.dtype.kind == "f"
    return places if name == "copy" or (name == "convert_element_type" and is_float) else None


def _axes(parameters: Mapping[str, Any]) -> list[Any]:
    """Allowed `dimensions` besides None: any of a squeeze; none of a reshape, where they mean a transposition."""
    return [] if "new_sizes" in parameters else [parameters.get("dimensions")]
