"""Split a graph into layout regions: convolutions and poolings joined by operators that work in either layout.

Inside a region a layout can be chosen freely. At its edges are operators that want one layout, change the meaning of
dimensions, or are unknown. A value that crosses the edge may have to be converted. A value is converted once, however
many operators read it. Values that read the same in both layouts (one channel, 1x1 images), parameters and buffers join
nothing: they are never converted in a step.

The forward and the backward of one convolution share its saved input, so their regions belong to one group: both get
the same choice, or pay for the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.facts.operator_signature import OperatorSignature, build_signature
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.layouts.layout_demand import find_wanted_layouts
from frx_graph.passes.layouts.operator_layout import (
    classify_memory_order,
    find_layout_operator,
    has_memory_order,
    is_converted_once,
    list_layout_operands,
    list_layout_results,
)
from frx_graph.passes.solver.splitting import find_connected_components
from frx_graph.rules.layout_operator import LayoutRole


@dataclass(frozen=True, slots=True)
class BoundaryValue:
    """A value that crosses the edge of a region. `bytes` is its size; a conversion moves twice that.

    `layout` is its present layout, None if that is neither plain nor channels-last. `wanted` are the layouts that
    readers outside the region want it in: empty for values that come in, and where any layout will do.
    """

    name: str
    layout: Layout | None
    bytes: int
    wanted: tuple[Layout, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutRegion:
    """The edge of one region of one phase: the values that come in and go out."""

    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]


@dataclass(frozen=True, slots=True)
class RegionOperator:
    """One member: the values that it reads and makes whose layout counts, and its present layout."""

    op: OpFacts
    rank: int
    anchor: bool
    operands: tuple[str, ...]
    results: tuple[str, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Regions of both phases that share values: the unit for which layouts are chosen together."""

    rank: int
    operators: tuple[RegionOperator, ...]
    regions: tuple[LayoutRegion, ...]


def find_layout_groups(facts: GraphFacts, inner: str = "eager") -> tuple[LayoutGroup, ...]:
    """Return all groups that hold an anchor, in order of their first operator; time and memory linear in the graph."""
    operators = _list_region_operators(facts, inner)
    visible = frozenset(facts.outputs)
    groups: list[LayoutGroup] = []
    for indices in _find_components(operators):
        group = tuple(operators[i] for i in indices)
        if not any(operator.anchor for operator in group):
            continue
        nodes = frozenset(operator.op.node for operator in group)
        regions = (
            _make_region([half[i] for i in part], nodes, facts, visible)
            for half in ([o for o in group if o.op.phase is phase] for phase in Phase)
            for part in _find_components(half)
            if any(half[i].anchor for i in part)
        )
        groups.append(LayoutGroup(group[0].rank, group, tuple(regions)))
    return tuple(groups)


def list_anchor_signatures(facts: GraphFacts) -> Mapping[str, OperatorSignature]:
    """Return the calls to measure in both layouts, by node: anchors on 2-D and 3-D images."""
    anchors = {operator.op.node: operator.op for operator in _list_region_operators(facts, "eager") if operator.anchor}
    return {node: build_signature(op, facts) for node, op in anchors.items()}


def _list_region_operators(facts: GraphFacts, inner: str) -> list[RegionOperator]:
    forced = {phase: is_channels_last_forced(facts, phase, inner) for phase in Phase}
    found: list[RegionOperator] = []
    for op in facts.ops:
        row = find_layout_operator(op)
        if not row.joins_images:
            continue
        operands = [facts.values[name] for name in list_layout_operands(op, row) if name in facts.values]
        results = [facts.values[name] for name in list_layout_results(op, row)]
        rank = len((results or operands)[0].shape) if results or operands else 0
        if rank not in (4, 5) or not row.is_region_member((results or operands)[0].device.type, inner):
            continue
        operands, results = _select_ordered(operands, rank), _select_ordered(results, rank)
        if not operands and not results:
            continue
        converted = rank == 4 and forced[op.phase]
        layout = Layout.CHANNELS_LAST if converted else find_current_layout(op, operands, results, facts)
        read, made = (tuple(value.name for value in values) for values in (operands, results))
        found.append(RegionOperator(op, rank, row.role is LayoutRole.ANCHOR, read, made, layout))
    return found


def _select_ordered(values: Iterable[ValueFacts], rank: int) -> list[ValueFacts]:
    return [
        value
        for value in values
        if len(value.shape) == rank and has_memory_order(value) and not is_converted_once(value)
    ]


def _find_components(operators: Sequence[RegionOperator]) -> list[list[int]]:
    """Return indices of operators that touch a common value, directly or through others; in order."""
    first: dict[str, int] = {}
    touched = ((name, index) for index, op in enumerate(operators) for name in (*op.operands, *op.results))
    return find_connected_components(
        len(operators), [(first.setdefault(name, index), index) for name, index in touched]
    )


def _make_region(
    operators: Sequence[RegionOperator], group: frozenset[str], facts: GraphFacts, visible: frozenset[str]
) -> LayoutRegion:
    nodes = {operator.op.node for operator in operators}
    produced = dict.fromkeys(name for operator in operators for name in operator.results)
    read = dict.fromkeys(name for operator in operators for name in operator.operands)
    outputs = []
    for name in produced:
        outside = [reader for reader in facts.get_users(name) if reader.node not in nodes]
        if outside or name in visible:
            free = [reader for reader in outside if reader.node not in group]
            wanted = find_wanted_layouts(facts, name, free, visible=name in visible)
            outputs.append(_make_boundary(facts.values[name], wanted))
    return LayoutRegion(
        inputs=tuple(_make_boundary(facts.values[name]) for name in read if name not in produced),
        outputs=tuple(outputs),
    )


def _make_boundary(value: ValueFacts, wanted: tuple[Layout, ...] = ()) -> BoundaryValue:
    return BoundaryValue(value.name, classify_memory_order(value), value.bytes, wanted)


def find_current_layout(
    op: OpFacts, operands: Sequence[ValueFacts], results: Sequence[ValueFacts], facts: GraphFacts
) -> Layout:
    """Return the layout of the first result that has one. If there is none (the backward of a first convolution has no
    input gradient), return channels-last if any operand or the weight is: torch's rule for convolutions."""
    weights = facts.get_input_values(op) if op.operator == "aten.convolution_backward" else ()
    orders = {classify_memory_order(value) for value in (*operands, *weights)}
    default = Layout.CHANNELS_LAST if Layout.CHANNELS_LAST in orders else Layout.PLAIN
    return next((order for value in results if (order := classify_memory_order(value)) is not None), default)
