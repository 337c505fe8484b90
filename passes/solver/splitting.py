"""Apply the decided choices, and split the rest into parts that do not interact.

A variable with one choice couples nothing: its payments and requests are known. So pinned operators, and operators that
the program around them decides, separate a graph into regions that are solved one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.instance import INFINITE, Asker, Charge, Instance, Variable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InstancePart:
    """A connected instance. Its variable i is `variables[i]` of the whole, its choice c `choices[i][c]` there."""

    instance: Instance
    variables: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]


def split_instance(instance: Instance) -> tuple[InstancePart, ...]:
    """Return parts with every variable in exactly one. Raises `LabellingError` if decided costs are infinite."""
    kept = [tuple(range(len(variable.costs))) for variable in instance.variables]
    while True:
        folded = _fold_decided(restrict_instance(instance, kept))
        possible = [
            tuple(choice for choice, cost in enumerate(variable.costs) if cost < INFINITE)
            for variable in folded.variables
        ]
        if not all(possible):
            raise LabellingError("no labels satisfy all constraints", "a value would need a conversion that cannot be")
        if all(len(some) == len(old) for some, old in zip(possible, kept, strict=True)):
            return tuple(_list_parts(folded, kept))
        kept = [tuple(old[choice] for choice in some) for some, old in zip(possible, kept, strict=True)]


def restrict_instance(instance: Instance, kept: Sequence[tuple[int, ...]]) -> Instance:
    """Return the instance with only the choices `kept` of each variable."""
    fewer = [len(some) < len(variable.costs) for some, variable in zip(kept, instance.variables, strict=True)]
    if not any(fewer):
        return instance

    def pick(values: tuple[T, ...], variable: int) -> tuple[T, ...]:
        return tuple(values[choice] for choice in kept[variable]) if fewer[variable] else values

    variables = [
        Variable(pick(old.costs, i), pick(old.labels, i), kept[i].index(old.start) if old.start in kept[i] else 0)
        for i, old in enumerate(instance.variables)
    ]
    charges = [
        Charge(
            old.payer,
            pick(old.prices, old.payer),
            tuple(Asker(asker.variable, pick(asker.asks, asker.variable)) for asker in old.askers),
        )
        for old in instance.charges
    ]
    return Instance(tuple(variables), tuple(charges))


def _fold_decided(instance: Instance) -> Instance:
    """Return the same costs, up to a constant, with charges only between two or more undecided variables."""
    costs = [list(variable.costs) for variable in instance.variables]
    charges: list[Charge] = []
    for charge in instance.charges:
        left = _drop_decided_askers(charge)
        if left is None:
            continue
        if not left.askers:
            _add_prices(costs[left.payer], left.prices)
        elif all(asker.variable == left.payer for asker in left.askers):
            (asker,) = left.askers
            _add_prices(costs[left.payer], (price * asks for price, asks in zip(left.prices, asker.asks, strict=True)))
        else:
            charges.append(left)
    variables = tuple(
        Variable(tuple(own), old.labels, old.start) for old, own in zip(instance.variables, costs, strict=True)
    )
    return Instance(variables, tuple(charges))


def _drop_decided_askers(charge: Charge) -> Charge | None:
    """Return the charge with the askers that may or may not ask, none if it is certain; None if it is never paid."""
    if not any(charge.prices):
        return None
    asking = tuple(asker for asker in charge.askers if any(asker.asks))
    if not asking:
        return None
    if any(all(asker.asks) for asker in asking):
        return Charge(charge.payer, charge.prices, askers=())
    if len(charge.prices) == 1:
        # The price is known, so any of those that share it can be the one to pay it.
        return Charge(asking[0].variable, charge.prices * len(asking[0].asks), asking)
    return charge if len(asking) == len(charge.askers) else Charge(charge.payer, charge.prices, asking)


def _add_prices(costs: list[int], prices: Iterable[int]) -> None:
    for choice, price in enumerate(prices):
        costs[choice] = min(costs[choice] + price, INFINITE)


def _list_parts(instance: Instance, kept: Sequence[tuple[int, ...]]) -> Iterable[InstancePart]:
    """Return the connected components, by their first variables."""
    pairs = [(charge.payer, asker.variable) for charge in instance.charges for asker in charge.askers]
    components = find_connected_components(len(instance.variables), pairs)
    place_of = {v: (part, index) for part, members in enumerate(components) for index, v in enumerate(members)}
    charges: list[list[Charge]] = [[] for _ in components]
    for charge in instance.charges:
        part, payer = place_of[charge.payer]
        askers = tuple(Asker(place_of[asker.variable][1], asker.asks) for asker in charge.askers)
        charges[part].append(Charge(payer, charge.prices, askers))
    for variables, own in zip(components, charges, strict=True):
        yield InstancePart(
            instance=Instance(tuple(instance.variables[variable] for variable in variables), tuple(own)),
            variables=tuple(variables),
            choices=tuple(kept[variable] for variable in variables),
        )


def find_connected_components(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the members of each component of a graph of `count` vertices, by their first members."""
    edges = np.array([*pairs], dtype=np.int64).reshape(-1, 2)
    graph = coo_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))
    number, component_of = connected_components(graph, directed=False)
    members: list[list[int]] = [[] for _ in range(number)]
    for vertex, component in enumerate(component_of.tolist()):
        members[component].append(vertex)
    return members
