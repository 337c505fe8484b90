"""Solve instances exactly by a minimum cut, if no variable has more than two choices.

Every choice gets one of two sides, so that choices which fit along a value are on the same side. With the same two
labels everywhere, the sides are the labels. If operators translate labels, the sides are followed through the graph.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.arrays import Choices, InstanceArrays
from frx_graph.passes.solver.instance import Charge, Instance
from frx_graph.passes.solver.moves import find_best_move


def solve_by_cut(instance: Instance) -> tuple[int, ...] | None:
    """Return the choices of least ticks by a cut.

    None if a variable has more than two, or if no two sides fit: with an odd number of translations around a cycle.
    Raises `LabellingError` if all are infinite.
    """
    if any(len(variable.costs) > 2 for variable in instance.variables):
        return None
    keep = _find_first_side(instance)
    several = np.array([len(variable.costs) for variable in instance.variables], dtype=np.int64) > 1
    arrays = InstanceArrays.from_instance(instance)
    move = find_best_move(arrays, keep, np.where(several, 1 - keep, keep))
    if not move.tight:
        return None
    infinite, _ = arrays.sum_ticks(move.choices)
    if infinite:
        raise LabellingError("no labels satisfy all constraints", "some conversion that is impossible is needed")
    return tuple(move.choices.tolist())


def _find_first_side(instance: Instance) -> Choices:
    """Return each variable's choice on one side, spread from its neighbours; contradictions are found later."""
    neighbours: list[list[tuple[int, int, int]]] = [[] for _ in instance.variables]
    for charge in instance.charges:
        for first, second in pairwise(_list_fitting_choices(charge)):
            neighbours[first[0]].append((first[1], *second))
            neighbours[second[0]].append((second[1], *first))
    side: NDArray[np.int64] = np.full(len(instance.variables), -1, dtype=np.int64)
    for root in range(len(side)):
        if side[root] >= 0:
            continue
        side[root] = 0
        waiting = [root]
        for variable in waiting:
            for own, other, choice in neighbours[variable]:
                if side[other] < 0:
                    side[other] = choice if side[variable] == own else 1 - choice
                    waiting.append(other)
    return side


def _list_fitting_choices(charge: Charge) -> list[tuple[int, int]]:
    """Return the variables with the choice that fits the charge's label: that asks for it, or makes it cheap."""
    pairs = [
        (asker.variable, asker.asks.index(True))
        for asker in charge.askers
        if len(asker.asks) == 2 and not all(asker.asks)
    ]
    if len(charge.prices) == 2 and charge.prices[0] != charge.prices[1]:
        pairs.append((charge.payer, charge.prices.index(min(charge.prices))))
    return pairs
