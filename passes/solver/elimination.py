"""Solve narrow graphs exactly, by eliminating one variable at a time.

Eliminating a variable replaces the costs that it shares with others by its best reply to each of their choices. With
one or two neighbours these are the reductions RI and RII of PBQP register allocation (Scholz and Eckstein, 2002); with
more, bucket elimination (Dechter, 1999), whose tables grow with the graph's width. Networks are nearly series-parallel,
so they are narrow, however deep.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.instance import INFINITE, Instance
from frx_graph.passes.solver.tables import Table, tabulate

_LARGEST_TABLE = 2**18
"""Entries of one table, 8 bytes each: seven variables of five choices, say."""

_ALL_TABLES = 2**24
"""Entries of all tables together: about a second of numpy."""


def solve_by_elimination(instance: Instance) -> tuple[int, ...] | None:
    """Return the choices of least ticks, None if tables would be too large.

    Raises `LabellingError` if all are infinite.
    """
    choices, tables = tabulate(instance)
    found = find_elimination_order(choices, [table.scope for table in tables], _LARGEST_TABLE)
    if found is None:
        return None
    order, entries = found
    if entries > _ALL_TABLES:
        return None
    return _eliminate(choices, tables, order)[: len(instance.variables)]


def find_elimination_order(
    choices: Sequence[int], scopes: Iterable[Sequence[int]], largest: int
) -> tuple[list[int], int] | None:
    """Return the order that always takes the variable whose table is smallest next (the minimum-weight rule), and the
    entries of all its tables.

    `choices` counts those of each variable, and variables of one of `scopes` share costs. None if a table would have
    more than `largest` entries.
    """
    neighbours: list[set[int]] = [set() for _ in choices]
    for scope in scopes:
        for variable in scope:
            neighbours[variable] |= {*scope} - {variable}
    entries = [
        own * math.prod(choices[other] for other in around) for own, around in zip(choices, neighbours, strict=True)
    ]
    queue = [(size, variable) for variable, size in enumerate(entries)]
    heapq.heapify(queue)
    order: list[int] = []
    done = [False] * len(choices)
    total = 0
    while queue:
        size, variable = heapq.heappop(queue)
        if done[variable] or size != entries[variable]:
            continue
        if size > largest:
            return None
        order.append(variable)
        total += size
        done[variable] = True
        around = neighbours[variable]
        for other in around:
            neighbours[other].discard(variable)
            added = around - neighbours[other] - {other}
            neighbours[other] |= added
            entries[other] = entries[other] // choices[variable] * math.prod(choices[new] for new in added)
            heapq.heappush(queue, (entries[other], other))
    return order, total


def _eliminate(choices: Sequence[int], tables: Iterable[Table], order: Sequence[int]) -> tuple[int, ...]:
    """Go forward for each variable's best reply to the choices of later ones, then back for the choices."""
    rank = {variable: position for position, variable in enumerate(order)}
    # The axes of every table have the variable that goes first last, so that replies need no transposing.
    waiting: list[list[Table]] = [[] for _ in choices]
    for table in tables:
        scope = tuple(sorted(table.scope, key=rank.__getitem__, reverse=True))
        axes = [table.scope.index(variable) for variable in scope]
        waiting[scope[-1]].append(Table(scope, table.ticks.transpose(axes)))
    replies: list[tuple[tuple[int, ...], NDArray[np.uint16]]] = []
    for variable in order:
        joint = _sum_tables(waiting[variable], choices, rank)
        waiting[variable].clear()
        rest = joint.scope[:-1]
        least = joint.ticks.min(axis=-1)
        replies.append((rest, joint.ticks.argmin(axis=-1).astype(np.uint16)))
        if rest:
            waiting[rest[-1]].append(Table(rest, least))
        elif least >= INFINITE:
            raise LabellingError("no labels satisfy all constraints", "some conversion that is impossible is needed")
    chosen = [0] * len(choices)
    for variable, (rest, reply) in zip(reversed(order), reversed(replies), strict=True):
        chosen[variable] = int(reply[tuple(chosen[other] for other in rest)])
    return tuple(chosen)


def _sum_tables(parts: Sequence[Table], choices: Sequence[int], rank: dict[int, int]) -> Table:
    """Return the sum of tables that are ordered by rank."""
    if len(parts) == 1:
        return parts[0]
    scope = tuple(sorted({variable for table in parts for variable in table.scope}, key=lambda v: -rank[v]))
    ticks = np.zeros([choices[variable] for variable in scope], dtype=np.int64)
    for table in parts:
        held = set(table.scope)
        ticks += table.ticks.reshape([choices[variable] if variable in held else 1 for variable in scope])
        np.minimum(ticks, INFINITE, out=ticks)
    return Table(scope, ticks)
