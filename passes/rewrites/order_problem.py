"""The choice of orders for a graph's values, as the solver is asked it: seconds of anchors, seconds of conversions.

An operator's label is the order in which it reads and makes values. What it costs:
- an anchor, its measured time in that order; an anchor that was not measured stays as it is;
- a value that is read in another order than it has, one copy of it for each such order, at the device's bandwidth; half
  of that where only loops that the compiler writes read it, since they read it anyway, if less well.
Everything else is taken to cost the same in every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.passes.rewrites.order_members import (
    Member,
    current_order,
    possible_orders,
    works_in,
)
from frx_graph.passes.solver.problem import Given, Label, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve
from frx_graph.rules.dimension_map import Order, canonical

AnchorSeconds = Mapping[str, Mapping[Order, float]]
"""Measured seconds of an anchor, by node name and label."""

LOOP_SHARE = 0.5
"""What reading in another order than is stored costs a generated loop, as a share of a copy: it moves the bytes anyway.
A guess between nothing and a copy, which decides only where measured gains are about as small."""


@dataclass(frozen=True)
class OrderProblem:
    """The members of a graph that can change, and the problem whose node `i` is member `i`."""

    members: tuple[Member, ...]
    problem: Problem

    def cheapest(self) -> tuple[Order, ...]:
        """A label for each member, of least total seconds; of equally cheap ones, the one nearest to the program."""
        return cast("tuple[Order, ...]", solve(self.problem).labels)

    def seconds_saved(self, labels: Sequence[Order]) -> float:
        """What a run of the graph with `labels` saves."""
        current = [member.current for member in self.members]
        return self.problem.seconds(current) - self.problem.seconds(labels)


@dataclass(frozen=True)
class Surroundings:
    """What the members stand in. `visible` are the outputs whose strides somebody outside relies on; `takes_any` says
    of an operator that is no member whether it reads every order at the same cost."""

    facts: GraphFacts
    inner: str
    visible: Collection[str]
    takes_any: Callable[[OpFacts, ValueFacts], bool]

    def generates(self, member: Member) -> bool:
        """True if the compiler writes the operator's loops itself."""
        return self.inner == "inductor" and member.row.generated


def order_problem(
    everyone: Sequence[Member], around: Surroundings, anchors: AnchorSeconds, seconds_per_byte: float
) -> OrderProblem:
    """The problem for those of `everyone` that have a choice; empty where no anchor has one."""
    orders = possible_orders(everyone, lambda member: tuple(anchors.get(member.op.node, ())), around.inner)
    members = tuple(member for member in everyone if any(len(orders[value.name]) > 1 for value in member.values))
    labels = [_labels(around, member, orders, anchors) for member in members]
    nodes = tuple(
        Node(_seconds(around, member, choice, anchors), member.current)
        for member, choice in zip(members, labels, strict=True)
    )
    values = _values(around, members, labels, seconds_per_byte)
    return OrderProblem(members, Problem(nodes, tuple(values)))


def _labels(
    around: Surroundings, member: Member, orders: Mapping[str, tuple[Order, ...]], anchors: AnchorSeconds
) -> tuple[Order, ...]:
    """The present label, then the others that the operator works in."""
    if member.anchor and not around.generates(member):
        asked = [canonical(member.shape, label) for label in anchors.get(member.op.node, ())]
    else:
        found = (member.label_for(value, order) for value in member.values for order in orders[value.name])
        asked = [label for label in found if label is not None]
    possible = (label for label in asked if works_in(member, label, around.inner))
    return tuple(dict.fromkeys((member.current, *possible)))


def _seconds(
    around: Surroundings, member: Member, labels: Sequence[Order], anchors: AnchorSeconds
) -> dict[Label, float]:
    """An anchor that was measured cannot have a label in which it was not."""
    measured = {canonical(member.shape, label): s for label, s in anchors.get(member.op.node, {}).items()}
    if not any(label in measured for label in labels) or around.generates(member):
        return dict.fromkeys(labels, 0.0)
    return {label: measured.get(label, math.inf) for label in labels}


def _values(
    around: Surroundings, members: Sequence[Member], labels: Sequence[Sequence[Order]], seconds_per_byte: float
) -> Sequence[Value]:
    made: dict[str, Port] = {}
    read: dict[str, list[int]] = {}
    known: dict[str, ValueFacts] = {}
    for index, member in enumerate(members):
        for value in member.results:
            made[value.name] = _port(index, member, value, labels[index])
        for value in member.operands:
            read.setdefault(value.name, []).append(index)
        known.update((value.name, value) for value in member.values)
    inside = {member.op.node for member in members}
    return [
        _value(around, members, labels, value, made.get(name), read.get(name, ()), inside, seconds_per_byte)
        for name, value in known.items()
    ]


def _value(
    around: Surroundings,
    members: Sequence[Member],
    labels: Sequence[Sequence[Order]],
    value: ValueFacts,
    source: Port | None,
    readers: Sequence[int],
    inside: Collection[str],
    seconds_per_byte: float,
) -> Value:
    now = current_order(value)
    outside = [op for op in around.facts.users(value.name) if op.node not in inside]
    wanted = value.name in around.visible or any(not around.takes_any(op, value) for op in outside)
    loops_only = not wanted and all(around.generates(members[index]) for index in readers)
    copy = 2 * value.bytes * seconds_per_byte
    return Value(
        source=Given(now) if source is None else source,
        readers=tuple(_port(index, members[index], value, labels[index]) for index in readers),
        wanted=(now,) if wanted else (),
        seconds=copy * LOOP_SHARE if loops_only else copy,
    )


def _port(index: int, member: Member, value: ValueFacts, labels: Sequence[Order]) -> Port:
    """The present label stands for what is there now, whatever the table says of it."""
    translated: dict[Label, Label] = {label: member.order_of(value, label) for label in labels[1:]}
    return Port(index, {labels[0]: current_order(value), **translated})
