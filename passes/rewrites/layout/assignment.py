"""Choose the orders of all values of a graph as one candidate, for `propagate_layout`, `backward_layout` and
`cancel_permutes`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts, ValueFacts
from frx_graph.passes.layouts.dimension_map import Order, canonicalize_order, make_plain_order
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.operator_layout import find_layout_operator
from frx_graph.passes.rewrites.layout.anchor_calls import find_converted_weight, find_weight, list_anchor_orders
from frx_graph.passes.rewrites.layout.conversion import convert_in_aten, convert_in_inductor
from frx_graph.passes.rewrites.layout.costs import AnchorSeconds, MemberContext, OrderProblem, build_order_problem
from frx_graph.passes.rewrites.layout.ops import OrderedOp
from frx_graph.passes.rewrites.layout.relayout import Demands, OrderConstraint, Reads, relayout
from frx_graph.passes.rewrites.meta_strides.preserve_output_strides import convert_inputs_back
from frx_graph.passes.rewrites.meta_strides.requires_contiguous_input import list_images, requires_contiguous_input
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import reads_any_order
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal

BANDWIDTH_UNKNOWN = "the device's bandwidth is not known, so what a conversion costs is not"
"""The reason for deciding nothing without it."""

_FREED = "any"
"""The choice for a copy with an explicit memory format: it keeps its source's order."""

_READS = "read as "
"""Prefix of the order of a generated loop that is given its operands in it."""

_NEXT_TO_NOTHING = 1e-15
"""Seconds a byte that decide only between equal costs."""


