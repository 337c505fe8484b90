"""Put in what is decided already, and split the rest into parts that do not interact.

A variable with one choice couples nothing: what it pays or asks for is known. So pinned operators, and operators that
the program around them decides, separate a graph into regions that are solved one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.instance import INFINITE, Asker, Charge, Instance, Variable


@dataclass(frozen=True, slots=True)
class Part:
    """A connected instance. Its variable i is `variables[i]` of the whole, its choice c `choices[i][c]` there."""

    instance: Instance
    variables: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]


def split(instance: Instance) -> tuple[Part, ...]:
    """Return parts with every variable in exactly one. Raises `LabellingError` if decided costs are infinite."""
    kept = [tuple(range(len(variable.costs))) for variable in instance.variables]
    while True:
        folded = _folded(restricted(instance, kept))
        possible = [
            tuple(choice for choice, cost in enumerate(variable.costs) if cost < INFINITE)
            for variable in folded.variables
        ]
        if not all(possible):
            raise LabellingError("no labels satisfy all constraints", "a value would need a conversion that cannot be")
        if all(len(some) == len(old) for some, old in zip(possible, kept, strict=True)):
            return tuple(_parts(folded, kept))
        kept = [tuple(old[choice] for choice in some) for some, old in zip(possible, kept, strict=True)]


def restricted(instance: Instance, kept: Sequence[tuple[int, ...]]) -> Instance:
    """Return the instance with only the choices `kept` of each variable."""
    fewer = [len(some) < len(variable.costs) for some, variable in zip(kept, instance.variables, strict=True)]
    if not any(fewer):
        return instance

    def asker(old: Asker) -> Asker:
        if not fewer[old.variable]:
            return old
        return Asker(old.variable, tuple(old.asks[choice] for choice in kept[old.variable]))

    def prices(old: Charge) -> tuple[int, ...]:
        return tuple(old.prices[choice] for choice in kept[old.payer]) if fewer[old.payer] else old.prices

    return Instance(
        variables=tuple(v.keeping(choices) for v, choices in zip(instance.variables, kept, strict=True)),
        charges=tuple(Charge(old.payer, prices(old), tuple(map(asker, old.askers))) for old in instance.charges),
    )


def _folded(instance: Instance) -> Instance:
    """Return the same costs, up to a constant, with charges only between two or more undecided variables."""
    costs = [list(variable.costs) for variable in instance.variables]
    charges: list[Charge] = []
    for charge in instance.charges:
        left = _undecided(charge)
        if left is None:
            continue
        if not left.askers:
            _add(costs[left.payer], left.prices)
        elif all(asker.variable == left.payer for asker in left.askers):
            (asker,) = left.askers
            _add(costs[left.payer], (price * asks for price, asks in zip(left.prices, asker.asks, strict=True)))
        else:
            charges.append(left)
    variables = tuple(
        Variable(tuple(own), old.labels, old.start) for old, own in zip(instance.variables, costs, strict=True)
    )
    return Instance(variables, tuple(charges))


def _undecided(charge: Charge) -> Charge | None:
    """Return the charge with the askers that may or may not ask; without any, it is paid for certain. None if it never
    is."""
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


def _add(costs: list[int], prices: Iterable[int]) -> None:
    for choice, price in enumerate(prices):
        costs[choice] = min(costs[choice] + price, INFINITE)


def _parts(instance: Instance, kept: Sequence[tuple[int, ...]]) -> Iterable[Part]:
    """Return the connected components, by their first variables."""
    root = list(range(len(instance.variables)))

    def find(variable: int) -> int:
        while root[variable] != variable:
            root[variable] = root[root[variable]]
            variable = root[variable]
        return variable

    for charge in instance.charges:
        for asker in charge.askers:
            first, second = sorted((find(charge.payer), find(asker.variable)))
            root[second] = first
    members: dict[int, list[int]] = {}
    for variable in range(len(root)):
        members.setdefault(find(variable), []).append(variable)
    charges: dict[int, list[Charge]] = {first: [] for first in members}
    for charge in instance.charges:
        charges[find(charge.payer)].append(charge)
    for first, variables in members.items():
        index = {variable: position for position, variable in enumerate(variables)}
        yield Part(
            instance=Instance(
                variables=tuple(instance.variables[variable] for variable in variables),
                charges=tuple(_renumbered(charge, index) for charge in charges[first]),
            ),
            variables=tuple(variables),
            choices=tuple(kept[variable] for variable in variables),
        )


def _renumbered(charge: Charge, index: dict[int, int]) -> Charge:
    if all(index[asker.variable] == asker.variable for asker in charge.askers) and index[charge.payer] == charge.payer:
        return charge
    askers = tuple(Asker(index[asker.variable], asker.asks) for asker in charge.askers)
    return Charge(index[charge.payer], charge.prices, askers)
