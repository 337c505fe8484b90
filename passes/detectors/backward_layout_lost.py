"""Finds channels-last convolutions and normalisations whose gradient arrives in another layout.

Assumes: a convolution's backward converts a gradient whose layout differs from the saved input's; a predicted or
measured copy takes precedence. A normalisation's backward converts only if such a copy is known. If one convolution
alone reads the gradient, converting it outside costs as much as inside, so no saving is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import group_by_place, list_module_paths
from frx_graph.passes.copies.copy_findings import format_value
from frx_graph.passes.copies.view_chain import format_location
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.layouts.operator_layout import (
    classify_memory_order,
    find_layout_operator,
    has_memory_order,
    list_layout_operands,
)
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Copy, Effort, Evidence, Finding, OperandRole, Refusal, Risk
from frx_graph.rules.layout_operator import load_layout_operators
from frx_graph.support.plain_text import format_bytes

RULE = "FRX008"
_CONVOLUTION = "aten.convolution_backward"
_READERS = frozenset(
    {
        _CONVOLUTION,
        "aten.native_batch_norm_backward",
        "aten.cudnn_batch_norm_backward",
        "aten.miopen_batch_norm_backward",
        "aten.batch_norm_backward",
        "aten.native_group_norm_backward",
    }
)
"""Operators whose first operand is the gradient of their output and whose second is their saved input."""


@dataclass(frozen=True, slots=True)
class LostLayout:
    """`reader` got the gradient `gradient` in another layout than its saved input; `origin` made it so, or None if the
    gradient came from outside the graph. `first` is the value that `origin` made; `copies` are known ones of it, and
    `calls` the graph's calls per step."""

    reader: OpFacts
    gradient: ValueFacts
    origin: OpFacts | None
    first: ValueFacts
    copies: tuple[Copy, ...]
    calls: int

    @property
    def bytes(self) -> int:
        """Traffic per step of the conversion inside the reader; 0 if none is known or certain."""
        if self.copies:
            return sum(copy.bytes for copy in self.copies)
        return 2 * self.calls * self.gradient.bytes if self.reader.operator == _CONVOLUTION else 0


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line whose backward lost the layout."""
    if is_channels_last_forced(analysis.facts, Phase.BACKWARD, analysis.inner):
        return
    for group in group_by_place(find_lost_layouts(analysis), _get_site):
        if sum(loss.bytes for loss in group):
            yield _build_finding(analysis, group)


def find_lost_layouts(analysis: Analysis) -> Iterable[LostLayout]:
    """Yield each operator of the backward whose gradient is not channels-last, as its forward is."""
    facts = analysis.facts
    for op in facts.ops:
        if op.phase is not Phase.BACKWARD or op.operator not in _READERS:
            continue
        gradient, saved = facts.get_operand(op, 0), facts.get_operand(op, 1)
        if gradient is None or saved is None or not _has_lost_layout(gradient):
            continue
        if classify_memory_order(saved) is not Layout.CHANNELS_LAST:
            continue
        origin, first = _find_origin(gradient, facts)
        if origin is None or not _is_layout_preserving(origin, facts, analysis.inner):
            made = analysis.copies_by_node.get(op.node, ())
            known = tuple(c for c in made if (c.value, c.role) == (gradient.name, OperandRole.INPUT))
            yield LostLayout(op, gradient, origin, first, known, facts.calls)


def _has_lost_layout(value: ValueFacts) -> bool:
    return has_memory_order(value) and classify_memory_order(value) is not Layout.CHANNELS_LAST


def _find_origin(gradient: ValueFacts, facts: GraphFacts) -> tuple[OpFacts | None, ValueFacts]:
    """Return the first operator of the backward, and its result, from which on the gradient was not channels-last."""
    value = gradient
    while True:
        producer = facts.get_producer(value.name)
        if producer is None or producer.phase is not Phase.BACKWARD:
            return None, value
        before = [facts.values[name] for name in list_layout_operands(producer, find_layout_operator(producer))]
        earlier = [
            v for v in before if len(v.shape) == len(value.shape) and _has_lost_layout(v) and _is_in_backward(v, facts)
        ]
        if not earlier:
            made_here = any(_is_in_backward(v, facts) for v in before)
            return (producer if made_here else None), value
        value = earlier[0]


def _is_layout_preserving(op: OpFacts, facts: GraphFacts, inner: str) -> bool:
    """Return True if measured to keep channels-last, even if the meta kernel differs (`reflection_pad2d_backward`)."""
    row = find_layout_operator(op)
    operands = [facts.values[name] for name in list_layout_operands(op, row)]
    if not operands or row.operator not in load_layout_operators():
        return False
    kept = row.is_region_member(operands[0].device.type, inner)
    return kept and all(classify_memory_order(value) is Layout.CHANNELS_LAST for value in operands)


def _is_in_backward(value: ValueFacts, facts: GraphFacts) -> bool:
    producer = facts.get_producer(value.name)
    return producer is not None and producer.phase is Phase.BACKWARD


def _get_site(loss: LostLayout) -> CallSite:
    """Return the forward line whose backward lost the layout, or the reader's own if the gradient came from outside."""
    return loss.reader.site if loss.origin is None else loss.origin.site


