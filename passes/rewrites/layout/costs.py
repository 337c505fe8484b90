"""Pose the choice of orders for the solver: seconds of anchors, seconds of conversions.

An operator's label is the order in which it reads and makes values. The costs are:

- An anchor costs its measured time in that order. An anchor that was not measured stays as it is.
- A loop that the compiler writes for a pooling or for upsampling costs its measured time in that order. In an order
  that was not measured it costs as much as it does now.
- A value that is read in another order than it has costs one copy for each such order: as measured if the copy is an
  operator, else its bytes at the device's bandwidth. It costs half if only loops that the compiler writes read it,
  since they read it anyway, if less well.

Everything else is taken to cost the same in every order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.passes.layouts.dimension_map import Order, canonicalize_order
from frx_graph.passes.rewrites.layout.ops import (
    OrderedOp,
    compute_current_order,
    find_possible_orders,
    supports_label,
)
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import reads_any_order
from frx_graph.passes.solver.problem import Given, Label, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve

AnchorSeconds = Mapping[str, Mapping[Order, float]]
"""Measured seconds of an anchor, or of a loop, by node name and label."""

LOOP_SHARE = 0.5
"""Share of a copy's cost that a generated loop pays for reading in another order: it moves the bytes anyway. A guess
between nothing and a copy, which decides only between gains about as small."""


@dataclass(frozen=True)
class OrderProblem:
    """The members of a graph that can change, and the problem whose node `i` is member `i`. `copies` have an explicit
    layout; in the problem they are conversions of their source, made only if needed."""

    members: tuple[OrderedOp, ...]
    copies: tuple[OrderedOp, ...]
    problem: Problem

    def find_cheapest(self) -> tuple[Order, ...]:
        """Return a label for each member, of least total seconds; of equal ones, the one nearest to the program."""
        return cast("tuple[Order, ...]", solve(self.problem).labels)

    def compute_seconds_saved(self, labels: Sequence[Order]) -> float:
        """Return the seconds that a run of the graph with `labels` saves."""
        current = [member.current for member in self.members]
        return self.problem.sum_seconds(current) - self.problem.sum_seconds(labels)


@dataclass(frozen=True)
class MemberContext:
    """The members' context. Callers see the strides of `visible` outputs. `loops` are seconds of generated loops,
    `conversions` those of converting a value once, by its name."""

    facts: GraphFacts
    inner: str
    visible: Collection[str]
    loops: AnchorSeconds = field(default_factory=dict)
    conversions: Mapping[str, float] = field(default_factory=dict)

    def is_generated(self, member: OrderedOp) -> bool:
        """Return True if the compiler writes the operator's loops itself."""
        return self.inner == "inductor" and member.row.generated

    def is_timed_loop(self, member: OrderedOp) -> bool:
        """Return True for such a loop with known times, measured on operands in the result's order."""
        return self.is_generated(member) and member.op.node in self.loops


def build_order_problem(
    everyone: Sequence[OrderedOp], around: MemberContext, anchors: AnchorSeconds, seconds_per_byte: float
) -> OrderProblem:
    """Return the problem for those of `everyone` that have a choice; empty if none wants another order."""

    def list_preferred(member: OrderedOp) -> tuple[Order, ...]:
        # A copy is between two orders: either side may take the order of the other.
        return tuple(map(compute_current_order, member.values) if member.told else anchors.get(member.op.node, ()))

    orders = find_possible_orders(everyone, list_preferred, around.inner)
    undecided = [member for member in everyone if any(len(orders[value.name]) > 1 for value in member.values)]
    copies = tuple(member for member in undecided if member.told)
    members = tuple(member for member in undecided if not member.told)
    labels = [_list_labels(around, member, orders, anchors) for member in members]
    nodes = tuple(
        Node(_price_labels(around, member, choice, anchors), member.current)
        for member, choice in zip(members, labels, strict=True)
    )
    values = _list_values(around, members, copies, labels, seconds_per_byte)
    return OrderProblem(members, copies, Problem(nodes, tuple(values)))


