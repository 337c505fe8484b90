"""The exact answer where the graph is narrow, one variable eliminated at a time.

Eliminating a variable replaces the costs that it shares with others by its best reply to each of their choices. With
one or two neighbours these are the reductions RI and RII of PBQP register allocation (Scholz and Eckstein, 2002);
with more, bucket elimination (Dechter, 1999), whose tables grow with the graph's width. Networks are nearly
series-parallel, hence narrow, however deep they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.elimination_order import Order, elimination_order
from frx_graph.passes.solver.instance import INFINITE, Instance

_LARGEST_TABLE = 2**18
"""Entries of one table, 8 bytes each: seven variables of five choices, say."""

_ALL_TABLES = 2**24
"""Entries of all tables together: about a second of numpy."""

_LARGEST_CHARGE = 2**10
"""A charge that couples more combinations than this is taken apart, by a helper variable for whether it is paid."""


@dataclass(frozen=True, slots=True)
class Table:
    """Ticks for each combination of choices of the variables in `scope`, an axis each."""

    scope: tuple[int, ...]
    ticks: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tables:
    """An instance as tables. `choices` counts the choices of each variable: the instance's, then helpers."""

    choices: tuple[int, ...]
    tables: tuple[Table, ...]


def least_by_elimination(instance: Instance) -> tuple[int, ...] | None:
    """The choices of least ticks, or None if tables would be too large. Raises `LabellingError` if all are infinite."""
    tables = tabulated(instance)
    scopes = [table.scope for table in tables.tables]
    order = elimination_order(tables.choices, scopes, _LARGEST_TABLE)
    if order.entangled or order.entries > _ALL_TABLES:
        return None
    return _eliminated(tables, order)[: len(instance.variables)]


def tabulated(instance: Instance) -> Tables:
    """`instance` as the sum of tables over few variables each."""
    choices = [len(variable.costs) for variable in instance.variables]
    tables: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def add(scope: tuple[int, ...], ticks: NDArray[np.int64]) -> None:
        known = tables.get(scope)
        tables[scope] = ticks if known is None else np.minimum(known + ticks, INFINITE)

    for index, variable in enumerate(instance.variables):
        add((index,), np.array(variable.costs, dtype=np.int64))
    for charge in instance.charges:
        prices = np.array(charge.prices, dtype=np.int64)
        asks = {asker.variable: np.array(asker.asks, dtype=np.int64) for asker in charge.askers}
        scope = tuple(sorted({charge.payer, *asks}))
        if math.prod(choices[variable] for variable in scope) <= _LARGEST_CHARGE:
            asked = np.zeros([choices[variable] for variable in scope], dtype=np.int64)
            for asker, asking in asks.items():
                asked = np.maximum(asked, _along(asking, scope, asker))
            add(scope, _along(prices, scope, charge.payer) * asked)
        else:
            helper = len(choices)
            choices.append(2)
            add((charge.payer, helper), np.stack((np.zeros_like(prices), prices), axis=1))
            for asker, asking in asks.items():
                add((asker, helper), np.stack((asking * INFINITE, np.zeros_like(asking)), axis=1))
    return Tables(tuple(choices), tuple(Table(scope, ticks) for scope, ticks in tables.items()))


def _along(values: NDArray[np.int64], scope: tuple[int, ...], variable: int) -> NDArray[np.int64]:
    """`values` on the axis of `variable`, the same along all others."""
    return values.reshape([-1 if other == variable else 1 for other in scope])


def _eliminated(tables: Tables, order: Order) -> tuple[int, ...]:
    """Forward, each variable's best reply to the choices of those that come later; backward, the choices."""
    rank = {variable: position for position, variable in enumerate(order.variables)}
    # The axes of every table have the variable that goes first last, so that replies need no transposing.
    waiting: list[list[Table]] = [[] for _ in tables.choices]
    for table in tables.tables:
        _wait(waiting, _by_rank(table, rank))
    replies: list[tuple[tuple[int, ...], NDArray[np.uint16]]] = []
    for variable in order.variables:
        joint = _joint(waiting[variable], tables.choices, rank)
        waiting[variable].clear()
        rest = joint.scope[:-1]
        least = joint.ticks.min(axis=-1)
        replies.append((rest, joint.ticks.argmin(axis=-1).astype(np.uint16)))
        if rest:
            _wait(waiting, Table(rest, least))
        elif least >= INFINITE:
            raise LabellingError("no labels satisfy all constraints", "some conversion that is impossible is needed")
    chosen = [0] * len(tables.choices)
    for variable, (rest, reply) in zip(reversed(order.variables), reversed(replies), strict=True):
        chosen[variable] = int(reply[tuple(chosen[other] for other in rest)])
    return tuple(chosen)


def _wait(waiting: list[list[Table]], table: Table) -> None:
    waiting[table.scope[-1]].append(table)


def _by_rank(table: Table, rank: dict[int, int]) -> Table:
    axes = sorted(range(len(table.scope)), key=lambda axis: -rank[table.scope[axis]])
    return Table(tuple(table.scope[axis] for axis in axes), table.ticks.transpose(axes))


def _joint(parts: Sequence[Table], choices: Sequence[int], rank: dict[int, int]) -> Table:
    """The sum of tables that are ordered by rank."""
    if len(parts) == 1:
        return parts[0]
    scope = tuple(sorted({variable for table in parts for variable in table.scope}, key=lambda v: -rank[v]))
    ticks = np.zeros([choices[variable] for variable in scope], dtype=np.int64)
    for table in parts:
        held = set(table.scope)
        ticks += table.ticks.reshape([choices[variable] if variable in held else 1 for variable in scope])
        np.minimum(ticks, INFINITE, out=ticks)
    return Table(scope, ticks)
