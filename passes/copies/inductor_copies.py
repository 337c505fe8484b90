"""Predict which layout copies of a program remain when Inductor compiles it.

Inductor realises few buffers. A copy between operators that share a kernel is only a change of index. So is a copy of
what a loop computes (the loop stores in the wanted order), or one that only loops read. The rest are copies from memory
that a library call or the caller filled to memory that one of them reads. In addition, 2-D convolutions run in
channels-last if Inductor decides so for the graph (`inductor_layout`): a weight or input that arrives plain is then
converted on every call (TODO in `torch/_inductor/kernel/conv.py`, 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, is_channels_last, is_contiguous, strides_for_order
from frx_graph.facts.operator_families import CONVOLUTIONS, LAYOUT_COPIES, WRITING_COPIES
from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec
from frx_graph.passes.copies.view_chain import readers
from frx_graph.passes.fusion.fusion_groups import Dataflow
from frx_graph.passes.layouts.inductor_layout import forced_channels_last
from frx_graph.records import Basis, Copy, CopyKind, OperandRole

IMAGE_RANK = 4
_CONVERSION = "Inductor runs the graph's convolutions in channels-last and converts what arrives plain"


def runs_channels_last(op: OpFacts, facts: GraphFacts, forced: frozenset[Phase]) -> bool:
    """Return True for a 2-D convolution in a phase that Inductor runs in channels-last as a whole."""
    return op.operator in CONVOLUTIONS and op.phase in forced and len(facts.input_values(op)[0].shape) == IMAGE_RANK


def forced_phases(facts: GraphFacts, inner: str) -> frozenset[Phase]:
    """Return the phases that `inner` runs in channels-last, whatever the strides of their tensors."""
    return frozenset(phase for phase in Phase if forced_channels_last(facts, phase, inner))


def in_channels_last(signature: OperatorSignature) -> OperatorSignature:
    """Return the same call with every rank-4 operand in channels-last."""

    def converted(argument: SpecArgument) -> SpecArgument:
        if isinstance(argument, TensorSpec) and len(argument.shape) == IMAGE_RANK:
            return replace(argument, strides=strides_for_order(argument.shape, CHANNELS_LAST_ORDER[IMAGE_RANK]))
        return argument

    return replace(signature, args=tuple(converted(argument) for argument in signature.args))


def left_by_inductor(copies: Sequence[Copy], facts: GraphFacts) -> list[Copy]:
    """Return the predicted copies that remain, in execution order, and those that Inductor adds."""
    flow = Dataflow(facts)
    forced = forced_phases(facts, "inductor")
    by_node: dict[str, list[Copy]] = {}
    for copy in copies:
        by_node.setdefault(copy.node, []).append(copy)
    left: list[Copy] = []
    for op in facts.ops:
        if runs_channels_last(op, facts, forced):
            left.extend(_conversions(op, facts, flow))
        if op.operator not in LAYOUT_COPIES | WRITING_COPIES or _between_buffers(op, flow):
            left.extend(by_node.get(op.node, ()))
    return left


def _between_buffers(copy: OpFacts, flow: Dataflow) -> bool:
    """Return True for a copy from a buffer that no loop computes to one that something other than a loop reads."""
    facts = flow.facts
    source, result = copy.inputs[-1], copy.outputs[0]
    if copy.operator in WRITING_COPIES and flow.root(copy.inputs[0]) != copy.inputs[0]:
        # Inductor makes one loop of a buffer and the parts that are written into it.
        return False
    maker = flow.maker(flow.root(source))
    if maker is not None and flow.fuses(maker):
        return False
    handed_out = facts.values[result].user_visible or (
        copy.operator in WRITING_COPIES and facts.values[copy.inputs[0]].kind is not None
    )
    return handed_out or any(not flow.fuses(reader) for reader in readers(facts, result))


def _conversions(op: OpFacts, facts: GraphFacts, flow: Dataflow) -> Iterator[Copy]:
    """Yield the conversions before a forward convolution that Inductor runs in channels-last: of a plain weight, and of
    an image that neither a loop nor another convolution made."""
    if op.operator != "aten.convolution" or op.phase is not Phase.FORWARD:
        return
    image, weight = facts.input_values(op)[:2]
    if _arrives_plain(weight):
        yield predicted_copy(op, CopyKind.OPERATOR, OperandRole.WEIGHT, weight.name, 2 * weight.bytes, _CONVERSION)
    maker = flow.maker(flow.root(image.name))
    if _arrives_plain(image) and (maker is None or not (flow.fuses(maker) or maker.operator in CONVOLUTIONS)):
        yield predicted_copy(op, CopyKind.OPERATOR, OperandRole.INPUT, image.name, 2 * image.bytes, _CONVERSION)


def _arrives_plain(value: ValueFacts) -> bool:
    """Return True for a plain value that is not channels-last, too, as a 1x1 weight or a one-channel image is."""
    return value.layout is Layout.PLAIN and not (
        is_contiguous(value.shape, value.strides) and is_channels_last(value.shape, value.strides)
    )


def predicted_copy(
    op: OpFacts,
    kind: CopyKind,
    role: OperandRole,
    value: str,
    moved: int,
    cause: str,
    *,
    operator: str = "",
    count: int = 1,
) -> Copy:
    """Return the record of copies at `op` that move `moved` bytes, read plus written, for one run of the graph."""
    return Copy(
        node=op.node,
        site=op.site,
        operator=operator or op.operator,
        kind=kind,
        role=role,
        value=value,
        bytes=moved,
        count=count,
        phase=op.phase,
        basis=Basis.PREDICTED,
        cause=cause,
    )
