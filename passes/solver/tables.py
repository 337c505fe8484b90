"""Write an instance as a sum of tables over few variables each, for elimination."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.instance import INFINITE, Charge, Instance

_LARGEST_CHARGE = 2**10
"""A charge that couples more combinations of choices is split by a helper variable that pays or does not: then each
variable is coupled with the helper only."""

Scope = tuple[int, ...]
"""Distinct variables."""


@dataclass(frozen=True, slots=True)
class Table:
    """Ticks for each combination of choices of the variables in `scope`, an axis each."""

    scope: Scope
    ticks: NDArray[np.int64]


def tabulate(instance: Instance) -> tuple[list[int], list[Table]]:
    """Return the number of choices of each variable, the instance's and then helpers, and one table for each scope."""
    choices = [len(variable.costs) for variable in instance.variables]
    addends = [
        Table((index,), np.array(variable.costs, dtype=np.int64)) for index, variable in enumerate(instance.variables)
    ]
    for charge in instance.charges:
        scope = tuple(sorted({charge.payer, *(asker.variable for asker in charge.askers)}))
        if math.prod(choices[variable] for variable in scope) <= _LARGEST_CHARGE:
            addends.append(_tabulate_whole(charge, scope, choices))
        else:
            addends.extend(_tabulate_split(charge, helper=len(choices)))
            choices.append(2)
    sums: dict[Scope, NDArray[np.int64]] = {}
    for table in addends:
        known = sums.get(table.scope)
        sums[table.scope] = table.ticks if known is None else np.minimum(known + table.ticks, INFINITE)
    return choices, [Table(scope, ticks) for scope, ticks in sums.items()]


def _tabulate_whole(charge: Charge, scope: Scope, choices: list[int]) -> Table:
    asked = np.zeros([choices[variable] for variable in scope], dtype=np.int64)
    for asker in charge.askers:
        asked |= _broadcast_along(asker.asks, scope, asker.variable)
    return Table(scope, asked * _broadcast_along(charge.prices, scope, charge.payer))


def _tabulate_split(charge: Charge, helper: int) -> Iterator[Table]:
    """Yield the tables of a split charge, whose helper's second choice, to pay, is forced if a variable asks."""
    yield Table((charge.payer, helper), np.array([(0, price) for price in charge.prices], dtype=np.int64))
    for asker in charge.askers:
        refused = np.array([(INFINITE * asks, 0) for asks in asker.asks], dtype=np.int64)
        yield Table((asker.variable, helper), refused)


def _broadcast_along(values: tuple[int, ...], scope: Scope, variable: int) -> NDArray[np.int64]:
    """Return `values` on the axis of `variable`, the same along all others."""
    return np.array(values, dtype=np.int64).reshape([-1 if other == variable else 1 for other in scope])
