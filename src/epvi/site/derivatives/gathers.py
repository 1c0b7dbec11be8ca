"""Finds gathers of parameters by rows in a program: `a[g]`, `b[g, h]`, `jnp.take`, and what JAX makes of them.

JAX lets an index out of range count as the last one in range, a negative one from the end, or gives NaN, without a
word. `Index` says which indices the rows must not have.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from epvi.site.derivatives.cuts import Code, GatherCut
from epvi.site.derivatives.flat_program import Operation, Program
from epvi.site.derivatives.natures import Natures


class Index(NamedTuple):
    """An index made of rows alone, into an axis of something that is not made of rows."""

    # The number of its value before negative ones are counted from the end, and its index on the last axis of that.
    value: int
    column: int | None
    # The length of the axis.
    size: int
    # The columns of the rows that it is made of.
    names: tuple[str, ...]
    # Whether it is such a column itself.
    is_column: bool

    def refusal(self, row: int, code: int) -> str:
        """The error for the first row, counted from 0, that has such a code."""
        made = self.names[0] if self.is_column else f"the index that the model computes from {' and '.join(self.names)}"
        return (
            f"{made} is {code} in row {row + 1:,}, but the model has {self.size:,} levels for it: code them from 0 to"
            f" {self.size - 1:,}, and leave out rows without a level."
        )


def gather_cut(step: Operation, program: Program, natures: Natures) -> GatherCut | None:
    """The operation as a gather of something made of θ by indices made of rows; None if it is none."""
    if step.name != "gather" or not natures.of(step.inputs[0]).is_of_theta or not _is_known(step):
        return None
    operand, indices = (variable.aval for variable in step.equation.invars)
    out, batch, numbers = step.equation.outvars[0].aval, indices.shape[:-1], step.equation.params["dimension_numbers"]
    is_made_of_rows = natures.of(step.inputs[1]).is_of_rows
    if not is_made_of_rows or program.n not in batch or operand.dtype.kind != "f":
        return None
    each, axes = _components(step, program), numbers.start_index_map
    fixed = {axis: _fixed(one, program, natures, batch) for one, axis in zip(each, axes, strict=True)}
    by_rows = [(one, axis) for one, axis in zip(each, axes, strict=True) if fixed[axis] is None]
    by_fixed = tuple(axis for axis in axes if fixed[axis] is not None)
    row_axis, sizes = batch.index(program.n), operand.shape
    count = math.prod(batch) // program.n
    values = [np.moveaxis(fixed[axis], row_axis, 0).reshape(program.n, -1)[0] for axis in by_fixed]
    return GatherCut(
        operand=step.inputs[0],
        by_rows=tuple(axis for _, axis in by_rows),
        by_fixed=by_fixed,
        whole=tuple(axis for axis in range(len(sizes)) if axis not in axes),
        codes=tuple(_codes([(*one, sizes[axis]) for one, axis in by_rows], program, k) for k in range(count)),
        fixed=tuple(
            tuple(int(np.clip(v[k], 0, sizes[axis] - 1)) for v, axis in zip(values, by_fixed, strict=True))
            for k in range(count)
        ),
        batch=batch,
        axis=row_axis,
        offsets=tuple(numbers.offset_dims),
        output=step.outputs[0],
        shape=out.shape,
        dtype=out.dtype,
        fills=step.equation.params["mode"] == GatherScatterMode.FILL_OR_DROP,
    )


def _is_known(step: Operation) -> bool:
    """Whether every indexed axis has one entry taken and every other is taken whole, without values for the rest."""
    parameters, operand = step.equation.params, step.equation.invars[0].aval
    numbers, fill = parameters["dimension_numbers"], parameters["fill_value"]
    if numbers.operand_batching_dims or not (fill is None or np.isnan(fill)):
        return False
    taken = enumerate(parameters["slice_sizes"])
    return all(size == (1 if axis in numbers.start_index_map else operand.shape[axis]) for axis, size in taken)


def _components(step: Operation, program: Program) -> list[tuple[Any, int | None]]:
    """The components of the index vectors: numbers (or constants) of values, each with its index on the last axis."""
    indices, count = step.inputs[1], step.equation.invars[1].aval.shape[-1]
    made = program.makers.get(indices)
    if count == 1:
        return [(_stripped(indices, program), None)]
    if made is None or made.name != "concatenate" or len(made.inputs) != count:
        return [(indices, i) for i in range(count)]
    return [(_stripped(one, program), None) for one in made.inputs]


def _stripped(value: Any, program: Program) -> Any:
    """The value before operations that only add axes of length one, or repeat what each row has."""
    while isinstance(value, int) and value in program.makers:
        step: Operation = program.makers[value]
        before, after = step.equation.invars[0].aval, step.equation.outvars[0].aval
        is_reshape = step.name == "reshape" and step.equation.params["dimensions"] is None
        if not (is_reshape or step.name in ("broadcast_in_dim", "squeeze")) or len(step.inputs) != 1:
            break
        if before.size != after.size and (before.size != program.n or before.shape.count(program.n) != 1):
            break
        value = step.inputs[0]
    return value


def _fixed(one: tuple[Any, int | None], program: Program, natures: Natures, batch: tuple[int, ...]) -> Any:
    """The value of a component that is made of constants alone, in the shape of the indices; None for all others."""
    value, column = one
    nature = natures.of(value)
    if nature.rows or nature.bent or np.any(nature.theta):
        return None
    found = np.asarray(program.run({}, [value])[0])
    found = found if column is None else found[..., column]
    return np.broadcast_to(found if found.size == 1 else found.reshape(batch), batch)


def _codes(each: list[tuple[Any, int | None, int]], program: Program, k: int) -> tuple[Code, ...]:
    """The codes of the k-th index of a row."""
    made: list[Code] = []
    for value, column, size in each:
        which = 0 if column is None and program.num_entries(value) == program.n else k
        code = Code(value, column, which, size)
        again = sum(code == other._replace(again=0) for other in made)
        made.append(code._replace(again=again))
    return tuple(made)


def find_indices(program: Program) -> list[Index]:
    """The indices into parameters and fixed arrays that are made of columns which serve as nothing else."""
    natures, found = Natures(program), []
    for step in program.steps:
        natures.add(step)
        if step.name == "gather" and _is_known(step):
            operand, indices = map(natures.of, step.inputs)
            if indices.is_of_rows and not operand.rows:
                found.append(step)
    needed = program.needed([program.output], ())
    found = [step for step in found if step.outputs[0] in needed]
    otherwise = _used_otherwise(program, {step.outputs[0] for step in found})
    made: list[Index] = []
    for step in found:
        axes = step.equation.params["dimension_numbers"].start_index_map
        for (value, column), axis in zip(_components(step, program), axes, strict=True):
            root = _root(value, program)
            behind = program.needed([root], ())
            names = tuple(name for name, number in program.block.items() if number in behind)
            if names and not any(program.block[name] in otherwise for name in names):
                made.append(
                    Index(root, column, step.equation.invars[0].aval.shape[axis], names, root in program.shapes)
                )
    return list(dict.fromkeys(made))


def first_outside(program: Program, indices: list[Index], block: Mapping[str, Any], weights: Any) -> Any:
    """For each index the first row that has it out of range, or the number of rows if none has; and its value there."""
    values = program.run(program.columns(block), [index.value for index in indices])
    rows, found = [], []
    for index, value in zip(indices, values, strict=True):
        value = value if index.column is None else value[..., index.column]
        wide = jnp.moveaxis(value, value.shape.index(program.n), 0).reshape(program.n, -1).astype(jnp.int64)
        bad = ((wide < 0) | (wide >= index.size)) & (weights > 0)[:, None]
        row = jnp.argmax(jnp.any(bad, axis=1))
        rows.append(jnp.where(jnp.any(bad), row, program.n))
        found.append(wide[row, jnp.argmax(bad[row])])
    return jnp.array(rows), jnp.array(found)


def _used_otherwise(program: Program, gathered: set[int]) -> set[int]:
    """The numbers of the values that the output needs for more than the indices of these gathers."""
    used = {program.output}
    for step in reversed(program.steps):
        if any(one in used for one in step.outputs):
            inputs = step.inputs[:1] if step.outputs[0] in gathered else step.inputs
            used |= {one for one in inputs if isinstance(one, int)}
    return used


def _root(value: Any, program: Program) -> Any:
    """The index as it was before negative ones are counted from the end, and before its type was changed."""
    while True:
        value = _stripped(value, program)
        step = program.makers.get(value) if isinstance(value, int) else None
        if step is None:
            return value
        if step.name == "convert_element_type" and step.equation.invars[0].aval.dtype.kind in "iu":
            value = step.inputs[0]
        elif step.name == "select_n" and _counts_from_the_end(step, program):
            value = step.inputs[1]
        else:
            return value


def _counts_from_the_end(step: Operation, program: Program) -> bool:
    """Whether a selection is `where(i < 0, i + size, i)`."""
    condition, index, moved = step.inputs[0], step.inputs[1], step.inputs[-1]
    below, added = program.makers.get(condition), program.makers.get(moved)
    if below is None or added is None or (below.name, added.name) != ("lt", "add"):
        return False
    return below.inputs[0] == index and added.inputs[0] == index