def propose_orders(subject: RewriteSubject, name: str) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for the whole graph: the order of every operator that is to change."""
    anchors = tuple(member.op.node for member in subject.anchors)
    if misread := tuple(op.node for op in subject.facts.ops if requires_contiguous_input(op, subject.facts)):
        yield Refusal(name, "oneDNN computes wrong values on channels-last images of these sizes", misread)
    if inexact := tuple(op.node for op in subject.facts.ops if subject.is_less_exact(op)):
        yield Refusal(name, "torch computes group norms less exactly in channels-last", inexact)
    if not subject.everything and subject.bandwidth_bytes_per_s is None:
        yield Refusal(name, BANDWIDTH_UNKNOWN, anchors)
        return
    seconds = _collect_seconds(subject)
    # Those with one order alone have nothing to be measured.
    if unmeasured := tuple(m.op.node for m in subject.anchors if m.op.node not in seconds and list_anchor_orders(m)):
        yield Refusal(name, "its time in either order could not be measured", unmeasured)
    posed = _pose_problem(subject, seconds)
    if untimed := tuple(node for node in _find_timed_loops(subject, posed) if node not in subject.loop_seconds):
        yield Refusal(name, "how long its loop takes in either order could not be measured", untimed)
    labels = posed.find_cheapest()
    chosen = {
        member.op.node: label
        for member, label in zip(posed.members, labels, strict=True)
        # Inductor would choose for the anchors that are not mentioned.
        # A loop was timed on operands in its own order, and is given them so.
        if label != member.current
        or (subject.generates_loops and (member.op.node in seconds or member.op.node in subject.loop_seconds))
    }
    if not chosen:
        yield Refusal(name, "every region is in its fastest order", anchors)
        return
    touched = {value.name for member in posed.members if member.op.node in chosen for value in member.values}
    freed = [copy.op.node for copy in posed.copies if any(value.name in touched for value in copy.values)]
    read = {member.op.node for member in posed.members if _is_timed_loop(subject, member, chosen)}
    yield Candidate(
        rewrite=name,
        graph_id=subject.facts.graph_id,
        nodes=(*chosen, *freed),
        choices=(
            *(f"{_READS if node in read else ''}{','.join(map(str, order))}" for node, order in chosen.items()),
            *(_FREED for _ in freed),
        ),
        predicted_seconds=None if subject.everything else posed.compute_seconds_saved(labels),
    )


def find_cheapest_orders(subject: RewriteSubject) -> Mapping[str, Order]:
    """Return the order of each measured anchor, by node name, in the cheapest choice for the graph."""
    if subject.bandwidth_bytes_per_s is None:
        return {}
    posed = _pose_problem(subject, _collect_seconds(subject))
    labels = zip(posed.members, posed.find_cheapest(), strict=True)
    return {member.op.node: label for member, label in labels if member.op.node in subject.seconds}


def find_undecided_loops(subject: RewriteSubject) -> tuple[OrderedOp, ...]:
    """Return the generated loops whose order is open, given the measured times of anchors: those to time."""
    if not subject.loops or subject.bandwidth_bytes_per_s is None:
        return ()
    return tuple(_find_timed_loops(subject, _pose_problem(subject, _collect_seconds(subject))).values())


def find_undecided_values(subject: RewriteSubject) -> tuple[ValueFacts, ...]:
    """Return the values whose order is open, given the measured times of anchors: they may have to be converted."""
    if not subject.anchors or subject.bandwidth_bytes_per_s is None:
        return ()
    members = _pose_problem(subject, _collect_seconds(subject)).members
    return tuple({value.name: value for member in members for value in member.values}.values())


def _find_timed_loops(subject: RewriteSubject, posed: OrderProblem) -> Mapping[str, OrderedOp]:
    """Return the loops of the problem that have times in principle, by node name; none if everything is changed."""
    loops = () if subject.everything else subject.loops
    timed = {
        member.op.node
        for member in loops
        if len({canonicalize_order(member.shape, order) for order in list_anchor_orders(member)}) > 1
    }
    return {member.op.node: member for member in posed.members if member.op.node in timed}


def _pose_problem(subject: RewriteSubject, seconds: AnchorSeconds) -> OrderProblem:
    measured = (_drop_noise(subject.loop_seconds), subject.conversion_seconds)
    around = MemberContext(subject.facts, subject.inner, subject.observable_outputs, *measured)
    bandwidth = subject.bandwidth_bytes_per_s
    per_byte = _NEXT_TO_NOTHING if bandwidth is None else 1 / bandwidth
    return build_order_problem(subject.members, around, seconds, per_byte)


def _collect_seconds(subject: RewriteSubject) -> AnchorSeconds:
    return _price_changes(subject) if subject.everything else _drop_noise(subject.seconds)


def apply_orders(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Lay the values out; return the inserted conversions, or raise `RewriteError` with the graph unchanged."""
    choices = dict(zip(candidate.nodes, candidate.choices, strict=True))
    freed = {node for node, choice in choices.items() if choice == _FREED}
    orders = {node: choice.removeprefix(_READS) for node, choice in choices.items() if node not in freed}
    labels = {node: tuple(map(int, order.split(","))) for node, order in orders.items()}
    read = {node for node, choice in choices.items() if choice.startswith(_READS)}
    members = [member for member in subject.members if member.op.node in labels]
    demands = {
        member.op.node: _make_demand(subject, member, labels[member.op.node])
        for member in members
        if member.op.node in read or not _is_loop(subject, member)
    }
    return _run_relayout(
        subject,
        module,
        {**demands, **_demand_plain_images(subject)},
        changed=choices,
        freed=freed,
        made={member.op.node: labels[member.op.node] for member in members if member.resizes},
    )


def adapt_to_inputs(subject: RewriteSubject, module: fx.GraphModule) -> tuple[str, ...]:
    """Make an unchanged graph run on inputs in other orders than it was traced with; return the inserted nodes.

    Its outputs keep their strides. If it cannot run on the inputs, they are converted back first.
    """
    try:
        return _run_relayout(subject, module, {})
    except RewriteError:
        return convert_inputs_back(module.graph, subject.original_inputs)


