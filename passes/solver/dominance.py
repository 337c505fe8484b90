"""Choices that the best answer can do without: another choice of the same variable is as good whatever the rest does.

The comparison is of a choice with the cheapest one at its worst: all that it could add counts, nothing that it could
save (dead-end elimination: Desmet et al., 1992; Goldstein, 1994).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.arrays import InstanceArrays, Ragged, difference, sums
from frx_graph.passes.solver.instance import Instance


def undominated(instance: Instance) -> list[tuple[int, ...]]:
    """For each variable the choices that may be needed, at least one, in order."""
    arrays = InstanceArrays.of(instance)
    needed = np.ones(len(arrays.costs.values), dtype=np.bool_)
    while True:
        still = needed & _competitive(arrays, needed)
        if still.sum() == needed.sum():
            break
        needed = still
    return [tuple(np.flatnonzero(row).tolist()) for row in np.split(needed, arrays.costs.starts[1:])]


def _competitive(arrays: InstanceArrays, needed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each choice of each variable, whether it is the cheapest one of its variable that is `needed`, or may yet be
    better than that one."""
    costs = arrays.costs
    alive = np.where(needed, costs.values, np.iinfo(np.int64).max)
    least = np.minimum.reduceat(alive, costs.starts)[costs.rows]
    first = np.where(alive == least, costs.columns, len(alive))
    cheapest = np.minimum.reduceat(first, costs.starts)

    # By how much the cheapest choice can be dearer than each other one through charges.
    payer_choice = _choice_positions(costs, arrays.prices, arrays.payer)
    instead = arrays.prices.at(cheapest[arrays.payer])[arrays.prices.rows]
    dearer = difference(np.maximum(instead, arrays.prices.values), arrays.prices.values)
    highest = np.maximum.reduceat(np.where(needed[payer_choice], arrays.prices.values, 0), arrays.prices.starts)
    asks_anew = arrays.asks.at(cheapest[arrays.asker])[arrays.asks.rows] > arrays.asks.values
    asked = np.where(asks_anew, highest[arrays.asked_charge][arrays.asks.rows], 0)
    asker_choice = _choice_positions(costs, arrays.asks, arrays.asker)
    added = sums(len(alive), np.concatenate((payer_choice, asker_choice)), np.concatenate((dearer, asked)))
    competitive: NDArray[np.bool_] = (costs.values < least + added) | (costs.columns == cheapest[costs.rows])
    return competitive


def _choice_positions(costs: Ragged, rows: Ragged, variables: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each value of `rows`, of which row i has one for each choice of `variables[i]`, where in `costs` it is."""
    return costs.starts[variables][rows.rows] + rows.columns
