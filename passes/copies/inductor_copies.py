"""Predict which layout copies of a program remain when Inductor compiles it.

Inductor realises few buffers. A copy between operators that share a kernel is only a change of index. So is a copy of
what a loop computes (the loop stores in the wanted order), or one that only loops read. The rest are copies from memory
that a library call or the caller filled to memory that one of them reads. In addition, 2-D convolutions run in
channels-last if Inductor decides so for the graph (`inductor_layout`). A weight or input that arrives plain is then
converted on every call, which `torch/_inductor/kernel/conv.py` (2.15) notes as unfinished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, is_channels_last, is_contiguous, make_ordered_strides
from frx_graph.facts.operator_families import CONVOLUTIONS, LAYOUT_COPIES, WRITING_COPIES
from frx_graph.facts.operator_signature import OperatorSignature, replace_strides
from frx_graph.passes.copies.view_chain import find_readers
from frx_graph.passes.fusion.fusion_groups import Dataflow
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.records import Basis, Copy, CopyKind, OperandRole

IMAGE_RANK = 4
_CONVERSION = "Inductor runs the graph's convolutions in channels-last and converts what arrives plain"


def runs_channels_last(op: OpFacts, facts: GraphFacts, forced: frozenset[Phase]) -> bool:
    """Return True for a 2-D convolution in a phase that Inductor runs in channels-last as a whole."""
    return op.operator in CONVOLUTIONS and op.phase in forced and len(facts.get_input_values(op)[0].shape) == IMAGE_RANK


def find_forced_phases(facts: GraphFacts, inner: str) -> frozenset[Phase]:
    """Return the phases that `inner` runs in channels-last, regardless of tensor strides."""
    return frozenset(phase for phase in Phase if is_channels_last_forced(facts, phase, inner))


def convert_signature(signature: OperatorSignature) -> OperatorSignature:
    """Return the same call with every rank-4 operand in channels-last."""
    order = CHANNELS_LAST_ORDER[IMAGE_RANK]
    return replace_strides(
        signature, lambda t: make_ordered_strides(t.shape, order) if len(t.shape) == IMAGE_RANK else t.strides
    )


def keep_inductor_copies(copies: Sequence[Copy], facts: GraphFacts) -> list[Copy]:
    """Return the predicted copies that remain, in execution order, and those that Inductor adds."""
    flow = Dataflow(facts)
    forced = find_forced_phases(facts, "inductor")
    by_node: dict[str, list[Copy]] = {}
    for copy in copies:
        by_node.setdefault(copy.node, []).append(copy)
    left: list[Copy] = []
    for op in facts.ops:
        if runs_channels_last(op, facts, forced):
            left.extend(_predict_conversions(op, facts, flow))
        if op.operator not in LAYOUT_COPIES | WRITING_COPIES or _is_between_buffers(op, flow):
            left.extend(by_node.get(op.node, ()))
    return left


def _is_between_buffers(copy: OpFacts, flow: Dataflow) -> bool:
    """Return True for a copy from a buffer that no loop computes to one that something other than a loop reads."""
    facts = flow.facts
    source, result = copy.inputs[-1], copy.outputs[0]
    if copy.operator in WRITING_COPIES and flow.get_root(copy.inputs[0]) != copy.inputs[0]:
        # Inductor makes one loop of a buffer and the parts that are written into it.
        return False
    maker = flow.find_maker(flow.get_root(source))
    if maker is not None and flow.is_fusible(maker):
        return False
    into_input = copy.operator in WRITING_COPIES and facts.values[copy.inputs[0]].kind is not None
    handed_out = facts.values[result].user_visible or into_input
    return handed_out or any(not flow.is_fusible(reader) for reader in find_readers(facts, result))


def _predict_conversions(op: OpFacts, facts: GraphFacts, flow: Dataflow) -> Iterator[Copy]:
    """Yield the conversions before a forward convolution that Inductor runs in channels-last: of a plain weight, and of
    an image that neither a loop nor another convolution made."""
    if op.operator != "aten.convolution" or op.phase is not Phase.FORWARD:
        return
    image, weight = facts.get_input_values(op)[:2]
    if _is_plain_only(weight):
        yield build_predicted_copy(
            op, CopyKind.OPERATOR, OperandRole.WEIGHT, weight.name, 2 * weight.bytes, _CONVERSION
        )
    maker = flow.find_maker(flow.get_root(image.name))
    if _is_plain_only(image) and (maker is None or not (flow.is_fusible(maker) or maker.operator in CONVOLUTIONS)):
        yield build_predicted_copy(op, CopyKind.OPERATOR, OperandRole.INPUT, image.name, 2 * image.bytes, _CONVERSION)


def _is_plain_only(value: ValueFacts) -> bool:
    """Return True for a plain value that is not channels-last, too, as a 1x1 weight or a one-channel image is."""
    return value.layout is Layout.PLAIN and not (
        is_contiguous(value.shape, value.strides) and is_channels_last(value.shape, value.strides)
    )


def build_predicted_copy(
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
