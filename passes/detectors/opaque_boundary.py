"""Finds custom operators, collectives and higher-order operators that force a layout on their neighbours.

Assumes: explicit copies next to the operator are made for it. FRX002 claims them; this finding names their reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.facts.operator_families import is_collective
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import group_by_place, list_module_paths, merge_sites
from frx_graph.passes.copies.copy_findings import format_value
from frx_graph.passes.copies.view_chain import find_readers, trace_views
from frx_graph.passes.fusion.fusion_roles import is_layout_copy
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.layouts.operator_layout import (
    LayoutConstraint,
    classify_memory_order,
    find_layout_constraint,
    has_default_constraint,
)
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX010"


@dataclass(frozen=True, slots=True)
class _LayoutBoundary:
    """One call. `copied` are the values copied for it or behind it, by the program (`copies`, the nodes) or, if
    `forced`, by Inductor; `lost` is a channels-last operand whose order the result no longer has."""

    op: OpFacts
    copied: tuple[ValueFacts, ...]
    copies: tuple[str, ...] = ()
    forced: bool = False
    lost: ValueFacts | None = None

    @property
    def bytes(self) -> int:
        """Traffic of the copies."""
        return sum(2 * value.bytes for value in self.copied)


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line with an operator that changes the layout around it."""
    boundaries = [boundary for op in analysis.facts.ops if op.opaque for boundary in _find_boundary(op, analysis)]
    for instances in group_by_place(boundaries, lambda boundary: boundary.op.site):
        yield _build_finding(analysis, instances)


def _find_boundary(op: OpFacts, analysis: Analysis) -> Iterator[_LayoutBoundary]:
    """Yield at most one boundary."""
    facts = analysis.facts
    if op.operator.endswith(".wait_tensor"):
        return
    nodes = (*_find_copies_before(op, facts), *_find_copies_behind(op, facts))
    copied = tuple(facts.values[facts.op_by_node[node].inputs[0]] for node in nodes)
    forced = tuple(_find_forced_values(op, analysis))
    lost = None if copied or forced else _find_lost_operand(op, facts)
    if copied or forced or lost is not None:
        yield _LayoutBoundary(op, (*copied, *forced), nodes, bool(forced), lost)


def _find_copies_before(op: OpFacts, facts: GraphFacts) -> Iterator[str]:
    """Yield layout copies whose result only `op` reads."""
    for name in dict.fromkeys(op.inputs):
        base = trace_views(facts, name).base
        producer = facts.get_producer(base)
        alone = all(reader is op for reader in find_readers(facts, base))
        if alone and producer is not None and is_layout_copy(producer, facts):
            yield producer.node


def _find_copies_behind(op: OpFacts, facts: GraphFacts) -> Iterator[str]:
    """Yield layout copies of the results of `op`."""
    for name in op.outputs:
        yield from sorted({reader.node for reader in find_readers(facts, name) if is_layout_copy(reader, facts)})


def _find_forced_values(op: OpFacts, analysis: Analysis) -> Iterator[ValueFacts]:
    """Yield plain images next to convolutions that Inductor runs in channels-last: it copies them for `op`."""
    facts = analysis.facts
    constraint = find_layout_constraint(op)
    if constraint in (None, LayoutConstraint.FLEXIBLE) or not is_channels_last_forced(facts, op.phase, analysis.inner):
        return
    for value in facts.get_input_values(op):
        producer = facts.get_producer(value.name)
        made = producer is not None and producer.operator == "aten.convolution"
        if made and classify_memory_order(value) is Layout.PLAIN:
            yield value
    for value in facts.get_output_values(op):
        users = facts.get_users(value.name)
        read = any(user.operator == "aten.convolution" and user.inputs[0] == value.name for user in users)
        if read and classify_memory_order(value) is Layout.PLAIN:
            yield value


def _find_lost_operand(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    """Return a channels-last operand of an operator that returns plain images of the same rank."""
    plain = {len(v.shape) for v in facts.get_output_values(op) if classify_memory_order(v) is Layout.PLAIN}
    operands = facts.get_input_values(op)
    return next(
        (v for v in operands if classify_memory_order(v) is Layout.CHANNELS_LAST and len(v.shape) in plain), None
    )


def _build_finding(analysis: Analysis, instances: Sequence[_LayoutBoundary]) -> Finding:
    first = max(instances, key=lambda boundary: boundary.bytes)
    ops = [boundary.op for boundary in instances]
    calls = analysis.facts.calls
    moved = calls * sum(boundary.bytes for boundary in instances)
    severity = grade_bytes(moved, analysis.step_bytes) if moved else Severity.LOW
    return Finding(
        rule=RULE,
        title=_format_title(first),
        severity=severity,
        site=merge_sites(ops),
        nodes=tuple(dict.fromkeys(node for b in instances for node in (b.op.node, *b.copies))),
        count_per_step=calls * (sum(len(boundary.copied) for boundary in instances) or len(instances)),
        bytes_per_step=moved or None,
        saving=predict_saving(0, moved, analysis.step_bytes),
        effort=Effort.LOCAL,
        risk=Risk.MEDIUM,
        fix=_describe_fix(first),
        # Inductor's copies around an operator with the default tag were seen in its kernels (CPU, torch 2.15); only the
        # operator's author knows if its own copies are needed.
        confidence=confidence.INFERRED if first.forced else confidence.ASSUMED,
        evidence=tuple(_collect_evidence(first, moved)),
        modules=list_module_paths(ops),
    )


def _format_title(boundary: _LayoutBoundary) -> str:
    if boundary.lost is not None:
        return f"{boundary.op.operator} returns plain tensors for channels-last ones"
    return f"{boundary.op.operator} has its operands or results copied"


def _describe_fix(boundary: _LayoutBoundary) -> str:
    op = boundary.op
    if is_collective(op.operator):
        return (
            "a collective makes its operand contiguous: communicate a flat buffer (`x.flatten()` of the storage order, "
            "or a bucket that is packed once) and restore the strides behind it with a view"
        )
    if boundary.lost is not None:
        return (
            "allocate results with `torch.empty_like(x)`, which keeps the strides of `x`, in the operator and in its "
            "fake; what follows then stays in channels-last"
        )
    if boundary.forced:
        return (
            "if the kernel takes any strides, register the operator with `tags=(torch.Tag.flexible_layout,)`; if it "
            "does not, run its neighbours in the layout that it needs"
        )
    return (
        "let the kernel take the strides that it is given and drop the copies next to it; or store the operand in the "
        "needed order where it is made"
    )


def _collect_evidence(boundary: _LayoutBoundary, moved: int) -> Iterator[Evidence]:
    op = boundary.op
    constraint = find_layout_constraint(op)
    if constraint is not None:
        said = "by default: its registration has no layout tag" if has_default_constraint(op) else "by its registration"
        yield Evidence(f"{op.operator} is called with {constraint}, {said}", "torch's operator registry")
    if boundary.copied:
        largest = max(boundary.copied, key=lambda value: value.bytes)
        what = f"{format_value(largest)} and others" if len(boundary.copied) > 1 else format_value(largest)
        text = f"{'copies' if len(boundary.copied) > 1 else 'a copy'} of {what}, {format_bytes(moved)} per step"
        yield Evidence(text, "strides of the captured graph")
    if boundary.copies:
        yield Evidence("FRX002 also counts the explicit copies in the program", "predicted copies")
    if boundary.lost is not None:
        text = f"its operand is {format_value(boundary.lost)}, its result plain"
        yield Evidence(text, "strides of the captured graph")


DETECTOR = Detector(RULE, "opaque_boundary", detect)
