"""A good answer where the exact ones are out of reach: expansions of one label after the other, until none helps.

Each move lets any set of variables change to the label (see `moves`). What comes out is never dearer than any start,
and the starts are the program as it is, each operator's own best, and the same label everywhere. Then the variables
that make the graph wide are held where they are, the rest is narrow and solved exactly, and so on with others held.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.arrays import Choices, InstanceArrays
from frx_graph.passes.solver.instance import Instance
from frx_graph.passes.solver.moves import best_move
from frx_graph.passes.solver.problem import Label

_STARTS = 2
"""How many of the starts are expanded, the cheapest first."""


def low_by_expansion(instance: Instance) -> tuple[int, ...]:
    """Choices of few ticks. Raises `LabellingError` if all that were found are infinite."""
    arrays = InstanceArrays.of(instance)
    starts = sorted(_starts(instance), key=arrays.ticks)
    expanded = [_expanded(instance, arrays, start) for start in starts[:_STARTS]]
    best = min((*expanded, starts[0]), key=arrays.ticks)
    infinite, _ = arrays.ticks(best)
    if infinite:
        raise LabellingError("no labels were found that satisfy all constraints", "there may be some: too many to try")
    return tuple(best.tolist())


def _labels(instance: Instance) -> list[Label]:
    """All labels, in the order in which they appear."""
    return list(dict.fromkeys(label for variable in instance.variables for label in variable.labels))


def _everywhere(instance: Instance, label: Label, choices: Choices) -> Choices:
    """`choices`, with `label` wherever it is possible."""
    return np.array(
        [
            variable.labels.index(label) if label in variable.labels else choice
            for variable, choice in zip(instance.variables, choices.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def _starts(instance: Instance) -> Iterator[Choices]:
    current = np.array([variable.start for variable in instance.variables], dtype=np.int64)
    yield current
    yield np.array([variable.costs.index(min(variable.costs)) for variable in instance.variables], dtype=np.int64)
    for label in _labels(instance):
        yield _everywhere(instance, label, current)


def _expanded(instance: Instance, arrays: InstanceArrays, start: Choices) -> Choices:
    """`start` after expansions of all labels in turn, until a whole turn brings nothing."""
    choices, ticks = start, arrays.ticks(start)
    labels = _labels(instance)
    since = 0
    while since < len(labels):
        for label in labels:
            since += 1
            moved = best_move(arrays, choices, _everywhere(instance, label, choices)).choices
            less = arrays.ticks(moved)
            if less < ticks:
                choices, ticks, since = moved, less, 0
            if since >= len(labels):
                break
    return choices
