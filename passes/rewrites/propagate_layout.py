"""Every region of convolutions in the layout that is fastest for it.

Why: a compiler that decides once per graph is wrong for part of it wherever stages differ: wide and shallow ones are
fast in channels-last, narrow and deep ones in plain; batch size, training and grouping turn it round.
How: each operator gets the order that measured times of convolutions and the price of conversions speak for, through
permutes and views too; values are converted where orders meet, once each; copies that were asked for a layout follow
what is around them.
Assumes: the graph is functional, and an operator that the operator table knows computes the same values in any order.
Safe: only strides of values inside the graph change. Operators that are told strides, that nothing is known about, or
that draw random numbers keep theirs, and so does what callers see.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from frx_graph.evidence.operator_measurement import LayoutTimes
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout
from frx_graph.facts.operator_families import CONVOLUTIONS
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.memory_order import memory_order
from frx_graph.passes.rewrites.conversion import aten_conversion, inductor_conversion
from frx_graph.passes.rewrites.order_members import Member
from frx_graph.passes.rewrites.order_problem import AnchorSeconds, OrderProblem, Surroundings, order_problem
from frx_graph.passes.rewrites.relayout import relayout
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.passes.rewrites.stride_sensitivity import is_told_strides, reads_any_order
from frx_graph.records import Candidate, Refusal
from frx_graph.rules.dimension_map import Order
from frx_graph.rules.layout_operator import Keeps, LayoutRole
from frx_graph.rules.operator_table import layout_operator

NAME = "propagate_layout"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for the whole graph: the order of every operator that is not to stay as it is."""
    anchors = tuple(op.node for op in subject.facts.ops if _is_anchor(subject, op))
    if not anchors:
        return
    if not subject.everything and subject.bandwidth_bytes_per_s is None:
        yield Refusal(NAME, "the device's bandwidth is not known, so what a conversion costs is not", anchors)
        return
    seconds = _other_orders(subject, anchors) if subject.everything else _measured_seconds(subject, anchors)
    unmeasured = tuple(node for node in anchors if node not in seconds)
    if unmeasured:
        yield Refusal(NAME, "its time in either layout could not be measured", unmeasured)
    posed = _posed(subject, seconds)
    labels = posed.cheapest()
    chosen = {
        member.op.node: label
        for member, label in zip(posed.members, labels, strict=True)
        if label != member.current or (subject.generates_loops and member.op.node in seconds)
    }
    if not chosen:
        yield Refusal(NAME, "every region is in its fastest layout", anchors)
        return
    saved = None if subject.everything else posed.seconds_saved(labels)
    choices = tuple(",".join(map(str, label)) for label in chosen.values())
    yield Candidate(NAME, subject.facts.graph_id, tuple(chosen), choices, predicted_seconds=saved)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Lay the regions out; returns the conversions inserted. Raises `RewriteError`, the graph left as it was, where it
    cannot be done."""
    labels = {
        node: tuple(int(dim) for dim in choice.split(","))
        for node, choice in zip(candidate.nodes, candidate.choices, strict=True)
    }
    members = [member for member in subject.members if member.op.node in labels]
    demands = {member.op.node: _demand(subject, member, labels[member.op.node]) for member in members}
    ops = subject.facts.op_by_node

    def keeps_strides(node: str) -> bool:
        op = ops.get(node)
        if op is None or node in labels:
            return False
        if subject.generates_loops:
            return is_told_strides(op)
        return not all(reads_any_order(op, value, subject.inner) for value in subject.facts.input_values(op))

    return relayout(
        module.graph,
        demands,
        convert=inductor_conversion if subject.generates_loops else aten_conversion,
        keeps_strides=keeps_strides,
        freed=[member.op.node for member in members if member.told],
        # Inductor gives every output the strides that it was traced with.
        kept_outputs=() if subject.generates_loops else subject.visible,
        given=subject.given,
    )


REWRITE = Rewrite(NAME, propose, apply)


def _is_anchor(subject: RewriteSubject, op: OpFacts) -> bool:
    """Convolutions; where their kernels run, poolings, too, of which Inductor makes loops."""
    row = layout_operator(op)
    runs_kernel = not (subject.generates_loops and row.generated)
    return row.role is LayoutRole.ANCHOR and runs_kernel and row.keeps is Keeps.CHANNELS_LAST and row.images


def _posed(subject: RewriteSubject, seconds: AnchorSeconds) -> OrderProblem:
    around = Surroundings(
        facts=subject.facts,
        inner=subject.inner,
        visible=subject.visible,
        takes_any=lambda op, value: reads_any_order(op, value, subject.inner),
    )
    per_byte = _FREE if subject.bandwidth_bytes_per_s is None else 1 / subject.bandwidth_bytes_per_s
    return order_problem(subject.members, around, seconds, per_byte)


_FREE = 1e-15
"""Seconds a byte that decide between equals only."""


def _other_orders(subject: RewriteSubject, anchors: tuple[str, ...]) -> AnchorSeconds:
    """Prices that make every anchor change its order."""
    members = {member.op.node: member for member in subject.members}
    prices = {}
    for node in anchors:
        if node in members:
            member = members[node]
            prices[node] = {order: float(order == member.current) for order in _two_orders(len(member.shape))}
    return prices


def _measured_seconds(subject: RewriteSubject, anchors: tuple[str, ...]) -> AnchorSeconds:
    """Seconds in either order, weights included; a difference that noise could make is none."""
    seconds = {}
    for node in anchors:
        if node not in subject.times:
            continue
        measured = _with_weight(subject, node, subject.times[node])
        plain, channels_last = measured.plain_seconds, measured.channels_last_seconds
        if plain is None or channels_last is None:
            continue
        if abs(plain - channels_last) < NOISE_SHARE * min(plain, channels_last):
            plain = channels_last = min(plain, channels_last)
        op = subject.facts.op_by_node[node]
        rank = len(subject.facts.values[op.inputs[0]].shape)
        if rank in (4, 5):
            seconds[node] = dict(zip(_two_orders(rank), (plain, channels_last), strict=True))
    return seconds


def _two_orders(rank: int) -> tuple[Order, ...]:
    return (tuple(range(rank)), CHANNELS_LAST_ORDER[rank]) if rank in (4, 5) else ()


def _demand(subject: RewriteSubject, member: Member, label: Order) -> dict[str, Order]:
    """The orders in which an operator with this label wants what it reads.

    Inductor's own loops want none: they read what is there, and a conversion in front of them would be a copy more.
    """
    if subject.generates_loops and member.row.generated:
        return {}
    wanted = {value.name: order for value in member.operands if (order := member.order_of(value, label)) is not None}
    weight = _weight(member.op, subject.facts)
    # A plain weight is converted by the convolution itself; one in channels-last makes it run so, whatever its input.
    if weight is not None and label == tuple(range(len(label))) and memory_order(weight) is Layout.CHANNELS_LAST:
        wanted[weight.name] = label
    return wanted


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
