"""Finds operators that copy an operand or their result inside, because their kernel wants other strides.

Why it is slow: the copy reads and writes the whole tensor before (or after) the operator does the same, and nothing in
the program shows it. It comes back at every call.

Fix: give the operator strides that it takes: make the value contiguous once where several operators need it, have its
producer store it in the right order, or use an operator that takes the strides as they are.

Safety: strides change, values do not. Code that reads `.stride()` or calls `.view()` on the value sees the difference.

Assumes: that a copy happens was measured, for this very call or for its operator and stride class; which of both, the
confidence and the evidence say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, StridePattern, contiguous_strides
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.copy_findings import CopyGroup, Remedy, copy_finding, copy_groups, value_text
from frx_graph.passes.copies.stride_replay import order_that_gives
from frx_graph.passes.copies.view_chain import identity, is_view, origin_text, place, stride_origin, view_chain
from frx_graph.passes.detectors.detector import Detector
from frx_graph.records import Copy, CopyKind, Effort, Evidence, Finding, OperandRole, Refusal, Risk

RULE = "FRX001"
_SHOWN = 3
"""Operands described in the evidence; the rest is counted."""


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """One finding for each line whose operators copy inside."""
    copied = _times_copied(analysis)
    for group in copy_groups(analysis, RULE):
        remedy = _remedy(analysis, group, copied)
        yield copy_finding(
            group,
            analysis,
            rule=RULE,
            title=_title(group),
            remedy=remedy,
            possible_bytes=group.bytes,
            evidence=_evidence(analysis, group),
        )


def _title(group: CopyGroup) -> str:
    roles = {copy.role for copy in group.copies}
    parts = [role for role in (OperandRole.INPUT, OperandRole.OUTPUT) if role in roles]
    verb = "converts" if group.largest.kind is CopyKind.REORDER else "copies"
    return f"{_name(group.largest)} {verb} its {' and '.join(parts)} inside"


def _name(copy: Copy) -> str:
    return copy.operator.removeprefix("aten.")


def _times_copied(analysis: Analysis) -> Mapping[tuple[object, ...], int]:
    """How many hidden copies a step makes of each value, by what the value is and not by its name."""
    facts = analysis.facts
    return Counter(
        identity(facts, copy.value)
        for copy in analysis.copies
        if copy.kind is CopyKind.OPERATOR and copy.value in facts.values
    )


def _remedy(analysis: Analysis, group: CopyGroup, copied: Mapping[tuple[object, ...], int]) -> Remedy:
    """By the largest copy of the line; what ends that one mostly ends the others."""
    facts = analysis.facts
    copy = group.largest
    value = facts.values.get(copy.value)
    if copy.kind is CopyKind.REORDER:
        return _library_remedy(copy, value)
    if value is None:
        return Remedy(f"give {_name(copy)} contiguous operands", Effort.LOCAL, Risk.LOW)
    times = copied[identity(facts, value.name)]
    stored = _channels_last_producer(facts, copy, value)
    if times > 1 and value.layout is not Layout.PLAIN:
        once = f"call `.contiguous()` once on the value, before its first use: a step copies it {times} times now"
        return Remedy(
            f"{once}. To save them all, {stored}" if stored else once,
            Effort.ONE_LINE,
            Risk.LOW,
            sure_bytes=group.bytes * (times - 1) // times,
        )
    if stored:
        return Remedy(stored, Effort.LOCAL, Risk.LOW)
    if _is_plain_image(facts, copy, value):
        return _channels_last_remedy(copy, value)
    return _matmul_remedy(value) if copy.operator == "aten.matmul" else _last_resort(facts, copy, value)


def _library_remedy(copy: Copy, value: ValueFacts | None) -> Remedy:
    rank = len(value.shape) if value is not None else 4
    if "conv" not in copy.operator or rank not in CHANNELS_LAST_ORDER:
        return Remedy(f"give {_name(copy)} plain contiguous operands", Effort.LOCAL, Risk.LOW)
    if value is not None and value.layout is Layout.CHANNELS_LAST:
        return Remedy(
            "this convolution converts although it runs channels-last: compare it in plain layout (FRX015 has the "
            "measured times, where there are any)",
            Effort.LOCAL,
            Risk.LOW,
        )
    memory_format = "channels_last_3d" if rank == 5 else "channels_last"
    return Remedy(
        f"run the convolution in channels-last, in which it takes and returns tensors as they are: "
        f"`model.to(memory_format=torch.{memory_format})` and the same for the input. Whether that is faster for these "
        f"shapes is FRX004's measurement",
        Effort.ONE_LINE,
        Risk.LOW,
    )


def _is_plain_image(facts: GraphFacts, copy: Copy, value: ValueFacts) -> bool:
    """True where the operator copies although it reads contiguous images, so that only other strides spare the copy."""
    op = facts.op_by_node.get(copy.node)
    if op is None or copy.operator == "aten.matmul" or len(value.shape) not in CHANNELS_LAST_ORDER:
        return False
    images = (value, *(v for v in facts.input_values(op) if len(v.shape) == len(value.shape)))
    return all(image.layout is Layout.PLAIN for image in images)


def _channels_last_remedy(copy: Copy, value: ValueFacts) -> Remedy:
    memory_format = "channels_last_3d" if len(value.shape) == 5 else "channels_last"
    return Remedy(
        f"{_name(copy)} copies although its operand is contiguous: run this part of the model in channels-last, "
        f"`model.to(memory_format=torch.{memory_format})` and the same for the input. Whether that is faster for these "
        f"shapes is FRX004's measurement",
        Effort.ONE_LINE,
        Risk.LOW,
    )


def _matmul_remedy(value: ValueFacts) -> Remedy:
    if value.layout is Layout.EXPANDED:
        return Remedy(
            "do not multiply with an expanded operand, which matmul writes out in full: fold the batch into the rows "
            "(`x.flatten(0, -2) @ w`), or use F.linear",
            Effort.LOCAL,
            Risk.LOW,
        )
    if value.pattern is StridePattern.HEADS or len(value.shape) >= 4:
        return Remedy(
            "matmul needs the batch dimensions of its operands as one: in an attention use "
            "F.scaled_dot_product_attention, which takes (batch, heads, sequence, dim) views as they are (FRX012); "
            "elsewhere store the operand with its batch dimensions outermost",
            Effort.LOCAL,
            Risk.MEDIUM,
        )
    return Remedy("store the operand contiguous where it is made", Effort.LOCAL, Risk.LOW)


def _channels_last_producer(facts: GraphFacts, copy: Copy, value: ValueFacts) -> str:
    """The advice to run the convolution that made the value in channels-last, where its views then give contiguous
    strides; empty where that does not help."""
    base = facts.values[view_chain(facts, value.name).base]
    producer = facts.producer(base.name)
    if producer is None or producer.operator != "aten.convolution":
        return ""
    order = order_that_gives(facts, value.name, contiguous_strides(value.shape))
    if order is None or order != CHANNELS_LAST_ORDER.get(len(base.shape)):
        return ""
    memory_format = "channels_last_3d" if len(base.shape) == 5 else "channels_last"
    return (
        f"run the convolution at {place(producer.site)} in channels-last (its weight and input "
        f"`.to(memory_format=torch.{memory_format})`): the views of its result are then what {_name(copy)} reads"
    )


def _last_resort(facts: GraphFacts, copy: Copy, value: ValueFacts) -> Remedy:
    origin = stride_origin(facts, value.name)
    if origin is None:
        return Remedy(
            f"use another operator than {_name(copy)}, which copies although its operand is contiguous",
            Effort.LOCAL,
            Risk.LOW,
        )
    if origin.op is None:
        return Remedy("hand the tensor to the model contiguous", Effort.ONE_LINE, Risk.LOW)
    if is_view(origin.op):
        base = view_chain(facts, origin.value).base
        if facts.producer(base) is None:
            return Remedy(
                f"let {_name(copy)} see `{facts.values[base].path or base}` as the graph is handed it, or hand it over "
                f"stored in the order that {_name(copy)} reads: the strides are {origin_text(facts, origin)}, and a "
                f"`.contiguous()` behind it only moves the copy",
                Effort.LOCAL,
                Risk.LOW,
            )
    return Remedy(
        f"let {_name(copy)} see the value before its strides change, {origin_text(facts, origin)}; if other operators "
        f"read it too, one `.contiguous()` there serves them all",
        Effort.LOCAL,
        Risk.LOW,
    )


def _evidence(analysis: Analysis, group: CopyGroup) -> Iterator[Evidence]:
    facts = analysis.facts
    described: dict[str, int] = {}
    for copy in sorted(group.copies, key=lambda copy: -copy.bytes):
        text = _operand_text(facts, copy)
        described[text] = described.get(text, 0) + copy.count
    for text, times in list(described.items())[:_SHOWN]:
        yield Evidence(f"{text} ({times}×)" if times > 1 else text, "eager graph")
    if len(described) > _SHOWN:
        yield Evidence(f"and {len(described) - _SHOWN} more operands", "eager graph")
    value = facts.values.get(group.largest.value)
    origin = stride_origin(facts, value.name) if value is not None else None
    if origin is not None:
        yield Evidence(f"the strides: {origin_text(facts, origin)}", "eager graph")
    measurement = analysis.measurements.get(group.largest.node)
    if measurement is not None and measurement.implementation:
        yield Evidence(f"the kernel that runs is {measurement.implementation}", "operator measurement")
    accepted = _accepted(analysis, group.largest)
    if accepted and analysis.contract is not None:
        yield Evidence(
            f"{_name(group.largest)} takes {', '.join(accepted)} operands there without a copy",
            f"operator layout contract {analysis.contract.name}",
        )


def _operand_text(facts: GraphFacts, copy: Copy) -> str:
    value = facts.values.get(copy.value)
    what = f"{copy.role} {value_text(value)}" if value is not None else str(copy.role)
    return f"{what}: {copy.cause}"


def _accepted(analysis: Analysis, copy: Copy) -> tuple[str, ...]:
    """The stride classes that the operator takes in the copied operand's place, as far as the contract knows."""
    facts, contract = analysis.facts, analysis.contract
    op = facts.op_by_node.get(copy.node)
    if contract is None or op is None or copy.value not in op.inputs or op.operator != copy.operator:
        return ()
    value = facts.values[copy.value]
    position, rank = op.inputs.index(value.name), len(value.shape)
    entries = {p: contract.copies(op.target, position, p, value.dtype, rank=rank) for p in StridePattern}
    return tuple(str(pattern) for pattern, entry in entries.items() if entry is not None and not entry.copied)


DETECTOR = Detector(RULE, "hidden_copy", detect)
