"""Find a good answer if exact ones are out of reach: expand one label after the other, until none helps.

Each move lets any set of variables change to the label (see `moves`). The result is never dearer than any start.
The starts are the program as it is, each operator's own best, and each label wherever it is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.arrays import Choices, InstanceArrays
from frx_graph.passes.solver.instance import Instance
from frx_graph.passes.solver.moves import find_best_move
from frx_graph.passes.solver.problem import Label


def solve_by_expansion(instance: Instance) -> tuple[int, ...]:
    """Return choices of few ticks. Raises `LabellingError` if all that were found are infinite."""
    arrays = InstanceArrays.from_instance(instance)
    best = _expand_labels(instance, arrays, min(_list_starts(instance), key=arrays.sum_ticks))
    infinite, _ = arrays.sum_ticks(best)
    if infinite:
        raise LabellingError("no labels were found that satisfy all constraints", "there may be some: too many to try")
    return tuple(best.tolist())


def _list_starts(instance: Instance) -> Iterator[Choices]:
    current = np.array([variable.start for variable in instance.variables], dtype=np.int64)
    yield current
    yield np.array([variable.costs.index(min(variable.costs)) for variable in instance.variables], dtype=np.int64)
    for label in instance.list_labels():
        yield _apply_label(instance, label, current)


def _apply_label(instance: Instance, label: Label, choices: Choices) -> Choices:
    """Return `choices` with `label` wherever it is possible."""
    return np.array(
        [
            variable.labels.index(label) if label in variable.labels else choice
            for variable, choice in zip(instance.variables, choices.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def _expand_labels(instance: Instance, arrays: InstanceArrays, start: Choices) -> Choices:
    """Expand all labels in turn until a whole turn brings nothing: first coarsely, which is quick, then exactly."""
    choices, ticks = start, arrays.sum_ticks(start)
    labels = instance.list_labels()
    for exact in (False, True):
        in_vain = 0
        for label in cycle(labels):
            moved = find_best_move(arrays, choices, _apply_label(instance, label, choices), exact=exact).choices
            fewer = arrays.sum_ticks(moved)
            in_vain = 0 if fewer < ticks else in_vain + 1
            if fewer < ticks:
                choices, ticks = moved, fewer
            if in_vain == len(labels):
                break
    return choices
