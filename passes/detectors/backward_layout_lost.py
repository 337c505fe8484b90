"""Finds channels-last convolutions and normalisations whose gradient arrives in another layout.

Why it is slow: the backward of a channels-last convolution wants its gradient channels-last, too. A gradient that comes
out of a flatten, a global pooling or another graph is plain or expanded, and every backward operator that reads it
converts it inside, or runs over it with large strides.

Fix: convert the gradient once, where it loses the layout: a hook on the tensor of the forward whose gradient it is,
`y.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))`.

Safety: values are the same. The hook runs in the backward only.

Assumes: a convolution's backward converts a gradient that does not have the layout of its saved input (a copy that was
predicted or measured for it is preferred); a normalisation's does only where such a copy is known. Where one
convolution alone reads the gradient, converting it outside costs what converting it inside costs: no saving is sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from frx_graph.capture.call_site import CallSite, common_module_path
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import Layout, channels_last_name
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import by_place, module_paths
from frx_graph.passes.copies.copy_findings import value_text
from frx_graph.passes.copies.view_chain import file_and_line
from frx_graph.passes.layouts.inductor_layout import forced_channels_last
from frx_graph.passes.layouts.operator_layout import has_memory_order, layout_operands, layout_operator, memory_order
from frx_graph.passes.severity import predicted_saving, severity_of
from frx_graph.records import Copy, Effort, Evidence, Finding, OperandRole, Refusal, Risk
from frx_graph.rules.layout_operator import layout_operators
from frx_graph.support.plain_text import bytes_text

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
class _Loss:
    """`reader` got the gradient `gradient` in another layout than its saved input; `origin` made it so, None where the
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
        """Traffic per step of the conversion inside the reader; 0 where none is known and none is sure."""
        if self.copies:
            return sum(copy.bytes for copy in self.copies)
        return 2 * self.calls * self.gradient.bytes if self.reader.operator == _CONVOLUTION else 0


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line whose backward lost the layout."""
    if forced_channels_last(analysis.facts, Phase.BACKWARD, analysis.inner):
        return
    for group in by_place(_losses(analysis), _site):
        if sum(loss.bytes for loss in group):
            yield _finding(analysis, group)


def _losses(analysis: Analysis) -> Iterable[_Loss]:
    facts = analysis.facts
    copies: dict[tuple[str, str], list[Copy]] = {}
    for copy in analysis.copies:
        if copy.phase is Phase.BACKWARD and copy.role is OperandRole.INPUT:
            copies.setdefault((copy.node, copy.value), []).append(copy)
    for op in facts.ops:
        if op.phase is not Phase.BACKWARD or op.operator not in _READERS:
            continue
        gradient, saved = _operand(op, 0, facts), _operand(op, 1, facts)
        if gradient is None or saved is None or not _lost(gradient):
            continue
        if memory_order(saved) is not Layout.CHANNELS_LAST:
            continue
        origin, first = _origin(gradient, facts)
        if origin is None or not _keeps_channels_last(origin, facts, analysis.inner):
            known = tuple(copies.get((op.node, gradient.name), ()))
            yield _Loss(op, gradient, origin, first, known, facts.calls)


def _operand(op: OpFacts, position: int, facts: GraphFacts) -> ValueFacts | None:
    argument = op.args[position]
    return facts.values.get(argument.name) if isinstance(argument, ValueRef) else None


def _lost(value: ValueFacts) -> bool:
    return has_memory_order(value) and memory_order(value) is not Layout.CHANNELS_LAST


def _origin(gradient: ValueFacts, facts: GraphFacts) -> tuple[OpFacts | None, ValueFacts]:
    """Return the first operator of the backward, and its result, from which on the gradient was not channels-last."""
    value = gradient
    while True:
        producer = facts.producer(value.name)
        if producer is None or producer.phase is not Phase.BACKWARD:
            return None, value
        before = [facts.values[name] for name in layout_operands(producer, layout_operator(producer))]
        earlier = [v for v in before if len(v.shape) == len(value.shape) and _lost(v) and _in_backward(v, facts)]
        if not earlier:
            made_here = any(_in_backward(v, facts) for v in before)
            return (producer if made_here else None), value
        value = earlier[0]


def _keeps_channels_last(op: OpFacts, facts: GraphFacts, inner: str) -> bool:
    """Return True for operators that were measured to keep channels-last and read nothing else, even if their meta
    kernel differs (that of `reflection_pad2d_backward` returns plain)."""
    row = layout_operator(op)
    operands = [facts.values[name] for name in layout_operands(op, row)]
    kept = row.operator in layout_operators() and bool(operands) and row.joins(operands[0].device.type, inner)
    return kept and all(memory_order(value) is Layout.CHANNELS_LAST for value in operands)


def _in_backward(value: ValueFacts, facts: GraphFacts) -> bool:
    producer = facts.producer(value.name)
    return producer is not None and producer.phase is Phase.BACKWARD


def _site(loss: _Loss) -> CallSite:
    """Return the forward line whose backward lost the layout, or the reader's own if the gradient came from outside."""
    return loss.reader.site if loss.origin is None else loss.origin.site