def _build_finding(analysis: Analysis, losses: Sequence[LostLayout]) -> Finding:
    facts = analysis.facts
    moved = sum(loss.bytes for loss in losses)
    at_origin = facts.calls * sum(2 * v.bytes for v in {loss.first.name: loss.first for loss in losses}.values())
    sure = max(0, moved - at_origin)
    modules = list_module_paths([loss.reader for loss in losses])
    largest = max(losses, key=lambda loss: loss.gradient.bytes)
    memory_format = name_channels_last(len(largest.gradient.shape))
    site = _get_site(losses[0])
    where = _describe_place(losses[0]) if at_origin <= moved else f"on the output y of `{merge_module_paths(modules)}`"
    return Finding(
        rule=RULE,
        title=f"{_describe_readers(losses)} channels-last in the forward, "
        f"but the gradient is {largest.gradient.layout}",
        severity=grade_bytes(sure, analysis.step_bytes),
        site=replace(site, module_path=site.module_path or merge_module_paths(modules)),
        nodes=tuple(loss.reader.node for loss in losses),
        count_per_step=facts.calls * len(losses),
        bytes_per_step=moved,
        saving=predict_saving(sure, moved, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=f"{where}, convert its gradient: `y.register_hook(lambda g: g.contiguous(memory_format={memory_format}))`",
        confidence=confidence.INFERRED if all(loss.copies for loss in losses) else confidence.MODELLED,
        evidence=(
            Evidence(
                f"{_describe_cause(losses[0])}; the gradient is then {format_value(largest.gradient)}", "graph facts"
            ),
            Evidence(_describe_cost(len(losses), moved, at_origin), "graph facts"),
            Evidence("FRX001 claims the copies that these operators are predicted to make inside", "predicted copies"),
        ),
        modules=modules,
    )


def _describe_cost(readers: int, moved: int, at_origin: int) -> str:
    where = "1 backward operator" if readers == 1 else f"{readers} backward operators"
    inside = f"converting it inside {where} moves {format_bytes(moved)}"
    if at_origin < moved:
        return f"{inside}, converting it once where it is lost {format_bytes(at_origin)}"
    return f"{inside}; a conversion outside moves as much, and spares only the operators between large strides"


def _describe_readers(losses: Sequence[LostLayout]) -> str:
    convolutions = sum(loss.reader.operator == _CONVOLUTION for loss in losses)
    counts = {"convolution": convolutions, "normalisation": len(losses) - convolutions}
    parts = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return f"{' and '.join(parts)} {'run' if len(losses) > 1 else 'runs'}"


def _describe_cause(loss: LostLayout) -> str:
    if loss.origin is None:
        return "the gradient comes into the graph that way"
    made = loss.origin.operator.removeprefix("aten.")
    return f"the layout is lost in the backward of {format_location(loss.origin.site)}, at `{made}`"


def _describe_place(loss: LostLayout) -> str:
    if loss.origin is None:
        return "on the tensor y that the graph returns"
    return f"on the tensor y that {format_location(loss.origin.site)} reads"


DETECTOR = Detector(RULE, "backward_layout_lost", detect)
