"""Every region of convolutions in the layout that is fastest for it.

Why: a compiler that decides once per graph is wrong for part of it wherever stages differ: wide and shallow ones are
fast in channels-last, narrow and deep ones in plain; batch size, training and grouping turn it round.
How: the operators of a region are laid out as the measured times of its convolutions say, conversions at the edges
included; what lies outside keeps the strides that it had.
Assumes: the graph is functional, and an operator that the table of operator classes knows computes the same values in
either layout.
Safe: only strides of values inside the graph change. Operators that are told strides, that nothing is known about, or
that draw random numbers keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from frx_graph.evidence.operator_measurement import LayoutTimes
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout
from frx_graph.facts.operator_families import CONVOLUTIONS
from frx_graph.passes.layouts.layout_choice import steady_layouts
from frx_graph.passes.layouts.layout_problem import layout_problem
from frx_graph.passes.layouts.memory_order import has_memory_order, memory_order, other_layout
from frx_graph.rules.operator_table import layout_operands, layout_operator
from frx_graph.passes.layouts.regions import LayoutGroup, layout_groups
from frx_graph.passes.rewrites.conversion import Order, aten_conversion, inductor_conversion
from frx_graph.passes.rewrites.relayout import relayout
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.passes.rewrites.stride_sensitivity import takes_no_other_strides
from frx_graph.records import Candidate, Refusal

NAME = "propagate_layout"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for all regions of the graph: the layout of every operator in them."""
    labels: dict[str, Layout] = {}
    saved: float | None = 0.0
    for group in layout_groups(subject.facts):
        chosen = _other_layouts(group) if subject.everything else _fastest(subject, group)
        if isinstance(chosen, Refusal):
            yield chosen
            continue
        labels.update((operator.op.node, label) for operator, label in zip(group.operators, chosen.labels, strict=True))
        saved = None if saved is None or chosen.seconds_saved is None else saved + chosen.seconds_saved
    if labels:
        choices = tuple(label.value for label in labels.values())
        yield Candidate(NAME, subject.facts.graph_id, tuple(labels), choices, predicted_seconds=saved)


@dataclass(frozen=True, slots=True)
class _Choice:
    """One layout for each operator of a group; the seconds are those that the choice saves a run of the graph."""

    labels: tuple[Layout, ...]
    seconds_saved: float | None


def _other_layouts(group: LayoutGroup) -> _Choice:
    labels = [operator.layout for operator in group.operators]
    return _Choice(tuple(map(other_layout, labels)), None)


def _fastest(subject: RewriteSubject, group: LayoutGroup) -> _Choice | Refusal:
    anchors = tuple(operator.op.node for operator in group.operators if operator.anchor)
    if subject.bandwidth_bytes_per_s is None:
        return Refusal(NAME, "the device's bandwidth is not known, so what a conversion costs is not", anchors)
    times = {node: _with_weight(subject, node, subject.times[node]) for node in anchors if node in subject.times}
    if not times:
        return Refusal(NAME, "none of the region's convolutions could be measured", anchors)
    problem = layout_problem(group, subject.facts, times, subject.bandwidth_bytes_per_s)
    labels = steady_layouts(problem)
    if labels == problem.current and not subject.generates_loops:
        return Refusal(NAME, "the region is in its fastest layout", anchors)
    return _Choice(labels, problem.seconds(problem.current) - problem.seconds(labels))


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Lay the regions out; returns the conversions inserted. Raises `RewriteError`, the graph left as it was, where it
    cannot be done."""
    labels = {node: Layout(choice) for node, choice in zip(candidate.nodes, candidate.choices, strict=True)}
    demands = {node: demand for node in labels if (demand := _demand(subject, node, labels[node]))}
    return relayout(
        module.graph,
        demands,
        convert=inductor_conversion if subject.generates_loops else aten_conversion,
        keeps_strides=takes_no_other_strides if subject.generates_loops else lambda node: node.name not in labels,
        kept_outputs=subject.kept_outputs,
        given=subject.given,
    )


def _demand(subject: RewriteSubject, node: str, label: Layout) -> dict[str, Order]:
    """The orders in which an operator with this label wants what it reads.

    Inductor's own loops want none: they read what is there, and a conversion in front of them would be a copy more.
    """
    op = subject.facts.op_by_node[node]
    if subject.generates_loops and op.operator not in CONVOLUTIONS:
        return {}
    operands = layout_operands(op, layout_operator(op))
    weight = _weight(op, subject.facts)
    # A plain weight is converted by the convolution itself; one in channels-last makes it run so, whatever its input.
    if weight is not None and label is Layout.PLAIN:
        operands = (*operands, weight.name)
    values = (subject.facts.values[name] for name in operands)
    return {value.name: _order(label, len(value.shape)) for value in values if has_memory_order(value)}


def _order(label: Layout, rank: int) -> Order:
    return CHANNELS_LAST_ORDER[rank] if label is Layout.CHANNELS_LAST else tuple(range(rank))


def _weight(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    if op.operator not in CONVOLUTIONS:
        return None
    argument = op.args[2 if op.operator == "aten.convolution_backward" else 1]
    return facts.values[argument.name] if isinstance(argument, ValueRef) else None


def _with_weight(subject: RewriteSubject, node: str, measured: LayoutTimes) -> LayoutTimes:
    """The times, with what it costs in every run to convert a weight that is stored in the other layout."""
    op = subject.facts.op_by_node[node]
    weight = _weight(op, subject.facts)
    stored = memory_order(weight) if weight is not None else None
    if weight is None or stored is None or subject.bandwidth_bytes_per_s is None:
        return measured
    seconds = 2 * weight.bytes / subject.bandwidth_bytes_per_s
    return measured + (LayoutTimes(0.0, seconds) if stored is Layout.PLAIN else LayoutTimes(seconds, 0.0))


REWRITE = Rewrite(NAME, propose, apply)
