"""Price each choice of layouts for one group of regions: measured seconds of anchors, and conversions.

Every choice rests on the same assumptions. Operators other than anchors, and anchors that were not measured, cost the
same in either layout. A conversion costs its traffic at the device's bandwidth, is made once per value, and cannot be
fused away. Parameters are converted when the model is built. A value from outside the group stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import Layout
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.passes.layouts.layout_demand import find_wanted_layouts
from frx_graph.passes.layouts.operator_layout import (
    classify_memory_order,
    follows_operand,
    requires_one_layout,
    swap_layout,
)
from frx_graph.passes.layouts.regions import LayoutGroup

Labels = Sequence[Layout]
"""One layout per operator of the problem, in the order of `LayoutGroup.operators`."""


@dataclass(frozen=True, slots=True)
class ValueCost:
    """One value of the problem. `producer` and `readers` index operators; a value from outside has no producer but a
    layout `given`, None if it is neither of the two. `wanted` are the layouts that readers outside the group want."""

    name: str
    producer: int | None
    given: Layout | None
    readers: tuple[int, ...]
    wanted: tuple[Layout, ...]
    conversion_bytes: int


@dataclass(frozen=True)
class LayoutProblem:
    """One group with its prices. `times` holds each measured anchor's seconds in either layout. `tied` are pairs of
    operators that cannot differ, `pinned` operators that cannot be changed."""

    group: LayoutGroup
    values: tuple[ValueCost, ...]
    times: Mapping[int, Mapping[Layout, float]]
    tied: tuple[tuple[int, int], ...]
    pinned: Mapping[int, Layout]
    seconds_per_byte: float

    @cached_property
    def current(self) -> tuple[Layout, ...]:
        """The present layouts."""
        return tuple(operator.layout for operator in self.group.operators)

    def sum_anchor_seconds(self, labels: Labels, operators: Iterable[int]) -> float:
        """Return the measured seconds of the anchors among `operators`."""
        return sum(self.times[index][labels[index]] for index in operators if index in self.times)

    def is_converted(self, value: ValueCost, labels: Labels) -> bool:
        """Return True if some reader of `value` is in, or wants, the other layout."""
        has = value.given if value.producer is None else labels[value.producer]
        if has is None:
            return False
        needs = swap_layout(has)
        return needs in value.wanted or any(labels[reader] is needs for reader in value.readers)

    def sum_seconds(self, labels: Labels) -> float:
        """Return the seconds of all measured anchors and all conversions."""
        moved_bytes = sum(value.conversion_bytes for value in self.values if self.is_converted(value, labels))
        return moved_bytes * self.seconds_per_byte + self.sum_anchor_seconds(labels, range(len(labels)))


def build_layout_problem(
    group: LayoutGroup, facts: GraphFacts, times: Mapping[str, LayoutTimes], bandwidth_bytes_per_s: float
) -> LayoutProblem:
    """Return the problem of choosing layouts for `group`, with `times` by node."""
    operators = group.operators
    producer = {name: index for index, operator in enumerate(operators) for name in operator.results}
    readers: dict[str, list[int]] = {name: [] for name in producer}
    for index, operator in enumerate(operators):
        for name in operator.operands:
            readers.setdefault(name, []).append(index)

    nodes = {operator.op.node for operator in operators}
    values: list[ValueCost] = []
    for name, reading in readers.items():
        made_by = producer.get(name)
        wanted: tuple[Layout, ...] = ()
        if made_by is not None:
            outside = [reader for reader in facts.get_users(name) if reader.node not in nodes]
            wanted = find_wanted_layouts(facts, name, outside, visible=name in facts.outputs)
        value = facts.values[name]
        given = classify_memory_order(value) if made_by is None else None
        values.append(ValueCost(name, made_by, given, tuple(reading), wanted, 2 * value.bytes))

    tied: list[tuple[int, int]] = []
    pinned: dict[int, Layout] = {}
    for index, operator in enumerate(operators):
        first = operator.operands[0] if operator.operands else None
        if first is None or not (follows_operand(operator.op) or requires_one_layout(operator.op)):
            continue
        if first in producer:
            tied.append((producer[first], index))
        else:
            pinned[index] = operator.layout
    return LayoutProblem(
        group=group,
        values=tuple(values),
        times={
            index: {Layout.PLAIN: measured.plain_seconds, Layout.CHANNELS_LAST: measured.channels_last_seconds}
            for index, operator in enumerate(operators)
            if operator.anchor
            and (timed := times.get(operator.op.node)) is not None
            and (measured := timed.drop_unsteady()).plain_seconds is not None
            and measured.channels_last_seconds is not None
        },
        tied=tuple(tied),
        pinned=pinned,
        seconds_per_byte=1.0 / bandwidth_bytes_per_s,
    )
