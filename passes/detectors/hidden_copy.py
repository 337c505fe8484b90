"""Finds operators that copy an operand or their result inside, because their kernel wants other strides.

Assumes: the copy was measured, for this very call or for its operator and stride class. Confidence and evidence state
which of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from frx_graph.facts.layout import StridePattern
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.copies.copy_findings import (
    CopyGroup,
    build_copy_finding,
    describe_copy,
    group_copies,
    summarize_texts,
)
from frx_graph.passes.copies.operand_remedies import choose_remedy, count_hidden_copies, get_operator_name
from frx_graph.passes.copies.view_chain import describe_origin, find_stride_origin
from frx_graph.records import Copy, CopyKind, Evidence, Finding, OperandRole, Refusal

RULE = "FRX001"


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line whose operators copy inside."""
    copied = count_hidden_copies(analysis)
    for group in group_copies(analysis, RULE):
        remedy = choose_remedy(analysis, group, copied)
        yield build_copy_finding(
            group,
            analysis,
            rule=RULE,
            title=_format_title(group),
            remedy=remedy,
            possible_bytes=group.bytes,
            evidence=_collect_evidence(analysis, group),
        )


def _format_title(group: CopyGroup) -> str:
    roles = {copy.role for copy in group.copies}
    parts = [role for role in (OperandRole.INPUT, OperandRole.OUTPUT) if role in roles]
    verb = "converts" if group.largest.kind is CopyKind.REORDER else "copies"
    return f"{get_operator_name(group.largest)} {verb} its {' and '.join(parts)} inside"


def _collect_evidence(analysis: Analysis, group: CopyGroup) -> Iterator[Evidence]:
    facts = analysis.facts
    largest_first = sorted(group.copies, key=lambda copy: -copy.bytes)
    yield from summarize_texts((f"{copy.role} {describe_copy(facts, copy)}", copy.count) for copy in largest_first)
    value = facts.values.get(group.largest.value)
    origin = find_stride_origin(facts, value.name) if value is not None else None
    if origin is not None:
        yield Evidence(f"the strides: {describe_origin(facts, origin)}", "eager graph")
    measurement = analysis.measurements.get(group.largest.node)
    if measurement is not None and measurement.implementation:
        yield Evidence(f"the kernel that runs is {measurement.implementation}", "operator measurement")
    accepted = _list_accepted_patterns(analysis, group.largest)
    if accepted and analysis.contract is not None:
        yield Evidence(
            f"{get_operator_name(group.largest)} takes {', '.join(accepted)} operands there without a copy",
            f"operator layout contract {analysis.contract.name}",
        )


def _list_accepted_patterns(analysis: Analysis, copy: Copy) -> tuple[str, ...]:
    """Return the stride classes that the contract knows the operator to take without a copy."""
    facts, contract = analysis.facts, analysis.contract
    op = facts.op_by_node.get(copy.node)
    if contract is None or op is None or copy.value not in op.inputs or op.operator != copy.operator:
        return ()
    value = facts.values[copy.value]
    position, rank = op.inputs.index(value.name), len(value.shape)
    entries = {p: contract.get_entry(op.target, position, p, value.dtype, rank=rank) for p in StridePattern}
    return tuple(str(pattern) for pattern, entry in entries.items() if entry is not None and not entry.copied)


DETECTOR = Detector(RULE, "hidden_copy", detect)
