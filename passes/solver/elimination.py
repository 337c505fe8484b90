"""The exact answer where the graph is narrow, one variable eliminated at a time.

Eliminating a variable replaces the costs that it shares with others by its best reply to each of their choices. With
one or two neighbours these are the reductions RI and RII of PBQP register allocation (Scholz and Eckstein, 2002);
with more, bucket elimination (Dechter, 1999), whose tables grow with the graph's width. Networks are nearly
series-parallel, hence narrow, however deep they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.elimination_order import elimination_order
from frx_graph.passes.solver.instance import INFINITE, Instance
from frx_graph.passes.solver.tables import Table, Tabulation

_LARGEST_TABLE = 2**18
"""Entries of one table, 8 bytes each: seven variables of five choices, say."""

_ALL_TABLES = 2**24
"""Entries of all tables together: about a second of numpy."""


def least_by_elimination(instance: Instance) -> tuple[int, ...] | None:
    """The choices of least ticks, or None if tables would be too large. Raises `LabellingError` if all are infinite."""
    tabulation = Tabulation.of(instance)
    order = elimination_order(tabulation.choices, tabulation.scopes(), _LARGEST_TABLE)
    if order.skipped or order.entries > _ALL_TABLES:
        return None
    return _eliminated(tabulation, order.variables)[: len(instance.variables)]


def _eliminated(tabulation: Tabulation, order: Sequence[int]) -> tuple[int, ...]:
    """Forward, each variable's best reply to the choices of those that come later; backward, the choices."""
    rank = {variable: position for position, variable in enumerate(order)}
    # The axes of every table have the variable that goes first last, so that replies need no transposing.
    waiting: list[list[Table]] = [[] for _ in tabulation.choices]
    for table in tabulation.tables():
        _wait(waiting, _by_rank(table, rank))
    replies: list[tuple[tuple[int, ...], NDArray[np.uint16]]] = []
    for variable in order:
        joint = _joint(waiting[variable], tabulation.choices, rank)
        waiting[variable].clear()
        rest = joint.scope[:-1]
        least = joint.ticks.min(axis=-1)
        replies.append((rest, joint.ticks.argmin(axis=-1).astype(np.uint16)))
        if rest:
            _wait(waiting, Table(rest, least))
        elif least >= INFINITE:
            raise LabellingError("no labels satisfy all constraints", "some conversion that is impossible is needed")
    chosen = [0] * len(tabulation.choices)
    for variable, (rest, reply) in zip(reversed(order), reversed(replies), strict=True):
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