def _list_labels(
    around: MemberContext, member: OrderedOp, orders: Mapping[str, tuple[Order, ...]], anchors: AnchorSeconds
) -> tuple[Order, ...]:
    """Return the present label, then the others that the operator works in."""
    if member.anchor and not around.is_generated(member):
        asked = [canonicalize_order(member.shape, label) for label in anchors.get(member.op.node, ())]
    else:
        found = (member.map_order_to_label(value, order) for value in member.values for order in orders[value.name])
        asked = [label for label in found if label is not None]
    possible = (label for label in asked if supports_label(member, label, around.inner))
    return tuple(dict.fromkeys((member.current, *possible)))


def _price_labels(
    around: MemberContext, member: OrderedOp, labels: Sequence[Order], anchors: AnchorSeconds
) -> dict[Label, float]:
    """Return the seconds by label. A measured anchor cannot have a label without a time; a loop can have any."""
    if around.is_timed_loop(member):
        timed = {canonicalize_order(member.shape, label): s for label, s in around.loops[member.op.node].items()}
        usual = timed.get(member.current, max(timed.values()))
        return {label: timed.get(label, usual) for label in labels}
    measured = {canonicalize_order(member.shape, label): s for label, s in anchors.get(member.op.node, {}).items()}
    if not any(label in measured for label in labels) or around.is_generated(member):
        return dict.fromkeys(labels, 0.0)
    return {label: measured.get(label, math.inf) for label in labels}


def _list_values(
    around: MemberContext,
    members: Sequence[OrderedOp],
    copies: Sequence[OrderedOp],
    labels: Sequence[Sequence[Order]],
    seconds_per_byte: float,
) -> Iterator[Value]:
    """Yield each value with all its copies as one: each order other than its source's costs one conversion."""
    made: dict[str, Port] = {}
    read: dict[str, list[int]] = {}
    same: dict[str, list[ValueFacts]] = {}
    source_of: dict[str, str] = {}
    for copy in copies:
        # A copy of what is expanded has no order to take over.
        if copy.operands:
            source = copy.operands[0]
            source_of.update((result.name, source_of.get(source.name, source.name)) for result in copy.results)
    for index, member in enumerate(members):
        for value in member.results:
            made[value.name] = _make_port(index, member, value, labels[index])
        for value in member.operands:
            read.setdefault(value.name, []).append(index)
    known = {value.name: value for member in (*members, *copies) for value in member.values}
    for value in known.values():
        same.setdefault(source_of.get(value.name, value.name), []).append(value)
    inside = {member.op.node for member in (*members, *copies)}

    def is_wanted(value: ValueFacts) -> bool:
        outside = (op for op in around.facts.get_users(value.name) if op.node not in inside)
        return value.name in around.visible or any(not reads_any_order(op, value, around.inner) for op in outside)

    for name, values in same.items():
        first = known[name]
        wanted = dict.fromkeys(compute_current_order(value) for value in values if is_wanted(value))
        readers = [(index, value) for value in values for index in read.get(value.name, ())]
        loops_only = not wanted and all(
            around.is_generated(members[index]) and not around.is_timed_loop(members[index]) for index, _ in readers
        )
        seconds = around.conversions.get(name, 2 * first.bytes * seconds_per_byte)
        yield Value(
            source=made.get(name, Given(compute_current_order(first))),
            readers=tuple(_make_port(index, members[index], value, labels[index]) for index, value in readers),
            wanted=tuple(wanted),
            seconds=seconds * LOOP_SHARE if loops_only else seconds,
        )


def _make_port(index: int, member: OrderedOp, value: ValueFacts, labels: Sequence[Order]) -> Port:
    """Return the port of a value. The present label means its present order, even if the table differs."""
    translated: dict[Label, Label] = {label: member.map_label_to_order(value, label) for label in labels[1:]}
    return Port(index, {labels[0]: compute_current_order(value), **translated})
