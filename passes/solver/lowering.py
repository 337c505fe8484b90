"""From seconds and labels to ticks and choices, and back.

Ticks hold two costs at once. The lower digits count the nodes whose label changes, the upper ones the time; so of
equally cheap labellings the one nearest to the program costs fewest ticks, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.passes.solver.bundles import Bundle, bundles
from frx_graph.passes.solver.instance import INFINITE, Asker, Charge, Instance, Variable
from frx_graph.passes.solver.problem import Given, Label, Port, Problem, Value

_FINITE_BITS = 60


@dataclass(frozen=True, slots=True)
class Lowered:
    """Variables are the bundles, in their order, and last the outside: one choice, source of what is given and asker
    of what is wanted."""

    instance: Instance
    bundles: tuple[Bundle, ...]

    def labels(self, choices: Sequence[int]) -> tuple[Label, ...]:
        """The label of each node of the problem."""
        chosen = {
            node: labels[choices[index]]
            for index, bundle in enumerate(self.bundles)
            for node, labels in zip(bundle.nodes, bundle.labels, strict=True)
        }
        return tuple(chosen[node] for node in range(len(chosen)))


def lower(problem: Problem) -> Lowered:
    """`problem` with its tied nodes merged. Raises `LabellingError` where a node has no label left."""
    merged = bundles(problem)
    clock = _clock(problem)
    home: dict[int, tuple[int, tuple[Label, ...]]] = {
        node: (index, labels)
        for index, bundle in enumerate(merged)
        for node, labels in zip(bundle.nodes, bundle.labels, strict=True)
    }
    variables = [_variable(problem, bundle, clock) for bundle in merged]
    outside = len(variables)
    variables.append(Variable(costs=(0,), labels=(None,), start=0))
    charges = [charge for value in problem.values for charge in _charges(value, home, outside, clock)]
    return Lowered(Instance(tuple(variables), tuple(charges)), merged)


@dataclass(frozen=True, slots=True)
class _Clock:
    """A second is 2 ** exponent steps, and a step is worth more than changing all nodes."""

    exponent: int
    nodes: int

    def ticks(self, seconds: float, changed: int = 0) -> int:
        if seconds == math.inf:
            return INFINITE
        return round(math.ldexp(seconds, self.exponent)) * (self.nodes + 1) + changed


def _clock(problem: Problem) -> _Clock:
    """The finest clock whose ticks cannot overflow, whatever is chosen."""
    total = 0.0
    for node in problem.nodes:
        total += max((seconds for seconds in node.seconds.values() if seconds < math.inf), default=0.0)
    for value in problem.values:
        times = (value.seconds, *value.pair_seconds.values())
        targets = sum(len(_labels_of(problem, port)) for port in value.readers) + len(value.wanted)
        total += targets * max((seconds for seconds in times if seconds < math.inf), default=0.0)
    nodes = len(problem.nodes)
    bits = _FINITE_BITS - 1 - (nodes + 1).bit_length()
    return _Clock(bits - math.frexp(total)[1], nodes)


def _labels_of(problem: Problem, port: Port) -> Sequence[Label]:
    return tuple(problem.nodes[port.node].seconds)


def _variable(problem: Problem, bundle: Bundle, clock: _Clock) -> Variable:
    costs = [0] * bundle.choices
    changed = [0] * bundle.choices
    for index, labels in zip(bundle.nodes, bundle.labels, strict=True):
        node = problem.nodes[index]
        for choice, label in enumerate(labels):
            differs = label != node.current
            costs[choice] += clock.ticks(node.seconds[label], differs)
            changed[choice] += differs
    return Variable(tuple(costs), bundle.labels[0], start=changed.index(min(changed)))


def _charges(value: Value, home: dict[int, tuple[int, tuple[Label, ...]]], outside: int, clock: _Clock) -> list[Charge]:
    """One for each label that the value may be asked for."""
    if isinstance(value.source, Given):
        payer = outside
        has: tuple[Label, ...] = (value.source.label,)
    else:
        payer, labels = home[value.source.node]
        has = tuple(value.source.label(label) for label in labels)
    asks: dict[Label, dict[int, list[bool]]] = {}
    for label in value.wanted:
        asks.setdefault(label, {})[outside] = [True]
    for port in value.readers:
        reader, labels = home[port.node]
        for choice, label in enumerate(labels):
            asking = asks.setdefault(port.label(label), {}).setdefault(reader, [False] * len(labels))
            asking[choice] = True
    return [
        Charge(
            payer=payer,
            prices=tuple(clock.ticks(value.conversion_seconds(label, target)) for label in has),
            askers=tuple(Asker(variable, tuple(asking)) for variable, asking in askers.items()),
        )
        for target, askers in asks.items()
    ]