def _finding(analysis: Analysis, losses: Sequence[_Loss]) -> Finding:
    facts = analysis.facts
    moved = sum(loss.bytes for loss in losses)
    at_origin = facts.calls * sum(2 * v.bytes for v in {loss.first.name: loss.first for loss in losses}.values())
    sure = max(0, moved - at_origin)
    modules = module_paths([loss.reader for loss in losses])
    largest = max(losses, key=lambda loss: loss.gradient.bytes)
    memory_format = channels_last_name(len(largest.gradient.shape))
    site = _site(losses[0])
    where = _where(losses[0]) if at_origin <= moved else f"on the output y of `{common_module_path(modules)}`"
    return Finding(
        rule=RULE,
        title=f"{_readers(losses)} channels-last in the forward, but the gradient is {largest.gradient.layout}",
        severity=severity_of(sure, analysis.step_bytes),
        site=replace(site, module_path=site.module_path or common_module_path(modules)),
        nodes=tuple(loss.reader.node for loss in losses),
        count_per_step=facts.calls * len(losses),
        bytes_per_step=moved,
        saving=predicted_saving(sure, moved, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=f"{where}, convert its gradient: `y.register_hook(lambda g: g.contiguous(memory_format={memory_format}))`",
        confidence=confidence.INFERRED if all(loss.copies for loss in losses) else confidence.MODELLED,
        evidence=(
            Evidence(f"{_cause(losses[0])}; the gradient is then {value_text(largest.gradient)}", "graph facts"),
            Evidence(_price(len(losses), moved, at_origin), "graph facts"),
            Evidence("FRX001 claims the copies that these operators are predicted to make inside", "predicted copies"),
        ),
        modules=modules,
    )


def _price(readers: int, moved: int, at_origin: int) -> str:
    where = "1 backward operator" if readers == 1 else f"{readers} backward operators"
    inside = f"converting it inside {where} moves {bytes_text(moved)}"
    if at_origin < moved:
        return f"{inside}, converting it once where it is lost {bytes_text(at_origin)}"
    return f"{inside}; a conversion outside moves as much, and spares only the operators between large strides"


def _readers(losses: Sequence[_Loss]) -> str:
    convolutions = sum(1 for loss in losses if loss.reader.operator == _CONVOLUTION)
    norms = len(losses) - convolutions
    parts = []
    if convolutions:
        parts.append("1 convolution" if convolutions == 1 else f"{convolutions} convolutions")
    if norms:
        parts.append("1 normalisation" if norms == 1 else f"{norms} normalisations")
    return f"{' and '.join(parts)} {'run' if len(losses) > 1 else 'runs'}"


def _cause(loss: _Loss) -> str:
    if loss.origin is None:
        return "the gradient comes into the graph that way"
    made = loss.origin.operator.removeprefix("aten.")
    return f"the layout is lost in the backward of {file_and_line(loss.origin.site)}, at `{made}`"


def _where(loss: _Loss) -> str:
    if loss.origin is None:
        return "on the tensor y that the graph returns"
    return f"on the tensor y that {file_and_line(loss.origin.site)} reads"


DETECTOR = Detector(RULE, "backward_layout_lost", detect)