def _run_relayout(
    subject: RewriteSubject, module: fx.GraphModule, demands: Demands, changed: Collection[str] = (), **options: Any
) -> tuple[str, ...]:
    return relayout(
        module.graph,
        demands,
        convert=convert_in_inductor if subject.generates_loops else convert_in_aten,
        reads=lambda node: Reads.ANY if node in changed else _classify_reads(subject, node),
        kept_outputs=subject.observable_outputs,
        given=subject.original_inputs,
        pins=not subject.generates_loops,
        doubtful=subject.doubtful,
        **options,
    )


def _price_changes(subject: RewriteSubject) -> AnchorSeconds:
    """Return prices that make every anchor change its order; those whose weights can be packed run in channels-last."""

    def price(member: OrderedOp, order: Order) -> float:
        weight = find_weight(member.op, subject.facts)
        avoided = member.current if weight is None or weight.name not in subject.constants else make_plain_order(order)
        return float(canonicalize_order(member.shape, order) == canonicalize_order(member.shape, avoided))

    return {
        member.op.node: {order: price(member, order) for order in orders}
        for member in subject.anchors
        if (orders := list_anchor_orders(member))
    }


def _drop_noise(measured: AnchorSeconds) -> AnchorSeconds:
    """Drop differences that noise could make."""
    quiet: dict[str, Mapping[Order, float]] = {}
    for node, seconds in measured.items():
        least, most = min(seconds.values()), max(seconds.values())
        quiet[node] = dict.fromkeys(seconds, least) if most - least < NOISE_SHARE * least else seconds
    return quiet


def _classify_reads(subject: RewriteSubject, node: str) -> Reads:
    """Return the strides that an operator can run on if it stays as it is; under Inductor most take any."""
    op: OpFacts | None = subject.facts.op_by_node.get(node)
    if op is None:
        return Reads.ANY
    if subject.keeps_its_strides(op):
        return Reads.STRIDES
    values = subject.facts.get_input_values(op)
    if subject.generates_loops:
        return Reads.ORDER if find_layout_operator(op).misdescribed else Reads.ANY
    free = all(reads_any_order(op, value, subject.inner) for value in values)
    return Reads.ANY if free else Reads.ORDER


def _is_loop(subject: RewriteSubject, member: OrderedOp) -> bool:
    """Return True for Inductor's own loops, which take any order: a conversion before them is one copy more."""
    return subject.generates_loops and member.row.generated


def _is_timed_loop(subject: RewriteSubject, member: OrderedOp, labels: Mapping[str, Order]) -> bool:
    """Return True for a loop that was timed in its new order: its price includes converted operands."""
    timed = subject.loop_seconds.get(member.op.node, {})
    orders = {canonicalize_order(member.shape, order) for order in timed}
    return _is_loop(subject, member) and labels.get(member.op.node) in orders


def _make_demand(subject: RewriteSubject, member: OrderedOp, label: Order) -> dict[str, OrderConstraint]:
    """Return the orders in which an operator with this label wants what it reads."""
    kernel = member.anchor and not _is_loop(subject, member)
    wanted = {
        value.name: OrderConstraint(label if member.anchor else order, exactly=kernel and _looks_plain(value, label))
        for value in member.operands
        if (order := member.map_label_to_order(value, label)) is not None
    }
    weight = find_converted_weight(member.op, label, subject.facts)
    if weight is not None:
        wanted[weight.name] = OrderConstraint(label)
    return wanted


def _demand_plain_images(subject: RewriteSubject) -> dict[str, dict[str, OrderConstraint]]:
    """Return demands for plain images: Inductor computes a backward's strides again, from what the forward saved."""
    return {
        op.node: {
            value.name: OrderConstraint(make_plain_order(value.shape)) for value in list_images(op, subject.facts)
        }
        for op in subject.facts.ops
        if op.operator == "aten.convolution_backward" and requires_contiguous_input(op, subject.facts)
    }


def _looks_plain(value: ValueFacts, label: Order) -> bool:
    """Return True for one memory in both orders (one channel): kernels choose by strides of dimensions of size 1."""
    plain = make_plain_order(value.shape)
    one_memory = canonicalize_order(value.shape, label) == canonicalize_order(value.shape, plain)
    return label != plain and one_memory and value.shape[1] == 1
