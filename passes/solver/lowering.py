"""Lower a problem in seconds and labels to an instance in ticks and choices.

Ticks hold two costs at once. The lower digits count the nodes whose label changes, the upper ones the time. So of
equally cheap labellings, the one nearest to the program costs the fewest ticks, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.instance import INFINITE, Asker, Charge, Instance, Variable
from frx_graph.passes.solver.problem import Given, Label, Node, Problem, Value

_FINITE_BITS = 60


def lower(problem: Problem) -> Instance:
    """Return the instance whose variable i is node i of `problem`.

    One more variable, the last, is the outside: it has one choice, is the source of what is given, and asks for what is
    wanted. Raises `LabellingError` if a node has no label left.
    """
    clock = _choose_tick_scale(problem)
    variables = [_make_variable(index, node, clock) for index, node in enumerate(problem.nodes)]
    labels = [variable.labels for variable in variables]
    variables.append(Variable(costs=(0,), labels=(None,), start=0))
    charges = [charge for value in problem.values for charge in _make_charges(value, labels, clock)]
    return Instance(tuple(variables), tuple(charges))


@dataclass(frozen=True, slots=True)
class _TickScale:
    """A second is 2 ** exponent steps, and a step is worth more than changing all nodes."""

    exponent: int
    nodes: int

    def to_ticks(self, seconds: float, changed: int = 0) -> int:
        if seconds == math.inf:
            return INFINITE
        return round(math.ldexp(seconds, self.exponent)) * (self.nodes + 1) + changed


def _choose_tick_scale(problem: Problem) -> _TickScale:
    """Return the finest clock whose ticks cannot overflow for any choice."""
    total = 0.0
    for node in problem.nodes:
        total += max((seconds for seconds in node.seconds.values() if seconds < math.inf), default=0.0)
    for value in problem.values:
        targets = sum(len(problem.nodes[port.node].seconds) for port in value.readers) + len(value.wanted)
        total += targets * (value.seconds if value.seconds < math.inf else 0.0)
    nodes = len(problem.nodes)
    bits = _FINITE_BITS - 1 - (nodes + 1).bit_length()
    return _TickScale(bits - math.frexp(total)[1], nodes)


def _make_variable(index: int, node: Node, clock: _TickScale) -> Variable:
    allowed = {label: seconds for label, seconds in node.seconds.items() if seconds < math.inf}
    if not allowed:
        raise LabellingError(f"no label is left for node {index}", "all its labels cost infinitely")
    labels = tuple(allowed)
    return Variable(
        costs=tuple(clock.to_ticks(seconds, changed=label != node.current) for label, seconds in allowed.items()),
        labels=labels,
        start=labels.index(node.current) if node.current in allowed else 0,
    )


def _make_charges(value: Value, labels: Sequence[tuple[Label, ...]], clock: _TickScale) -> list[Charge]:
    """Return one charge for each label that the value may be asked for."""
    outside = len(labels)
    if isinstance(value.source, Given):
        payer = outside
        has: tuple[Label, ...] = (value.source.label,)
    else:
        payer = value.source.node
        has = tuple(value.source.translate(label) for label in labels[payer])
    asks: dict[Label, dict[int, list[bool]]] = {}
    for label in value.wanted:
        asks.setdefault(label, {})[outside] = [True]
    for port in value.readers:
        for choice, label in enumerate(labels[port.node]):
            askers = asks.setdefault(port.translate(label), {})
            askers.setdefault(port.node, [False] * len(labels[port.node]))[choice] = True
    return [
        Charge(
            payer=payer,
            prices=tuple(clock.to_ticks(value.price_conversion(label, target)) for label in has),
            askers=tuple(Asker(variable, tuple(asking)) for variable, asking in askers.items()),
        )
        for target, askers in asks.items()
    ]
